"""Charts are made of roll-ups that say what the rows say; where they cannot answer, the rows are
read and it is said.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest
from django.utils import timezone
from hypothesis import given as drawn_by
from hypothesis import strategies as st

from apps.core.models import Project
from apps.trajectories import digest
from apps.trajectories.actions import deletions, store
from apps.trajectories.filters import apply_filters
from apps.trajectories.metrics import figures, query, sketch
from apps.trajectories.metrics.cells import MEASURES, TOGETHER, Cell, Numbers
from apps.trajectories.models import MetricCell, Trajectory
from tests.amounts import amount
from tests.factories import make_project
from tests.factories import row as row_of
from tests.shared import copied, once
from workers.lib.token_usage import TOKENS

NUMBERS = st.lists(st.floats(0, 1e9), min_size=1, max_size=60)


def sketch_of(numbers: list[float]) -> sketch.Sketch:
    found: sketch.Sketch = {}
    for number in numbers:
        sketch.merge(found, {sketch.bucket_of(number): 1})
    return found


@drawn_by(NUMBERS, st.sampled_from([0.0, 0.5, 0.95, 0.99, 1.0]))
def test_a_percentile_is_that_of_the_numbers_to_two_percent(
    numbers: list[float], share: float
) -> None:
    exact = sorted(numbers)[int(share * (len(numbers) - 1))]
    found = sketch.percentiles(sketch_of(numbers), (share,))[0]
    assert found == pytest.approx(exact, rel=sketch.ACCURACY + 1e-6, abs=1e-12)


@drawn_by(NUMBERS, NUMBERS)
def test_what_is_added_can_be_taken_away(numbers: list[float], others: list[float]) -> None:
    found = sketch_of(numbers + others)
    sketch.merge(found, {bucket: -n for bucket, n in sketch_of(others).items()})
    assert sketch.from_json(sketch.as_json(found)) == {
        b: n for b, n in sketch_of(numbers).items() if n
    }


def test_an_empty_sketch_has_no_percentiles() -> None:
    assert sketch.percentiles({}, (0.5, 0.9)) == [None, None]
    assert sketch.percentiles({4: -1}, (0.5,)) == [None], "more taken away than was ever there"


def traffic(project: Project, n: int, seed: int = 1, days: float = 5) -> None:
    chance = Random(seed)
    now = timezone.now()
    rows = []
    for index in range(n):
        tools = chance.sample(["search", "close", "reply"], chance.randrange(3))
        messages: list[dict[str, Any]] = [{"role": "user", "content": "Close it."}]
        for number, name in enumerate(tools):
            call = {
                "id": f"c{number}",
                "type": "function",
                "function": {"name": name, "arguments": "{}"},
            }
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
            messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": "ok"})
        given = row_of(f"{project.slug}-{seed}-{index}")
        given |= {
            "messages": messages,
            "agent": {"name": "desk", "version": chance.choice(["1", "2", "3"])},
            "model": chance.choice(["a", "b", ""]),
            "started_at": (now - timedelta(days=days) * chance.random()).isoformat(),
            "outcome": {"status": chance.choice(["success", "failure", "unknown"])},
        }
        if chance.random() < 0.8:
            given |= {"latency_ms": chance.lognormvariate(7, 1)}
            given["usage"] = {
                "input_tokens": chance.randrange(4000),
                "cost_usd": chance.random() / 100,
            }
        rows.append(given)
    done = store.ingest(project=project, rows=rows)
    assert done.accepted == n, done.rejected[:1]
    digest.run()


def made_traffic(_: Path) -> Project:
    project = make_project()
    traffic(project, 120)
    traffic(make_project(), 30, seed=9)  # somebody else's
    return project


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from once(request, made_traffic)


@pytest.fixture
def busy(kept: Any, db: None, settings: Any) -> Project:
    return copied(kept, settings)


def by_rows(monkeypatch: pytest.MonkeyPatch, *asked: Any) -> query.Answer:
    with monkeypatch.context() as patched:
        patched.setattr(query, "_dimension", lambda given, by: None)
        return query.ask(*asked)


def plain(answer: query.Answer) -> list[tuple]:
    return [
        (
            one.name,
            one.measure,
            one.runs,
            [(p.at, p.value and round(p.value, 9), p.n, p.interval) for p in one.points],
        )
        for one in answer.series
    ]


@pytest.mark.proof
@pytest.mark.django_db
def test_roll_ups_say_what_the_rows_say(busy: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    since = {
        "from": (
            (timezone.now() - timedelta(days=3))
            .replace(minute=0, second=0, microsecond=0)
            .isoformat()
        )
    }
    measures = ("runs", "failure_rate", "unknown_rate", "tokens", "cost", "latency", "cost_p99")
    ranges = (({}, ""), (since, "day"), (since, "hour"), ({}, "week"))
    asked = list(product(measures, ("", *query.BY), ranges))
    for measure, by, (given, bucket) in asked[:: amount(3, 1)]:
        rolled = query.ask(busy, given, measure, by, bucket)
        read = by_rows(monkeypatch, busy, given, measure, by, bucket)
        assert rolled.read is None and read.read is not None
        assert plain(rolled) == plain(read) and rolled.unit == read.unit, (measure, by, bucket)


@pytest.mark.django_db
def test_one_filter_of_a_dimension_is_answered_by_roll_ups_and_others_by_rows(
    busy: Project,
) -> None:
    own = Trajectory.objects.filter(project=busy)
    for given, exact in (
        ({"outcome": "failure"}, own.filter(outcome_status="failure")),
        ({"agent_version": "2"}, own.filter(agent_version="2")),
        ({"tool": "search"}, own.filter(tool_names__contains=["search"])),
    ):
        answer = query.totals(busy, given)
        assert answer.read is None and answer.total.runs == exact.count()
    for given, exact in (
        ({"outcome": "failure", "model": "a"}, own.filter(outcome_status="failure", model="a")),
        ({"latency_min": "1"}, own.filter(latency_ms__gte=1000)),
        ({"q": "close"}, own),
    ):
        answer = query.totals(busy, given)
        assert answer.read == answer.total.runs == exact.count() and not answer.more


def at_minutes(project: Project, *minutes: int) -> datetime:
    """Runs that began so many minutes after the hour that is returned, which is days ago."""
    hour = (timezone.now() - timedelta(days=2)).replace(minute=0, second=0, microsecond=0)
    rows = [
        row_of(f"at-{minute}") | {"started_at": (hour + timedelta(minutes=minute)).isoformat()}
        for minute in minutes
    ]
    store.ingest(project=project, rows=rows)
    digest.run()
    return hour


@pytest.mark.more(rows=4)
@pytest.mark.django_db
@pytest.mark.parametrize(
    ("begin", "end", "runs"),
    [
        (0, 180, 6),
        (10, 180, 5),
        (0, 130, 5),
        (10, 130, 4),
        (20, 40, 1),
        (55, 65, 1),
        (40, 50, 0),
        (180, 10, 0),
    ],
)
@pytest.mark.parametrize("given", [{}, {"agent": "a"}])
def test_a_range_that_cuts_an_hour_has_only_its_runs(
    project: Project, begin: int, end: int, runs: int, given: dict[str, str]
) -> None:
    hour = at_minutes(project, 5, 30, 60, 90, 125, 150)
    name = Trajectory.objects.filter(project=project)[0].agent_name
    between = {
        key: (hour + timedelta(minutes=minute)).isoformat()
        for key, minute in (("from", begin), ("to", end))
    } | ({"agent": name} if given else {})
    answer = query.totals(project, between)
    assert (answer.total.runs, answer.read, answer.rounded) == (runs, None, False)
    for bucket in query.UNITS:
        drawn = query.ask(project, between, "runs", "outcome", bucket)
        assert sum(point.n for one in drawn.series for point in one.points) == runs


@pytest.mark.django_db
def test_a_busy_hour_is_counted_whole_and_that_is_said(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    hour = at_minutes(project, 5, 30, 40, 70)
    monkeypatch.setattr(query, "PART", 1)
    answer = query.ask(project, {"from": (hour + timedelta(minutes=20)).isoformat()}, "runs")
    assert answer.total.runs == 4 and answer.rounded and "counted in full" in answer.note


@pytest.mark.django_db
def test_runs_whose_clock_is_ahead_count_when_they_arrived(project: Project) -> None:
    ahead = timezone.now() + timedelta(days=400)
    store.ingest(
        project=project, rows=[row_of("now"), row_of("ahead") | {"started_at": ahead.isoformat()}]
    )
    digest.run()
    for given in ({}, {"since": "7d"}, {"since": "7d", "messages_min": "1"}):
        assert query.totals(project, given).total.runs == 2, given
        assert query.ask(project, given, "runs").total.runs == 2, given


@pytest.mark.django_db
def test_a_run_whose_start_was_corrected_counts_where_the_list_has_it(project: Project) -> None:
    today, before = timezone.now(), timezone.now() - timedelta(days=9)
    for start in (before, today):
        store.ingest(project=project, rows=[row_of("moved") | {"started_at": start.isoformat()}])
    digest.run()
    for given, runs in (({"since": "7d"}, 0), ({"since": "30d"}, 1)):
        for read in (given, given | {"messages_min": "1"}):
            assert query.ask(project, read, "runs").total.runs == runs, read
            assert apply_filters(project.trajectories.all(), read).count() == runs


@pytest.mark.django_db
def test_of_more_rows_than_it_reads_it_says_so(
    busy: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query, "NEWEST", 10)
    answer = query.ask(busy, {"messages_min": "1"}, "runs")
    assert answer.more and answer.total.runs == 10 and "newest 10 matching runs" in answer.note


@pytest.mark.proof
@pytest.mark.django_db
def test_changed_and_deleted_runs_leave_the_cells(project: Project) -> None:
    traffic(project, 20)
    before = MetricCell.objects.filter(project=project, unit="day", dimension="")
    assert sum(before.values_list("runs", flat=True)) == 20
    for trajectory in Trajectory.objects.filter(project=project):
        deletions.delete(trajectory=trajectory)
    digest.run()
    for cell in MetricCell.objects.filter(project=project):
        assert (cell.runs, cell.failed, cell.unknown, cell.latency, cell.cost) == (0, 0, 0, {}, {})
    assert not query.ask(project, {}, "runs").series


@pytest.mark.django_db
def test_small_groups_are_one(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    traffic(project, 40)
    monkeypatch.setattr(query, "GROUPS", 1)
    answer = query.ask(project, {}, "runs", "agent_version")
    assert [one.name for one in answer.series][1:] == [query.OTHER] and answer.others == 2
    assert sum(one.runs for one in answer.series) == 40


def test_the_bucket_grows_with_the_span() -> None:
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    assert query.unit_of(begin, begin + timedelta(days=2), "hour") == "hour"
    assert query.unit_of(begin, begin + timedelta(days=60), "hour") == "day"
    assert query.unit_of(begin, begin + timedelta(days=9000), "hour") == "week"
    assert query.unit_of(None, None, "minute") == "hour"


@pytest.mark.proof
@pytest.mark.django_db
def test_every_measure_can_be_drawn(busy: Project) -> None:
    for measure, by in product((*MEASURES, *TOGETHER), ("", "model")):
        answer = query.ask(busy, {}, measure, by)
        assert len(figures.table(answer)) == len(answer.series)
        for kind in figures.KINDS:
            drawn = figures.figure(answer, by, kind)
            assert (drawn is None) == (kind in ("number", "table"))


@pytest.mark.django_db
def test_names_of_agents_are_no_markup_in_a_chart(project: Project) -> None:
    hostile = '<a href="https://x.example">%{x}&lt;b'
    store.ingest(
        project=project, rows=[row_of("a") | {"model": hostile}, row_of("b") | {"model": ""}]
    )
    digest.run()
    drawn = figures.figure(query.ask(project, {}, "runs", "model"), "model")
    assert drawn is not None
    for trace in drawn["data"]:
        assert "<" not in trace["name"] and "%{" not in trace["name"] and "&" not in trace["name"]


def test_the_failure_rate_is_of_known_outcomes_and_says_so() -> None:
    cell = Cell()
    numbers = dict.fromkeys((*TOKENS, "cost_usd", "latency_ms")) | {"cost_basis": ""}
    for outcome in ("failure", "success", "success", "unknown"):
        cell.add(Numbers.of({"outcome_status": outcome} | numbers))
    measure = MEASURES["failure_rate"]
    assert (
        measure.value(cell) == pytest.approx(1 / 3)
        and measure.n(cell) == 3
        and "known outcomes" in measure.title
    )
    assert MEASURES["latency_p95"].value(cell) is None and MEASURES["latency_p95"].n(cell) == 0


@pytest.mark.proof
@pytest.mark.django_db
def test_many_small_arrivals_are_digested_together_and_large_ones_are_not(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digest, "ROWS_AT_ONCE", 60)
    for number in range(60):
        store.ingest(project=project, rows=[row_of(f"one-{number}")])
    for batch in range(3):
        store.ingest(
            project=project, rows=[row_of(f"many-{batch}-{number}") for number in range(40)]
        )
    assert [digest.step() for _ in range(5)] == [60, 1, 1, 1, 0]
    assert query.totals(project, {}).total.runs == 180
