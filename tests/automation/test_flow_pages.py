"""Flows by pages and by API: what people see, write, are refused, and what a dry run says."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from apps.automation import actions, steps
from apps.automation import dry_run as forecast_module
from apps.automation.dry_run import dry_run
from apps.automation.examples import EXAMPLES, NO_ENVIRONMENT, NO_SET, Filled, filled
from apps.automation.models import Flow, FlowRun, FlowStep
from apps.automation.specs import read_yaml
from apps.core.attempts import LIMITS
from apps.core.models import Attempts, Membership, Project, Role
from apps.environments.models import Environment
from apps.evals import actions as evals
from apps.evals import drafts
from apps.evals.models import EvalSet, Split
from apps.failures.actions.diagnose import classify_project
from apps.trajectories import digest
from tests.automation.test_flows import TWO, begun, flow_of, go
from tests.factories import (
    admin_of,
    key_headers,
    make_endpoint,
    make_environment,
    make_eval_run,
    make_eval_set,
    make_failed,
    make_member,
    make_project,
    make_trajectory,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def project() -> Project:
    return make_project()


@pytest.fixture
def member(project: Project, client: Client) -> Client:
    client.force_login(make_member(project, Role.OPERATOR))
    return client


def page(client: Client, name: str, *args: Any, **data: Any) -> str:
    return client.get(reverse(f"automation:{name}", args=args), data).content.decode()


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.slug)
def test_every_example_opens_in_the_editor_is_checked_and_saved(
    example, project: Project, member: Client
) -> None:
    make_eval_set(project)
    make_environment(project)
    shown = member.get(
        reverse("automation:new", args=[project.slug]), {"from": example.slug}
    ).context["editor"]
    assert shown.shown == "form"
    text = shown.after("to:yaml", {}).text
    assert "{eval_set}" not in text
    checked = member.post(
        reverse("automation:check", args=[project.slug]), {"text": text}
    ).content.decode()
    assert "If it ran now" in checked and "note error" not in checked
    saved = member.post(
        reverse("automation:new", args=[project.slug]), {"name": "mine", "text": text}
    )
    assert saved.status_code == 302
    assert (
        example.name not in page(member, "flow", project.slug, Flow.objects.get().pk)
        and Flow.objects.get().name == "mine"
    )


def example_text(slug: str, project: Project) -> str:
    return template(slug, project).text


def template(slug: str, project: Project) -> Filled:
    return filled(next(example for example in EXAMPLES if example.slug == slug), project)


@pytest.mark.proof
def test_a_template_names_no_set_that_its_steps_cannot_use_and_says_what_is_missing(
    project: Project, member: Client
) -> None:
    evals.create_eval_set(project=project, slug="empty", by=admin_of(project))
    validation = make_eval_set(project, train=2, holdout=0, frozen=False)
    validation.tasks.update(split=Split.VALIDATION)
    make_eval_set(project, train=2, holdout=0)
    for slug in ("nightly", "watch"):
        filled_in = template(slug, project)
        assert "set: set:my-set" in filled_in.text
        assert filled_in.missing == [NO_SET, NO_ENVIRONMENT]
    assert f"into: {validation.slug}" in example_text("weekly", project)
    assert template("weekly", project).missing == [NO_ENVIRONMENT]
    assert "held-out or regression tasks yet" in page(member, "new", project.slug)
    make_environment(project)
    regression = make_eval_set(project, train=2, holdout=0, frozen=False)
    regression.tasks.update(split=Split.REGRESSION)
    drafts.freeze(eval_set=regression, by=admin_of(project), without_holdout=True)
    assert f"set: set:{regression.slug}\n" in example_text("nightly", project)
    assert "split: regression" in example_text("nightly", project)
    assert "Split and freeze one" not in page(member, "new", project.slug)
    held = make_eval_set(project)
    later = drafts.new_version(eval_set=held, by=admin_of(project))
    later.tasks.filter(split=Split.HOLDOUT).delete()
    drafts.freeze(eval_set=later, by=admin_of(project), without_holdout=True)
    assert f"set: set:{regression.slug}\n" in example_text("nightly", project)


def test_a_template_takes_the_set_and_environment_that_a_flow_can_use(project: Project) -> None:
    """Not a draft that happens to be newer, an archived one, or one without a hold-out."""
    assert "set:my-set" in example_text("nightly", project)
    usable, environment = make_eval_set(project), make_environment(project)
    archived, untested = make_eval_set(project), make_eval_set(project, holdout=0)
    EvalSet.objects.filter(pk=archived.pk).update(archived_at=timezone.now())
    evals.create_eval_set(project=project, slug="empty-draft", by=admin_of(project))
    for slug in ("nightly", "weekly", "watch"):
        text = example_text(slug, project)
        assert usable.slug in text and environment.slug in text, text
        assert not any(name in text for name in ("empty-draft", untested.slug, archived.slug))
    assert "split: holdout" in example_text("nightly", project)
    used, newer = environment, Environment.objects.get(pk=environment.pk)
    newer.pk, newer.slug = None, "newer"
    newer.save()
    make_eval_run(usable, make_endpoint(project), used)
    assert newer.pk > used.pk and f"environment: {used.slug}\n" in example_text("nightly", project)
    make_eval_set(project, regression=2)
    assert "split: regression" in example_text("nightly", project), (
        "which may be looked at every night"
    )


def test_a_flow_that_would_fail_says_so_when_it_is_saved(project: Project, member: Client) -> None:
    evals.create_eval_set(project=project, slug="empty", by=admin_of(project))
    make_environment(project)
    address = reverse("automation:new", args=[project.slug])
    saved = member.post(
        address, {"name": "mine", "text": example_text("nightly", project)}, follow=True
    )
    assert (
        "It would fail at evaluate now: There is no frozen eval set “my-set”"
        in saved.content.decode()
    )


def test_times_are_in_the_flows_time_zone(
    project: Project, member: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        "starts: [{by: cron, when: '30 2 * * *'}]\ntimezone: Asia/Kolkata\nretries: 1\nsteps: [{do:"
        " cluster}]"
    )
    flow = flow_of(project, text)
    for name, args in (("flow", [flow.pk]), ("list", [])):
        shown = page(member, name, project.slug, *args)
        assert re.search(r"\d{4}-\d\d-\d\d 02:30(:00)? \(Asia/Kolkata\)", shown), name
    shown = page(member, "dry_run", project.slug, flow.pk)
    assert "Time (Asia/Kolkata)" in shown and re.search(r"\d{4}-\d\d-\d\d 02:30</time>", shown)

    monkeypatch.setattr(steps, "recluster", lambda project: 1 / 0)
    run = go(actions.run_now(flow=flow, by=admin_of(project)))
    zone = ZoneInfo("Asia/Kolkata")
    step = run.steps.get()
    shown = page(member, "run", project.slug, run.pk)
    assert "attempt 2 of 2" in shown and "Internal error (ZeroDivisionError)" in shown
    for at in (run.created_at, run.started_at, step.started_at, step.not_before):
        assert f"{at.astimezone(zone):%H:%M:%S}</time>" in shown
    FlowStep.objects.update(not_before=timezone.now())
    run, step = go(run), run.steps.get()
    shown = page(member, "run", project.slug, run.pk)
    assert (
        "2 attempts failed" in shown
        and f"{run.finished_at.astimezone(zone):%Y-%m-%d %H:%M:%S}</time>" in shown
    )
    assert shown.count("Failed at <time>") == 2
    by_api = Client().get(f"/api/v1/flow-runs/{run.pk}/", **key_headers(project)).json()["steps"][0]
    assert by_api["attempt"] == 2 and len(by_api["failures"]) == 2


def test_a_wrong_flow_says_where_and_loses_nothing(project: Project, member: Client) -> None:
    answer = member.post(
        reverse("automation:new", args=[project.slug]),
        {"name": "mine", "text": "steps: [{do: clasify}]  # why"},
    )
    shown = answer.content.decode()
    assert "steps[0].do" in shown and "must be one of classify" in shown and "# why" in shown
    assert not Flow.objects.exists()


def test_the_timeline_tells_what_was_done_and_asks(project: Project, member: Client) -> None:
    run = go(begun(project))
    shown = page(member, "run", project.slug, run.pk)
    assert "Go on?" in shown and "Yes, continue" in shown and "looked <b>0</b>" in shown
    viewer = Client()
    viewer.force_login(make_member(project, Role.VIEWER))
    assert "Yes, continue" not in page(viewer, "run", project.slug, run.pk)
    member.post(reverse("automation:answer", args=[project.slug, run.pk]), {"answer": "yes"})
    go(run)
    assert "succeeded" in page(member, "run", project.slug, run.pk)
    status = member.get(
        reverse("automation:run_status", args=[project.slug, run.pk]),
        headers={"HX-Request": "true"},
    )
    assert status["HX-Refresh"] == "true"


def test_switching_a_flow_leads_back_to_it(project: Project) -> None:
    flow, person = begun(project).version.flow, Client()
    person.force_login(make_member(project, Role.OPERATOR))
    answer = person.post(reverse("automation:switch", args=[project.slug, flow.pk]))
    assert answer["Location"] == reverse("automation:flow", args=[project.slug, flow.pk])
    flow.refresh_from_db()
    assert not flow.enabled


@pytest.mark.proof
def test_hostile_names_and_questions_are_escaped(project: Project, member: Client) -> None:
    bad = "<script>alert(1)</script>"
    run = go(begun(project, TWO.replace("Go on?", bad), name=bad))
    for name, pk in (("run", run.pk), ("flow", run.version.flow_id), ("edit", run.version.flow_id)):
        shown = page(member, name, project.slug, pk)
        assert bad not in shown and "&lt;script&gt;" in shown
    assert bad not in page(member, "list", project.slug)


def test_a_flow_of_another_project_is_not_there(project: Project, member: Client) -> None:
    run = begun(make_project())
    for name, pk in (
        ("flow", run.version.flow_id),
        ("run", run.pk),
        ("edit", run.version.flow_id),
        ("dry_run", run.version.flow_id),
    ):
        assert (
            member.get(reverse(f"automation:{name}", args=[project.slug, pk])).status_code == 404
        ), name
    headers = key_headers(project)
    for name, pk in (
        ("flow", run.version.flow_id),
        ("run", run.pk),
        ("flow_runs", run.version.flow_id),
    ):
        assert (
            Client().get(reverse(f"automation_api:{name}", args=[pk]), **headers).status_code == 404
        ), name


# The dry run


def test_clocks_of_the_last_30_days_outside_quiet_hours(project: Project) -> None:
    spec = read_yaml(
        "starts: [{by: cron, when: '0 3 * * *'}]\nquiet: [{from: '02:00', until: '04:00'}]\nsteps:"
        " [{do: classify}]"
    )
    found = dry_run(project, spec)
    assert found.begun == 30 and not FlowRun.objects.exists()
    assert {(run.begins.hour, run.begins.minute) for run in found.runs if run.begins} == {(4, 0)}
    assert "quiet hours" in found.runs[0].note


@pytest.mark.proof
def test_failures_that_piled_up_would_have_started_it(project: Project) -> None:
    start = timezone.now() - timedelta(days=10)
    for number in range(6):
        make_failed(project, started_at=(start + timedelta(days=number)).isoformat())
    digest.run()
    classify_project(project=project)
    found = dry_run(
        project, read_yaml("starts: [{by: new_failures, at_least: 3}]\nsteps: [{do: classify}]")
    )
    assert [run.cause.seen for run in found.runs] == [{"failures": 3}, {"failures": 3}]
    assert not FlowRun.objects.exists()


@pytest.mark.proof
def test_a_rise_that_is_tested_would_have_started_it_and_chance_not(project: Project) -> None:
    now = timezone.now().replace(hour=12)
    for day, failed in ((14, 1), (4, 9)):
        for number in range(12):
            at = (now - timedelta(days=day, minutes=number)).isoformat()
            (make_failed if number < failed else make_trajectory)(project, started_at=at)
    digest.run()
    classify_project(project=project)
    text = "starts: [{{by: failure_rate, days: 7, rise: {}}}]\nsteps: [{{do: classify}}]"
    assert dry_run(project, read_yaml(text.format(0))).begun >= 1
    assert dry_run(project, read_yaml(text.format(0.9))).begun == 0


@pytest.mark.proof
def test_failures_that_came_during_a_run_start_the_next_one_after_it(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they do in reality: what is asked while a run is under way is asked again."""
    two_days = forecast_module.Forecast("classify", "", "", seconds=2 * 86_400)
    monkeypatch.setattr(forecast_module, "forecast", lambda *_: [two_days])
    now = timezone.now()
    for hours in (240, 220):
        for number in range(3):
            make_failed(
                project, started_at=(now - timedelta(hours=hours, minutes=number)).isoformat()
            )
    classify_project(project=project)
    found = dry_run(
        project,
        read_yaml("starts: [{by: new_failures, at_least: 3}]\nsteps: [{do: classify}]"),
        now=now,
    )
    first, second = [run.begins for run in found.runs if run.begins]
    assert timedelta(hours=48) <= second - first < timedelta(hours=55)


