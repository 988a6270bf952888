"""Figures of many steps: totals that are right at every moment, samples that say what they are."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pytest
from django.db import connection
from django.db.models import Exists, OuterRef
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from apps.core.models import Project
from apps.trajectories import digest, step_figures, step_filters, step_samples, step_totals
from apps.trajectories.actions import deletions, store
from apps.trajectories.filters import scores_with
from apps.trajectories.models import Score, Step, StepChange, StepTotal, Trajectory
from apps.trajectories.step_totals import DAY, HOUR, Ids, Span
from tests.amounts import amount
from tests.factories import make_key, make_member, row

pytestmark = pytest.mark.django_db
START = datetime(2026, 10, 1, tzinfo=UTC)
QUESTIONS = (
    {},
    {"kind": "tool", "name": "search", "failed_or_over": "2", "agent_version": "2"},
    {"kind": "tool", "split": "agent_version"},
    {"kind": "model", "measure": "cost", "by": "model"},
    {"duration_min": "1", "by": "status"},
    {"from": "2026-10-01T05:20:00Z", "to": "2026-10-03T04:40:00Z"},
    {"from": "2026-10-02", "to": "2026-10-02"},
    {"from": "2026-10-02T05:10:00Z", "to": "2026-10-02T05:50:00Z"},
)


@pytest.fixture
def added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are many, however few they are."""
    monkeypatch.setattr(step_figures, "READ", -1)
    monkeypatch.setattr(step_figures, "MOST_IN_GAPS", 10**9)


def made(rng: Random, name: str) -> dict:
    at = START + timedelta(hours=rng.random() * 72)
    tools = ["search", "pay", "look_up"][: rng.randint(1, 3)]
    spans = [
        {
            "kind": "tool",
            "name": tool,
            "start_ms": 1,
            "duration_ms": rng.choice((0, 7, 900, 1999.9, 2000, 61_000 * rng.random())),
            **({"error": "no"} if rng.random() < 0.3 else {}),
        }
        for tool in tools
    ]
    model = {
        "kind": "llm",
        "name": "chat",
        "model": rng.choice(("a", "b")),
        "input_tokens": rng.randint(1, 9),
        **({"cost_usd": rng.random()} if rng.random() < 0.5 else {}),
    }
    return row(
        name,
        agent={"name": "clerk", "version": str(rng.randint(1, 3))},
        started_at=at.isoformat(),
        metadata={"steps": [model, *spans]},
    )


def send(project: Project, *rows: dict) -> None:
    assert not store.ingest(project=project, rows=rows).rejected
    digest.run()


def add_up(now: datetime | None = None) -> int:
    return step_totals.add_up(math.inf, now or timezone.now() + HOUR)


def answered(project: Project, given: dict) -> Any:
    answer = step_figures.ask(project, given)
    return answer, [
        (
            group.value,
            group.part,
            group.steps,
            group.errors,
            group.timed,
            group.tokens,
            round(group.cost_usd or 0, 9),
            group.costed,
        )
        for group in sorted(answer.groups, key=lambda group: (group.value, group.part))
    ]


def check(
    project: Project, monkeypatch: pytest.MonkeyPatch, questions: Sequence[dict] = QUESTIONS
) -> None:
    """What is added up is what the steps say."""
    for given in questions:
        added, counts = answered(project, given)
        with monkeypatch.context() as patch:
            patch.setattr(step_figures, "READ", 10**9)
            read, of_steps = answered(project, given)
        assert counts == of_steps and added.steps == read.steps, given
        assert added.rounded and not read.rounded and not added.sample
        for one in added.groups:
            column, split = (given.get(name) for name in ("by", "split"))
            if one.timed and not ({"failed_or_over", "duration_min"} & given.keys()):
                rows = step_figures.matching(project, given).exclude(duration_ms=None)
                names = {step_figures.COLUMNS[column or "name"]: one.value}
                if split:
                    names[step_figures.COLUMNS[split]] = one.part
                durations = rows.filter(**names).values_list("duration_ms", flat=True)
                exact = np.percentile(list(durations), [50, 95, 99], method="lower")
                assert one.percentiles == pytest.approx(exact, rel=0.0201, abs=1e-9), given


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("small", [0, 60, 10_000])
def test_totals_are_right_after_any_change(
    project: Project, added_up: None, monkeypatch: pytest.MonkeyPatch, small: int
) -> None:
    """In the suite a change is followed by every other question, all of them when days are added
    up; in proof by all."""
    monkeypatch.setattr(step_totals, "SMALL_DAY", small)
    rng = Random(3)
    send(project, *(made(rng, f"run-{n}") for n in range(60)))
    check(project, monkeypatch)  # nothing is added up: all is read from the steps
    assert add_up() and not StepChange.objects.filter(left_as="").exists()
    days = {step_totals.day_of(total.at) for total in StepTotal.objects.filter(unit="hour")}
    assert len(days) in {0: {3}, 60: {1, 2}, 10_000: {0}}[small]
    assert StepTotal.objects.filter(unit="day").values("at").distinct().count() == 3
    with monkeypatch.context() as patch:
        patch.setattr(step_figures, "SUM_STEPS", None)  # no step is read
        assert step_figures.ask(project, {}).steps == Step.objects.count()
    for turn in range(amount(8, 12)):
        name = f"run-{rng.randrange(80)}"
        run = Trajectory.objects.filter(project=project, external_id=name).first()
        if run and turn % 3 == 0:
            deletions.delete(trajectory=run)
            digest.run()
        else:
            send(project, made(rng, name))
        check(project, monkeypatch, amount(QUESTIONS[turn % 2 :: 2], QUESTIONS))
        if turn % 4 == 3:
            add_up()
            check(project, monkeypatch)
    deletions.purge(project, Trajectory.objects.filter(project=project))
    digest.run()
    add_up()
    assert not StepTotal.objects.exists() and not StepChange.objects.exists()


