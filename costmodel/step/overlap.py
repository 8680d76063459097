"""
Exposed communication overlapped with computation: one law for everything that a device does at once.

A pass takes the longest of three: its computation with its losses, the load of each of its links, and the work of the
host. Every overlap has this pattern: layers' collectives, transfers between stages, copies to the host, gradients and
weights.
"""

from __future__ import annotations

import numpy as np

from costmodel.facts.device import Slowdowns
from costmodel.timing.work import Numbers


def taken_seconds(copying_seconds: Numbers, slowdowns: Slowdowns) -> Numbers:
    r"""
    Seconds by which communication lengthens a longer computation.

    .. math:: T_{taken} = c K \left(1 - \frac{1 - \varphi}{k}\right)

    Derivation: while bytes are copied, c K seconds, the computation has 1 - phi of the processors and runs k times
    slower. It then does (1 - phi) / k of its work.

    Parameters
    ----------
    copying_seconds
        Seconds in which the device's processors copy the bytes, alone: K.
    slowdowns
        c, k and phi.
    """
    lost = 1 - (1 - slowdowns["processors_taken"]) / slowdowns["slowdown_compute"]
    seconds: Numbers = slowdowns["slowdown_communication"] * copying_seconds * lost
    return seconds


def excess_seconds(
    communication_seconds: Numbers,
    compute_seconds: Numbers,
    slowdowns: Slowdowns,
    *,
    copying_seconds: Numbers,
    adapter_seconds: Numbers,
    scale_up_seconds: Numbers,
) -> Numbers:
    r"""
    Seconds by which links are busy for longer than the computation overlapped with them; negative: for less.

    .. math:: \max(T + L_a, K + L_s) - (1 - b) C, \qquad b = \min(k (1 - 1 / c), 1)

    Derivation: the computation takes k C; in these k C seconds links transfer as much as alone in k C / c. The
    rest of the communication then has the device to itself. If both together took longer than one after the other, b is
    1.

    Parameters
    ----------
    communication_seconds, compute_seconds, copying_seconds, slowdowns
        T, C, K and c, k as in :func:`exposed_overlapped_seconds`.
    adapter_seconds, scale_up_seconds
        Seconds in which others use the network adapter, if this communication does, and the scale-up network: L.
    """
    slowed = min(slowdowns["slowdown_compute"] * (1 - 1 / slowdowns["slowdown_communication"]), 1.0)
    busiest = np.maximum(communication_seconds + adapter_seconds, copying_seconds + scale_up_seconds)
    return busiest - (1 - slowed) * compute_seconds


def exposed_overlapped_seconds(
    communication_seconds: Numbers,
    compute_seconds: Numbers,
    slowdowns: Slowdowns,
    *,
    copying_seconds: Numbers | None = None,
    adapter_seconds: Numbers = 0.0,
    scale_up_seconds: Numbers = 0.0,
    waiting_seconds: Numbers = 0.0,
) -> Numbers:
    r"""
    Exposed seconds of one communication overlapped with a computation, beyond the computation's own waiting.

    .. math:: T_{exp} = \min\left(T, \max(T_{taken}, T_{excess} - W)\right)

    The pass ends after the computation has made up its loss, and after each link has transferred everything, hidden or
    not. It never takes longer than one after the other, which software can also run. Longer computation, longer waiting
    or a slower link never makes the pass shorter.

    Parameters
    ----------
    communication_seconds, compute_seconds
        Seconds of each alone: T, C.
    slowdowns
        c, k and phi, of :func:`taken_seconds` and :func:`excess_seconds`.
    copying_seconds
        Seconds in which processors copy its bytes over the scale-up network: K, at most T; None: T.
    adapter_seconds, scale_up_seconds
        Use of its links by others, as in :func:`excess_seconds`.
    waiting_seconds
        Seconds during the computation in which the device waits for other communication, copies or its host: W.

    References
    ----------
    MoFa, arXiv:2511.09837, equations (22), (23), (34), (35): max(c T, k C) - C, there without others on the links. Both
    slow each other down while both run; the rest then has the device to itself.

    >>> none = Slowdowns(slowdown_communication=1.0, slowdown_compute=1.0, processors_taken=0.0)
    >>> float(exposed_overlapped_seconds(3.0, 2.0, none))
    1.0
    >>> float(exposed_overlapped_seconds(3.0, 2.0, none, adapter_seconds=1.0))
    2.0
    """
    copying = communication_seconds if copying_seconds is None else copying_seconds
    beyond = excess_seconds(
        communication_seconds,
        compute_seconds,
        slowdowns,
        copying_seconds=copying,
        adapter_seconds=adapter_seconds,
        scale_up_seconds=scale_up_seconds,
    )
    exposed = np.maximum(taken_seconds(copying, slowdowns), beyond - waiting_seconds)
    return np.asarray(np.minimum(communication_seconds, exposed), dtype=np.float64)