def test_what_is_missing_is_said_before_it_runs(project: Project) -> None:
    spec = read_yaml(
        "steps: [{do: freeze_set, set: none}, {do: evaluate, set: 'step:freeze_set', environment:"
        " none}]"
    )
    found = dry_run(project, spec)
    assert [step.problem for step in found.steps] == [True, True]
    assert (
        "no earlier step creates one" in found.steps[0].sentence
        and "no environment “none”" in found.steps[1].sentence
    )


# The API


def send(method: str, route: str, headers: dict, /, *args: Any, **body: Any) -> Any:
    call = getattr(Client(), method)
    return call(
        reverse(f"automation_api:{route}", args=args),
        json.dumps(body),
        content_type="application/json",
        **headers,
    )


def test_a_flow_by_api_from_writing_to_answer(project: Project) -> None:
    headers = key_headers(project)
    made = send("post", "flows", headers, name="weekly", yaml=TWO)
    assert made.status_code == 201, made.content
    pk = made.json()["id"]
    assert send("post", "flows", headers, name="weekly", yaml=TWO).status_code == 400
    assert (
        send("put", "flow", headers, pk, name="weekly", spec=made.json()["spec"]).json()["version"]
        == 1
    )
    started = send("post", "flow_runs", headers, pk)
    assert started.status_code == 201
    assert send("post", "flow_runs", headers, pk).status_code == 409
    assert send("delete", "flow", headers, pk).status_code == 409
    run = go(FlowRun.objects.get())
    whole = Client().get(reverse("automation_api:run", args=[run.pk]), **headers).json()
    assert whole["state"] == "waiting" and [step["state"] for step in whole["steps"]] == [
        "done",
        "waiting",
        "pending",
    ]
    assert send("post", "answer", headers, run.pk, yes="maybe").status_code == 400
    assert send("post", "answer", headers, run.pk, yes=True).status_code == 200
    assert send("post", "answer", headers, run.pk, yes=True).status_code == 409
    assert go(run).state == "succeeded"
    listed = Client().get(reverse("automation_api:flow_runs", args=[pk]), **headers).json()
    assert [row["id"] for row in listed["results"]] == [str(run.pk)] and listed["next"] is None
    assert (
        Client()
        .get(reverse("automation_api:dry_run", args=[pk]), **headers)
        .json()["steps"][0]["key"]
        == "classify"
    )
    assert send("delete", "flow", headers, pk).status_code == 204