def test_hours_are_added_up_when_they_are_over_and_quiet(project: Project) -> None:
    now = timezone.now()
    soon = (now + HOUR).isoformat()
    send(project, row("old", started_at=START.isoformat()), row("new", started_at=soon))
    assert add_up(now) == 0  # changed just now
    assert add_up(now + step_totals.QUIET + timedelta(seconds=9)) == 2  # an hour and its day
    assert {total.at for total in StepTotal.objects.all()} == {START}
    StepChange.objects.filter(at=START).delete()
    send(project, row("old again", started_at=START.isoformat()))
    StepChange.objects.filter(at=START).update(changed_at=now)
    for minutes in range(1, 60):
        later = now + timedelta(minutes=minutes)
        StepChange.objects.create(project=project, unit="hour", at=START, changed_at=later)
        if add_up(later):
            break
    assert timedelta(minutes=minutes - 1) == step_totals.LATE  # it is never quiet


@pytest.mark.proof
def test_a_day_that_grows_gets_its_hours(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_totals, "SMALL_DAY", 10)
    rng = Random(1)
    send(project, made(rng, "one") | {"started_at": START.isoformat()})
    add_up()
    assert not StepTotal.objects.filter(unit="hour").exists()
    assert StepChange.objects.filter(left_as="small").count() == 24
    for n in range(8):
        at = START + HOUR * (n + 1)
        send(project, made(rng, f"more-{n}") | {"started_at": at.isoformat()})
    add_up()
    add_up(timezone.now() + 2 * HOUR)
    assert StepTotal.objects.filter(unit="hour").values("at").distinct().count() == 9
    assert not StepChange.objects.exists()


def test_many_notes_of_an_hour_become_two(project: Project) -> None:
    send(project, row("one"))
    run = Trajectory.objects.get()
    for _ in range(5):
        step_totals.note_change(project.pk, [run.pk])
    pks = list(StepChange.objects.order_by("pk").values_list("pk", flat=True))
    add_up(timezone.now())
    assert list(StepChange.objects.values_list("pk", flat=True)) == [pks[0], pks[-1]]


