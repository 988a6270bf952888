"""A canary takes no new sessions while those whose outcome is not known might exceed its limit."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from apps.failures.models import Failure
from apps.promotion.models import Channel, Trial, TrialAnswer, TrialSession
from apps.promotion.trials import running, sessions, starting
from apps.promotion.trials.lanes import Assignments
from apps.promotion.trials.readings import reading_of
from apps.registry.models import ModelVersion
from apps.serving import routes
from apps.serving.lanes import Sessions
from apps.trajectories.models import Trace, Trajectory, TrajectoryKey
from tests.factories import admin_of
from tests.promotion.trials.made import answer, asked, fail, make_trial, store

pytestmark = pytest.mark.django_db
LIMIT, LATE = 10, timedelta(hours=2)
STEPS = [{"share": 0.5, "min_sessions": 1000, "min_minutes": 0}]


class Clock:
    def __init__(self, now: datetime) -> None:
        self.start = self.now = now

    def __call__(self) -> datetime:
        return self.now

    @property
    def seconds(self) -> float:
        return (self.now - self.start).total_seconds()

    def pass_by(self, minutes: float) -> None:
        self.now += timedelta(minutes=minutes)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock(timezone.now())
    monkeypatch.setattr(timezone, "now", found)
    fake = SimpleNamespace(monotonic=lambda: found.seconds, time=time.time)
    monkeypatch.setattr(routes, "time", fake)
    return found


@pytest.fixture
def trial(channel: Channel, adapter: ModelVersion, clock: Clock) -> Trial:
    found = make_trial(
        channel, adapter, steps=STEPS, max_harmed=LIMIT, outcome_minutes=120, salt="fixed"
    )
    starting.run(found)
    return found


class Processes:
    """Two of the endpoint's, which report each answer and read the table now and then."""

    def __init__(self, trial: Trial, clock: Clock) -> None:
        self.trial, self.clock = trial, clock
        self.sessions = Sessions(), Sessions()
        self.assignments = Assignments()
        self.answers: list[TrialAnswer] = []
        self.read()

    def read(self) -> None:
        self.route = routes.route_of(
            Channel.objects.select_related("current").get(pk=self.trial.channel_id),
            self.assignments,
        )

    def ask(self, unit: str, process: int) -> None:
        if len(self.route.lanes) > 1:
            kind = self.sessions[process].lane_of(self.route, unit, self.clock.seconds).kind
            self.answers.append(answer(self.trial, unit, kind, at=self.clock.now))

    def report(self) -> None:
        if new := [one for one in self.answers if not one.pk]:
            store(self.trial, new)

    def lanes(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for one in self.answers:
            found.setdefault(one.unit, set()).add(one.lane)
        return found

    def begun(self, lane: str) -> int:
        return sum(lanes == {lane} for lanes in self.lanes().values())


def hour(processes: Processes, number: int, *, fails: bool = False) -> list[str]:
    """Three looks, each after ten new sessions and the second turn of those before, which another
    process answers. With `fails`, each session of the candidate is found to have failed, late.
    """
    clock, decisions = processes.clock, []
    for third in range(3):
        if third + number:
            for turn in range(10):
                processes.ask(f"{3 * number + third - 1}:{turn}", (turn + 1) % 2)
        for turn in range(10):
            processes.ask(f"{3 * number + third}:{turn}", turn % 2)
        processes.report()
        clock.pass_by(3)
        if fails:
            fail_late(processes)
        decisions.append(running.look(processes.trial.pk))
        clock.pass_by(17)
        processes.read()
    return decisions


def fail_late(processes: Processes) -> None:
    failed = set(Failure.objects.values_list("trajectory__external_id", flat=True))
    for one in processes.answers:
        if one.lane == "canary" and one.at <= processes.clock.now - LATE:
            run = Trace.objects.get(trace_id=one.trace_id).runs[0]
            if run not in failed:
                fail(processes.trial, one.trace_id)


@pytest.mark.proof
def test_no_more_fail_than_the_limit_though_the_outcomes_come_late(
    trial: Trial, clock: Clock, settings: Any
) -> None:
    """Each session of the candidate fails, which is known two hours later."""
    settings.FLYWHEEL_ENDPOINT_PROCESSES = 2
    processes = Processes(trial, clock)
    decisions = [what for number in range(4) for what in hour(processes, number, fails=True)]
    assert "harm" in decisions or "worse" in decisions
    assert LIMIT <= processes.begun("canary") <= LIMIT + 1  # one for the second process
    assert processes.begun("outside") > 20 and processes.begun("current") > 0
    assert all(len(lanes) == 1 for lanes in processes.lanes().values())


@pytest.mark.proof
def test_intake_goes_on_as_outcomes_become_known(trial: Trial, clock: Clock, settings: Any) -> None:
    settings.FLYWHEEL_ENDPOINT_PROCESSES = 2
    processes = Processes(trial, clock)
    for number in range(2):
        hour(processes, number)
    trial.refresh_from_db()
    first = processes.begun("canary")
    assert LIMIT <= first <= LIMIT + 1 and trial.room == 0
    assert trial.paused_for > timedelta(minutes=20)
    paused = f"Intake is paused: {first} sessions wait for their outcome (at most {LIMIT} may be"
    assert trial.report["waiting"] == first and trial.report["paused"].startswith(paused)
    clock.pass_by(-17)
    assert paused in shown(trial)
    clock.pass_by(17)
    outside = processes.begun("outside")
    for number in range(2, 5):
        hour(processes, number)
    trial.refresh_from_db()
    assert processes.begun("canary") > first and trial.state == "running"
    assert reading_of(trial).waiting <= LIMIT + 1
    assert all(len(lanes) == 1 for lanes in processes.lanes().values())
    known = set(TrialSession.objects.filter(counts=True).values_list("unit", flat=True))
    assert outside and not known & {
        unit for unit, lanes in processes.lanes().items() if "outside" in lanes
    }


def shown(trial: Trial) -> str:
    client = Client()
    client.force_login(admin_of(trial.project))
    names = [trial.project.slug, trial.channel.name, trial.pk]
    return client.get(reverse("promotion:trial", args=names)).content.decode()


def test_nothing_pauses_where_outcomes_are_known_early(
    trial: Trial, clock: Clock, settings: Any
) -> None:
    Trial.objects.update(outcome_minutes=0)
    processes = Processes(trial, clock)
    for number in range(2):
        hour(processes, number)
    trial.refresh_from_db()
    assert processes.begun("outside") == 0 and trial.paused_for == timedelta(0)
    assert trial.report["paused"] == "" and trial.room == LIMIT


def test_a_shadow_has_no_limit(channel: Channel, adapter: ModelVersion, clock: Clock) -> None:
    trial = make_trial(channel, adapter, kind="shadow", steps=STEPS, outcome_minutes=120)
    starting.run(trial)
    running.look(trial.pk)
    trial.refresh_from_db()
    route = routes.route_of(channel)
    assert (trial.room, route.intake, trial.report["paused"]) == (None, None, "")


# Which sessions wait for their outcome


def outcome(found: TrialAnswer, status: str) -> None:
    name = Trace.objects.get(trace_id=found.trace_id).runs[0]
    run = TrajectoryKey.objects.get(external_id=name).trajectory_id
    Trajectory.objects.filter(pk=run).update(outcome_status=status)


@pytest.mark.more(rows=3)
@pytest.mark.parametrize(
    ("hours", "what", "waits"),
    [
        (1, "", 1),
        (1, "current lane", 0),
        (1, "outside", 0),
        (3, "", 0),
        (1, "failed", 0),
        (1, "success reported", 0),
        (1, "not answered", 0),
        (3, "not analysed", 1),
        (25, "not analysed", 0),
        (3, "never stored", 1),
        (25, "never stored", 0),
        (0, "young", 1),
    ],
)
def test_which_sessions_wait(trial: Trial, clock: Clock, hours: int, what: str, waits: int) -> None:
    lane = {"current lane": "current", "outside": "outside"}.get(what, "canary")
    at = clock.now - timedelta(hours=hours)
    if what in ("not answered", "never stored"):
        answer(trial, "a", lane, at=at, answered=what == "never stored").save()
    else:
        found = asked(trial, "a", lane, at=at, failed="bad_planning" if what == "failed" else "")
        if what == "success reported":
            outcome(found, "success")
        if what == "not analysed":
            Trace.objects.update(due_at=clock.now)
    sessions.settle(trial, clock.now)
    before = 0 if what == "young" else waits
    assert sessions.waiting_sessions(trial, clock.now) == (waits, before)


def test_an_answer_of_a_process_that_did_not_know_its_session_belongs_to_its_lane(
    trial: Trial, clock: Clock
) -> None:
    early, late = clock.now - timedelta(minutes=30), clock.now - timedelta(minutes=20)
    asked(trial, "member", "current", at=early)
    asked(trial, "member", "outside", at=late, failed="bad_planning")
    asked(trial, "guest", "outside", at=early)
    asked(trial, "guest", "canary", at=late)
    sessions.settle(trial, clock.now)
    (row,) = TrialSession.objects.filter(trial=trial)
    assert (row.unit, row.lane, row.counts, row.success, row.requests) == (
        "member",
        "current",
        True,
        False,
        2,
    )


def test_the_time_limit_says_that_intake_was_paused(trial: Trial, clock: Clock) -> None:
    Trial.objects.update(started_at=clock.now - timedelta(days=15), paused_for=timedelta(hours=30))
    assert running.look(trial.pk) == "out_of_time"
    trial.refresh_from_db()
    assert "Intake was paused for 30.0 hours" in trial.ended_because
