"""What is counted by indexes and roll-ups alone is what the plain rows say, on random data."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest
from django.db import OperationalError, transaction
from django.db.models import Min, Sum
from django.db.models.functions import TruncDate
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from apps.core import bus
from apps.core.models import Project
from apps.failures import rates, triage_queue
from apps.failures.actions.modes import ensure_modes
from apps.failures.models import DailyRuns, Failure, FailureCluster, FailureState
from apps.failures.pages import clusters
from apps.trajectories import digest
from apps.trajectories.actions import deletions
from apps.trajectories.ids import uuid7
from apps.trajectories.models import Arrival, HourlyCount, Trajectory
from apps.trajectories.rollups import Counts
from tests.amounts import amount
from tests.factories import make_member, make_trajectory
from workers.lib.token_usage import TOKENS

NAMES = ("agent_name", "agent_version", "model")
SEEDS = amount((1,), (1, 2, 3))


def hours_added_up(project: Project) -> set[tuple]:
    rows = HourlyCount.objects.filter(project=project, trajectories__gt=0).order_by()
    days = rows.annotate(day=TruncDate("hour", tzinfo=UTC)).values_list("day", *NAMES)
    return set(days.annotate(n=Sum("trajectories"), at=Min("hour")))


def counted(chance: Random, sign: int = 1) -> Counts:
    found = Counts()
    for _ in range(chance.randint(1, 4)):
        at = datetime(2026, 11, 1, 20, tzinfo=UTC) + timedelta(hours=chance.randrange(9))
        names = {name: chance.choice(("a", "")) for name in (*NAMES, "workload")}
        sums = dict.fromkeys((*TOKENS, "cost_usd", "cost_basis", "latency_ms"))
        found.add(
            uuid7(at),
            {"outcome_status": "", "tool_names": [], "tags": [], **names, **sums},
            sign,
        )
    return found


def arrive(project: Project, counts: Counts) -> None:
    Arrival.objects.create(project=project, counts=counts.as_json())


@pytest.mark.proof
@pytest.mark.parametrize("seed", SEEDS)
def test_the_days_are_the_hours_added_up(project: Project, seed: int) -> None:
    """However hours are written: new, more of them, fewer, below 1 and back, in one digest or in
    many.
    """
    chance, everything = Random(seed), Counts()
    for _ in range(120):
        counts = counted(chance, chance.choice((1, 1, -1)))
        everything.merge(counts.as_json())
        arrive(project, counts)
        if chance.random() < 0.5:
            digest.run()
            assert set(
                DailyRuns.objects.values_list("day", *NAMES, "runs", "first")
            ) == hours_added_up(project)
    digest.run()
    assert DailyRuns.objects.exists()
    opposite = Counts()
    opposite.hours.update(
        {key: [-value for value in sums] for key, sums in everything.hours.items()}
    )
    arrive(project, opposite)
    digest.run()
    assert not DailyRuns.objects.exists() and not hours_added_up(project)


def test_each_arrival_counts_once_though_the_digest_is_broken_off(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*args: Any) -> None:
        raise OperationalError("the connection was lost")

    arrive(project, counted(Random(1)))
    heard = [*bus.LISTENERS[digest.RunsDigested], bus.Listener("lost", lost)]
    monkeypatch.setitem(bus.LISTENERS, digest.RunsDigested, heard)
    monkeypatch.setattr(digest, "is_transient", lambda error: True)
    with pytest.raises(OperationalError), transaction.atomic():
        digest.run()
    assert not DailyRuns.objects.exists() and not HourlyCount.objects.exists()
    monkeypatch.undo()
    assert digest.run() == 1 and digest.run() == 0
    assert (
        set(DailyRuns.objects.values_list("day", *NAMES, "runs", "first"))
        == hours_added_up(project)
        != set()
    )


def populate(project: Project, chance: Random, count: int = 25) -> list[Failure]:
    """Runs of the last days, most of them with a failure, of which some were of another version
    when it was found.
    """
    modes, found = list(ensure_modes(project).values()), []
    for _ in range(count):
        at = timezone.now() - timedelta(hours=chance.randrange(24 * 12))
        run = sent(project, chance, started_at=at.isoformat())
        if chance.random() < 0.8:
            state = chance.choice(FailureState.values)
            found.append(
                Failure.objects.create(
                    project=project, trajectory=run, mode=chance.choice(modes), state=state
                )
            )
        if chance.random() < 0.3:
            sent(project, chance, id=run.external_id, started_at=at.isoformat())
    gone = chance.choice(found)
    found.remove(gone)
    deletions.delete(trajectory=gone.trajectory)
    digest.run()
    return found


def sent(project: Project, chance: Random, **given: Any) -> Trajectory:
    agent = {"name": chance.choice("ab"), "version": chance.choice(("1", "2", ""))}
    return make_trajectory(project, agent=agent, model=chance.choice("mn"), **given)


def standing(project: Project, since: datetime | None) -> list[Failure]:
    rows = (
        Failure.objects.filter(project=project)
        .exclude(state="dismissed")
        .select_related("trajectory", "mode")
    )
    return [row for row in rows if since is None or row.trajectory.started_at >= since]


def key_of(run: Trajectory) -> tuple:
    return run.agent_name, run.agent_version, run.model


@pytest.mark.more
@pytest.mark.parametrize("seed", SEEDS)
def test_rates_are_those_of_the_plain_rows(project: Project, seed: int) -> None:
    populate(project, Random(seed))
    for since in (None, rates.midnight(timezone.now() - timedelta(days=7))):
        runs = [
            run
            for run in Trajectory.objects.filter(project=project)
            if not since or run.started_at >= since
        ]
        failed = standing(project, since)
        known = rates.kinds(project, since)
        assert {(k.agent, k.version, k.model): k.runs for k in known if k.runs} == Counter(
            map(key_of, runs)
        )
        counted = {(k.agent, k.version, k.model): k.failed for k in known if k.failed}
        assert counted == Counter(key_of(row.trajectory) for row in failed)
        by_mode = {rate.name: (rate.failed, rate.total) for rate in rates.by_mode(project, since)}
        assert by_mode == {
            name: (n, len(runs)) for name, n in Counter(row.mode.name for row in failed).items()
        }
        unit, over_time = rates.by_time(project, since)
        assert unit == "day"
        days = Counter(rates.midnight(run.started_at) for run in runs)
        bad = Counter(rates.midnight(row.trajectory.started_at) for row in failed)
        assert [(at, rate.total, rate.failed) for at, rate in over_time] == [
            (at, days[at], bad[at]) for at in sorted(days)
        ]


def test_hours_are_counted_where_there_are_few(project: Project) -> None:
    hour = timezone.now().replace(minute=0, second=0, microsecond=0)
    mode = ensure_modes(project)["bad_planning"]
    for ago in (3, 3, 1):
        run = make_trajectory(project, started_at=(hour - timedelta(hours=ago)).isoformat())
    Failure.objects.create(project=project, trajectory=run, mode=mode)
    digest.run()
    unit, over_time = rates.by_time(project, None)
    assert unit == "hour"
    assert [(at, rate.total, rate.failed) for at, rate in over_time] == [
        (hour - timedelta(hours=3), 2, 0),
        (hour - timedelta(hours=1), 1, 1),
    ]


def test_a_run_whose_clock_is_years_ahead_counts_when_it_arrived(project: Project) -> None:
    hour = timezone.now().replace(minute=0, second=0, microsecond=0)
    make_trajectory(project, started_at=(hour - timedelta(hours=1)).isoformat())
    usual = rates.midnight(timezone.now() - timedelta(days=7))
    for years in (1, 70):
        make_trajectory(project, started_at=(hour + timedelta(days=365 * years)).isoformat())
    digest.run()
    for since in (None, usual):
        unit, over_time = rates.by_time(project, since)
        assert unit == "hour"
        assert [(at, rate.total) for at, rate in over_time] == [
            (hour - timedelta(hours=1), 1),
            (hour, 2),
        ]
    make_trajectory(project, started_at=(hour - timedelta(days=5)).isoformat())
    digest.run()
    unit, over_time = rates.by_time(project, usual)
    assert unit == "day" and sum(rate.total for _, rate in over_time) == 4


def test_a_failure_has_the_version_of_its_run_whatever_is_written_to_it(project: Project) -> None:
    failure = populate(project, Random(1))[0]
    failure.agent_version, failure.model = "made up", "made up"
    failure.save()
    run = failure.trajectory
    make_trajectory(
        project,
        id=run.external_id,
        started_at=run.started_at.isoformat(),
        agent={"name": "a", "version": "9"},
    )
    digest.run()
    failure = Failure.objects.get(pk=failure.pk)
    assert (failure.agent_name, failure.agent_version, failure.model) == key_of(failure.trajectory)
    assert failure.agent_version == "9"


@pytest.mark.more
@pytest.mark.parametrize("seed", SEEDS)
def test_clusters_are_counted_as_their_members(project: Project, seed: int) -> None:
    chance, now = Random(seed), timezone.now()
    first, last = now - timedelta(days=20), now
    made = [
        FailureCluster.objects.create(
            project=project, name=name, signature={}, first_seen=first, last_seen=last
        )
        for name in "xyz"
    ]
    for failure in populate(project, chance):
        Failure.objects.filter(pk=failure.pk).update(cluster=chance.choice([*made, None]))
    client = Client()
    client.force_login(make_member(project))
    page = client.get(reverse("failures:clusters", args=[project.slug])).context
    rows = standing(project, None)
    assert (page["standing"], page["grouped"]) == (
        len(rows),
        sum(row.cluster_id is not None for row in rows),
    )
    assert [row.n for row in page["page"]] == sorted((row.n for row in page["page"]), reverse=True)
    for cluster in page["page"]:
        members = [row for row in rows if row.cluster_id == cluster.pk]
        ages = [now - row.trajectory.started_at for row in members]
        week = sum(age < timedelta(days=7) for age in ages)
        assert (cluster.n, cluster.open) == (
            len(members),
            sum(row.state == "open" for row in members),
        )
        assert (cluster.week, cluster.growth) == (
            week,
            2 * week - sum(age < timedelta(days=14) for age in ages),
        )
        assert len(page["trends"][cluster.pk]) == len(
            {int(age / ((last - first) / clusters.BINS)) for age in ages}
        )


def test_the_queue_says_at_least_how_many_where_there_are_more(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    mode = ensure_modes(project)["bad_planning"]
    for _ in range(3):
        Failure.objects.create(project=project, trajectory=make_trajectory(project), mode=mode)
    waiting = triage_queue.TriageQueue(project, make_member(project), {})
    assert waiting.count() == "3"
    monkeypatch.setattr(triage_queue, "COUNTED", 2)
    assert waiting.count() == "2+"
