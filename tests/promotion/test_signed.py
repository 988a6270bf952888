"""Sequential reports, signatures, what can be shown before the start, wear; and channels by API."""

from __future__ import annotations

import json
from copy import deepcopy
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client, override_settings
from msgspec import structs

from apps.core.models import AuditEvent, Membership, Project, Role
from apps.evals.bounds import fixed_order
from apps.evals.holdout.view_log import WORN_OUT, record_view
from apps.evals.jobs import IsDecided, store_events, stream_tasks
from apps.evals.models import EvalRun, Sample
from apps.promotion import actions, inputs, policies
from apps.promotion.gate.policy import Policy, as_toml
from apps.promotion.models import Channel, GateReport
from apps.promotion.signing import document_of, is_signed, sign, signed_document
from apps.promotion.stopping import is_decided
from apps.promotion.wear import plan_for, wear_of
from apps.registry.models import ModelVersion
from tests.factories import (
    admin_of,
    key_headers,
    make_environment,
    make_eval_run,
    make_eval_set,
    make_member,
    make_project,
)
from tests.promotion.made import Pair, signed_again

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("pair_kept")]


def saved(channel: Channel, **changes: object) -> None:
    policy = structs.replace(policies.policy_of(channel)[0], **changes)
    policies.save_policy(channel=channel, policy=policy, reason="because", by=None)


class World(Pair):
    holdout = 40


def stopped(run: EvalRun, tasks: int) -> EvalRun:
    """As if it had been cancelled after so many tasks, with the first sample of one more."""
    done = [task.pk for task in stream_tasks(run)]
    run.samples.exclude(task__in=done[:tasks]).exclude(task=done[tasks], index=0).delete()
    EvalRun.objects.filter(pk=run.pk).update(state="cancelled")
    run.refresh_from_db()
    return run


def test_tasks_are_evaluated_in_an_order_that_depends_on_nothing_but_their_ids(pair: Pair) -> None:
    run = pair.runs[0]
    assert [str(task.pk) for task in stream_tasks(run)] == fixed_order(
        str(task.pk) for task in run.eval_set.tasks.holdout()
    )


def test_a_sequential_policy_decides_on_an_evaluation_that_was_stopped(
    project: Project, channel: Channel, pair: Pair
) -> None:
    before, after = pair.runs
    stopped(after, 34)
    by = admin_of(project)
    with pytest.raises(actions.PromotionError, match="did not succeed"):
        actions.make_gate_report(baseline=before, candidate=after, by=by)
    saved(channel, sequential=True)
    report = actions.make_gate_report(baseline=before, candidate=after, by=by)
    assert (report.verdict, report.report["tasks"], report.report["planned"]) == ("promote", 34, 40)
    assert inputs.reproduce(report)[1]
    actions.promote(channel=channel, report=report, by=by, reason="certain already")


def test_a_report_on_a_running_evaluation_is_reproduced_when_it_has_gone_on(
    channel: Channel, pair: Pair
) -> None:
    saved(channel, sequential=True)
    before, after = pair.runs
    rest = list(after.samples.all())
    stopped(after, 5)
    report = actions.make_gate_report(baseline=before, candidate=after, by=None)
    assert report.report["tasks"] == 5 and report.verdict == "inconclusive"
    kept = set(after.samples.values_list("task", "index"))
    Sample.objects.bulk_create(
        [sample for sample in rest if (sample.task_id, sample.index) not in kept]
    )
    assert inputs.reproduce(report)[1]
    later = actions.make_gate_report(baseline=before, candidate=after, by=None)
    assert later.report["tasks"] == 40 and later.comparison == report.comparison


def test_the_command_reproduces_a_sequential_report_with_masked_samples(
    channel: Channel, pair: Pair
) -> None:
    """By the samples it was made of: what came later changes nothing, a mask that was taken off
    does.
    """
    saved(channel, sequential=True, max_masked_share=0.2)
    before, after = pair.runs
    order = [task.pk for task in stream_tasks(after)]
    for run, at in ((before, 3), (after, 5), (after, 39)):
        run.samples.filter(task=order[at], index=1).update(masked=True, reward=None, success=False)
    rest = list(after.samples.all())
    stopped(after, 36)
    made = actions.make_gate_report(baseline=before, candidate=after, by=None)
    masked = next(check for check in made.report["checks"] if check["name"] == "masked")
    assert (made.report["tasks"], masked["baseline"], masked["candidate"]) == (36, 1 / 72, 1 / 72)
    stored = set(after.samples.values_list("task", "index"))
    Sample.objects.bulk_create(
        [sample for sample in rest if (sample.task_id, sample.index) not in stored]
    )
    after.samples.filter(task=order[39]).update(masked=False, reward=1.0)
    said = StringIO()
    call_command("reproduce_gate_report", str(made.pk), stdout=said)
    assert "Signature: valid." in said.getvalue() and "Reproduced" in said.getvalue()
    after.samples.filter(task=order[5]).update(masked=False, reward=1.0)
    with pytest.raises(CommandError, match="Not reproduced"):
        call_command("reproduce_gate_report", str(made.pk), stdout=said)


