"""A run of a flow goes from step to step, whatever dies, and stops where a person or a limit says
so.
"""

from __future__ import annotations

import random
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from apps.automation import actions, engine, starts, steps
from apps.automation.dry_run import forecast
from apps.automation.models import Flow, FlowRun, FlowStep, FlowVersion, RunState, StepState
from apps.automation.specs import FlowError, FlowSpec, read_yaml
from apps.core import runner
from apps.core.managed.objects import KINDS, archive
from apps.core.models import AuditEvent, Membership, Project, Role
from apps.evals import actions as evals
from apps.evals import drafts, submission
from apps.evals.models import EvalSet, Split
from apps.failures import classify_job
from apps.failures.actions.diagnose import classify_project
from apps.failures.models import Classification, DailyRuns, Failure
from apps.failures.rates import Rate
from apps.notifications.catalogue import Topic
from apps.notifications.models import Notification
from apps.promotion import actions as promotion
from apps.registry.servers import ServerError
from apps.webhooks.models import Delivery, Event
from tests.amounts import amount
from tests.factories import (
    admin_of,
    make_base,
    make_cluster,
    make_environment,
    make_eval_set,
    make_failed,
    make_member,
    make_project,
)

pytestmark = pytest.mark.django_db
WORDS = [
    "refund",
    "invoice",
    "ticket",
    "parcel",
    "warranty",
    "login",
    "address",
    "printer",
    "keyboard",
    "contract",
    "holiday",
    "salary",
    "visa",
]
TWO = """
steps:
- do: classify
- {do: ask, question: "Go on?"}
- {do: cluster, name: after}
"""


@pytest.fixture
def project() -> Project:
    return make_project()


def flow_of(project: Project, text: str = TWO, name: str = "weekly", by: Any = None) -> Flow:
    return actions.save_flow(
        project=project, name=name, spec=read_yaml(text), by=by or admin_of(project)
    )


def begun(project: Project, text: str = TWO, **given: Any) -> FlowRun:
    return actions.run_now(flow=flow_of(project, text, **given), by=admin_of(project))


def go(run: FlowRun) -> FlowRun:
    """Everything that can be done by the engine and by the workers of its jobs."""
    for _ in range(20):
        engine.advance(run)
        jobs = [
            job for step in run.steps.all() for job in steps.jobs_of(step) if job.state == "queued"
        ]
        if not jobs:
            break
        for job in jobs:
            runner.run(job)
    run.refresh_from_db()
    return run


def states(run: FlowRun) -> list[str]:
    return list(run.steps.values_list("state", flat=True))


def test_steps_are_done_in_order_and_a_question_waits_for_its_answer(project: Project) -> None:
    run = go(begun(project))
    assert (run.state, states(run)) == (RunState.WAITING, ["done", "waiting", "pending"])
    assert run.note == "Go on?" and Classification.objects.count() == 1
    engine.answer(run=run, yes=True, by=make_member(project))
    run = go(run)
    assert (run.state, states(run)) == (RunState.SUCCEEDED, ["done"] * 3)
    assert run.steps.get(key="classify").outputs == {"looked": 0, "found": 0}
    with pytest.raises(FlowError, match="is not waiting for an answer"):
        engine.answer(run=run, yes=True, by=admin_of(project))
    said = AuditEvent.objects.filter(project=project, action__startswith="flow.").values_list(
        "action", flat=True
    )
    assert set(said) == {"flow.saved", "flow.started", "flow.answered", "flow.succeeded"}


def test_no_ends_what_has_no_condition(project: Project) -> None:
    run = go(begun(project))
    member = make_member(project)
    engine.answer(run=run, yes=False, by=member)
    run = go(run)
    assert (run.state, states(run)) == (RunState.SUCCEEDED, ["done", "done", "skipped"])
    assert run.steps.get(key="after").said == f"{member.get_username()} declined ask."


def test_a_false_condition_skips_its_step_and_all_that_name_it(project: Project) -> None:
    text = """
steps:
- do: classify
- {do: cluster, if: classify.found > 3}
- {do: cluster, name: second, if: cluster.clusters >= 0}
- {do: cluster, name: third, if: classify.found == 0}
"""
    run = go(begun(project, text))
    assert states(run) == ["done", "skipped", "skipped", "done"]
    assert run.steps.get(key="cluster").said == "classify.found is 0, not > 3."
    assert run.steps.get(key="second").said == "cluster was skipped."