def exposed_tp_seconds(
    communication_seconds: Numbers,
    compute_seconds: Numbers,
    slowdowns: Slowdowns,
    *,
    splits: int,
    copying_seconds: Numbers | None = None,
) -> Numbers:
    r"""
    Exposed seconds of tensor-parallel communication in n pieces, pipelined with its matmul.

    .. math:: T_{exp} = T/n + (n-1)\, T_{exp}(T/n, C/n)

    With the communication hidden and k = 1, the first piece remains: T/n.

    References
    ----------
    MoFa, arXiv:2511.09837, equation (20).

    >>> none = Slowdowns(slowdown_communication=1.0, slowdown_compute=1.0, processors_taken=0.0)
    >>> float(exposed_tp_seconds(4.0, 40.0, none, splits=4))
    1.0
    """
    copying = communication_seconds if copying_seconds is None else copying_seconds
    piece = exposed_overlapped_seconds(
        communication_seconds / splits, compute_seconds / splits, slowdowns, copying_seconds=copying / splits
    )
    return communication_seconds / splits + (splits - 1) * piece


def exposed_cp_seconds(
    communication_seconds: Numbers,
    attention_seconds: Numbers,
    slowdowns: Slowdowns,
    *,
    cp: Numbers,
    copying_seconds: Numbers | None = None,
) -> Numbers:
    r"""
    Exposed seconds of context-parallel communication of ring attention.

    .. math:: T_{exp} = \sum_{i=1}^{c-1} T_{exp}(R_{i+1}, A_i)

    There are c pieces of attention, and c - 1 sends overlapped with the first ones.

    Parameters
    ----------
    communication_seconds
        The whole ring pass, c - 1 sends.
    attention_seconds
        All c pieces of attention.
    slowdowns, copying_seconds
        As in :func:`exposed_overlapped_seconds`, of the whole ring pass.
    cp
        Context-parallel degree c.

    References
    ----------
    MoFa, arXiv:2511.09837, equation (21).
    """
    sends: Numbers = np.maximum(cp - 1, 1.0)
    copying = communication_seconds if copying_seconds is None else copying_seconds
    return sends * exposed_overlapped_seconds(
        communication_seconds / sends, attention_seconds / cp, slowdowns, copying_seconds=copying / sends
    )


def exposed_dp_seconds(
    communication_seconds: Numbers,
    window_seconds: Numbers,
    slowdowns: Slowdowns,
    *,
    num_pieces: Numbers,
    copying_seconds: Numbers | None = None,
    adapter_seconds: Numbers = 0.0,
    scale_up_seconds: Numbers = 0.0,
    waiting_seconds: Numbers = 0.0,
) -> Numbers:
    r"""
    Exposed seconds of data-parallel communication in n equal pieces: the first alone, the others hidden.

    .. math:: T_{exp} = T / n + T_{exp}\left((n - 1) T / n, W_2 + \ldots + W_n\right)

    Parameters
    ----------
    communication_seconds
        Reduce-scatter of the gradients, or all-gather of the parameters, alone.
    window_seconds
        Computation that hides the later pieces: the backward passes of the chunks that follow in the cool-down, the
        forward passes of the chunks that precede in the warm-up.
    slowdowns, copying_seconds
        As in :func:`exposed_overlapped_seconds`, of all pieces.
    num_pieces
        Pieces n (chunks of a rank, or buckets).
    adapter_seconds, scale_up_seconds
        Use of its links by others within the window.
    waiting_seconds
        Waiting of the device within the window.

    References
    ----------
    MoFa, arXiv:2511.09837, equation (24), once for the reduce-scatter and once for the all-gather.
    """
    first = communication_seconds / np.maximum(num_pieces, 1)
    later = 1 - 1 / np.maximum(num_pieces, 1)
    copying = communication_seconds if copying_seconds is None else copying_seconds
    return first + exposed_overlapped_seconds(
        later * communication_seconds,
        window_seconds,
        slowdowns,
        copying_seconds=later * copying,
        adapter_seconds=adapter_seconds,
        scale_up_seconds=scale_up_seconds,
        waiting_seconds=waiting_seconds,
    )


def measured_law_exposed_dp_seconds(
    communication_seconds: Numbers,
    stage_seconds: Numbers,
    *,
    pp: Numbers,
    unhidden: float,
    slowdown: float,
    window: float,
) -> Numbers:
    r"""
    Exposed seconds of data-parallel communication by a law measured on one cluster.

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
