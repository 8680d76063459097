"""What people and programs write where a number, a name or a path is meant, and it is not one."""

from __future__ import annotations

from copy import deepcopy
from random import Random

CANARY = "CANARY"
"""A file that exists only if an input was executed."""

NUMBER_WORDS = """
0 -1 -0 1 2 3 7 64 1e3k 1,000 1_000 8k 1M 15T 80GiB 80gb 5min 5m 1e400 -1e400 1e-400 nan .nan inf .inf -.inf 0x10 0o17
1:30 1e9 4294967296 1e18 0.1 1.5 3. .5 +4 1e --1 true 1/2 2**70
"""
NUMBERS = (
    *NUMBER_WORDS.split(),
    "8 k",
    "9" * 40,
    "1" * 400,
    "\N{VULGAR FRACTION ONE HALF}",
    "\N{FULLWIDTH DIGIT EIGHT}",
    "\N{ARABIC-INDIC DIGIT ONE}\N{ARABIC-INDIC DIGIT TWO}",
)
"""As numbers, near numbers, and numbers that are too large, too small, or none."""

NAME_WORDS = r"""
null ~ no llama3-8b llama3-70b h100 H100-SXM mi300x bf16 fp8 full all tp none tp=8 optimal h100-80gb-sxm auto model
megatron-lm-0.14 gpt default ' # * & &a \ !!python/object/apply:os.system {{7*7}} %s%n
"""
NAMES = (
    *NAME_WORDS.split(),
    "",
    " ",
    '"',
    "\r\n",
    "a" * 5000,
    "a\x00b",
    "\x1b[31mred",
    "\u202eabc",
    "\N{OHM SIGN}e\N{COMBINING ACUTE ACCENT}\N{COLLISION SYMBOL}",
)
"""As names, and what breaks quoting, terminals and formats."""

COMMANDS = (
    f"$(touch {CANARY})",
    f"`touch {CANARY}`",
    f"; touch {CANARY}",
    f"| touch {CANARY}",
    f"&& touch {CANARY} #",
    f"<(touch {CANARY})",
    f"${{X:=$(touch {CANARY})}}",
    f"__import__('os').system('touch {CANARY}')",
    f"!!python/object/apply:os.system ['touch {CANARY}']",
)
"""What leaves a file behind if anybody runs it."""

PATH_WORDS = """
. / .. /dev/null /dev/zero /dev/full /proc/self/mem loop folder folder/ nowhere.json nowhere/at/all ~ ~nobody
file:///etc/passwd http://127.0.0.1:9/config.json config.json/ ./config.json
"""
PATHS = (*PATH_WORDS.split(), "../" * 60, "a" * 300, "a" * 5000)
"""As files: folders, devices, links that lead back to themselves, names that are too long."""

PLAIN: tuple[object, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2,
    3,
    10**30,
    -(10**30),
    1e308,
    float("nan"),
    float("inf"),
    0.5,
    [],
    {},
    [[]],
    [{}],
    {"a": {}},
    [1, "a"],
)
"""As plain data of the wrong kind."""


def text(random: Random) -> str:
    """A word that may be anything."""
    return random.choice(random.choices((NUMBERS, NAMES, COMMANDS, PATHS), weights=(8, 4, 2, 2))[0])


def plain(random: Random) -> object:
    """A value that may be anything; nobody else has it."""
    return deepcopy(random.choice(PLAIN)) if random.random() < 0.4 else text(random)