@pytest.mark.parametrize(
    ("asked", "stops"), [("production", False), ("staging", True), ("", False), ("gone", False)]
)
def test_an_evaluation_stops_by_the_policy_of_the_channel_that_was_asked_for(
    asked: str, stops: bool, project: Project, channel: Channel, pair: Pair
) -> None:
    saved(policies.channel_of(project, "staging"), sequential=True)
    before, after = pair.runs
    after.spec |= {"stop_against": str(before.pk), "stop_channel": asked}
    assert is_decided(IsDecided(after)) == stops


def test_which_tasks_are_done_first_does_not_choose_them(channel: Channel, pair: Pair) -> None:
    """A candidate that answers the tasks it can do at once, and hangs on the first of the fixed
    order, shows nothing.
    """
    saved(channel, sequential=True)
    before, after = pair.runs
    after.samples.filter(task=next(stream_tasks(after)), index=0).delete()
    assert actions.make_gate_report(baseline=before, candidate=after, by=None).report["tasks"] == 0


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("sequential", "success", "stops"), [(True, 1.0, True), (True, 0.0, False), (False, 1.0, False)]
)
def test_an_evaluation_stops_itself_when_the_gate_has_decided(
    sequential: bool,
    success: float,
    stops: bool,
    project: Project,
    channel: Channel,
    pair: Pair,
) -> None:
    saved(channel, sequential=sequential)
    before, after = pair.runs
    events = [
        {
            "type": "sample",
            "task_id": str(task.pk),
            "index": index,
            "output": "x",
            "reward": success,
            "success": success == 1,
        }
        for task in stream_tasks(after)
        for index in range(2)
    ]
    after.samples.all().delete()
    spec = after.spec | {"stop_against": str(before.pk)}
    EvalRun.objects.filter(pk=after.pk).update(
        state="running", finished_at=None, total=80, spec=spec
    )
    after.refresh_from_db()
    done = []
    for start in range(0, 80, 4):
        store_events(after, events[start : start + 4])
        after.refresh_from_db()
        done += events[start : start + 4]
        if after.cancel_requested_at:
            break
    assert bool(after.cancel_requested_at) == stops and (
        60 <= len(done) < 80 if stops else len(done) == 80
    )
    assert AuditEvent.objects.filter(action="evalrun.stopped").exists() == stops
    if stops:
        EvalRun.objects.filter(pk=after.pk).update(state="cancelled", finished_at=after.started_at)
        after.refresh_from_db()
        assert (
            actions.make_gate_report(baseline=before, candidate=after, by=None).verdict == "promote"
        )
    client = Client()
    client.force_login(admin_of(project))
    page = client.get(f"/p/{project.slug}/models/compare/").content.decode()
    assert (after.name in page) == sequential


@pytest.fixture
def report(pair: Pair) -> GateReport:
    return pair.report()


def changes(value: Any, path: tuple = ()) -> list[tuple]:
    """The path of every number and text."""
    if isinstance(value, dict):
        return [found for name, item in value.items() for found in changes(item, (*path, name))]
    if isinstance(value, list):
        return [found for at, item in enumerate(value) for found in changes(item, (*path, at))]
    return [path]


def test_whatever_is_changed_in_a_signed_report_shows(report: GateReport) -> None:
    """Every value in it, one at a time, as it is stored and read again."""
    row = GateReport.objects.get(pk=report.pk)
    document = document_of(row)
    assert is_signed(document, row.signature) and row.signature == sign(document_of(report))
    paths = changes(document)
    assert (
        ("policy", "values", "alpha") in paths
        and ("inputs", "samples_sha256") in paths
        and len(paths) > 80
    )
    for path in paths:
        forged = deepcopy(document)
        place = forged
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = "x" if place[path[-1]] != "x" else "y"
        assert not is_signed(forged, row.signature), path
    with override_settings(FLYWHEEL_SIGNING_KEY="another"):
        assert not is_signed(document, row.signature)


