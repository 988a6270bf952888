"""What generates for a model version is part of it: this installation, or a server that may be
asked.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError, transaction
from django.test import Client
from django.urls import reverse

from apps.core.models import JobState
from apps.evals.jobs import evaluation_spec
from apps.evals.models import EvalRun, Split
from apps.evals.submission import submit_eval
from apps.registry.actions import ModelError, register_base
from apps.registry.engines import choose, default_engine, engine_spec, identity
from apps.registry.models import Engine, ModelKind, ModelVersion, Server
from apps.serving.routes import _at
from apps.training.actions import TrainingError, freeze_dataset, submit_training
from apps.training.models import Method
from tests.evals.test_answers import work
from tests.evals.test_runs_api import Api
from tests.factories import (
    admin_of,
    make_base,
    make_base_folder,
    make_endpoint,
    make_environment,
    make_eval_set,
    make_managed,
    make_project,
    make_server,
    override,
)
from tests.forms import as_read
from tests.registry.model_server import serving
from tests.workers.test_responses_api import call, response, thought
from workers.lib.clients import chat_server, key_variables
from workers.lib.specs.engines import Model
from workers.lib.specs.engines import Server as ServerSpec

pytestmark = pytest.mark.django_db
URL = "http://127.0.0.1:8123/v1"


@pytest.fixture(autouse=True)
def key(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = True
    settings.FLYWHEEL_OUTGOING_KEYS = ["VLLM_KEY@127.0.0.1"]
    monkeypatch.setenv("VLLM_KEY", "sk-secret")


def test_a_folder_is_generated_with_here(tmp_path: Path) -> None:
    version = register_base(
        project=make_project(), name="m", folder=make_base_folder(tmp_path / "m"), by=None
    )
    assert version.engine == Engine.TRANSFORMERS
    assert engine_spec(version, 7, default_engine(version)).batch_size == 7


def test_an_evaluation_takes_its_engine_from_the_model_version() -> None:
    eval_set = make_eval_set(make_project())
    project = eval_set.project
    server = make_server(project, f"{URL}/", key_variable="VLLM_KEY")
    version = make_endpoint(project, server, "Qwen/Qwen3", name="big")
    assert version.kind == ModelKind.ENDPOINT
    again = make_endpoint(project, server, " Qwen/Qwen3", name="other")
    assert again == version, "the same server and name are one version"
    assert make_endpoint(project, server, "Qwen/Qwen3", dialect="text") != version, (
        "another way to call tools is another"
    )
    run = submit_eval(
        project=project,
        eval_set=eval_set,
        split=Split.TRAIN,
        environment=make_environment(project),
        model_version=version,
        by=None,
    )
    spec = evaluation_spec(run)
    assert isinstance(spec.engine, ServerSpec) and spec.model == Model(base="Qwen/Qwen3")
    server = chat_server(as_read(spec).engine, "engine")
    assert (server.base_url, server.model, server.key_variable) == (URL, "Qwen/Qwen3", "VLLM_KEY")
    assert key_variables(spec) == ["VLLM_KEY"] and "sk-secret" not in str(spec)


def test_a_job_knows_the_template_of_a_model_that_takes_tools_as_text(
    db: None, data_dir: Path
) -> None:
    base = make_base(make_project(), data_dir)
    (Path(base.base) / "chat_template.jinja").write_text("{{ messages }} of this base")
    server = make_managed(base, "http://127.0.0.1:8123/v1")
    for dialect, template in (("text", "{{ messages }} of this base"), ("native", None)):
        engine = choose(base, server.name) | {"dialect": dialect}
        assert engine_spec(base, 1, engine).template.strip() == (template or "")
        assert _at(server, "m", base, dialect).template.strip() == (template or "")


def closer(body: dict) -> tuple[int, dict]:
    """Closes the ticket that the request names, by a native call."""
    number = int(re.findall(r"\d+", body["input"][-1]["content"])[-1])
    called = call("tickets.close", json.dumps({"id": number}))
    usage = {"input_tokens": 11, "output_tokens": 30}
    return 200, response(thought("I close it."), called, usage=usage)


@pytest.mark.proof
def test_a_model_behind_the_responses_api_is_registered_evaluated_and_shown(data_dir: Path) -> None:
    """By API, from the server to the page of its evaluation; its child asks nothing but
    /responses.
    """
    eval_set = make_eval_set(make_project())
    project, api = eval_set.project, Api(eval_set.project)
    with serving({("POST", "/v1/responses"): closer}) as live:
        fields = {
            "name": "gpu",
            "base_url": live.base,
            "dialect": "responses",
            "prices": {"*": [1.0, 2.0]},
        }
        assert api.post("registry_api:servers", body=fields).json()["dialect"] == "responses"
        body = {"kind": "endpoint", "name": "big", "server": "gpu", "served_as": "gpt-x"}
        made = api.post("registry_api:model_versions", body=body).json()
        assert made["dialect"] == "responses", "as the server"
        asked = {
            "eval_set": str(eval_set),
            "environment": str(make_environment(project)),
            "model_version": made["id"],
        }
        run = api.post(
            "evals_api:runs", body=asked | {"samples_per_task": 1, "most_usd": 1.0}
        ).json()
        assert "model gpt-x, by the Responses API" in run["engine"]
        run = work(EvalRun.objects.get(pk=run["id"]))
        paths = {path for _, path, *_ in live.asked}
    assert (run.state, run.error, paths) == (JobState.SUCCEEDED, "", {"/v1/responses"})
    assert run.result["metrics"]["success"]["mean"] == 1.0 and run.samples.count() == 3
    sample = run.samples.first()
    assert (sample.input_tokens, sample.output_tokens) == (
        11,
        30,
    ) and "I close it" not in json.dumps(sample.messages)
    client = Client()
    client.force_login(admin_of(project))
    assert (
        "by the Responses API"
        in client.get(reverse("evals:run", args=[project.slug, run.pk])).content.decode()
    )
    model = client.get(reverse("promotion:model", args=[project.slug, made["id"]])).content.decode()
    assert "Responses API, native tool calls" in model
    native = make_endpoint(project, project.servers.get(), "gpt-x", dialect="native")
    assert native.pk != made["id"] and identity(choose(native)) != identity(run.spec["engine"]), (
        "another way to ask is another"
    )


def test_a_key_or_an_address_that_is_no_longer_allowed_is_not_used(settings: Any) -> None:
    project = make_project()
    version = make_endpoint(project, make_server(project, key_variable="VLLM_KEY"))
    engine = default_engine(version)
    settings.FLYWHEEL_OUTGOING_KEYS = []
    with pytest.raises(ModelError, match="VLLM_KEY may not be read"):
        engine_spec(version, 8, engine)
    settings.FLYWHEEL_OUTGOING_KEYS, settings.FLYWHEEL_ALLOW_PRIVATE_URLS = ["VLLM_KEY"], False
    with pytest.raises(ModelError, match="inside this machine"):
        engine_spec(version, 8, engine)


def test_a_served_model_is_not_trained_here() -> None:
    eval_set = make_eval_set(make_project())
    environment = make_environment(eval_set.project)
    override(environment)
    version = make_endpoint(eval_set.project)
    dataset = freeze_dataset(eval_set=eval_set, by=None)
    with pytest.raises(TrainingError, match="served elsewhere"):
        submit_training(
            project=eval_set.project,
            method=Method.SFT,
            parent=version,
            dataset=dataset,
            environment=environment,
            config={"steps": 1, "learning_rate": 1e-4, "batch_size": 1},
            by=None,
        )


@pytest.mark.parametrize(
    "changes", [{"base_url": URL}, {"engine": "openai"}, {"kind": "endpoint"}, {"served_as": "m"}]
)
def test_the_database_wants_a_server_and_a_name_of_a_served_model(changes: dict) -> None:
    usual = {
        "project": make_project(),
        "name": "m",
        "version": 1,
        "kind": "base",
        "base": "x",
        "digest": "d",
    }
    with pytest.raises(IntegrityError), transaction.atomic():
        ModelVersion.objects.create(**usual | changes)


def test_the_command_registers_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    make_project()
    call_command("register_model", base_url=URL, model="Qwen/Qwen3 8B", key_variable="VLLM_KEY")
    version = ModelVersion.objects.get()
    assert version.name == "qwenqwen3-8b" and URL in capsys.readouterr().out
    assert (version.server.base_url, version.server.key_variable) == (URL, "VLLM_KEY")
    call_command(
        "register_model", base_url=URL, model="other", key_variable="VLLM_KEY", dialect="responses"
    )
    assert (
        ModelVersion.objects.get(served_as="other").dialect == "responses"
        and version.dialect == "native"
    )
    assert ModelVersion.objects.count() == 2 and Server.objects.count() == 1
    call_command(
        "register_model", base_url=URL, model="third"
    )  # the same address without a key is an entry of its own
    assert set(Server.objects.values_list("key_variable", flat=True)) == {"VLLM_KEY", ""}
    for given in ({}, {"base_url": URL}, {"base_url": "ftp://x", "model": "m"}):
        with pytest.raises(CommandError):
            call_command("register_model", **given)
    with pytest.raises(CommandError, match="or both"):
        call_command("register_model", "folder", base_url=URL, model="m")
