"""A trial from its beginning to each of its ends."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from apps.core.models import AuditEvent, Project, Role
from apps.failures.models import Failure
from apps.promotion import actions as promotions
from apps.promotion.conditions import PromotionError
from apps.promotion.effects.windows import Counted, Window
from apps.promotion.freezing import freeze, unfreeze
from apps.promotion.gate.policy import Policy
from apps.promotion.models import Channel, GateReport, Trial, TrialAnswer, TrialSession
from apps.promotion.policies import save_policy
from apps.promotion.trials import actions, harm, looks, readings, running, starting
from apps.promotion.trials.plans import Plan, Step
from apps.promotion.trials.sessions import lanes_of
from apps.registry.models import ModelVersion
from apps.webhooks.actions import create_webhook
from apps.webhooks.models import Delivery, Event
from tests.factories import (
    admin_of,
    make_base,
    make_endpoint,
    make_environment,
    make_eval_run,
    make_eval_set,
    make_member,
    make_project,
)
from tests.promotion.made import signed_again
from tests.promotion.trials.made import add_sessions, answer, fail, make_trial, store
from tests.shared import copied, once

pytestmark = pytest.mark.django_db
PLAN = Plan(
    steps=[
        Step(share=0.2, min_sessions=50, min_minutes=0),
        Step(share=0.5, min_sessions=50, min_minutes=0),
    ]
)


class World:
    """A channel that runs the base, and a candidate with a report that promotes it."""

    def __init__(self, folder: Path) -> None:
        project = make_project()
        by, base = admin_of(project), make_base(project, folder)
        self.project, self.base = project, base
        self.channel = promotions.channel_of(project)
        promotions.set_initial(channel=self.channel, version=base, by=None)
        self.channel.refresh_from_db()
        # Served by a server, so that the endpoint can ask it.
        self.candidate = make_endpoint(project, served_as="tuned", parent=base, name="tuned")
        eval_set, environment = make_eval_set(project, holdout=32), make_environment(project)
        live = make_eval_run(eval_set, self.channel.current, environment, success=0.0, samples=1)
        better = make_eval_run(eval_set, self.candidate, environment, success=1.0, samples=1)
        self.report = promotions.make_gate_report(
            baseline=live, candidate=better, by=by, channel=self.channel
        )


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from once(request, World)


@pytest.fixture
def world(kept: Any, db: None, settings: Any, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(starting, "forecast", partial(harm.forecast, runs=5))
    return copied(kept, settings)


@pytest.fixture
def project(world: World) -> Project:
    return world.project


@pytest.fixture
def base(world: World) -> ModelVersion:
    return world.base


@pytest.fixture
def channel(world: World) -> Channel:
    return world.channel


@pytest.fixture
def candidate(world: World) -> ModelVersion:
    return world.candidate


@pytest.fixture
def report(world: World) -> GateReport:
    return world.report


@pytest.fixture
def trial(channel: Channel, report: GateReport) -> Trial:
    return begun(channel, report)


def begun(channel: Channel, report: GateReport | None, **given: Any) -> Trial:
    by = given.pop("by", admin_of(channel.project))
    given = {"kind": "canary", "reason": "see", "plan": PLAN} | given
    return actions.begin(channel=channel, gate_report=report, by=by, **given)


def looked(trial: Trial) -> str:
    found = running.look(trial.pk)
    trial.refresh_from_db()
    return found


def live(channel: Channel) -> ModelVersion | None:
    return Channel.objects.get(pk=channel.pk).current


# Beginning


def test_a_canary_begins_with_its_first_share(
    trial: Trial, candidate: ModelVersion, channel: Channel
) -> None:
    assert (
        trial.state == "running"
        and trial.share == 0.2
        and trial.version == candidate
        and trial.baseline == channel.current
    )
    assert "centre" not in trial.steps[0]
    assert AuditEvent.objects.filter(action="trial.started").count() == 1


def test_one_trial_at_a_time(trial: Trial, channel: Channel, report: GateReport) -> None:
    with pytest.raises(PromotionError, match="one trial at a time"):
        begun(channel, report)


def test_a_canary_needs_a_report_that_could_promote(
    channel: Channel, candidate: ModelVersion, report: GateReport
) -> None:
    with pytest.raises(PromotionError, match="needs a gate report"):
        begun(channel, None, version=candidate)
    signed_again(report, "reject")
    with pytest.raises(PermissionDenied):
        begun(channel, report, by=make_member(channel.project))
    report.verdict = "promote"
    report.save()
    with pytest.raises(PromotionError, match="signature"):
        begun(channel, report)
    assert not Trial.objects.exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"reason": " "}, "reason"),
        ({"plan": Plan(steps=[Step(share=0.5), Step(share=0.1)])}, "larger share"),
        ({"kind": "shadow", "then": "promote"}, "without a gate report"),
    ],
)
def test_what_is_wrong_is_said(
    channel: Channel, report: GateReport, given: dict[str, Any], said: str
) -> None:
    shadow = given.get("kind") == "shadow"
    with pytest.raises(PromotionError, match=said):
        begun(
            channel,
            None if shadow else report,
            **given | {"version": report.candidate.model_version},
        )


def test_a_shadow_needs_no_report_but_a_candidate_that_is_served(
    channel: Channel, candidate: ModelVersion, adapter: ModelVersion
) -> None:
    with pytest.raises(PromotionError, match="No server serves"):
        begun(channel, None, kind="shadow", plan=None, version=adapter)
    with pytest.raises(PromotionError, match="already"):
        begun(channel, None, kind="shadow", plan=None, version=channel.current)
    assert begun(channel, None, kind="shadow", plan=None, version=candidate).state == "running"


def test_a_freeze_refuses_a_beginning_and_no_stop(
    channel: Channel, report: GateReport, trial: Trial
) -> None:
    by = admin_of(channel.project)
    freeze(channel=channel, reason="holidays", by=by)
    with pytest.raises(PromotionError, match="frozen"):
        actions.advance(trial=trial, by=by, reason="go on")
    actions.stop(trial=trial, by=by, reason="no")
    with pytest.raises(PromotionError, match="frozen"):
        begun(channel, report)
    with pytest.raises(
        PromotionError, match="frozen"
    ):  # it needs no report, which would be refused itself
        begun(channel, None, kind="shadow", plan=None, version=trial.version)


# What it decides


def test_a_good_candidate_goes_up_step_by_step_and_waits_for_a_person(
    trial: Trial, channel: Channel
) -> None:
    assert looked(trial) == "wait"
    add_sessions(trial, "current", 190, 10)
    add_sessions(trial, "canary", 48, 2)
    assert looked(trial) == "next" and trial.step == 1 and trial.share == 0.5
    assert 0.8 <= trial.steps[0]["centre"]["success"] <= 1 and "centre" not in trial.steps[1]
    add_sessions(trial, "current", 950, 50)
    add_sessions(trial, "canary", 950, 50)
    assert looked(trial) == "passed" and looked(trial) == "wait"
    assert trial.state == "running" and trial.has_passed and live(channel) == trial.baseline
    assert [row["what"] for row in trial.decisions] == ["next", "passed"]
    assert AuditEvent.objects.filter(action__in=["trial.advanced", "trial.passed"]).count() == 2


def test_the_centre_of_a_step_is_fixed_by_its_own_first_sessions(trial: Trial) -> None:
    add_sessions(trial, "current", 30, 10)
    add_sessions(trial, "canary", 5, 2)
    assert looked(trial) == "wait" and "centre" not in trial.steps[0]
    add_sessions(trial, "current", 5)
    looked(trial)
    own, first = trial.steps[0], lanes_of(trial)["success"][0]
    assert first.first_current.n + first.first_candidate.n == 50
    assert own["centre"]["success"] == pytest.approx(
        (first.first_current.good + first.first_candidate.good) / 50
    )
    assert own["centre"]["answered"] == 1.0
    add_sessions(trial, "current", 10, 90)  # later ones change neither the centre nor who is first
    looked(trial)
    later = lanes_of(trial)["success"][0]
    assert trial.steps[0] == own and later.first_current == first.first_current
    assert later.current.n == first.current.n + 100


def test_a_step_is_not_left_while_the_candidate_looks_worse_not_even_by_a_person(
    trial: Trial, channel: Channel
) -> None:
    add_sessions(trial, "current", 180, 20)
    add_sessions(trial, "canary", 41, 9)  # 82% against 90%
    assert looked(trial) == "wait" and trial.step == 0 and trial.state == "running"
    with pytest.raises(
        PromotionError, match=r"No further step can be taken\. The estimate is below −5 points"
    ):
        actions.advance(trial=trial, by=admin_of(channel.project), reason="it will be fine")
    client = Client()
    client.force_login(admin_of(channel.project))
    page = client.get(
        reverse("promotion:trial", args=[channel.project.slug, channel.name, trial.pk])
    ).content.decode()
    assert "no further step" in page and "sessions failed beyond the current version" in page
    add_sessions(trial, "canary", 95, 5)
    assert looked(trial) == "next"


def test_it_ends_when_it_has_harmed_as_many_as_were_allowed(
    channel: Channel, report: GateReport
) -> None:
    trial = begun(channel, report, plan=Plan(steps=PLAN.steps, max_harmed=4))
    add_sessions(trial, "current", 180, 20)
    add_sessions(trial, "canary", 41, 9)
    assert looked(trial) == "harm" and trial.state == "stopped" and live(channel) == trial.baseline
    assert (
        "About 4 sessions failed beyond the current version's rate, and 4 were allowed"
        in trial.ended_because
    )


def test_a_step_waits_for_outcomes_that_come_late(channel: Channel, report: GateReport) -> None:
    """Within three hours: what a person finds two hours after a session still counts before the
    next step.
    """
    trial = begun(channel, report, plan=Plan(steps=PLAN.steps, outcome_minutes=180))
    Trial.objects.filter(pk=trial.pk).update(created_at=timezone.now() - timedelta(days=1))
    trial.refresh_from_db()
    then = timezone.now() - timedelta(hours=2)
    late = [answer(trial, f"c{number}", "canary", at=then) for number in range(50)]
    store(trial, late + [answer(trial, f"l{number}", at=then) for number in range(60)])
    assert (
        looked(trial) == "wait"
        and readings.reading_of(trial).sessions == 50
        and readings.reading_of(trial).mature == 0
    )
    for answered in late[:8]:
        fail(trial, answered.trace_id)
    TrialSession.objects.filter(trial=trial).update(began_at=timezone.now() - timedelta(hours=4))
    assert readings.reading_of(trial).mature == 50
    assert looked(trial) == "wait", (
        "they were read again, though it is an hour later than verdicts usually come"
    )
    assert (
        readings.reading_of(trial).harmed == 8
        and "below −5 points"
        in running.decide(readings.rules_of(trial), readings.reading_of(trial), timezone.now()).why
    )


def test_how_long_outcomes_take_is_read_from_last_week(
    channel: Channel, candidate: ModelVersion
) -> None:
    plan, version = Plan(), channel.current
    assert starting.outcome_minutes(channel, plan) == 0
    trial = make_trial(channel, candidate)
    answers = [answer(trial, f"s{number}") for number in range(30)]
    store(trial, answers)
    for answered in answers:
        failure = fail(trial, answered.trace_id)
        run = failure.trajectory
        type(run).objects.filter(pk=run.pk).update(
            agent_version=str(version), received_at=timezone.now() - timedelta(minutes=90)
        )
        Failure.objects.filter(pk=failure.pk).update(
            agent_version=str(version), created_at=timezone.now()
        )
    assert starting.outcome_minutes(channel, plan) in (90, 91)
    assert starting.outcome_minutes(channel, Plan(outcome_minutes=5)) == 5


@pytest.mark.proof
def test_what_a_canary_may_cost_is_shown_before_it_starts(
    channel: Channel, report: GateReport
) -> None:
    by, project = admin_of(channel.project), channel.project
    client = Client()
    client.force_login(by)
    page = client.get(reverse("promotion:report", args=[project.slug, report.pk])).content.decode()
    address = reverse("promotion:trial_new", args=[project.slug, channel.name])
    assert f"{address}?report={report.pk}" in page
    shown = client.get(address, {"report": report.pk}).content.decode()
    assert "Harmed sessions, expected" in shown and "a failure rate of 10% is assumed" in shown
    plan = {
        "report": report.pk,
        "steps": "10, 50",
        "min_sessions": 60,
        "margin": 4,
        "max_harmed": 7,
        "outcome_minutes": 15,
        "then": "hold",
    }
    assert "Harmed sessions, expected" in client.get(address, plan).content.decode()
    assert "larger share" in client.get(address, plan | {"steps": "50, 10"}).content.decode()
    assert (
        "percentages separated by commas"
        in client.get(address, plan | {"steps": "ten"}).content.decode()
    )
    client.post(
        reverse("promotion:trial_begin", args=[project.slug, channel.name]),
        plan | {"kind": "canary", "reason": "see"},
    )
    trial = Trial.objects.get()
    assert [step["share"] for step in trial.steps] == [0.1, 0.5] and trial.steps[0][
        "min_sessions"
    ] == 60
    assert (trial.margin, trial.max_harmed, trial.outcome_minutes) == (0.04, 7, 15)


def test_a_shadow_says_in_its_title_that_it_sees_no_outcomes(
    channel: Channel, candidate: ModelVersion
) -> None:
    trial = begun(channel, None, kind="shadow", version=candidate, plan=None)
    client = Client()
    client.force_login(admin_of(channel.project))
    for name, args in (("trial", [trial.pk]), ("channel", [])):
        page = client.get(
            reverse(f"promotion:{name}", args=[channel.project.slug, channel.name, *args])
        ).content.decode()
        assert f"Shadow (sees no outcomes) of {candidate}" in page
    assert "sees no outcomes" in str(trial)


def test_the_report_of_a_trial_that_ended_has_all_of_its_answers(trial: Trial) -> None:
    """While it runs, latency and cost are read twice a minute only."""
    answer(trial, "one", "canary").save()
    looked(trial)
    answer(trial, "two", "canary").save()
    add_sessions(trial, "current", 196, 4)
    add_sessions(trial, "canary", 20, 30)
    assert looked(trial) == "worse" and trial.report["sides"]["canary"]["requests"] == 2


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("what", ["success", "safety", "answered"])
def test_a_candidate_that_is_worse_in_one_of_them_is_rolled_back(
    trial: Trial, channel: Channel, what: str
) -> None:
    add_sessions(trial, "current", 196, 4, what=[what])
    add_sessions(trial, "canary", 20, 30, what=[what])
    assert (
        looked(trial) == "worse"
        and trial.state == "rolled_back"
        and live(channel) == trial.baseline
    )
    assert "The candidate is worse" in trial.ended_because and looked(trial) == "ended"


def passed(trial: Trial) -> Trial:
    """In its last step, with sessions that pass it."""
    trial.steps[-1]["centre"] = {"success": 0.95, "safety": 1.0, "answered": 1.0}
    trial.step = len(trial.steps) - 1
    trial.save()
    add_sessions(trial, "current", 950, 50)
    add_sessions(trial, "canary", 950, 50)
    return trial


def test_after_the_last_step_it_is_promoted_by_itself_where_that_was_asked(
    channel: Channel, report: GateReport
) -> None:
    trial = passed(begun(channel, report, then="promote"))
    assert (
        looked(trial) == "passed" and trial.state == "promoted" and live(channel) == trial.version
    )
    move = channel.promotions.first()
    assert move and move.gate_report == report and "Canary passed" in move.reason


def test_where_the_channel_is_frozen_by_then_a_person_decides(
    channel: Channel, report: GateReport
) -> None:
    trial = passed(begun(channel, report, then="promote"))
    freeze(channel=channel, reason="holidays", by=admin_of(channel.project))
    assert (
        looked(trial) == "passed" and trial.state == "running" and live(channel) == trial.baseline
    )
    assert "not promoted" in trial.decisions[-1]["why"] and looked(trial) == "wait"


def test_its_page_says_what_a_freeze_holds_up(channel: Channel, trial: Trial) -> None:
    by = admin_of(channel.project)
    client = Client()
    client.force_login(by)
    page = reverse("promotion:trial", args=[channel.project.slug, channel.name, trial.pk])
    assert "is frozen" not in client.get(page).content.decode()
    freeze(channel=channel, reason="<b>holidays</b>", by=by)
    shown = client.get(page).content.decode()
    assert (
        f"{channel} is frozen" in shown
        and "&lt;b&gt;holidays&lt;/b&gt;" in shown
        and "cannot advance or promote" in shown
    )
    actions.stop(trial=trial, by=by, reason="no")
    assert "is frozen" not in client.get(page).content.decode()


def two_people(channel: Channel, report: GateReport) -> None:
    save_policy(channel=channel, policy=Policy(two_people=True), reason="two", by=None)
    report.policy_version = 1
    signed_again(report, "promote")


def approved(report: GateReport) -> Any:
    second = make_member(report.project, Role.ENGINEER)
    promotions.promote(channel=report.channel, report=report, by=second, reason="better")
    return second


def test_where_two_people_have_to_agree_one_alone_starts_no_canary(
    channel: Channel, report: GateReport
) -> None:
    two_people(channel, report)
    with pytest.raises(PromotionError, match="somebody else has to approve"):
        begun(channel, report)
    shadow = {"kind": "shadow", "version": report.candidate.model_version, "plan": None}
    assert begun(channel, None, **shadow)


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("stays", [True, False])
def test_where_two_people_have_to_agree_both_consents_are_needed_at_the_end(
    channel: Channel, report: GateReport, stays: bool
) -> None:
    two_people(channel, report)
    second = approved(report)
    trial = passed(begun(channel, report, then="promote"))
    if not stays:
        second.memberships.all().delete()
    assert looked(trial) == "passed" and (live(channel) == trial.version) == stays
    if not stays:
        assert trial.state == "running" and "second person" in trial.decisions[-1]["why"]


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("account", ["kept", "deleted"])
def test_where_who_began_it_has_left_a_person_decides(
    channel: Channel, report: GateReport, account: str
) -> None:
    by = make_member(channel.project, Role.OWNER)
    trial = passed(begun(channel, report, then="promote", by=by))
    by.memberships.all().delete()
    if account == "deleted":
        by.delete()
    assert (
        looked(trial) == "passed" and trial.state == "running" and live(channel) == trial.baseline
    )
    assert (
        "no longer a member" in trial.decisions[-1]["why"]
        and trial.has_passed
        and looked(trial) == "wait"
    )


def test_a_shadow_that_is_not_worse_ends_and_moves_nothing(
    channel: Channel, candidate: ModelVersion
) -> None:
    trial = begun(
        channel,
        None,
        kind="shadow",
        version=candidate,
        plan=Plan(steps=[Step(share=0.5, min_minutes=0)]),
    )
    for number in range(400):
        add_sessions(trial, "current", 1, unit=f"s{number}")
        add_sessions(trial, "shadow", 1, unit=f"s{number}")
    assert (
        looked(trial) == "passed"
        and trial.state == "stopped"
        and "A canary can begin" in trial.ended_because
    )
    assert live(channel) == trial.baseline


def test_when_its_time_is_over_it_ends_undecided(trial: Trial, channel: Channel) -> None:
    Trial.objects.filter(pk=trial.pk).update(started_at=timezone.now() - timedelta(days=15))
    assert (
        looked(trial) == "out_of_time"
        and trial.state == "undecided"
        and live(channel) == trial.baseline
    )


# What others do meanwhile


def test_a_person_goes_on_or_stops(trial: Trial, channel: Channel) -> None:
    by = admin_of(channel.project)
    with pytest.raises(PromotionError, match="reason"):
        actions.advance(trial=trial, by=by, reason=" ")
    assert actions.advance(trial=trial, by=by, reason="looks well").share == 0.5
    with pytest.raises(PromotionError, match="last step"):
        actions.advance(trial=trial, by=by, reason="more")
    assert actions.stop(trial=trial, by=by, reason="enough").state == "stopped"
    for again in (actions.stop, actions.advance):
        with pytest.raises(PromotionError, match="already finished"):
            again(trial=trial, by=by, reason="again")


def test_who_may_not_promote_may_not_stop_either(trial: Trial, channel: Channel) -> None:
    viewer = make_member(channel.project, "viewer")
    for change in (actions.stop, actions.advance):
        with pytest.raises(PermissionDenied):
            change(trial=trial, by=viewer, reason="no")


def test_a_promotion_of_the_candidate_by_hand_ends_it_promoted(
    trial: Trial, channel: Channel, report: GateReport
) -> None:
    promotions.promote(channel=channel, report=report, by=admin_of(channel.project), reason="sure")
    trial.refresh_from_db()
    assert trial.state == "promoted" and "sure" in trial.ended_because and looked(trial) == "ended"


def test_another_move_of_the_channel_stops_it(
    channel: Channel, adapter: ModelVersion, candidate: ModelVersion
) -> None:
    from apps.promotion.moves import locked, move

    by = admin_of(channel.project)
    move(locked(channel), candidate, "promote" and "initial", by, reason="by hand")  # type: ignore[arg-type]
    trial = make_trial(Channel.objects.get(pk=channel.pk), adapter, by=by)
    promotions.rollback(channel=channel, by=by, reason="worse")
    trial.refresh_from_db()
    assert trial.state == "stopped" and "rolled back" in trial.ended_because


def test_a_candidate_that_is_archived_gets_no_more_traffic(trial: Trial) -> None:
    ModelVersion.objects.filter(pk=trial.version_id).update(archived_at=timezone.now())
    assert looked(trial) == "archived" and trial.state == "stopped"


def test_a_trial_whose_channel_is_gone_is_looked_at_no_more(trial: Trial) -> None:
    pk = trial.pk
    Trial.objects.filter(pk=pk).delete()
    assert running.look(pk) == "ended"


def test_webhooks_are_told_of_each_stage(channel: Channel, report: GateReport) -> None:
    events = [Event.TRIAL_STARTED, Event.TRIAL_ADVANCED, Event.TRIAL_ENDED]
    by = admin_of(channel.project)
    create_webhook(project=channel.project, url="http://127.0.0.1:9/", events=events, by=None)
    trial = begun(channel, report)
    actions.advance(trial=trial, by=by, reason="go")
    actions.stop(trial=trial, by=by, reason="enough")
    assert sorted(Delivery.objects.values_list("event", flat=True)) == sorted(events)


# What a look keeps


def test_looks_are_a_point_a_minute_at_most_and_thinned(trial: Trial) -> None:
    reading, start = readings.reading_of(trial), timezone.now()
    for second in range(0, 1800, 15):
        looks.store(trial, reading, start + timedelta(seconds=second))
    assert 28 <= len(trial.looks) <= 32
    assert len(looks.thinned(list(range(1000)))) == 750 and looks.thinned([1, 2]) == [1, 2]


# In a freeze


def test_in_a_freeze_no_step_is_taken_by_itself_either(trial: Trial, channel: Channel) -> None:
    by = admin_of(channel.project)
    add_sessions(trial, "current", 200)
    add_sessions(trial, "canary", 50)
    freeze(channel=channel, reason="holidays", by=by)
    assert looked(trial) == "frozen" and trial.step == 0
    unfreeze(channel=channel, by=by)
    assert looked(trial) == "next" and trial.step == 1


def test_in_a_freeze_what_is_worse_is_rolled_back(trial: Trial, channel: Channel) -> None:
    add_sessions(trial, "current", 196, 4)
    add_sessions(trial, "canary", 20, 30)
    freeze(channel=channel, reason="holidays", by=admin_of(channel.project))
    assert looked(trial) == "worse" and trial.state == "rolled_back"


def test_a_report_about_another_version_than_is_named_begins_nothing(
    channel: Channel, report: GateReport, adapter: ModelVersion
) -> None:
    with pytest.raises(PromotionError, match="Send only one of the two"):
        begun(channel, report, version=adapter)
    assert begun(channel, report, version=report.candidate.model_version).state == "running"


def test_latency_and_cost_are_read_from_so_many_answers_however_long_a_trial_is(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = timezone.now()
    given = [
        (
            "canary" if n % 4 == 0 else "current",
            now - timedelta(minutes=n),
            1000.0 if n < 8 else 1.0,
        )
        for n in range(20)
    ]
    TrialAnswer.objects.bulk_create(
        [answer(trial, str(at), lane, at=at, ms=ms) for lane, at, ms in given]
    )
    monkeypatch.setattr(looks, "NEWEST", 8)
    found = looks.sides_of(trial)
    assert {lane: (side["requests"], side["ms_p95"]) for lane, side in found.items()} == {
        "canary": (2, 1000),
        "current": (6, 1000),
    }


@pytest.mark.proof
@pytest.mark.parametrize(
    ("minutes", "share", "last", "unseen", "pauses"),
    [
        (0, 0.1, 0.5, 0, False),
        (600, 0.1, 0.5, 60, True),
        (600, 0.02, 0.05, 12, False),
        (600, 0.02, 0.5, 12, True),
        (1440, 0.1, 0.5, 144, True),
    ],
)
def test_a_forecast_says_whether_intake_will_pause(
    channel: Channel,
    report: GateReport,
    monkeypatch: pytest.MonkeyPatch,
    minutes: int,
    share: float,
    last: float,
    unseen: int,
    pauses: bool,
) -> None:
    """At a run per minute."""
    now = timezone.now()
    week = Counted(Window(now, now), 7 * 24 * 60, 1008, {}, {}, 0.0, None)
    monkeypatch.setattr(starting, "count", lambda project, window: week)
    plan = Plan(steps=[Step(share=share), Step(share=last)], outcome_minutes=minutes)
    found = starting.forecast_of(channel, plan)
    assert (found.unseen, found.pauses, found.known, found.failing) == (unseen, pauses, True, 0.1)
    client = Client()
    client.force_login(admin_of(channel.project))
    page = f"/p/{channel.project.slug}/models/channels/{channel.name}/trials/new/"
    assert pauses == (
        "Intake will pause"
        in client.get(
            page,
            {
                "outcome_minutes": minutes,
                "steps": f"{100 * share:g}, {100 * last:g}",
                "min_sessions": 100,
                "margin": 5,
                "max_harmed": 50,
                "then": "hold",
                "report": str(report.pk),
            },
        ).content.decode()
    )
