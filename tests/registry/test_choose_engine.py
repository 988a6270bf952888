"""A job's engine: chosen at submission, kept in the spec, shown on its page, and said where two
evaluations differ in it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.core.models import Role
from apps.evals.actions import EvalSetError
from apps.evals.jobs import evaluation_spec
from apps.evals.models import EvalRun, Split
from apps.evals.submission import submit_eval
from apps.promotion.actions import make_gate_report
from apps.promotion.deployment.places import lora_name
from apps.promotion.gate import compare
from apps.promotion.inputs import as_evaluation, reproduce
from apps.registry import engines, servers
from apps.registry.actions import ModelError
from apps.registry.engines import AUTO, IN_PROCESS, adapter_name, choose
from apps.registry.models import Health, ModelVersion, Server
from apps.registry.prices import price_at, prices_of, read_prices, write_prices
from tests.factories import (
    admin_of,
    make_adapter,
    make_base,
    make_endpoint,
    make_environment,
    make_eval_run,
    make_eval_set,
    make_member,
    make_project,
    make_server,
)
from tests.forms import as_read
from tests.registry.model_server import models, serving
from workers.lib.prices import Price, price_as_json, price_from_json

pytestmark = pytest.mark.django_db
ABLE = {"kind": "vllm", "adapters_at": "/mnt/artifacts/"}


@pytest.fixture(autouse=True)
def allowed(settings: Any) -> None:
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = True


class World:
    """A base, an adapter on it, and a server that has the base and can load adapters."""

    def __init__(self, folder: Path) -> None:
        self.project = make_project()
        self.base = make_base(self.project, folder)
        self.adapter = make_adapter(self.project, self.base, folder)
        self.server = make_server(self.project, name="gpu", **ABLE)
        self.endpoint = make_endpoint(
            self.project, self.server, "served", name="served", parent=self.base
        )
        self.change(capabilities={"runtime_lora": {"value": True}}, health=Health.HEALTHY)

    def change(self, **fields: Any) -> None:
        Server.objects.filter(pk=self.server.pk).update(**fields)

    def engine(self, what: str, wanted: str = AUTO) -> dict[str, Any]:
        version = ModelVersion.objects.get(pk=getattr(self, what).pk)
        return choose(version, wanted)


@pytest.fixture
def world(data_dir: Path) -> World:
    return World(data_dir)


@pytest.mark.more(rows=3)
@pytest.mark.parametrize(
    ("what", "wanted", "model"),
    [
        ("endpoint", AUTO, "served"),
        ("endpoint", "gpu", "served"),
        ("base", AUTO, None),
        ("base", IN_PROCESS, None),
        ("base", "gpu", "served"),
        ("adapter", AUTO, "ADAPTER"),
        ("adapter", "gpu", "ADAPTER"),
        ("adapter", IN_PROCESS, None),
    ],
)
def test_what_generates(world: World, what: str, wanted: str, model: str | None) -> None:
    model = adapter_name(world.adapter) if model == "ADAPTER" else model
    assert world.engine(what, wanted).get("model") == model


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"kind": "openai"}, "neither vLLM nor SGLang"),
        ({"adapters_at": ""}, "its adapter path is not set"),
        ({"capabilities": {}}, "cannot be loaded on gpu at run time"),
        (
            {"capabilities": {"runtime_lora": {"value": False}}},
            "cannot be loaded on gpu at run time",
        ),
        ({"health": Health.DOWN}, "gpu is down"),
    ],
)
def test_an_adapter_is_generated_in_process_where_the_server_cannot_load_it(
    world: World, change: dict, says: str
) -> None:
    world.change(**change)
    assert world.engine("adapter")["kind"] == "transformers"
    with pytest.raises(ModelError, match=says):
        world.engine("adapter", "gpu")


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("what", "wanted", "says"),
    [
        ("endpoint", IN_PROCESS, "nothing else can generate"),
        ("endpoint", "other", "nothing else can generate"),
        ("base", "other", "known to have the weights of base-v1"),
        ("adapter", "none", "known to have the weights of base-v1"),
    ],
)
def test_what_cannot_generate_it_is_refused(
    world: World, what: str, wanted: str, says: str
) -> None:
    make_server(world.project, "http://127.0.0.1:7/v1", name="other")
    with pytest.raises(ModelError, match=says):
        world.engine(what, wanted)


def test_another_projects_server_is_never_chosen(world: World, data_dir: Path) -> None:
    project = make_project()
    adapter = make_adapter(project, make_base(project, data_dir), data_dir)
    assert choose(adapter)["kind"] == "transformers"


def test_a_server_is_not_named_like_a_choice(world: World) -> None:
    with pytest.raises(servers.ServerError, match="another name"):
        servers.edit_server(server=world.server, fields={"name": "auto"}, by=None)


def submitted(world: World, version: ModelVersion, **given: Any) -> EvalRun:
    eval_set = make_eval_set(world.project)
    fields = {
        "eval_set": eval_set,
        "split": Split.TRAIN,
        "environment": make_environment(world.project),
        "by": None,
    }
    return submit_eval(project=world.project, model_version=version, **fields | given)


def test_the_spec_keeps_the_engine_and_the_adapter_is_loaded_when_the_job_begins(
    world: World,
) -> None:
    run = submitted(world, world.adapter)
    assert run.spec["engine"] | {"asked": "auto", "server_name": "gpu"} == run.spec["engine"]
    with serving(
        {
            ("GET", "/v1/models"): models("served"),
            ("POST", "/v1/load_lora_adapter"): (200, b"Success"),
        }
    ) as live:
        run.spec["engine"]["base_url"] = live.base
        world.change(capabilities={}, health=Health.DOWN, base_url=live.base)
        spec = as_read(evaluation_spec(run))
    assert spec.engine.model == adapter_name(world.adapter) and spec.model.adapter is None
    path = f"/mnt/artifacts/{world.adapter.artifact_id}"
    assert json.loads(live.asked[-1][3]) == {
        "lora_name": adapter_name(world.adapter),
        "lora_path": path,
    }
    Server.objects.filter(pk=world.server.pk).update(base_url="http://127.0.0.1:7/v1")
    with pytest.raises(ModelError, match="has another address"):
        evaluation_spec(run)
    with pytest.raises(EvalSetError, match="known to have the weights"):
        submitted(world, world.adapter, engine="gone")


@pytest.mark.proof
def test_the_same_evaluation_on_another_engine_is_another(world: World) -> None:
    environment, eval_set = make_environment(world.project), make_eval_set(world.project)

    def start(engine: str, **limits: Any) -> EvalRun:
        return submitted(
            world, world.base, environment=environment, eval_set=eval_set, engine=engine, **limits
        )

    assert start(IN_PROCESS).spec["engine"]["kind"] == "transformers"
    assert start("gpu").spec["engine"]["server_name"] == "gpu"
    for engine, limits in ((AUTO, {}), (IN_PROCESS, {}), ("gpu", {}), ("gpu", {"most_tokens": 9})):
        with pytest.raises(EvalSetError, match="already running"):
            start(engine, **limits)


@pytest.mark.proof
def test_the_engine_is_chosen_on_the_form_and_shown_on_the_page(world: World) -> None:
    eval_set, environment, client = (
        make_eval_set(world.project),
        make_environment(world.project),
        Client(),
    )
    client.force_login(make_member(world.project, Role.ENGINEER))
    form = reverse("evals:new_run", args=[world.project.slug, eval_set.pk])
    assert "Server gpu" in client.get(form).content.decode()
    given = {
        "model_version": world.adapter.pk,
        "environment": environment.pk,
        "split": "train",
        "samples_per_task": 1,
        "seed": 0,
        "engine": "gpu",
    }
    world.change(health=Health.DOWN)
    assert "gpu is down" in client.post(form, given).content.decode()
    world.change(health=Health.HEALTHY)
    page = client.post(form, given, follow=True).content.decode()
    assert "server gpu (http://127.0.0.1:8123/v1)" in page and "adapter loaded at run time" in page
    Server.objects.exclude(pk=world.server.pk).delete()


def test_a_project_without_servers_is_not_asked(data_dir: Path) -> None:
    project = make_project()
    make_base(project, data_dir)
    make_environment(project)
    client = Client()
    client.force_login(admin_of(project))
    page = client.get(
        reverse("evals:new_run", args=[project.slug, make_eval_set(project).pk])
    ).content.decode()
    assert "Model version" in page and 'name="engine"' not in page


@pytest.mark.proof
def test_the_report_says_that_engines_differ(world: World) -> None:
    eval_set, environment = make_eval_set(world.project), make_environment(world.project)
    before, after = (
        make_eval_run(eval_set, version, environment) for version in (world.base, world.adapter)
    )
    after.spec["engine"] = world.engine("adapter")
    after.save()
    report = make_gate_report(baseline=before, candidate=after, by=admin_of(world.project))
    (note,) = report.report["notes"]
    assert "the baseline in this installation (transformers), the candidate server gpu" in note
    assert reproduce(report)[1], "the note is part of what is reproduced"
    client = Client()
    client.force_login(admin_of(world.project))
    assert (
        "Generated by different engines"
        in client.get(
            reverse("promotion:report", args=[world.project.slug, report.pk])
        ).content.decode()
    )
    same = as_evaluation(before)
    assert compare(same, same).notes == []
    assert engines.in_words({}, world.base) == "in this installation (transformers)"


# Limits and prices


def test_limits_are_kept_with_the_engine_and_given_to_the_child(world: World) -> None:
    for version, limits, says in (
        (world.base, {"most_tokens": 10}, "only apply to servers"),
        (world.endpoint, {"most_usd": 1.0}, "No price is known for served on gpu"),
    ):
        with pytest.raises(EvalSetError, match=says):
            submitted(world, version, **limits)
    world.change(prices={"*": [0.5, 1.5]})
    run = submitted(
        world, ModelVersion.objects.get(pk=world.endpoint.pk), most_tokens=5000, most_usd=0.25
    )
    engine = as_read(evaluation_spec(EvalRun.objects.get(pk=run.pk))).engine
    assert engine.price == Price(0.5, 1.5, source="server gpu")
    assert (engine.most_tokens, engine.most_usd) == (5000, 0.25)
    assert run.max_attempts == 1, "another attempt would spend the limit again"
    assert engines.in_words(run.spec["engine"], world.endpoint).endswith(
        "model served, at most 5,000 tokens, at most $0.25"
    )


def test_prices_are_shipped_for_a_provider_and_a_servers_own_come_first(world: World) -> None:
    world.server.base_url = "https://api.openai.com/v1"
    listed = price_at(world.server, "gpt-4o-mini")
    assert listed and (listed.input, listed.output, listed.cache_read) == (0.15, 0.6, 0.075)
    assert price_at(world.server, "other") is None
    world.server.prices = {"gpt-4o-mini": [1, 2], "*": [3, 4, 0.3, None]}
    own = Price(1, 2, source="server gpu")
    assert price_at(world.server, "gpt-4o-mini") == own
    assert price_at(world.server, "other") == Price(3, 4, 0.3, source="server gpu")


def test_a_price_with_cached_tokens_and_tiers_reaches_the_job_whole(world: World) -> None:
    world.server.base_url = "https://generativelanguage.googleapis.com/v1beta/openai"
    world.server.prices = {}
    listed = price_at(world.server, "gemini-2.5-pro")
    assert listed and listed.tiers and listed.cache_read is not None
    assert price_from_json(json.loads(json.dumps(price_as_json(listed)))) == listed


def test_an_agent_with_only_a_model_has_the_highest_entered_price(
    world: World,
) -> None:
    world.change(prices={"gpt-4o-mini": [1, 2], "own": [3, 4], "*": [50, 60]})
    make_server(world.project, "http://127.0.0.1:8124/v1", prices={"own": [5, 1]})
    found = prices_of(world.project).own
    rates = {model: (price.input, price.output) for model, price in found.items()}
    assert rates == {"gpt-4o-mini": (1, 2), "own": (5, 4)}
    assert prices_of(make_project()).own == {}, "another project's prices are its own"


@pytest.mark.parametrize(
    "text", ["m", "m 1", "1 2", "m 1 -2", "m nan 1", "m inf 1", "m 1 x", "m 1 1e9"]
)
def test_prices_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="Line 2"):
        read_prices(f"ok 1 2\n{text}")


def test_prices_are_read_as_they_are_written() -> None:
    prices = {"*": [0.0, 0.1], "a b/c": [0.15, 60.0]}
    assert read_prices(write_prices(prices)) == prices and read_prices(" \n") == {}


@pytest.mark.parametrize(
    ("kind", "asked"),
    [("vllm", "adapter-1"), ("transformers", "adapter-1"), ("sglang", "org/base:v2:adapter-1")],
)
def test_an_adapter_is_asked_by_the_name_that_its_server_understands(kind: str, asked: str) -> None:
    """SGLang answers with the bare base to the adapter's name alone; and a base's name may have
    colons itself.
    """
    name = engines.asked_as(Server(kind=kind), "org/base:v2", "adapter-1")
    assert name == asked and lora_name(name) == "adapter-1"
