"""The wheel at a glance."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from django.test import Client
from django.utils import timezone

from apps.core.models import JobState
from apps.evals.models import Split
from apps.failures.actions.diagnose import classify_project
from apps.promotion import actions as promotion
from apps.trajectories import digest
from tests.factories import (
    admin_of,
    make_adapter,
    make_base,
    make_environment,
    make_eval_run,
    make_eval_set,
    make_failed,
    make_project,
    make_trajectory,
)

pytestmark = pytest.mark.django_db


def test_an_empty_project_says_how_to_send() -> None:
    project = make_project()
    client = Client()
    client.force_login(admin_of(project))
    page = client.get(project.get_absolute_url())
    shown = page.content.decode()
    assert "Send the first trajectory" in shown and "curl -X POST http://testserver/api/v1/trajectories/" in shown
    assert page.context["outcomes"] is None


def test_it_counts_its_own_project_only(data_dir: Path) -> None:
    project, other = make_project(), make_project()
    by = admin_of(project)
    for one in (project, other):
        make_failed(one)
        classify_project(project=one)
    make_trajectory(project, outcome={"status": "success"})
    environment, base = make_environment(project), make_base(project, data_dir)
    adapter, eval_set = make_adapter(project, base, data_dir), make_eval_set(project, holdout=30)
    promotion.set_initial(channel=promotion.channel_of(project), version=base, by=by)
    before, after = (
        make_eval_run(eval_set, model, environment, success=share) for model, share in ((base, 0.25), (adapter, 1.0))
    )
    promotion.make_gate_report(baseline=before, candidate=after, by=by)
    digest.run()
    client = Client()
    client.force_login(by)
    context = client.get(project.get_absolute_url()).context
    wheel = context["wheel"]
    assert (wheel.trajectories, wheel.open_failures, wheel.frozen_sets, wheel.evaluations) == (2, 1, 1, 2)
    assert (wheel.locked_verifiers, wheel.adapters, wheel.running, wheel.waiting_reports) == (1, 1, 0, 1)
    assert context["channel"].current == base
    assert context["steps"][0].title == "Review the gate report"
    assert {trace["name"] for trace in context["outcomes"]["data"]} == {"success", "failure"}


def test_a_failed_job_says_why(data_dir: Path) -> None:
    project = make_project()
    run = make_eval_run(make_eval_set(project), make_base(project, data_dir), make_environment(project))
    type(run).objects.filter(pk=run.pk).update(state=JobState.FAILED, error="The model folder is missing.")
    client = Client()
    client.force_login(admin_of(project))
    said = client.get(project.get_absolute_url()).content.decode()
    assert "its page says why" in said and "The model folder is missing." not in said  # it may quote a held-out task
    type(run).objects.filter(pk=run.pk).update(split=Split.TRAIN)
    assert "The model folder is missing." in client.get(project.get_absolute_url()).content.decode()
    type(run).objects.filter(pk=run.pk).update(finished_at=timezone.now() - timedelta(days=8))
    assert "The model folder is missing." not in client.get(project.get_absolute_url()).content.decode()
