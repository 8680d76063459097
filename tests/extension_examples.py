"""Extensions of many files: a layer kind that is two linears, and a decision that halves the bytes of gradients."""

from __future__ import annotations

from tests.builders_extension import Extended


def a_layer_kind(copy: Extended) -> None:
    """Two linears of some width in the place of attention."""
    copy.write(
        "costmodel/lowering/mixing.py",
        "from costmodel.lowering.collectives import tensor_parallel_collectives\n"
        "from costmodel.lowering.experts import feed_forward_operators\n\n\n"
        "def mixing_operators(mixing, shape):\n"
        "    return feed_forward_operators(\n"
        "        shape, ffn_hidden_size=mixing.width, gated=False, bias=False, squared_relu=False,\n"
        '        saved_input=shape.tokens * shape.hidden_size / shape.sequence_shards, prefix="mixing_")\n\n\n'
        "def mixing_communications(mixing, shape):\n"
        "    return tensor_parallel_collectives(shape)\n",
    )
    copy.edit(
        "costmodel/facts/model.py",
        (
            "Mixer: TypeAlias = (\n    Attention",
            "@strict_record(frozen=True, kw_only=True, slots=True)\n"
            'class Mixing:\n    """Two linears."""\n\n    width: Count\n\n\n'
            "Mixer: TypeAlias = (\n    Mixing | Attention",
        ),
    )
    copy.add(
        "costmodel/lowering/layer.py",
        (
            "    ShortConvolution,\n)\n",
            "from costmodel.facts.model import Mixing\n"
            "from costmodel.lowering.mixing import mixing_communications, mixing_operators\n",
        ),
        ("    Mlp: mlp_operators,\n", "    Mixing: mixing_operators,\n"),
        ("    Mlp: mlp_communications,\n", "    Mixing: mixing_communications,\n"),
        ('    Mlp: "mlp",\n', '    Mixing: "attn",\n'),
    )


def its_width(copy: Extended) -> None:
    """Tensor-parallel ranks share it evenly."""
    copy.edit(
        "constraints/rules/physics.py",
        ("    Mamba,\n", "    Mamba,\n    Mixing,\n"),
        (
            "def state_groups_split_over_tp(",
            "def mixing_widths_split_over_tp(model: Model, *, tp: Ints) -> Holds:\n"
            '    """Each tensor-parallel rank owns an equal part of every mixing block."""\n'
            "    blocks = [kind.attention for kind in model.kinds if isinstance(kind.attention, Mixing)]\n"
            "    return gcd(*(block.width for block in blocks)) % tp == 0\n\n\n"
            "def state_groups_split_over_tp(",
        ),
    )
    copy.add(
        "constraints/__init__.py",
        ("    physics.kv_heads_split_over_tp,\n", "    physics.mixing_widths_split_over_tp,\n"),
    )


def its_letter(copy: Extended) -> None:
    """X in a pattern is one."""
    copy.edit("costmodel/models/patterns.py", ('LETTERS = {"M": "mamba"', 'LETTERS = {"X": "mixing", "M": "mamba"'))
    copy.edit(
        "costmodel/models/description.py",
        ("Mamba, Mlp, Model\n", "Mamba, Mixing, Mlp, Model\n"),
        ("    mtp_layers, mtp_pattern\n", "    mixing_width\n        Width.\n    mtp_layers, mtp_pattern\n"),
        (
            "    mamba_num_heads: Count | None = None\n",
            "    mixing_width: Count | None = None\n    mamba_num_heads: Count | None = None\n",
        ),
        (
            '        "mamba": _mamba,\n',
            '        "mixing": lambda said, where: Mixing(width=said.mixing_width),\n        "mamba": _mamba,\n',
        ),
    )


def a_decision(copy: Extended) -> None:
    """Whether replicas send gradients in half of their bytes."""
    copy.edit(
        "costmodel/strategy.py",
        (
            "    layout\n        Custom pipeline layout;",
            "    half_gradients\n        True for half.\n    layout\n        Custom pipeline layout;",
        ),
        (
            "    layout: StageLayout | None = None\n",
            "    half_gradients: bool\n    layout: StageLayout | None = None\n",
        ),
        ('"optimizer_offload", *OVERLAPS)', '"optimizer_offload", "half_gradients", *OVERLAPS)'),
    )
    copy.edit(
        "costmodel/step/data_parallel.py",
        (
            "        reduce=reduce.times(gradients.rounds),\n",
            '        reduce=reduce.times(gradients.rounds / (1 + add_layer_axis(decisions["half_gradients"]))),\n',
        ),
    )


