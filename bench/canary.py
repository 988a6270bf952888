"""What canaries cost users, and how often an equal candidate is ended, by simulation: `python -m
bench.canary [--runs 1000]`.

With the product's own rules (`apps.promotion.trials.harm`, which decides as `deciding` does),
before and after: before, the centre of the first step was 0.5 unless a week of runs was known, a
step was left whatever the estimate was, and harm had no limit. With `--delay 600`, each outcome is
known 600 sessions of the channel later (ten hours at one per minute), with and without the pause of
intake.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace

from apps.promotion.trials.harm import Course, Harm, simulate
from apps.promotion.trials.plans import Plan

PLANS = {"5/25/50": (0.05, 0.25, 0.5), "10/50/90": (0.1, 0.5, 0.9)}
RATES = ((0.1, 0.4), (0.1, 0.2), (0.1, 0.15), (0.02, 0.07), (0.1, 0.1), (0.3, 0.3), (0.02, 0.02))
HEADER = (
    "| rules | steps | failures | ended in the first step | ended | passed | sessions | harmed | 19"
    " of 20 at most |\n|---|---|---|---|---|---|---|---|---|"
)


def courses(shares: tuple[float, ...], limit: float, delay: float) -> dict[str, Course]:
    steps, usual = [{"share": share, "min_sessions": 100} for share in shares], Plan()
    given = {"steps": steps, "alpha": usual.alpha, "margin": usual.margin}
    if delay:
        late = Course(**given, max_harmed=limit, delay=delay)  # type: ignore[arg-type]
        return {
            f"{delay:,.0f} late, no pause": replace(late, pauses=False),
            f"{delay:,.0f} late, pauses": late,
            "early": replace(late, delay=0.0),
        }
    return {
        "before, centre 0.5": Course(**given, max_harmed=math.inf, centre=0.5, holds=False),  # type: ignore[arg-type]
        "now, no limit": Course(**given, max_harmed=math.inf),  # type: ignore[arg-type]
        f"now, {limit:.0f} harmed at most": Course(**given, max_harmed=limit),  # type: ignore[arg-type]
    }


def row(name: str, shares: str, rates: tuple[float, float], harm: Harm) -> str:
    return (
        f"| {name} | {shares} | {rates[0]:.0%} → {rates[1]:.0%} | {harm.in_first_step:.1%} |"
        f" {harm.ended:.1%} | {harm.passed:.1%} | {harm.sessions:,.0f} | {harm.harmed:,.0f} |"
        f" {harm.at_most:,.0f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=Plan().max_harmed)
    parser.add_argument("--delay", type=float, default=0.0)
    asked = parser.parse_args()
    print(HEADER, flush=True)
    for shares, values in PLANS.items():
        for rates in RATES:
            for name, course in courses(values, asked.limit, asked.delay).items():
                print(
                    row(name, shares, rates, simulate(course, *rates, asked.runs, asked.seed)),
                    flush=True,
                )


if __name__ == "__main__":
    main()
