"""Flows: how long the tick takes over a thousand of them, and how often `failure_rate` sees a rise
where nothing has changed.

`python -m bench.flows [--flows 1000] [--worlds 4000]` in a checkout whose Flywheel is not running;
the flows are rolled back.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from datetime import UTC, datetime

LOOKS = 30  # days


def false_alarms(
    worlds: int, runs: int, share: float, days: int, level: float, seed: int = 12
) -> float:
    """The share of flows that see a rise in at least one of `LOOKS` daily looks while every day's
    failures are binomial.
    """
    from apps.failures.changes import Change
    from apps.failures.rates import Rate

    drawn, now, found = random.Random(seed), datetime.now(UTC), 0
    for _ in range(worlds):
        failed = [
            (
                drawn.binomialvariate(runs, share)
                if hasattr(drawn, "binomialvariate")
                else _binomial(drawn, runs, share)
            )
            for _ in range(2 * days + LOOKS)
        ]
        for end in range(2 * days, 2 * days + LOOKS):
            before, after = (
                Rate("", sum(failed[at - days : at]), runs * days) for at in (end - days, end)
            )
            if Change(now, "rate", "", before, after).interval_at(level)[0] > 0:
                found += 1
                break
    return found / worlds


def _binomial(drawn: random.Random, n: int, share: float) -> int:
    return sum(drawn.random() < share for _ in range(n))


def tick_seconds(count: int) -> dict[str, tuple[float, float]]:
    """(wall, CPU of this process) of one tick over flows none of which is due by its clock and all
    of which are looked at.
    """
    from django.contrib.auth import get_user_model
    from django.db import transaction
    from django.utils import timezone

    from apps.automation import actions
    from apps.automation.models import Flow, FlowVersion
    from apps.core.actions import create_project

    found = {}
    with transaction.atomic():
        user = get_user_model().objects.create_user("bench-flows")
        starts = [
            {"by": "cron", "when": "0 3 1 1 *"},
            {"by": "new_failures", "at_least": 10},
            {"by": "failure_rate"},
            {"by": "new_version"},
        ]
        for name, projects in (
            ("in one project", 1),
            (f"in {count // 10:,} projects", count // 10),
        ):
            homes = [
                create_project(slug=f"bench-{projects}-{n}", name=f"bench {name} {n}", by=user)
                for n in range(projects)
            ]
            flows = Flow.objects.bulk_create(
                Flow(
                    project=homes[n % projects],
                    name=f"{name} {n}",
                    looked_at=timezone.now() - 2 * actions.starts.EVERY,
                )
                for n in range(count)
            )
            FlowVersion.objects.bulk_create(
                FlowVersion(
                    flow=flow,
                    number=1,
                    spec={"steps": [{"do": "classify"}], "starts": starts},
                    created_by=user,
                )
                for flow in flows
            )
            began, cpu = time.perf_counter(), time.process_time()
            assert actions.tick() == {"clock": 0, "seen": 0}
            found[name] = time.perf_counter() - began, time.process_time() - cpu
        transaction.set_rollback(True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flows", type=int, default=1000)
    parser.add_argument("--worlds", type=int, default=4000)
    given = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "flywheel.settings")
    import django

    django.setup()
    from apps.automation.starts import LOOK_LEVEL

    for name, (wall, cpu) in tick_seconds(given.flows).items():
        print(
            f"one tick over {given.flows:,} flows {name}: {wall:.2f} s, of it {cpu:.2f} s CPU in"
            " this process"
        )
    for level in (0.95, LOOK_LEVEL):
        for days in (1, 7):
            for runs, share in ((20, 0.3), (200, 0.1)):
                rate = false_alarms(given.worlds, runs, share, days, level)
                print(
                    f"level {level:.2%}, {days} days, {runs} runs a day, {share:.0%} fail:"
                    f" {rate:.1%} see a rise in {LOOKS} days"
                )


if __name__ == "__main__":
    main()