@pytest.mark.parametrize("dies", ["before it commits", "after it commits"])
def test_a_step_that_is_done_again_starts_its_job_once(
    project: Project, dies: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begun(project)
    real, calls = steps.WORK[type(run.version.form.steps[0])], []

    def killed(turn: Any, asked: Any) -> Any:
        calls.append(1)
        if dies == "before it commits":
            with pytest.raises(steps.NotYet):
                real(turn, asked)
            raise OperationalError("the connection is gone")
        return real(turn, asked)

    monkeypatch.setitem(steps.WORK, type(run.version.form.steps[0]), killed)
    if dies == "before it commits":
        with pytest.raises(OperationalError):
            engine.advance(run)
        assert not Classification.objects.exists()
        monkeypatch.setitem(steps.WORK, type(run.version.form.steps[0]), real)
    engine.advance(run)
    engine.advance(
        FlowRun.objects.get(pk=run.pk)
    )  # another process, which knows nothing of the first
    assert Classification.objects.count() == 1 and calls


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("kind", ["set", "environment", "model"])
def test_what_is_archived_is_not_picked(project: Project, data_dir: Path, kind: str) -> None:
    rows = {
        "set": make_eval_set(project),
        "environment": make_environment(project),
        "model": make_base(project, data_dir),
    }
    text = (
        f"steps: [{{do: evaluate, set: 'set:{rows['set'].slug}', environment:"
        f" {rows['environment'].slug}, model: 'version:{rows['model']}'}}]"
    )
    archive(managed=KINDS[kind], row=rows[kind], by=None)
    run = begun(project, text)
    engine.advance(run)
    assert "or it is archived" in run.steps.get().said and not project.evalruns.exists()


def test_a_step_that_may_pass_is_tried_again_later_and_then_ends_the_run(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(project: Project) -> None:
        raise ServerError("gpu-1 is down.")

    monkeypatch.setattr(steps, "recluster", down)
    run = begun(project, "timezone: Asia/Tokyo\nretries: 1\nsteps: [{do: cluster}]")
    run = go(run)
    step = run.steps.get()
    assert (run.state, step.state, step.attempt) == (RunState.QUEUED, StepState.PENDING, 1)
    assert step.said == "gpu-1 is down." and step.not_before > timezone.now()
    tokyo = step.not_before.astimezone(ZoneInfo("Asia/Tokyo"))
    assert run.note == f"cluster will be retried at {tokyo:%H:%M} (Asia/Tokyo). gpu-1 is down."
    FlowStep.objects.update(not_before=timezone.now())
    run = go(run)
    assert (run.state, run.error) == (RunState.FAILED, "cluster: gpu-1 is down.")
    assert [failure["said"] for failure in run.steps.get().failures] == ["gpu-1 is down."] * 2


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("{do: evaluate, set: 'set:none', environment: e}", "There is no frozen eval set “none”"),
        ("{do: evaluate, set: 'set:shown', environment: none}", "There is no environment “none”"),
        ("{do: freeze_set, set: none}", "There is no eval set “none”"),
        ("{do: collect_tasks, into: gone}", "gone@1 is archived"),
    ],
)
def test_what_cannot_pass_by_itself_is_not_tried_again(
    project: Project, step: str, said: str
) -> None:
    EvalSet.objects.filter(pk=make_eval_set(project).pk).update(slug="shown")
    gone = make_eval_set(project, frozen=False)
    EvalSet.objects.filter(pk=gone.pk).update(slug="gone", archived_at=timezone.now())
    run = go(begun(project, f"retries: 5\nsteps: [{step}]"))
    assert run.state == RunState.FAILED and said in run.error and run.steps.get().attempt == 1


def notified(project: Project) -> list[tuple[str, str]]:
    rows = Notification.objects.filter(project=project, topic=Topic.FLOW_FAILED).order_by("pk")
    return [(row.user.get_username(), row.excerpt) for row in rows]


FAILS = "retries: 0\nsteps: [{do: evaluate, set: 'set:none', environment: e}]"
NO_SET = "evaluate: There is no frozen eval set “none”, or it is archived."


def test_people_are_told_that_a_flow_failed(project: Project) -> None:
    author, starter, other = (make_member(project) for _ in range(3))
    flow = flow_of(project, FAILS, by=author)
    run = go(actions.run_now(flow=flow, by=starter))
    assert sorted(notified(project)) == sorted([(str(author), NO_SET), (str(starter), NO_SET)])
    row = Notification.objects.filter(topic=Topic.FLOW_FAILED).first()
    assert row.subject == "weekly failed" and row.page == run.get_absolute_url()
    Notification.objects.all().delete()
    Membership.objects.filter(user__in=[author, starter]).delete()
    go(engine.begin(flow=flow, cause={"by": "cron", "sentence": "Its time"}))
    assert {name for name, _ in notified(project)} == {str(other), str(admin_of(project))}