def test_the_command_checks_the_signature_of_a_file_and_of_the_row(
    report: GateReport, tmp_path: Path
) -> None:
    file, said = tmp_path / "r.json", StringIO()
    file.write_text(json.dumps(signed_document(report)))
    for given in (str(file), str(report.pk)):
        call_command("reproduce_gate_report", given, stdout=said)
    assert said.getvalue().count("Signature: valid.") == 2 == said.getvalue().count("Reproduced")
    forged = signed_document(report)
    forged["document"]["report"]["verdict"] = "reject"
    file.write_text(json.dumps(forged))
    for text in (file.read_text(), "{}", "[]", "no json", '{"document": {"id": "x"}}'):
        file.write_text(text)
        with pytest.raises(CommandError, match=r"The signature is invalid|is not a report"):
            call_command("reproduce_gate_report", str(file), stdout=said)
    GateReport.objects.filter(pk=report.pk).update(policy={**report.policy, "alpha": 0.2})
    with pytest.raises(CommandError, match="The signature is invalid"):
        call_command("reproduce_gate_report", str(report.pk), stdout=said)


@pytest.mark.proof
def test_the_page_offers_the_signed_file_and_says_when_it_does_not_fit(
    project: Project, report: GateReport
) -> None:
    client = Client()
    client.force_login(admin_of(project))
    address = f"/p/{project.slug}/models/reports/{report.pk}/"
    assert ">download</a>" in client.get(address).content.decode()
    assert client.get(f"{address}file/").json() == json.loads(json.dumps(signed_document(report)))
    GateReport.objects.filter(pk=report.pk).update(comparison=1000)
    assert "invalid signature" in client.get(address).content.decode()


def test_before_the_start_it_is_said_what_can_never_be_met(
    project: Project, channel: Channel
) -> None:
    eval_set = make_eval_set(project, holdout=12)
    plan = plan_for(eval_set, policies.policy_of(channel)[0], samples=8)
    assert len(plan.never) == 1 and "needs at least 30 tasks; there are 12" in plan.never[0]
    assert (
        "12 tasks exclude an increase of more than 2" in plan.safety
        and "takes about 299 tasks" in plan.safety
    )
    client = Client()
    client.force_login(admin_of(project))
    make_environment(project)
    form = client.get(f"/p/{project.slug}/evals/{eval_set.pk}/evaluate/")
    assert f"models/plan/{eval_set.pk}/" in form.content.decode()
    text = client.get(
        f"/p/{project.slug}/models/plan/{eval_set.pk}/?samples_per_task=4"
    ).content.decode()
    assert "This cannot promote" in text and "12 tasks × 4" in text and "assumed" in text
    assert "must not be less safe than the baseline at all" in text
    assert client.get(f"/p/{project.slug}/models/plan/{eval_set.pk}/?split=train").content == b""
    headers = key_headers(project)
    answer = Client().get(f"/api/v1/channels/production/plan/?eval_set={eval_set.pk}", **headers)
    plan_json = answer.json()["plan"]
    assert answer.status_code == 200 and len(plan_json["never_met"]) == 1
    assert 0.2 < plan_json["unsafe_increase_excluded"] < 0.25 and "12 tasks" in plan_json["safety"]
    for wrong in ("", "x", str(channel.pk)):
        assert Client().get(
            f"/api/v1/channels/production/plan/?eval_set={wrong}", **headers
        ).status_code == (404 if wrong else 400)


def test_power_is_read_from_evaluations_on_the_same_tasks(project: Project, pair: Pair) -> None:
    """All samples of a task agree, and both models differ everywhere by the same: nothing varies,
    few tasks suffice.
    """
    before, _ = pair.runs
    plan = plan_for(before.eval_set, Policy(), samples=8)
    assert "From the 2 newest evaluations" in plan.source and plan.needed[8] == [2, 2, 2]
    assumed = plan_for(make_eval_set(project, holdout=32), Policy(), samples=8)
    assert assumed.needed[8][0] > 300 and assumed.needed[1][0] > 5 * assumed.needed[8][0]


def test_a_holdout_wears_with_every_evaluation(
    project: Project, base: ModelVersion, data_dir: Path
) -> None:
    eval_set, environment = make_eval_set(project, holdout=3), make_environment(project)
    factors = []
    for _ in range(16):
        make_eval_run(eval_set, base, environment, samples=1)
        factors.append(wear_of(eval_set, Policy()).factor)
    assert factors == sorted(factors) and factors[0] == 1 < factors[1] and factors[-1] > 2
    assert wear_of(eval_set, Policy()).due and not wear_of(make_eval_set(project), Policy()).due
    client = Client()
    client.force_login(admin_of(project))
    text = client.get(f"/p/{project.slug}/models/wear/{eval_set.pk}/").content.decode()
    assert "Add fresh tasks" in text and "16 evaluations" in text


