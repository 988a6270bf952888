"""What generates for a model version is part of it: this installation, or a server that may be asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError, transaction

from apps.evals.jobs import child_spec
from apps.evals.models import Split
from apps.evals.submission import submit_eval
from apps.registry.actions import ModelError, register_base
from apps.registry.engines import engine_spec
from apps.registry.models import Engine, ModelKind, ModelVersion, Server
from apps.training.actions import TrainingError, freeze_dataset, submit_training
from apps.training.models import Method
from tests.factories import (
    make_base_folder,
    make_endpoint,
    make_environment,
    make_eval_set,
    make_project,
    make_server,
    override,
)
from workers.lib.clients import chat_server, key_variables
from workers.lib.specs import Evaluate
from workers.lib.typed import convert

pytestmark = pytest.mark.django_db
URL = "http://127.0.0.1:8123/v1"


@pytest.fixture(autouse=True)
def key(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = True
    settings.FLYWHEEL_OUTGOING_KEYS = ["VLLM_KEY@127.0.0.1"]
    monkeypatch.setenv("VLLM_KEY", "sk-secret")


def test_a_folder_is_generated_with_here(tmp_path: Path) -> None:
    version = register_base(project=make_project(), name="m", folder=make_base_folder(tmp_path / "m"), by=None)
    assert version.engine == Engine.TRANSFORMERS and engine_spec(version, 7)["batch_size"] == 7


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
    run = submit_eval(project=project, eval_set=eval_set, split=Split.TRAIN, environment=make_environment(project),
                      model_version=version, by=None)  # fmt: skip
    spec = child_spec(run)
    assert spec["engine"]["kind"] == "openai" and spec["model"] == {"base": "Qwen/Qwen3", "adapter": None}
    server = chat_server(convert(spec, Evaluate, "spec").engine, "engine")
    assert (server.base_url, server.model, server.key_variable) == (URL, "Qwen/Qwen3", "VLLM_KEY")
    assert key_variables(spec) == ["VLLM_KEY"] and "sk-secret" not in str(spec)


def test_a_key_or_an_address_that_is_no_longer_allowed_is_not_used(settings: Any) -> None:
    project = make_project()
    version = make_endpoint(project, make_server(project, key_variable="VLLM_KEY"))
    settings.FLYWHEEL_OUTGOING_KEYS = []
    with pytest.raises(ModelError, match="VLLM_KEY may not be read"):
        engine_spec(version, 8)
    settings.FLYWHEEL_OUTGOING_KEYS, settings.FLYWHEEL_ALLOW_PRIVATE_URLS = ["VLLM_KEY"], False
    with pytest.raises(ModelError, match="inside this machine"):
        engine_spec(version, 8)


def test_a_served_model_is_not_trained_here() -> None:
    eval_set = make_eval_set(make_project())
    environment = make_environment(eval_set.project)
    override(environment)
    version = make_endpoint(eval_set.project)
    dataset = freeze_dataset(eval_set=eval_set, by=None)
    with pytest.raises(TrainingError, match="served elsewhere"):
        submit_training(project=eval_set.project, method=Method.SFT, parent=version, dataset=dataset,
                        environment=environment, config={"steps": 1, "learning_rate": 1e-4, "batch_size": 1}, by=None)  # fmt: skip


@pytest.mark.parametrize("changes", [{"base_url": URL}, {"engine": "openai"}, {"kind": "endpoint"}, {"served_as": "m"}])
def test_the_database_wants_a_server_and_a_name_of_a_served_model(changes: dict) -> None:
    usual = {"project": make_project(), "name": "m", "version": 1, "kind": "base", "base": "x", "digest": "d"}
    with pytest.raises(IntegrityError), transaction.atomic():
        ModelVersion.objects.create(**usual | changes)


def test_the_command_registers_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    make_project()
    call_command("register_model", base_url=URL, model="Qwen/Qwen3 8B", key_variable="VLLM_KEY")
    version = ModelVersion.objects.get()
    assert version.name == "qwenqwen3-8b" and URL in capsys.readouterr().out
    assert (version.server.base_url, version.server.key_variable) == (URL, "VLLM_KEY")
    call_command("register_model", base_url=URL, model="other", key_variable="VLLM_KEY")
    assert ModelVersion.objects.count() == 2 and Server.objects.count() == 1
    with pytest.raises(CommandError, match="another key variable"):
        call_command("register_model", base_url=URL, model="third")
    for given in ({}, {"base_url": URL}, {"base_url": "ftp://x", "model": "m"}):
        with pytest.raises(CommandError):
            call_command("register_model", **given)
    with pytest.raises(CommandError, match="or both"):
        call_command("register_model", "folder", base_url=URL, model="m")
