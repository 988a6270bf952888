"""GRPO that samples on vLLM servers: which are offered, what is refused, and what its job is
given.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.evals.models import EvalRun
from apps.registry.adapters import sampled_from, to_unload
from apps.registry.models import Health, Server
from apps.registry.rollout_servers import why_not
from apps.training.actions import TrainingError
from apps.training.child_spec import training_spec
from apps.training.forking import fork
from apps.training.models import TrainingRun
from tests.factories import (
    admin_of,
    make_checkpoint,
    make_managed,
    make_project,
    make_server,
)
from tests.forms import as_read
from tests.shared import copied, once
from tests.training.test_picks import made_run, sent
from workers.lib.adapter_serving import adapter_name


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[tuple[EvalRun, Path]]:
    yield from once(request, made_run)


@pytest.fixture
def run(kept: tuple[EvalRun, Path], db: None, client: Client, settings: Any) -> EvalRun:
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = True
    made = copied(kept, settings)
    client.force_login(admin_of(made.project))
    return made


@pytest.fixture
def server(run: EvalRun) -> Server:
    """A managed server of the model that was evaluated."""
    return make_managed(run.model_version.base_version(), "http://127.0.0.1:8461/v1")


def form(client: Client, run: EvalRun) -> Any:
    return client.get(reverse("training:new", args=[run.project.slug])).context["form"]


def post(client: Client, run: EvalRun, **changes: Any) -> Any:
    given = sent(run, method="grpo", **changes)
    return client.post(reverse("training:new", args=[run.project.slug]), given)


@pytest.mark.proof
def test_it_is_offered_only_where_a_server_could_serve_adapters(
    client: Client, run: EvalRun
) -> None:
    assert "sample_on" not in form(client, run).fields
    make_server(run.project, name="openai", kind="openai")
    assert "sample_on" not in form(client, run).fields
    other = make_project()
    Server.objects.update(project=other)
    managed = make_managed(run.model_version.base_version(), "http://127.0.0.1:8461/v1")
    assert form(client, run).fields["sample_on"].choices == [(managed.name, managed.name)]
    Server.objects.filter(pk=managed.pk).update(serving=managed.serving | {"lora_slots": 0})
    assert "sample_on" not in form(client, run).fields


def test_the_run_and_its_job_name_the_server(
    client: Client, run: EvalRun, server: Server, data_dir: Path
) -> None:
    assert post(client, run, sample_on=[server.name], one_step_ahead="on").status_code == 302
    made = TrainingRun.objects.get()
    assert made.spec["rollouts"]["servers"][0]["server_name"] == server.name
    given = as_read(training_spec(made)).rollouts
    assert given.steps_ahead == 1 and given.folder == str(
        data_dir / "artifacts" / "rollouts" / str(made.pk)
    )
    assert (given.servers[0].base_url, given.servers[0].folder) == (server.base_url, "")
    assert given.servers[0].lora_slots == server.serving["lora_slots"]
    page = client.get(made.get_absolute_url()).content.decode()
    assert f"{server.name}, one step ahead" in page


def test_without_a_server_the_run_samples_itself(
    client: Client, run: EvalRun, server: Server
) -> None:
    assert post(client, run).status_code == 302
    assert training_spec(TrainingRun.objects.get()).rollouts is None


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("changes", "serving", "said"),
    [
        ({"lora_rank": 32}, {}, "rank is 32; local supports ranks up to 16"),
        (
            {"one_step_ahead": "on"},
            {"lora_slots": 1},
            "has 1 LoRA slot; sampling one step ahead needs 2",
        ),
        ({"sample_on": [], "one_step_ahead": "on"}, {}, "Choose a server to sample on first."),
        ({"sample_on": ["nobody"]}, {}, "Select a valid choice"),
        ({"load_in_4bit": "on"}, {}, "In 4 bits the run samples from its own weights"),
    ],
)
def test_what_cannot_be_sampled_on_is_said_on_the_form(
    changes: dict,
    serving: dict,
    said: str,
    client: Client,
    run: EvalRun,
    server: Server,
    settings: Any,
) -> None:
    settings.FLYWHEEL_LOAD_IN_4BIT = True
    Server.objects.filter(pk=server.pk).update(
        name="local", serving=server.serving | {"max_lora_rank": 16} | serving
    )
    answer = post(client, run, **{"sample_on": ["local"]} | changes)
    assert (
        answer.status_code == 200
        and said in answer.content.decode()
        and not TrainingRun.objects.exists()
    )


def test_a_server_that_somebody_else_runs_needs_its_adapter_path_and_the_route(
    run: EvalRun,
) -> None:
    server = make_server(run.project, kind="vllm", adapters_at="")
    assert "adapter path is not set" in why_not(server)
    server.adapters_at = "/mnt/artifacts"
    assert "according to the last probe" in why_not(server)
    server.capabilities = {"runtime_lora": {"value": True}, "lora_slots": {"value": 0, "most": 1}}
    assert not why_not(server) and "needs 2" in why_not(server, steps_ahead=1)
    server.kind = "sglang"
    assert not why_not(server) and "before top_p" in why_not(server, top_p=0.9)
    server.health = Health.DOWN
    assert "is down" in why_not(server)


@pytest.mark.proof
def test_adapters_of_an_active_run_stay_loaded_for_an_evaluation(
    client: Client, run: EvalRun, server: Server
) -> None:
    post(client, run, sample_on=[server.name])
    made = TrainingRun.objects.get()
    active, ended = (
        adapter_name(str(made.pk), 1, 3),
        adapter_name("0" * 8 + "-0000-4000-8000-" + "0" * 12, 1, 3),
    )
    loaded = [active, ended]
    assert to_unload(loaded, sampled_from(loaded), 1) == [ended]


@pytest.mark.proof
def test_a_fork_samples_where_its_run_did(client: Client, run: EvalRun, server: Server) -> None:
    post(client, run, sample_on=[server.name], one_step_ahead="on")
    (first,) = TrainingRun.objects.all()
    make_checkpoint(first, 1)
    Server.objects.filter(pk=server.pk).update(name="renamed")
    made = fork(run=first, step=1, config=first.spec["config"], by=admin_of(run.project))
    assert (
        made.spec["rollouts"]["servers"][0]["server_name"] == "renamed"
        and made.spec["rollouts"]["steps_ahead"] == 1
    )
    Server.objects.filter(pk=server.pk).update(serving=server.serving | {"lora_slots": 0})
    with pytest.raises(TrainingError, match="has no LoRA slots"):
        fork(run=first, step=1, config=first.spec["config"], by=admin_of(run.project))