def test_a_cancelled_or_successful_run_is_no_failure(project: Project) -> None:
    go(begun(project, "steps: [{do: classify}]", name="fine"))
    run = go(begun(project))
    engine.cancel(run=run, by=admin_of(project))
    assert notified(project) == []


def test_a_failed_run_goes_on_at_the_step_that_failed(project: Project) -> None:
    text = (
        "retries: 0\nsteps: [{do: classify}, {do: evaluate, set: 'set:none', environment: e, if:"
        " classify.found > 0}]"
    )
    make_failed(project)
    run = go(begun(project, text))
    assert run.state == RunState.FAILED
    engine.retry(run=run, by=admin_of(project))
    run = go(run)
    assert run.state == RunState.FAILED and Classification.objects.count() == 1
    begun_again = actions.run_now(flow=run.version.flow, by=admin_of(project))
    with pytest.raises(FlowError, match="A later run of this flow is queued"):
        engine.retry(run=run, by=admin_of(project))
    assert engine.cancel(run=begun_again, by=admin_of(project))


def test_an_error_of_ours_is_the_steps_and_not_for_ever(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begun(project, "retries: 0\nsteps: [{do: cluster}]")
    monkeypatch.setattr(steps, "recluster", lambda project: 1 / 0)
    run = go(run)
    assert run.state == RunState.FAILED and "ZeroDivisionError" in run.error


def test_one_run_of_a_project_at_a_time_the_oldest_first(project: Project) -> None:
    first = begun(project, "steps: [{do: classify}]", name="one")
    second = begun(project, "steps: [{do: cluster}]", name="two")
    third = begun(make_project(), "steps: [{do: cluster}]")
    engine.advance(second)
    engine.advance(first)
    engine.advance(second)
    engine.advance(third)
    found = {run.pk: run.state for run in FlowRun.objects.all()}
    assert found == {first.pk: "running", second.pk: "queued", third.pk: "succeeded"}
    second.refresh_from_db()
    assert second.note == "Another flow of this project is running."
    assert go(first).state == go(second).state == RunState.SUCCEEDED


def test_who_waits_for_a_person_lets_others_go_and_waits_for_its_turn_again(
    project: Project,
) -> None:
    first = go(begun(project, name="one"))
    second = begun(project, "steps: [{do: classify}]", name="two")
    engine.advance(second)
    engine.answer(run=first, yes=True, by=admin_of(project))
    engine.advance(first)
    first.refresh_from_db()
    assert (first.state, first.note) == (
        RunState.QUEUED,
        "Another flow of this project is running.",
    )
    assert go(second).state == go(first).state == RunState.SUCCEEDED


def test_a_flow_that_runs_is_not_started_again(project: Project) -> None:
    run = begun(project)
    with pytest.raises(FlowError, match="“weekly” is queued already"):
        actions.run_now(flow=run.version.flow, by=admin_of(project))


def test_a_run_keeps_the_version_that_it_began_with(project: Project) -> None:
    run = go(begun(project))
    actions.save_flow(
        project=project,
        name="weekly",
        spec=read_yaml("steps: [{do: classify}]"),
        by=admin_of(project),
        flow=run.version.flow,
    )
    engine.answer(run=run, yes=True, by=admin_of(project))
    assert len(states(go(run))) == 3 and Flow.objects.get().version.number == 2


def test_cancelling_asks_its_job_to_stop_and_ends_when_it_has(project: Project) -> None:
    run = begun(project)
    engine.advance(run)
    job = Classification.objects.get()
    assert job.claim("worker")
    assert engine.cancel(run=run, by=admin_of(project)) and not engine.cancel(
        run=run, by=admin_of(project)
    )
    run.refresh_from_db()
    job.refresh_from_db()
    assert run.state == RunState.RUNNING and job.cancel_requested_at
    job.finish("cancelled")
    assert go(run).state == RunState.CANCELLED


def test_no_step_begins_in_quiet_hours(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FlowSpec, "quiet_at", lambda spec, at: spec.quiet[0])
    run = begun(project, "quiet: [{from: '00:00', until: '12:00'}]\nsteps: [{do: classify}]")
    run = go(run)
    assert run.state == RunState.QUEUED and run.note.startswith("Quiet hours until ")
    assert not Classification.objects.exists()
    # A later one, for which it is not quiet, need not wait for it.
    monkeypatch.setattr(
        FlowSpec, "quiet_at", lambda spec, at: spec.quiet[0] if spec.quiet else None
    )
    assert go(begun(project, "steps: [{do: cluster}]", name="later")).state == RunState.SUCCEEDED
    assert go(run).state == RunState.QUEUED
    monkeypatch.setattr(FlowSpec, "quiet_at", lambda spec, at: None)
    engine.advance(run)
    assert (
        FlowRun.objects.get(pk=run.pk).state == RunState.RUNNING and Classification.objects.exists()
    )


def test_an_agent_and_a_version_with_spaces_are_not_mixed_up(project: Project) -> None:
    now = timezone.now()
    for agent, version in (("a b", "c"), ("a", "b c")):
        DailyRuns.objects.create(
            project=project,
            day=now.date(),
            agent_name=agent,
            agent_version=version,
            runs=60,
            first=now,
        )
        found = starts.names_known(project)
    assert len(found) == 2


@pytest.mark.parametrize("span", ["run", "day"])
def test_a_limit_of_hours_stops_the_run(project: Project, span: str) -> None:
    run = begun(
        project, f"budget: {{hours_a_{span}: 1}}\nsteps: [{{do: classify}}, {{do: cluster}}]"
    )
    engine.advance(run)
    job = Classification.objects.get()
    job.claim("worker")
    Classification.objects.update(started_at=timezone.now() - timedelta(hours=2))
    run = go(run)
    assert (run.state, run.error) == (
        RunState.FAILED,
        f"classify: The limit of 1 hours a {span} is used up.",
    )
    job.refresh_from_db()
    assert job.cancel_requested_at


def test_a_job_that_goes_on_over_midnight_counts_from_midnight(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begun(project, "budget: {hours_a_day: 2}\nsteps: [{do: classify}, {do: cluster}]")
    engine.advance(run)
    Classification.objects.get().claim("worker")
    midnight = timezone.now() - timedelta(hours=1)
    monkeypatch.setattr(FlowSpec, "midnight", lambda spec, at: midnight)
    Classification.objects.update(started_at=midnight - timedelta(hours=5))
    FlowStep.objects.filter(key="classify").update(started_at=midnight - timedelta(hours=5))
    assert go(run).state == RunState.RUNNING  # an hour of this day
    midnight = timezone.now() - timedelta(hours=3)
    assert go(run).error == "classify: The limit of 2 hours a day is used up."


def test_going_on_after_the_limit_of_the_day_starts_no_job(project: Project) -> None:
    run = begun(project, "retries: 0\nbudget: {hours_a_day: 1}\nsteps: [{do: classify}]")
    engine.advance(run)
    Classification.objects.get().claim("worker")
    Classification.objects.update(started_at=timezone.now() - timedelta(hours=2))
    assert go(run).state == RunState.FAILED
    engine.retry(run=run, by=admin_of(project))
    assert go(run).error == "classify: The limit of 1 hours a day is used up."
    assert Classification.objects.count() == 1


def test_what_earlier_runs_of_the_day_used_counts(project: Project) -> None:
    run = go(begun(project, "budget: {hours_a_day: 1}\nsteps: [{do: classify}]"))
    FlowStep.objects.update(seconds=3600)
    again = go(actions.run_now(flow=run.version.flow, by=admin_of(project)))
    assert again.error == "classify: The limit of 1 hours a day is used up."


@pytest.mark.parametrize("gone", ["removed", "viewer", "inactive"])
def test_a_flow_acts_in_the_name_of_one_who_may(project: Project, gone: str) -> None:
    author = make_member(project)
    run = begun(project, by=author)
    membership = Membership.objects.filter(project=project, user=author)
    if gone == "removed":
        membership.delete()
    elif gone == "viewer":
        membership.update(role=Role.VIEWER)
    else:
        author.is_active = False
        author.save()
    run = go(run)
    assert (
        run.state == RunState.FAILED and "no longer has permission to run flows here" in run.error
    )
    assert not Classification.objects.exists()


def test_people_are_told_when_it_waits_and_when_it_ends(project: Project) -> None:
    from apps.webhooks.actions import create_webhook

    create_webhook(
        project=project, url="https://example.com/hook", events=Event.values, by=admin_of(project)
    )
    run = go(begun(project))
    go(run)
    engine.cancel(run=run, by=admin_of(project))
    events = list(Delivery.objects.order_by("created_at").values_list("event", flat=True))
    assert events == ["flow.waiting", "flow.ended"]


# What starts it


def test_a_clock_starts_it_once_and_makes_up_for_what_was_missed_once(project: Project) -> None:
    flow = flow_of(project, "starts: [{by: cron, when: '0 * * * *'}]\nsteps: [{do: classify}]")
    assert flow.next_run_at > timezone.now()
    Flow.objects.update(next_run_at=timezone.now() - timedelta(days=3))
    assert actions.tick()["clock"] == 1 and actions.tick()["clock"] == 0
    flow.refresh_from_db()
    assert flow.next_run_at > timezone.now()
    assert FlowRun.objects.get().cause["by"] == "cron"


def test_a_flow_that_is_off_is_not_started(project: Project) -> None:
    flow = flow_of(
        project,
        "starts: [{by: cron, when: '0 * * * *'}, {by: new_failures, at_least: 1}]\nsteps: [{do:"
        " classify}]",
    )
    actions.switch(flow=flow, on=False, by=admin_of(project))
    make_failed(project)
    Flow.objects.update(looked_at=timezone.now() - timedelta(hours=1))
    assert actions.tick() == {"clock": 0, "seen": 0}
    actions.switch(flow=flow, on=True, by=admin_of(project))
    flow.refresh_from_db()
    assert flow.next_run_at is not None


def test_failures_since_the_last_run_start_it(project: Project) -> None:
    from apps.failures.actions.diagnose import classify_project

    make_failed(project)
    classify_project(project=project)
    flow_of(project, "starts: [{by: new_failures, at_least: 2}]\nsteps: [{do: classify}]")

    def look() -> int:
        Flow.objects.update(looked_at=timezone.now() - timedelta(hours=1))
        return actions.tick(timezone.now() + timedelta(minutes=1))["seen"]

    assert look() == 0  # what was there before it was saved is not new
    for _ in range(2):
        make_failed(project, started_at=(timezone.now() + timedelta(seconds=1)).isoformat())
    classify_project(project=project)
    assert look() == 1
    assert FlowRun.objects.get().cause["seen"] == {"failures": 2}
    go(FlowRun.objects.get())
    FlowRun.objects.update(created_at=timezone.now() + timedelta(seconds=2))
    assert look() == 0


def test_saving_the_same_adds_no_version_and_a_name_is_unique(project: Project) -> None:
    flow = flow_of(project)
    actions.save_flow(
        project=project, name="weekly", spec=read_yaml(TWO), by=admin_of(project), flow=flow
    )
    assert flow.versions.count() == 1
    member = make_member(project)
    actions.save_flow(project=project, name="weekly", spec=read_yaml(TWO), by=member, flow=flow)
    assert flow.versions.count() == 2 and flow.version.created_by == member
    with pytest.raises(FlowError, match="A flow named “weekly” already exists"):
        flow_of(project)


@pytest.mark.proof
def test_a_thousand_flows_take_few_queries(
    project: Project, django_assert_max_num_queries: Any
) -> None:
    for number in range(30):
        flow_of(
            project,
            "starts: [{by: new_failures, at_least: 5}]\nsteps: [{do: classify}]",
            name=f"flow {number}",
        )
    Flow.objects.update(looked_at=timezone.now() - timedelta(hours=1))
    with django_assert_max_num_queries(
        12 + 30
    ):  # one count a flow at most: each was saved at another time
        assert actions.tick()["seen"] == 0


@pytest.mark.proof
def test_rates_are_read_once_for_all_flows(
    project: Project, django_assert_max_num_queries: Any
) -> None:
    for number in range(30):
        flow_of(
            project, "starts: [{by: failure_rate}]\nsteps: [{do: classify}]", name=f"flow {number}"
        )
    yesterday = timezone.now() - timedelta(days=2)
    FlowVersion.objects.update(created_at=yesterday)
    Flow.objects.update(looked_at=yesterday)
    with django_assert_max_num_queries(12):
        assert actions.tick()["seen"] == 0


def test_the_database_keeps_two_runs_of_a_project_apart(project: Project) -> None:
    first, second = begun(project, name="one"), begun(project, name="two")
    FlowRun.objects.filter(pk=first.pk).update(state="running")
    from django.db import IntegrityError, transaction

    with pytest.raises(IntegrityError), transaction.atomic():
        FlowRun.objects.filter(pk=second.pk).update(state="running")
    assert connection.is_usable()


def test_a_refusal_that_speaks_of_a_hold_out_is_not_kept(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: Any) -> None:
        raise evals.HoldoutLeak("Task “held-1”: close ticket 7 is nearly the same.", held=["hash"])

    make_eval_set(project, frozen=False)
    monkeypatch.setattr(drafts, "split_by_group", refuse)
    slug = project.eval_sets.get().slug
    run = go(begun(project, f"retries: 0\nsteps: [{{do: freeze_set, set: {slug}}}]"))
    assert (
        run.state == RunState.FAILED
        and "held-1" not in run.error
        and "on the eval set's page" in run.error
    )


def test_a_jobs_error_stays_on_its_own_page(project: Project) -> None:
    run = begun(project, "retries: 0\nsteps: [{do: classify}]")
    engine.advance(run)
    job = Classification.objects.get()
    job.claim("worker")
    job.finish("failed", error="Task held-1: close ticket 7")
    run = go(run)
    assert run.error == "classify: Classify trajectories failed; see its page for the reason."


def test_a_held_out_task_that_cannot_be_scored_is_not_named(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment, eval_set = make_environment(project), make_eval_set(project)
    base = make_base(project, tmp_path)
    promotion.set_initial(channel=promotion.channel_of(project), version=base, by=admin_of(project))
    monkeypatch.setattr(submission, "problem_of", lambda *_: "not mathematics")
    text = (
        f"retries: 0\nsteps: [{{do: evaluate, set: 'set:{eval_set.slug}', environment:"
        f" {environment.slug}}}]"
    )
    run = go(begun(project, text))
    assert run.state == RunState.FAILED
    assert not any(task.key in run.error for task in eval_set.tasks.holdout())


def test_the_text_of_an_unknown_error_is_not_shown(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def recluster(project: Project) -> None:
        raise ValueError("Task held-1: close ticket 7")

    run = begun(project, "retries: 0\nsteps: [{do: cluster}]")
    monkeypatch.setattr(steps, "recluster", recluster)
    run = go(run)
    assert "held-1" not in run.error and "ValueError" in run.error


def test_a_draft_with_as_many_but_other_tasks_is_frozen(project: Project) -> None:
    frozen, by = make_eval_set(project, train=6, holdout=3), admin_of(project)
    draft = drafts.new_version(eval_set=frozen, by=by)
    draft.tasks.filter(split=Split.TRAIN)[0].delete()
    task = evals.written_task(
        draft,
        key="new",
        request="Close ticket 4444.",
        split=Split.TRAIN,
        by=by,
        expected={"tool": "tickets.close", "args": {"id": 4444}},
    )
    evals.store_tasks(eval_set=draft, tasks=[task], by=by, what="made")
    assert draft.tasks.count() == frozen.tasks.count()
    run = go(
        begun(project, f"retries: 0\nsteps: [{{do: freeze_set, set: {frozen.slug}, holdout: 3}}]")
    )
    assert run.steps.get().outputs["eval_set"] == str(draft.pk)


HOURLY = "starts: [{by: cron, when: '0 * * * *'}]\nsteps: [{do: classify}]"


def test_a_flow_that_can_no_longer_be_read_stops_no_other(project: Project) -> None:
    odd = flow_of(project, HOURLY, name="a")
    flow_of(project, HOURLY, name="b")
    FlowVersion.objects.filter(flow=odd).update(spec={"steps": [{"do": "gone"}]})
    long_ago = timezone.now() - timedelta(days=3)
    Flow.objects.update(next_run_at=long_ago, looked_at=long_ago)
    assert actions.tick() == {"clock": 1, "seen": 0}
    actions.tick()
    (row,) = Notification.objects.filter(topic=Topic.FLOW_FAILED)
    assert row.subject == "a cannot be started" and row.user == admin_of(project)


def test_a_run_that_can_no_longer_be_read_fails(project: Project) -> None:
    run = begun(project)
    FlowVersion.objects.update(spec={"steps": [{"do": "gone"}]})
    run = go(run)
    assert run.state == RunState.FAILED and "can no longer be read" in run.error


def test_a_death_on_the_way_from_the_clock_to_the_run_loses_no_run(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(**_: Any) -> None:
        raise OperationalError("the connection is gone")

    flow_of(project, HOURLY)
    Flow.objects.update(next_run_at=timezone.now() - timedelta(days=3))
    with monkeypatch.context() as patched, pytest.raises(OperationalError):
        patched.setattr(engine, "begin", die)
        actions.tick()
    assert actions.tick()["clock"] == 1


def test_none_of_very_many_known_versions_is_new(project: Project) -> None:
    now = timezone.now()

    def ran(version: str) -> DailyRuns:
        return DailyRuns(
            project=project,
            day=now.date(),
            agent_name="agent",
            agent_version=version,
            runs=100,
            first=now,
        )

    DailyRuns.objects.bulk_create(ran(f"{number:04}") for number in range(1001))
    flow_of(project, "starts: [{by: new_version}]\nsteps: [{do: classify}]")
    Flow.objects.update(looked_at=timezone.now() - timedelta(hours=1))
    assert actions.tick()["seen"] == 0
    ran("new").save()
    Flow.objects.update(looked_at=timezone.now() - timedelta(hours=1))
    assert actions.tick()["seen"] == 1


@pytest.mark.parametrize("act", ["delete", "continue"])
def test_who_deletes_or_continues_waits_for_who_begins(project: Project, act: str) -> None:
    run = go(begun(project, "retries: 0\nsteps: [{do: evaluate, set: 'set:none', environment: e}]"))
    with CaptureQueriesContext(connection) as queries:
        if act == "delete":
            actions.delete(flow=run.version.flow, by=admin_of(project))
        else:
            engine.retry(run=run, by=admin_of(project))
    locks = [query["sql"] for query in queries if "FOR UPDATE" in query["sql"]]
    assert 'FROM "automation_flow" ' in locks[0]


def test_a_flow_that_was_deleted_meanwhile_is_refused_with_a_sentence(project: Project) -> None:
    flow = flow_of(project)
    same, by = Flow.objects.get(), admin_of(project)
    actions.delete(flow=flow, by=by)
    acts = (
        lambda: actions.run_now(flow=same, by=by),
        lambda: actions.delete(flow=same, by=by),
        lambda: actions.switch(flow=same, on=False, by=by),
        lambda: actions.save_flow(project=project, name="a", spec=read_yaml(TWO), by=by, flow=same),
    )
    for act in acts:
        with pytest.raises(FlowError, match="has been deleted"):
            act()


def test_a_new_name_is_in_the_audit_log(project: Project) -> None:
    flow = flow_of(project)
    actions.save_flow(
        project=project, name="other", spec=flow.version.form, by=admin_of(project), flow=flow
    )
    assert AuditEvent.objects.get(action="flow.renamed").detail["before"] == "weekly"


@pytest.mark.more(rows=2)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{do: evaluate, set: 'set:none', environment: workplace}", "no frozen eval set “none”"),
        (
            "{do: evaluate, set: 'set:SET', environment: workplace}",
            "Nothing is live in the channel “production” yet. Promote a model",
        ),
        (
            "{do: evaluate, set: 'set:SET', environment: workplace, model: 'version:x-v1'}",
            "no model version “x-v1”",
        ),
        (
            "{do: train, method: sft, set: 'set:none', environment: workplace, config: {}}",
            "no frozen eval set “none”",
        ),
    ],
)
def test_a_dry_run_says_what_the_run_would_fail_at(project: Project, text: str, said: str) -> None:
    make_environment(project)
    text = f"retries: 0\nsteps: [{text.replace('SET', make_eval_set(project).slug)}]"
    (step,) = forecast(project, read_yaml(text))
    assert step.problem and said in step.sentence
    assert said in go(begun(project, text)).error


def test_a_dry_run_reads_the_config_of_a_training(project: Project, tmp_path: Path) -> None:
    make_environment(project)
    base = make_base(project, tmp_path)
    promotion.set_initial(channel=promotion.channel_of(project), version=base, by=admin_of(project))
    named = f"set: 'set:{make_eval_set(project).slug}', environment: workplace"
    (step,) = forecast(
        project, read_yaml(f"steps: [{{do: train, method: sft, {named}, config: {{stepz: 3}}}}]")
    )
    assert step.problem and "did you mean “steps”" in step.sentence


# Somebody goes, something is archived, several do the same


def test_when_its_author_goes_the_job_under_way_is_stopped(project: Project) -> None:
    author = make_member(project, Role.OPERATOR)
    run = begun(project, by=author)
    engine.advance(run)
    job = Classification.objects.get()
    Membership.objects.filter(user=author).delete()
    engine.advance(run)
    run.refresh_from_db()
    job.refresh_from_db()
    assert (
        run.state == RunState.FAILED and "no longer has permission to run flows here" in run.error
    )
    assert job.state == "cancelled"


def test_cancelling_leaves_a_classification_that_somebody_else_started(project: Project) -> None:
    theirs = classify_job.start(project=project, by=admin_of(project))
    run = begun(project)
    engine.advance(run)
    engine.cancel(run=run, by=admin_of(project))
    run.refresh_from_db()
    theirs.refresh_from_db()
    assert (run.state, theirs.state, theirs.cancel_requested_at) == (
        RunState.CANCELLED,
        "queued",
        None,
    )


def test_a_version_that_ran_before_the_start_was_added_is_not_new(project: Project) -> None:
    flow = flow_of(project)
    today = timezone.now()
    runs = {"agent_name": "helpdesk", "runs": 60, "day": today.date(), "first": today}
    DailyRuns.objects.create(project=project, agent_version="1", **runs)
    watched = TWO.replace("steps:", "starts: [{by: new_version}]\nsteps:")
    actions.save_flow(
        project=project, name=flow.name, spec=read_yaml(watched), by=admin_of(project), flow=flow
    )
    DailyRuns.objects.create(project=project, agent_version="2", **(runs | {"runs": 30}))
    more = watched.replace(
        "steps:", "retries: 3\nsteps:"
    )  # an edit of something else forgets nothing
    actions.save_flow(
        project=project, name=flow.name, spec=read_yaml(more), by=admin_of(project), flow=flow
    )
    later = today + 2 * starts.EVERY
    assert actions.tick(later)["seen"] == 0
    DailyRuns.objects.filter(agent_version="2").update(runs=60)
    assert actions.tick(later + 2 * starts.EVERY)["seen"] == 1
    assert FlowRun.objects.get().cause["seen"] == {"name": 'version:["helpdesk", "2"]'}


def test_no_change_is_rarely_a_rise_in_a_month_of_looks() -> None:
    """At 95% every third month without any change had one."""
    drawn, found = random.Random(12), 0
    for _ in range(150):
        failed = [sum(drawn.random() < 0.3 for _ in range(20)) for _ in range(44)]
        known = [(sum(failed[at - 14 : at - 7]), sum(failed[at - 7 : at])) for at in range(14, 44)]
        found += any(rose(before, after, 140) for before, after in known)
    assert found / 150 < 0.08


RISE = read_yaml("starts: [{by: failure_rate}]\nsteps: [{do: classify}]")


def rose(before: int, after: int, runs: int) -> bool:
    known = starts.Known(Project(), timezone.now())
    counts = iter([Rate("", after, runs), Rate("", before, runs)])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(starts.Known, "rate", lambda *_: next(counts))
        return starts.cause_of(Flow(), RISE, timezone.now() - timedelta(days=2), known) is not None


def test_a_large_rise_is_found() -> None:
    assert rose(14, 42, 140) and not rose(42, 14, 140)


@pytest.mark.proof
def test_flows_that_began_at_different_times_share_what_they_read(
    project: Project, django_assert_max_num_queries: Any
) -> None:
    for number in range(30):
        text = f"starts: [{{by: new_failures, at_least: {5 + number}}}]\nsteps: [{{do: classify}}]"
        flow_of(project, text, name=f"flow {number}")
    with django_assert_max_num_queries(15):
        actions.tick(timezone.now() + 2 * starts.EVERY)


HELD = """
steps:
- {{do: collect_tasks, into: {into}, successes: true}}
- {{do: freeze_set, set: {into}, holdout: {holdout}, seed: {seed}}}
"""


@pytest.mark.more
def test_no_flow_moves_what_is_held_out_into_training(project: Project) -> None:
    """Another set, another seed, a smaller hold-out: what was held out once stays out of every
    training split.
    """
    for number in range(8):
        request = (
            f"{WORDS[number]} {WORDS[number + 3]} {WORDS[number + 5]} number"
            f" {number}{number}{number}"
        )
        make_failed(
            project,
            {"tool": "close_ticket", "args": {"id": number}},
            name=f"run {number}",
            request=request,
        )
    held: set[str] = set()
    flows = [("one", 3, 0), ("two", 1, 5), ("one", 1, 9), ("two", 1, 11), ("three", 1, 2)]
    for n, (into, holdout, seed) in enumerate(amount(flows[:3], flows)):
        run = go(
            begun(project, HELD.format(into=into, holdout=holdout, seed=seed), name=f"flow {n}")
        )
        for row in EvalSet.objects.filter(project=project, state="frozen"):
            held |= {str(task.messages) for task in row.tasks.filter(split=Split.HOLDOUT)}
        assert n or (run.state == RunState.SUCCEEDED and len(held) >= 3)
    trains = [
        str(task.messages)
        for row in EvalSet.objects.filter(project=project)
        for task in row.tasks.trainable()
    ]
    assert trains and not held & set(trains)


def test_failures_of_one_cluster_start_it(project: Project) -> None:
    flows = []
    cluster = make_cluster(make_failure(project, "before"))
    for pk in (cluster.pk, uuid.uuid4()):
        text = (
            f"starts: [{{by: new_failures, at_least: 2, cluster: {pk}}}]\nsteps: [{{do: classify}}]"
        )
        flows.append(flow_of(project, text, name=f"flow {pk}"))
    later = timezone.now() + 2 * starts.EVERY
    mine, _ = [make_failure(project, name) for name in ("one", "two")]
    Failure.objects.filter(pk=mine.pk).update(cluster=cluster)
    assert actions.tick(later)["seen"] == 0  # one of two is in it
    Failure.objects.update(cluster=cluster)
    assert actions.tick(later + 2 * starts.EVERY)["seen"] == 1
    run = FlowRun.objects.get()
    assert (
        run.version.flow == flows[0] and f"in the cluster “{cluster.name}”" in run.cause["sentence"]
    )
    with pytest.raises(FlowError, match="cluster"):
        read_yaml(
            "starts: [{by: new_failures, at_least: 2, cluster: Tickets}]\nsteps: [{do: classify}]"
        )


def make_failure(project: Project, name: str) -> Failure:
    make_failed(project, name=name)
    classify_project(project=project)
    return Failure.objects.get(trajectory__external_id=name)