@pytest.mark.more(rows=2)
@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"name": "a"}, "spec"),
        ({"name": "a", "yaml": "steps: ["}, ""),
        ({"name": "a", "spec": {"steps": [{"do": "x"}]}}, "steps[0].do"),
        ({"name": "a", "yaml": TWO, "spec": {}}, "spec"),
        ({"yaml": TWO}, "name"),
        ({"name": "a" * 81, "yaml": TWO}, "name"),
        ({"name": "a", "yaml": TWO, "on": True}, "on"),
    ],
)
def test_what_is_sent_wrongly_is_named_by_its_path(project: Project, body: dict, path: str) -> None:
    answer = send("post", "flows", key_headers(project), **body)
    assert (answer.status_code, answer.json()["path"]) == (400, path), answer.content


def test_a_webhook_starts_it_with_its_secret_alone(project: Project) -> None:
    flow = flow_of(project, "starts: [{by: webhook}]\nsteps: [{do: classify}]")
    other = flow_of(project, name="other")
    secret = actions.make_secret(flow=flow, by=admin_of(project))
    actions.make_secret(flow=other, by=admin_of(project))
    url = reverse("automation_api:call", args=[flow.pk])
    assert Client().post(url).status_code == 401
    assert Client().post(url, headers={"X-Flow-Secret": "flow_wrong"}).status_code == 401
    assert (
        Client()
        .post(reverse("automation_api:call", args=[other.pk]), headers={"X-Flow-Secret": secret})
        .status_code
        == 401
    )
    assert Client().get(url, headers={"X-Flow-Secret": secret}).status_code == 405
    assert not FlowRun.objects.exists()
    assert (
        Client(enforce_csrf_checks=True).post(url, headers={"X-Flow-Secret": secret}).status_code
        == 201
    )
    assert Client().post(url, headers={"X-Flow-Secret": secret}).status_code == 409
    again = actions.make_secret(flow=flow, by=admin_of(project))
    assert Client().post(url, headers={"X-Flow-Secret": secret}).status_code == 401
    go(FlowRun.objects.get())
    actions.switch(flow=flow, on=False, by=admin_of(project))
    assert "is disabled" in Client().post(url, headers={"X-Flow-Secret": again}).json()["detail"]


def test_wrong_secrets_are_slowed_down_as_wrong_keys_are(project: Project) -> None:
    flow = flow_of(project, "starts: [{by: webhook}]\nsteps: [{do: classify}]")
    url = reverse("automation_api:call", args=[flow.pk])

    def ask() -> int:
        return Client().post(url, headers={"X-Flow-Secret": "flow_wrong"}).status_code

    assert ask() == 401
    counted = Attempts.objects.filter(kind=Attempts.Kind.KEYS, failures=1)
    assert counted.update(failures=LIMITS[Attempts.Kind.KEYS].free - 1) == 1
    assert [ask(), ask()] == [401, 429]


def test_a_key_saves_no_flow_for_one_who_may_not_on_the_page(project: Project) -> None:
    headers, flow = key_headers(project), flow_of(project)
    Membership.objects.filter(project=project, user=project.api_keys.get().created_by).update(
        role=Role.ENGINEER
    )
    answer = send("post", "flows", headers, name="other", yaml=TWO)
    assert answer.status_code == 403 and "operator" in answer.json()["detail"]
    assert send("delete", "flow", headers, flow.pk).status_code == 403
    assert send("post", "flow_runs", headers, flow.pk).status_code == 201
