"""``python -m benchmarks.paper``: every number of MoFa that decides something, and of other literature, beside ours."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks.paper.checks import Basis, Check, all_checks
from benchmarks.paper.gains import first_place_check, gain_checks, settings, where_the_others_land
from benchmarks.paper.literature import literature_checks


def main(words: Sequence[str] = ()) -> int:
    """Print all checks, with ``--studies`` the gains by ``planner study``; 0 if they hold, 1 if not."""
    searched = list(settings())
    checks = [*all_checks(), *literature_checks(), first_place_check(searched)]
    checks += gain_checks() if STUDIES in words else ()
    print(f"{'MoFa (arXiv 2511.09837)':<66} {'rows':>5} {'hold':>5}   worst row: printed, reached (error)")
    for basis in Basis:
        print(f"\n{basis}")
        for check in checks:
            if check.basis == basis:
                print(_line(check))
    failed = [check for check in checks if not check.holds]
    for check in failed:
        print(f"\n{check.name}: rows that do not hold")
        for one in check.comparisons:
            if not one.holds:
                print(f"  {one.label}: printed {one.printed:g}, reached {one.reached:.6g} (allowed {one.tolerance:g})")
    print("\n4.1: strategies that the search finds, each with other degrees, and where the paper's four land")
    for line in where_the_others_land(searched):
        print(line)
    print()
    for basis in Basis:
        comparisons = [one for check in checks if check.basis == basis for one in check.comparisons]
        print(f"{sum(one.holds for one in comparisons):>4} of {len(comparisons):>3} numbers hold: {basis}")
    counted = [one for check in checks if check.basis != Basis.PRINTED for one in check.comparisons]
    held = sum(one.holds for one in counted)
    print(f"{held} of {len(counted)} computed numbers hold, {len(checks) - len(failed)} of {len(checks)} checks.")
    return 1 if failed else 0


STUDIES = "--studies"
"""Option for the gains, which take two minutes."""


def _line(check: Check) -> str:
    worst = check.worst
    held = sum(one.holds for one in check.comparisons)
    numbers = (
        f"{worst.printed:.10g}, {worst.reached:.10g} ({worst.error:.2g} {check.unit}, allowed {worst.tolerance:.2g})"
    )
    return f"{check.name:<66} {len(check.comparisons):>5} {held:>5}   {worst.label}: {numbers}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
