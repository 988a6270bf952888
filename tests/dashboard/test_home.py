"""The wheel at a glance."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from apps.core.models import JobState, Project, Role
from apps.dashboard import releases
from apps.dashboard.waiting import waiting_for
from apps.evals.models import Split
from apps.failures.actions import reply_decisions, rule_decisions
from apps.failures.actions.diagnose import classify_project
from apps.failures.actions.reply_decisions import ReplyDecision
from apps.failures.models import Classifier, OutcomeCheck
from apps.failures.outcomes import checks
from apps.promotion import actions as promotion
from apps.promotion.models import Promotion
from apps.trajectories import digest
from apps.webhooks.actions import create_webhook
from apps.webhooks.models import Event
from tests.factories import (
    admin_of,
    make_adapter,
    make_base,
    make_environment,
    make_eval_run,
    make_eval_set,
    make_failed,
    make_member,
    make_policy_rule,
    make_project,
    make_reply_form,
    make_trajectory,
)

pytestmark = pytest.mark.django_db


def test_an_empty_project_says_how_to_send() -> None:
    project = make_project()
    client = Client()
    client.force_login(admin_of(project))
    page = client.get(project.get_absolute_url())
    shown = page.content.decode()
    assert (
        "Send the first trajectory" in shown
        and reverse("trajectories:first", args=[project.slug]) in shown
    )
    assert {station.state for station in page.context["stations"]} == {
        "unused"
    } and not page.context["waiting"]
    assert "hx-get" not in shown.split('id="main"')[1], "no chart of nothing"


def test_it_counts_its_own_project_only(data_dir: Path) -> None:
    project, other = make_project(), make_project()
    by = admin_of(project)
    Classifier.objects.create(project=project, check_share=0.0)
    for one in (project, other):
        make_failed(one)
        classify_project(project=one)
    make_trajectory(project, outcome={"status": "success"})
    environment, base = make_environment(project), make_base(project, data_dir)
    adapter, eval_set = make_adapter(project, base, data_dir), make_eval_set(project, holdout=30)
    promotion.set_initial(channel=promotion.channel_of(project), version=base, by=by)
    before, after = (
        make_eval_run(eval_set, model, environment, success=share)
        for model, share in ((base, 0.25), (adapter, 1.0))
    )
    promotion.make_gate_report(baseline=before, candidate=after, by=by)
    digest.run()
    client = Client()
    client.force_login(by)
    context = client.get(project.get_absolute_url()).context
    wheel = context["wheel"]
    assert (wheel.trajectories, wheel.open_failures, wheel.frozen_sets, wheel.evaluations) == (
        2,
        1,
        1,
        2,
    )
    assert (wheel.locked_verifiers, wheel.adapters, wheel.running, wheel.waiting_reports) == (
        1,
        1,
        0,
        1,
    )
    assert context["channel"].current == base
    assert context["steps"][0].title == "Review the gate report"
    assert [(item.title, item.who, item.count) for item in context["waiting"]] == [
        ("Failures to triage", "reviewer", 1),
        ("Promotion to decide", "engineer", 1),
    ]
    by_name = {station.name: station for station in context["stations"]}
    assert (
        by_name["Promotion"].todo == "Decide on 1 promotion"
        and by_name["Failures"].todo == "Triage 1"
    )
    charts = client.get(reverse("dashboard:performance", args=[project.slug])).context["figures"]
    assert {trace["name"] for trace in dict(charts)["runs-by-time"]["data"]} == {
        "success",
        "failure",
    }


@pytest.mark.proof
def test_a_failed_job_says_why(data_dir: Path) -> None:
    project = make_project()
    run = make_eval_run(
        make_eval_set(project), make_base(project, data_dir), make_environment(project)
    )
    type(run).objects.filter(pk=run.pk).update(
        state=JobState.FAILED, error="The model folder is missing."
    )
    client = Client()
    client.force_login(admin_of(project))
    page = client.get(project.get_absolute_url())
    said = page.content.decode()
    assert (
        next(item for item in page.context["stations"] if item.name == "Evaluation").state
        == "broken"
    )
    assert (
        "open its samples to see why" in said and "The model folder is missing." not in said
    )  # it may quote a held-out task
    type(run).objects.filter(pk=run.pk).update(split=Split.TRAIN)
    assert "The model folder is missing." in client.get(project.get_absolute_url()).content.decode()
    type(run).objects.filter(pk=run.pk).update(finished_at=timezone.now() - timedelta(days=8))
    assert (
        "The model folder is missing."
        not in client.get(project.get_absolute_url()).content.decode()
    )


def test_what_waits_for_you_comes_first(data_dir: Path) -> None:
    project = make_project()
    Classifier.objects.create(project=project, check_share=0.0)
    for _ in range(3):
        make_failed(project)
    classify_project(project=project)
    me, other = make_member(project, Role.REVIEWER), make_member(project, Role.REVIEWER)
    mine, theirs, _ = project.failures.order_by("pk")
    for failure, user in ((mine, me), (theirs, other)):
        type(failure).objects.filter(pk=failure.pk).update(assigned_to=user)
    member = project.memberships.get(user=me)
    found = [(item.title, item.who, item.count) for item in waiting_for(project, member)]
    assert found == [
        ("Failures assigned to you", "you", 1),
        ("Failures to triage", "reviewer", 1),
        ("Failures to triage", other.get_username(), 1),
    ]
    viewer = project.memberships.get(user=make_member(project, Role.VIEWER))
    assert all(not item.yours for item in waiting_for(project, viewer))


def test_policy_rules_and_random_checks_wait_for_reviewers() -> None:
    project = make_project()
    make_policy_rule(make_failed(project))
    form = make_reply_form(project.trajectories.get())
    checked = make_trajectory(project)
    OutcomeCheck.objects.create(project=project, trajectory=checked, probability=0.02)
    member = project.memberships.get(user=make_member(project, Role.REVIEWER))
    found = [(item.title, item.who, item.count) for item in waiting_for(project, member)]
    assert found == [
        ("Policy rules to review", "reviewer", 1),
        ("Tool replies to review", "reviewer", 1),
        ("Runs to check", "reviewer", 1),
    ]
    given = ReplyDecision(forms=[form.pk], state="dismissed")
    reply_decisions.decide(project=project, by=member.user, given=given)
    rule = project.system_prompts.get().rules.get()
    rule_decisions.decide(rule=rule, state="confirmed", by=member.user)
    checks.answer(trajectory=checked, answer="fine", by=member.user)
    assert not waiting_for(project, member)


def test_a_disabled_webhook_waits_for_operators_only() -> None:
    project = make_project()
    hook = create_webhook(
        project=project, url="https://ci.example.com/", events=Event.values, by=admin_of(project)
    )
    type(hook).objects.filter(pk=hook.pk).update(disabled_reason="It answered 500 for a day.")
    engineer, operator = (
        project.memberships.get(user=make_member(project, role))
        for role in (Role.ENGINEER, Role.OPERATOR)
    )
    assert not waiting_for(project, engineer)
    assert [item.detail for item in waiting_for(project, operator)] == [
        "It answered 500 for a day."
    ]


def test_promotions_close_together_share_a_label_and_keep_a_line_each() -> None:
    start = timezone.now() - timedelta(days=20)
    moves: list[Any] = [
        SimpleNamespace(
            at=start + timedelta(days=day),
            kind="promotion",
            to_version=f"m-v{day}",
            to_version_id=day,
            gate_report_id=None,
        )
        for day in (16, 2, 1, 3)
    ]
    days = [(start + timedelta(days=day)).isoformat() for day in range(20)]
    layout = releases.mark(
        {"data": [{"x": days}], "layout": {"xaxis": {}}}, moves, Project(slug="p")
    )["layout"]
    assert len(layout["shapes"]) == 4
    texts = [label["text"] for label in layout["annotations"]]
    assert ["m-v3</a> +2" in texts[0], "m-v16</a>" in texts[1], "+" in texts[1], len(texts)] == [
        True,
        True,
        False,
        2,
    ]


@pytest.mark.proof
def test_a_promotion_is_compared_with_the_days_before_it(data_dir: Path) -> None:
    project = make_project()
    base = make_base(project, data_dir)
    at = timezone.now() - timedelta(days=3)
    for days, version, failed, n in ((4, "1", 6, 10), (1, "2", 1, 12)):
        for index in range(n):
            started = (timezone.now() - timedelta(days=days)).isoformat()
            given = {
                "agent": {"name": "desk", "version": version},
                "started_at": started,
                "latency_ms": 100 * days,
            }
            (make_failed if index < failed else make_trajectory)(project, **given)
    classify_project(project=project)
    digest.run()
    promotion.set_initial(channel=promotion.channel_of(project), version=base, by=admin_of(project))
    Promotion.objects.update(at=at)
    found = releases.effect(project)
    assert found is not None
    assert (found.before.rate.failed, found.before.rate.n) == (6, 10)
    assert (found.after.rate.failed, found.after.rate.n) == (1, 12)
    assert found.change.verdict == "better" and found.after.latency == pytest.approx(100, rel=0.02)
    assert any(
        "Agent version new in the traffic: 2 (100% of runs)" in said for said in found.others
    )
    client = Client()
    client.force_login(admin_of(project))
    said = client.get(reverse("dashboard:promotion_effect", args=[project.slug])).content.decode()
    assert "60.0% of" in said and "8.3% of" in said
    rates = client.get(reverse("dashboard:failure_rate", args=[project.slug])).context
    chart = dict(rates["figures"])["rate-by-time"]
    assert (
        str(base) in chart["layout"]["annotations"][0]["text"]
        and len(chart["layout"]["shapes"]) == 1
    )
    assert rates["unknown"] is not None


def test_without_a_promotion_there_is_no_effect() -> None:
    project = make_project()
    client = Client()
    client.force_login(admin_of(project))
    said = client.get(reverse("dashboard:promotion_effect", args=[project.slug])).content.decode()
    assert "No promotions yet" in said
    for page in ("failure_rate", "performance"):
        for since in ("7d", "all"):
            answer = client.get(reverse(f"dashboard:{page}", args=[project.slug]), {"since": since})
            assert answer.status_code == 200 and "in this period" in answer.content.decode()
