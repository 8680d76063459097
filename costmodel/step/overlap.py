"""
What communication still costs when it runs beside computation: MoFa (20)-(24), (34), (35).

All have one pattern. The two run together for as long as the longer of them takes, each slowed down by the other
(``slowdown_communication`` c and ``slowdown_compute`` k, both at least 1; ``processors_taken`` phi). What exceeds the
computation is exposed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from costmodel.operators.work import Numbers


def exposed_overlapped_seconds(
    communication_seconds: Numbers,
    compute_seconds: Numbers,
    *,
    slowdown_communication: Numbers,
    slowdown_compute: float,
    processors_taken: Numbers = 0.0,
) -> Numbers:
    r"""
    Seconds beyond the computation when one communication runs beside it.

    .. math:: T_{exp} = \max(c T_{comm}, k T_{comp}, T_{comp} + \varphi c T_{comm}) - T_{comp}

    Nothing is exposed where there is no communication. The third term: while the communication runs, the computation
    has only 1 - phi of the processors, so that it loses phi of that time. Where the computation ends first, that is
    less than the first term.

    Parameters
    ----------
    communication_seconds, compute_seconds
        Each of them alone.
    slowdown_communication, slowdown_compute
        c and k, both at least 1.
    processors_taken
        phi, the share of the device's processors on which a collective runs.

    References
    ----------
    MoFa, arXiv:2511.09837, equations (22), (23), (34), (35).

    >>> float(exposed_overlapped_seconds(3.0, 2.0, slowdown_communication=1.0, slowdown_compute=1.0))
    1.0
    """
    communicating = slowdown_communication * communication_seconds
    exposed: Numbers = np.maximum(communicating - compute_seconds, processors_taken * communicating)
    if slowdown_compute > 1:
        slowed = np.maximum(exposed, (slowdown_compute - 1) * compute_seconds)
        exposed = np.where(np.asarray(communication_seconds) > 0, slowed, 0.0)
    return np.asarray(exposed, dtype=np.float64)


def exposed_tp_seconds(
    communication_seconds: Numbers,
    compute_seconds: Numbers,
    *,
    splits: int,
    slowdown_communication: Numbers,
    slowdown_compute: float,
    processors_taken: Numbers = 0.0,
) -> Numbers:
    r"""
    Seconds of exposed tensor-parallel communication in n pieces, pipelined with its matmul.

    .. math:: T_{exp} = T/n + (n-1) \max(c T/n, k C/n) - (n-1) C/n

    With the communication hidden and k = 1, the first piece remains: T/n.

    References
    ----------
    MoFa, arXiv:2511.09837, equation (20).

    >>> float(exposed_tp_seconds(4.0, 40.0, splits=4, slowdown_communication=1.0, slowdown_compute=1.0))
    1.0
    """
    piece = exposed_overlapped_seconds(
        communication_seconds / splits,
        compute_seconds / splits,
        slowdown_communication=slowdown_communication,
        slowdown_compute=slowdown_compute,
        processors_taken=processors_taken,
    )
    return communication_seconds / splits + (splits - 1) * piece


def exposed_cp_seconds(
    communication_seconds: Numbers,
    attention_seconds: Numbers,
    *,
    cp: Numbers,
    slowdown_communication: Numbers,
    slowdown_compute: float,
    processors_taken: Numbers = 0.0,
) -> Numbers:
    r"""
    Seconds of exposed context-parallel communication of ring attention.

    .. math:: T_{exp} = \sum_{i=1}^{c-1} \left[\max(k A_i, c' R_{i+1}) - A_i\right]

    There are c pieces of attention, and c - 1 sends behind the first ones.

    Parameters
    ----------
    communication_seconds
        The whole ring pass, c - 1 sends.
    attention_seconds
        All c pieces of attention.
    cp
        Context-parallel degree c.

    References
    ----------
    MoFa, arXiv:2511.09837, equation (21).
    """
    sends: Numbers = np.maximum(cp - 1, 1.0)
    return sends * exposed_overlapped_seconds(
        communication_seconds / sends,
        attention_seconds / cp,
        slowdown_communication=slowdown_communication,
        slowdown_compute=slowdown_compute,
        processors_taken=processors_taken,
    )


def exposed_dp_seconds(
    communication_seconds: Numbers,
    window_seconds: Numbers,
    *,
    num_pieces: Numbers,
    slowdown_communication: Numbers,
    slowdown_compute: float,
    processors_taken: Numbers = 0.0,
    busy_seconds: Numbers = 0.0,
    idle_seconds: Numbers = 0.0,
) -> Numbers:
    r"""
    Seconds of exposed data-parallel communication in n equal pieces: the first alone, the others hidden.

    .. math:: T_{exp} = T_1 + \sum_{i=2}^{n} \left[\max(c T_i, k W_i) - W_i\right]

    Where the links are busy with other communication behind the same computation, counted elsewhere, both add up: what
    is exposed beyond what the other exposes alone.

    Parameters
    ----------
    communication_seconds
        Reduce-scatter of the gradients, or all-gather of the parameters, alone.
    window_seconds
        Computation behind which the later pieces run: the backward of the chunks that follow in the cool-down, the
        forward of the chunks that precede in the warm-up.
    num_pieces
        Pieces n (chunks of a rank, or buckets).
    busy_seconds
        Other communication on the same links within the window.
    idle_seconds
        Waiting of the device beside the window, counted elsewhere: what is exposed otherwise runs meanwhile.

    References
    ----------
    MoFa, arXiv:2511.09837, equation (24), once for the reduce-scatter and once for the all-gather.
    """
    pieces = np.maximum(num_pieces, 1)
    first = communication_seconds / pieces
    slowdowns: dict[str, Any] = {
        "slowdown_communication": slowdown_communication,
        "slowdown_compute": slowdown_compute,
        "processors_taken": processors_taken,
    }
    together = exposed_overlapped_seconds(communication_seconds - first + busy_seconds, window_seconds, **slowdowns)
    exposed = together - exposed_overlapped_seconds(busy_seconds, window_seconds, **slowdowns)
    return first + np.maximum(exposed - idle_seconds, np.minimum(exposed, 0.0))


def exposed_dp_seconds_measured(
    communication_seconds: Numbers,
    stage_seconds: Numbers,
    *,
    pp: Numbers,
    unhidden: float,
    slowdown: float,
    window: float,
) -> Numbers:
    r"""
    Seconds of exposed data-parallel communication by a law measured on one cluster.

    .. math:: T_{exp} = u T + \max(0, c T - w p A)

    It is the rival of :func:`exposed_dp_seconds`.

    Parameters
    ----------
    communication_seconds
        Reduce-scatter and all-gather alone, T.
    stage_seconds
        One micro-batch on one rank, forward and backward, A.
    unhidden, slowdown, window
        u, c, w of the device.

    References
    ----------
    The seven data-parallel times that MoFa prints (Tables 6 and 9) follow it to 0.01 s.
    """
    remaining = np.maximum(0.0, slowdown * communication_seconds - window * pp * stage_seconds)
    return unhidden * communication_seconds + remaining