def its_rules(copy: Extended) -> None:
    """Where there is something to do, and where the release does it."""
    copy.add(
        "constraints/rules/physics.py",
        (
            "implies(ep_overlap, ep > 1)\n",
            "\n\ndef half_gradients_need_replicas(*, cp: Ints, dp: Ints, half_gradients: Flags) -> Holds:\n"
            '    """Only replicas halve gradients."""\n    return implies(half_gradients, dp * cp > 1)\n',
        ),
    )
    copy.add(
        "constraints/rules/releases.py",
        (
            'has_values(cluster.framework, "dp_overlap", dp_overlap)\n',
            "\n\ndef release_halves_gradients(cluster: Cluster, *, half_gradients: Flags) -> Holds:\n"
            '    """Gradients are halved only where the release does that."""\n'
            '    return has_values(cluster.framework, "half_gradients", half_gradients)\n',
        ),
    )
    copy.add(
        "constraints/__init__.py",
        ("    physics.ep_overlap_needs_ep,\n", "    physics.half_gradients_need_replicas,\n"),
        ("    releases.release_overlaps_dp,\n", "    releases.release_halves_gradients,\n"),
    )


def its_answers(copy: Extended) -> None:
    """In reports and exports."""
    copy.add(
        "planner/report/records/plan.py",
        (
            "        True if data-parallel communication is overlapped with computation.\n",
            "    half_gradients\n        True if gradients are halved.\n",
        ),
        ("    dp_overlap: bool\n", "    half_gradients: bool\n"),
    )
    copy.edit("planner/frameworks/target.py", (" - OF_OTHERS\n", ' - OF_OTHERS - {"half_gradients"}\n'))


def a_dispatcher(copy: Extended) -> None:
    """The value, a release that has it, and the option for its processors."""
    copy.add("costmodel/strategy.py", ("    HYBRIDEP = 2\n", "    NCCLEP = 3\n"))
    copy.edit(
        "costmodel/catalog/frameworks/megatron-bridge-25.09.yaml", ("deepep, hybridep]", "deepep, hybridep, ncclep]")
    )
    copy.edit(
        "planner/frameworks/megatron/settings.py",
        ('NUM_SMS = {"deepep"', 'NUM_SMS = {"ncclep": "--moe-flex-dispatcher-num-sms", "deepep"'),
    )
    option = "--moe-flex-dispatcher-num-sms,read,"
    copy.edit(
        "planner/frameworks/megatron/meanings.csv", (f"{option}\n", f"{option}model.moe_flex_dispatcher_num_sms\n")
    )


def a_schedule(copy: Extended) -> None:
    """The value, its order, its time and its rule, and a release that has it."""
    copy.add("costmodel/strategy.py", ("    DUALPIPEV = 8\n", "    LAZY = 9\n"))
    copy.add(
        "costmodel/pipelines/orders.py",
        ("    Schedule.GPIPE,\n", "    Schedule.LAZY,\n"),
        (
            "    Schedule.GPIPE: _gpipe,\n",
            "    Schedule.LAZY: lambda r, p, m: _zero_bubble(r, m, warmup=p - r, delay=r),\n",
        ),
    )
    copy.add(
        "costmodel/pipelines/schedules.py",
        ("    Schedule.ZB_H1: zb_h1_bubble_seconds,\n", "    Schedule.LAZY: zb_h1_bubble_seconds,\n"),
        ("            Schedule.ZB_H1: lambda: pp * chunks,\n", "            Schedule.LAZY: lambda: pp * chunks,\n"),
    )
    copy.edit("constraints/rules/physics.py", ("(Schedule.GPIPE, Sch", "(Schedule.LAZY, Schedule.GPIPE, Sch"))
    copy.add("costmodel/catalog/frameworks/zero-bubble-2023.yaml", ("schedule: [", "lazy, "))


def a_rule(copy: Extended, rule: str, table: str, text: str) -> None:
    """A rule of a table that wants at least four tensor-parallel ranks, with its sentence."""
    module, _, name = rule.partition(".")
    copy.add(
        f"constraints/rules/{module}.py",
        (
            "from __future__ import annotations\n",
            "\nfrom constraints.rule import Holds, Ints\n\n\n"
            f'def {name}(*, tp: Ints) -> Holds:\n    """{text}"""\n    return tp >= 4\n\n\n',
        ),
    )
    copy.add("constraints/__init__.py", (f"{table}: tuple[Rule, ...] = (\n", f"    {rule},\n"))
