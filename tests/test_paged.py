"""A list of the API asks the database as often for many rows as for few."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from apps.core.models import Project
from apps.core.operations import REGISTRY, Paged
from apps.failures.actions.diagnose import classify_project
from apps.failures.models import (
    Failure,
    JudgeMeasurement,
    JudgeVerdict,
    ReplyForm,
    Rubric,
    RubricSearch,
)
from apps.webhooks.actions import create_webhook, send_test
from apps.webhooks.models import Event
from tests.factories import (
    admin_of,
    make_endpoint,
    make_environment,
    make_eval_run,
    make_eval_set,
    make_failed,
    make_key,
    make_policy_rule,
    make_proposal,
    make_reply_form,
    make_server,
    make_step_search,
    make_trajectory,
)
from tests.test_access import bare_errors  # noqa: F401

pytestmark = pytest.mark.django_db
FEW, MANY = 2, 5


def failure(project: Project) -> Failure:
    run = make_failed(project, request=f"Close ticket {1000 + project.trajectories.count()}.")
    classify_project(project=project)
    return run.failure


@pytest.fixture(autouse=True)
def local(settings: Any) -> None:
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = True


def version(project: Project) -> Any:
    count = project.model_versions.count()
    server = project.servers.first() or make_server(project)
    return make_endpoint(project, server, served_as=f"m{count}", name=f"m{count}")


def rubric(project: Project) -> Rubric:
    found = project.rubrics.first()
    return found or Rubric.objects.create(
        project=project, text="a", base_url="https://judge.example.com/v1", model="m"
    )


def ended(project: Project) -> dict[str, Any]:
    return {"project": project, "state": "failed", "finished_at": timezone.now(), "name": "a"}


def hook(project: Project) -> Any:
    by = admin_of(project)
    url = "https://example.com/hook"
    return project.webhooks.first() or create_webhook(
        project=project, url=url, events=Event.values, by=by
    )


def reply_form(project: Project) -> ReplyForm:
    form = make_reply_form(make_trajectory(project))
    form.digest = str(form.pk)  # others have the same form
    form.save()
    return form


MAKERS: dict[str, Callable[[Project], Any]] = {
    "eval_runs_list": lambda project: make_eval_run(
        make_eval_set(project), version(project), make_environment(project)
    ),
    "step_searches_list": lambda project: make_step_search(
        failure(project), make_environment(project), version(project)
    ),
    "eval_proposals_list": lambda project: make_proposal(failure(project)),
    "policy_rules_list": lambda project: make_policy_rule(
        make_trajectory(project), f"Rule {project.trajectories.count()}."
    ),
    "failures_list": lambda project: failure(project),
    "judge_verdicts": lambda project: JudgeVerdict.objects.create(
        rubric=rubric(project),
        content_digest=str(project.trajectories.count()),
        trajectory=make_trajectory(project),
    ),
    "reply_forms_list": lambda project: reply_form(project),
    "judge_measurements_list": lambda project: JudgeMeasurement.objects.create(
        **ended(project), kind="strategies", rubric=rubric(project), spec={"variants": []}
    ),
    "rubric_searches_list": lambda project: RubricSearch.objects.create(
        **ended(project), rubric=rubric(project), spec={"train": []}
    ),
    "webhooks_deliveries": lambda project: send_test(hook=hook(project), by=admin_of(project)),
}
PAGED = [
    pytest.param(one, id=name) for name, one in REGISTRY.items() if isinstance(one.gives, Paged)
]


@pytest.mark.more(rows=4)
@pytest.mark.parametrize("one", PAGED)
def test_a_page_of_many_rows_takes_as_many_queries_as_one_of_few(
    one: Any, project: Project
) -> None:
    counts = []
    key = {"Authorization": f"Bearer {make_key(project)}"}
    for rows in (FEW, MANY - FEW):
        for _ in range(rows):
            MAKERS[one.name](project)
        address = [hook(project).pk] if one.target else []
        client, url = Client(), reverse(one.route, args=address)
        client.get(url, headers=key)
        with CaptureQueriesContext(
            connection,
        ) as queries:
            answer = client.get(url, headers=key)
        assert len(answer.json()["results"]) == (FEW if not counts else MANY), answer.content
        counts.append(len(queries))
    assert counts[0] == counts[1], "\n".join(query["sql"][:300] for query in queries)