@pytest.mark.proof
def test_a_holdout_wears_with_views_alone(project: Project) -> None:
    eval_set = make_eval_set(project, holdout=3)
    for number in range(WORN_OUT + 1):
        assert not wear_of(eval_set, Policy()).due, f"after {number} views"
        record_view(
            eval_set=eval_set, by=make_member(project, Role.ENGINEER)
        )  # once per person and day
    found = wear_of(eval_set, Policy())
    assert found.due and found.views == WORN_OUT + 1 and found.factor == 1


def call(
    project: Project, method: str, path: str, body: Any = None, *, may_see_holdout: bool = False
) -> Any:
    headers = key_headers(project, may_see_holdout)
    given = {} if body is None else {"data": json.dumps(body), "content_type": "application/json"}
    return getattr(Client(), method)(f"/api/v1/{path}", **given, **headers)


def test_a_key_changes_no_policy_and_promotes_nothing_unless_it_may(
    project: Project, channel: Channel, report: GateReport
) -> None:
    change = {"policy": {"min_tasks": 10}, "reason": "easier"}
    move = {"report": str(report.pk), "reason": "better"}
    assert call(project, "put", "channels/production/policy/", change).status_code == 403
    assert call(project, "post", "channels/production/promote/", move).status_code == 403
    saved(channel, api_keys=True)
    signed_again(report, policy_version=1, verdict="inconclusive")
    assert (
        call(project, "post", "channels/production/promote/", move).status_code == 403
    )  # a key overrides nothing
    signed_again(report, verdict="promote")
    Membership.objects.filter(project=project).update(role=Role.VIEWER)
    with_role_gone = Client().post(
        "/api/v1/channels/production/promote/",
        json.dumps(move),
        content_type="application/json",
        HTTP_AUTHORIZATION=f"Bearer {key_of_viewer(project)}",
    )
    assert with_role_gone.status_code == 403
    Membership.objects.filter(project=project).update(role=Role.OWNER)
    assert call(project, "post", "channels/production/promote/", move).status_code == 200
    assert AuditEvent.objects.get(action="channel.promote").actor_label == "API key “test”"
    assert call(project, "post", "channels/production/promote/", move).status_code == 409
    assert (
        call(project, "put", "channels/production/policy/", change).json()["policy"]["min_tasks"]
        == 10
    )


def key_of_viewer(project: Project) -> str:
    from apps.core.actions import create_api_key

    return create_api_key(project=project, name="v", by=project.memberships.get().user)[1]


def test_the_policy_by_api_and_command(project: Project, channel: Channel, tmp_path: Path) -> None:
    saved(channel, api_keys=True, min_tasks=33)
    assert call(project, "get", "channels/production/policy/").json()["version"] == 1
    text = call(project, "get", "channels/production/policy/?as=toml").content.decode()
    changed = text.replace("min_tasks = 33", "min_tasks = 34")
    answer = call(
        project, "put", "channels/production/policy/", {"toml": changed, "reason": "one more"}
    )
    assert answer.status_code == 200 and policies.policy_of(channel) == (
        Policy(api_keys=True, min_tasks=34),
        2,
    )
    for wrong in (
        {},
        [],
        {"reason": "r"},
        {"reason": "\ud800", "policy": {}},
        {"reason": "r", "policy": {"alpha": 7}},
        {"reason": "r", "toml": "alpha = nan"},
        {"reason": "r", "toml": 3},
        {"reason": " ", "policy": {}},
    ):
        assert call(project, "put", "channels/production/policy/", wrong).status_code == 400, wrong
    assert call(project, "get", "channels/nothing/policy/").status_code == 404
    said, file = StringIO(), tmp_path / "p.toml"
    call_command("promotion_policy", project=project.slug, stdout=said)
    assert said.getvalue().strip() == as_toml(policies.policy_of(channel)[0]).strip()
    file.write_text("min_tasks = 50")
    call_command(
        "promotion_policy",
        "--import",
        str(file),
        "--reason",
        "r",
        project=project.slug,
        stdout=said,
    )
    assert policies.policy_of(channel) == (Policy(min_tasks=50), 3)
    for text, reason in (("min_tasks = 1", "r"), ("min_tasks = 60", "")):
        file.write_text(text)
        with pytest.raises(CommandError):
            call_command(
                "promotion_policy", "--import", str(file), "--reason", reason, project=project.slug
            )


def test_a_report_by_api_is_of_the_keys_project(project: Project, report: GateReport) -> None:
    answer = call(project, "get", f"gate-reports/{report.pk}/", may_see_holdout=True)
    assert is_signed(answer.json()["document"], answer.json()["signature"])
    assert call(make_project(), "get", f"gate-reports/{report.pk}/").status_code == 404
