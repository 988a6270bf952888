"""GRPO whose episodes an agent plays in its own harness: which agents are offered, what is refused,
and what its job is given.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from apps.core.actions import create_api_key
from apps.core.models import JobState
from apps.evals.models import EvalRun
from apps.registry.actions import register_agent
from apps.registry.models import ModelVersion, Reach
from apps.training.child_spec import training_spec
from apps.training.forking import fork
from apps.training.harness import why_not_divided, why_not_played
from apps.training.jobs import store_events
from apps.training.models import Method, TrainingRun
from tests.evals.test_runs_api import Api
from tests.factories import admin_of
from tests.forms import as_read
from tests.shared import copied, once
from tests.training.test_picks import made_run
from tests.training.test_sampling_on_servers import form, post


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[tuple[EvalRun, Path]]:
    yield from once(request, made_run)


@pytest.fixture
def run(kept: tuple[EvalRun, Path], db: None, client: Client, settings: Any) -> EvalRun:
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = True
    made = copied(kept, settings)
    client.force_login(admin_of(made.project))
    return made


def make_agent(run: EvalRun, **more: Any) -> ModelVersion:
    given = {"reached_by": Reach.HTTP, "base_url": "http://127.0.0.1:9000/v1"} | more
    return register_agent(
        project=run.project,
        name="support-agent",
        agent_version="3f2a9c1",
        by=admin_of(run.project),
        **given,
    )


def test_only_agents_that_are_called_are_offered(client: Client, run: EvalRun) -> None:
    assert "agent" not in form(client, run).fields
    make_agent(run, reached_by=Reach.CI, base_url="")
    assert "agent" not in form(client, run).fields
    agent = make_agent(run)
    assert list(form(client, run).fields["agent"].queryset) == [agent]


def test_the_run_its_job_and_its_forks_name_the_agent(
    client: Client, run: EvalRun, settings: Any
) -> None:
    settings.FLYWHEEL_ROLLOUTS_URL = "https://rollouts.example.com"
    agent = make_agent(run)
    assert post(client, run, agent=agent.pk).status_code == 302
    made = TrainingRun.objects.get()
    given = as_read(training_spec(made)).harness
    assert (given.name, given.version) == ("support-agent", "3f2a9c1")
    assert given.endpoint.base_url == agent.base_url
    assert given.url == "https://rollouts.example.com"
    page = client.get(made.get_absolute_url()).content.decode()
    assert f"{agent}</a>, in its own harness" in " ".join(page.split())
    forked = fork(run=made, step=0, config=made.spec["config"], by=admin_of(run.project))
    assert forked.spec["harness"]["agent"] == agent.pk


def test_without_an_agent_the_built_in_loop_plays(client: Client, run: EvalRun) -> None:
    make_agent(run)
    assert post(client, run).status_code == 302
    assert training_spec(TrainingRun.objects.get()).harness is None


def test_what_cannot_be_played_is_refused(run: EvalRun) -> None:
    agent = make_agent(run)
    assert "only GRPO" in why_not_played(agent, Method.BEST_OF_N)
    elsewhere = make_agent(run, reached_by=Reach.CI, base_url="")
    assert "is not an agent that is called over HTTP" in why_not_played(elsewhere, Method.GRPO)
    assert "is not an agent" in why_not_played(run.model_version, Method.GRPO)
    agent.archived_at = timezone.now()
    assert "is archived" in why_not_played(agent, Method.GRPO)


def test_workers_find_the_runs_of_an_agent_that_waits_for_work(
    client: Client, run: EvalRun
) -> None:
    agent = make_agent(run, reached_by=Reach.PULL, base_url="")
    post(client, run, agent=agent.pk)
    made = TrainingRun.objects.get()
    api = Api(run.project)
    asked = {"agent": str(agent)}
    assert api.get("training_api:work", **asked).json()["jobs"] == [], "it is queued"
    TrainingRun.objects.filter(pk=made.pk).update(state=JobState.RUNNING, attempt=1)
    made.refresh_from_db()
    assert api.get("training_api:work", **asked).json()["jobs"] == [], "it does not listen yet"
    given = as_read(training_spec(made)).harness
    assert given.pull and not given.endpoint
    store_events(made, [{"type": "rollouts", "seq": 1, "url": "http://gpu:7000"}])
    (job,) = api.get("training_api:work", **asked).json()["jobs"]
    assert (job["id"], job["kind"]) == (str(made.pk), "training")
    assert job["url"] == f"http://gpu:7000/rollout/work/{given.pull.token}"
    TrainingRun.objects.filter(pk=made.pk).update(attempt=2)
    assert api.get("training_api:work", **asked).json()["jobs"] == [], "that program has ended"
    assert "processes" in why_not_divided(agent, 2) and not why_not_divided(agent, 1)


@pytest.mark.parametrize("agent", ["support-agent", "support-agent@9", "o@3f2a9c1"])
def test_work_of_an_unknown_agent_is_not_found(agent: str, run: EvalRun) -> None:
    make_agent(run)
    make_agent(run, reached_by=Reach.PULL, base_url="")
    api = Api(run.project)
    assert "waits for work" in api.get("training_api:work", agent=agent).json()["detail"]


def test_only_a_key_that_may_evaluate_gets_work(run: EvalRun) -> None:
    agent = make_agent(run, reached_by=Reach.PULL, base_url="")
    api = Api(run.project)
    assert api.get("training_api:work", agent=str(agent)).status_code == 200
    _, key = create_api_key(
        project=run.project, name="reads", by=admin_of(run.project), scopes=["read", "manage"]
    )
    api.headers = {"HTTP_AUTHORIZATION": f"Bearer {key}"}
    assert api.get("training_api:work", agent=str(agent)).status_code == 403