def test_what_changes_while_an_hour_is_counted_stays_noted(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(project, row("one", started_at=START.isoformat()))
    count = step_totals._count_steps

    def counting(of: int, unit: str, at: datetime) -> int:
        written = count(of, unit, at)
        step_totals.note_change(of, [Trajectory.objects.get().pk])
        return written

    monkeypatch.setattr(step_totals, "_count_steps", counting)
    assert add_up() == 1
    assert StepChange.objects.filter(unit="hour", at=START).count() == 1


@pytest.mark.proof
def test_steps_that_are_all_different_are_read(
    project: Project, added_up: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_totals, "MOST_TOTALS", 3)
    monkeypatch.setattr(step_totals, "SMALL_DAY", 0)
    rng = Random(5)
    send(project, *(made(rng, f"run-{n}") for n in range(30)))
    add_up()
    varied = StepChange.objects.filter(left_as="varied")
    assert varied and add_up() == 0
    assert not StepTotal.objects.filter(at__in=varied.values("at"), unit="hour").exists()
    check(project, monkeypatch)
    monkeypatch.setattr(step_totals, "MOST_TOTALS", 5000)
    step_totals.note_all(project.pk)
    add_up()
    assert not StepChange.objects.exists() and StepTotal.objects.filter(unit="hour")
    check(project, monkeypatch)


# Samples


@pytest.mark.parametrize("share", [0.001, 0.1, 0.9, 1.0])
def test_drawn_times_have_their_share_of_the_steps(share: float) -> None:
    rng = Random(2)
    hours = [Span(START + HOUR * n, START + HOUR * (n + 1)) for n in range(200)]
    spans = list(map(Ids.of, hours))
    known = {span: rng.choice((0, 1, 50, 4000)) for span in spans if rng.random() < 0.7}
    times = step_samples.times_of(known, share)
    assert all(one.end <= other.begin for one, other in pairwise(times))
    drawn: Counter[Ids] = Counter()
    for one in times:
        (span,) = (span for span in known if span.begin <= one.begin and one.end <= span.end)
        drawn[span] += known[span] * (one.end - one.begin) / (span.end - span.begin)
    assert sum(drawn.values()) == pytest.approx(share * sum(known.values()), rel=1e-3)
    assert all(drawn[span] <= n * 1.001 for span, n in known.items())


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("is_added_up", [False, True])
@pytest.mark.parametrize("apart_ms", [0, 5])
def test_a_sample_of_a_burst_has_its_steps(
    project: Project, monkeypatch: pytest.MonkeyPatch, is_added_up: bool, apart_ms: int
) -> None:
    for name, value in {"READ": -1, "MOST_IN_GAPS": -1, "FEW": 0}.items():
        monkeypatch.setattr(step_figures, name, value)
    monkeypatch.setattr(step_samples, "APART", 8)
    monkeypatch.setattr(step_totals, "SMALL_DAY", 0)
    rng = Random(11)
    burst = [
        made(rng, f"run-{n}")
        | {"started_at": (START + timedelta(milliseconds=apart_ms * n)).isoformat()}
        for n in range(300)
    ]
    send(project, *burst, made(rng, "later") | {"started_at": (START + 9 * DAY).isoformat()})
    if is_added_up:
        add_up()
    of = Step.objects.count()
    monkeypatch.setattr(step_samples.Drawing.steps, "__defaults__", (of // 2,))
    found = step_figures.ask(project, {"duration_max": "1"})
    exact = Step.objects.filter(duration_ms__lte=1000).count()
    assert found.sample and found.sample.of == of
    assert of * 0.3 < found.sample.read < of * 0.7
    assert found.steps == pytest.approx(exact, rel=0.2)


@pytest.fixture
def many(project: Project, added_up: None, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Of which samples are drawn."""
    rng = Random(7)
    send(project, *(made(rng, f"run-{n}") for n in range(300)))
    add_up()
    monkeypatch.setattr(step_figures, "FEW", 0)
    return project


@pytest.mark.proof
def test_a_sample_says_that_it_is_one(
    many: Project, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = Step.objects.count()
    monkeypatch.setattr(step_samples.Drawing.steps, "__defaults__", (of // 3,))
    agent = Client(headers={"Authorization": f"Bearer {make_key(many)}"})
    query = "kind=tool&duration_max=60"
    found = agent.get(f"/api/v1/steps/metrics/?{query}").json()
    exact = Step.objects.filter(kind="tool", duration_ms__lte=60_000).count()
    assert not found["complete"] and found["steps"] != exact
    assert found["steps"] == pytest.approx(exact, rel=0.2)
    assert f"of {of:,} steps" in found["note"] and found["note"].startswith("Estimated from ")
    client.force_login(make_member(many))
    page = client.get(f"{reverse('trajectories:steps_chart', args=[many.slug])}?{query}")
    about = f"≈ {round(found['steps'], -1):,} steps. {found['note']}"
    assert about in page.content.decode()
    monkeypatch.setattr(step_samples.Drawing.steps, "__defaults__", (of,))  # all
    found = agent.get(f"/api/v1/steps/metrics/?{query}").json()
    assert found["steps"] == exact


@pytest.mark.proof
def test_more_are_drawn_where_few_have_the_words(
    many: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = Step.objects.count()
    exact = Step.objects.filter(error="no").count()
    for module in (step_samples, step_figures):
        monkeypatch.setattr(module, "PROBED", of // 4)
    monkeypatch.setattr(step_samples, "COMMON", of)
    monkeypatch.setattr(step_samples, "WITH_WORDS", of)
    by_index = step_figures.ask(many, {"error": "no"})
    assert by_index.sample == step_samples.Sample(of, of) and by_index.steps == exact
    monkeypatch.setattr(step_samples, "COMMON", 1)
    monkeypatch.setattr(step_samples, "READ", of // 2)
    read = step_figures.ask(many, {"error": "no"})
    assert read.sample and of / 4 < read.sample.read < of * 3 / 4
    assert read.steps == pytest.approx(exact, rel=0.25)
    monkeypatch.setattr(step_figures, "ENOUGH", 1)
    probed = step_figures.ask(many, {"error": "no"})
    assert probed.sample and probed.sample.read < of / 2


@pytest.mark.proof
def test_few_matches_are_counted(many: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = Step.objects.filter(error="no").count()
    monkeypatch.setattr(step_figures, "ENOUGH", 10**6)
    for few in (exact // 4, exact):  # as the sample says surely, and as it does not
        monkeypatch.setattr(step_figures, "FEW", few)
        found = step_figures.ask(many, {"error": "no", "by": "status"})
        assert (found.sample is None) == (few == exact) and not found.rounded
        assert found.sample or found.steps == exact


@pytest.mark.proof
def test_an_index_is_not_trusted_with_words_that_it_takes_for_rare(
    many: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_samples, "READ", 80)
    monkeypatch.setattr(step_samples, "COMMON", 10**6)
    asked = []
    drawing = step_samples.Drawing(many, {}, lambda *args: asked.append(args[2]) or [])
    probed = step_samples.PROBED * 100 // drawing.of  # of about a hundred that there are
    drawing.with_words(probed, 100)
    drawing.with_words(probed, 5)
    assert asked == [True, False]


@pytest.mark.proof
def test_what_is_drawn_is_all_of_these_times(many: Project) -> None:
    times = [Span(START + HOUR * n, START + HOUR * (n + 1)) for n in range(0, 72, 7)]
    said, values = step_totals.of_times(many.pk, list(map(Ids.of, times)))
    with connection.cursor() as cursor:
        cursor.execute(f"WITH {said} n AS (SELECT count(*) FROM trajectories_step) TABLE n", values)
        drawn = cursor.fetchone()[0]
    assert 0 < drawn < Step.objects.count()
    assert drawn == Step.objects.filter(step_totals.within(times)).count()


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("given", [{"score": "fit"}, {"score": "fit", "score_value_max": "0.4"}])
def test_steps_with_a_score_are_counted_or_drawn(
    many: Project, monkeypatch: pytest.MonkeyPatch, given: dict
) -> None:
    rng, of = Random(4), Step.objects.count()
    for step in Step.objects.filter(kind="tool").order_by("pk"):
        Score.objects.create(
            project=many,
            external_id=str(step.trajectory_id),
            trajectory_id=step.trajectory_id,
            step=step.key,
            name=rng.choice(("fit", "other")),
            key="code:",
            kind="number",
            value=rng.random(),
            source="code",
        )
    exact = Step.objects.filter(
        Exists(
            scores_with(given).filter(trajectory_id=OuterRef("trajectory_id"), step=OuterRef("key"))
        )
    ).count()
    counted = step_figures.ask(many, given)
    assert counted.steps == exact > 0 and counted.sample is None
    monkeypatch.setattr(step_filters, "MOST", 3)
    monkeypatch.setattr(step_samples.Drawing.steps, "__defaults__", (of,))  # all
    drawn = step_figures.ask(many, given)
    assert drawn.steps == exact and drawn.sample == step_samples.Sample(of, of)


@pytest.mark.proof
def test_the_newest_versions_are_shown(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    for n, version in enumerate(("10", "9", "8", "7")):  # the oldest has most
        for turn in range(4 - n):
            at = START + DAY * n + HOUR * turn
            agent = {"name": "clerk", "version": version}
            send(project, row(f"{version}-{turn}", started_at=at.isoformat(), agent=agent))
    monkeypatch.setattr(step_figures, "PARTS", 2)
    monkeypatch.setattr(step_figures, "GROUPS", 3)
    split = step_figures.ask(project, {"split": "agent_version"})
    assert {group.part for group in split.groups} == {"7", "8"}
    assert "The newest 2 of 4 versions are shown." in split.note
    by = step_figures.ask(project, {"by": "agent_version"})
    assert {group.value for group in by.groups} == {"7", "8", "9"}


def test_the_task_ends_in_time(project: Project) -> None:
    send(project, row("one", started_at=START.isoformat()))
    assert step_totals.add_up(time.monotonic() - 1, timezone.now() + HOUR) == 0
