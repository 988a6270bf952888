"""A prompt version on a served model: evaluated, compared, promoted, asked for by production,
rolled back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.core import runner
from apps.core.models import JobState, Project
from apps.environments.actions import save_environment, save_verifier
from apps.environments.models import Environment
from apps.evals.actions import EvalSetError, HoldoutLeak
from apps.evals.capability.environment import general_environment
from apps.evals.jobs import evaluation_spec
from apps.evals.models import EvalRun, EvalSet, Split
from apps.evals.submission import submit_eval
from apps.promotion import actions
from apps.registry.actions import register_prompt
from apps.registry.models import ModelVersion
from apps.training.actions import TrainingError, freeze_dataset, submit_training
from tests.factories import (
    admin_of,
    make_endpoint,
    make_environment,
    make_eval_set,
    make_key,
    make_member,
    make_project,
    make_server,
    override,
)
from tests.forms import as_read
from tests.registry.model_server import chat, models, serving
from workers.lib.environments.workplace import TOOLS as NAMED
from workers.lib.messages import chat_tool

TOOLS = [chat_tool(tool) for tool in NAMED]
GOOD = "Close tickets with the tool, at once."
ASKED = ("POST", "/v1/chat/completions")


def careless(body: dict) -> tuple[int, dict]:
    """Closes the ticket only where the system prompt says so."""
    first, last = body["messages"][0], body["messages"][-1]
    if first["role"] != "system" or GOOD not in first["content"]:
        return chat({"content": "Which ticket do you mean?"})
    number = re.findall(r"\d+", last["content"])[-1]
    return chat({"content": json.dumps({"tool": "tickets.close", "args": {"id": int(number)}})})


@pytest.fixture
def live(settings: Any, warm_jobs: None) -> Iterator[Any]:
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = True
    with serving({("GET", "/v1/models"): models("m"), ASKED: careless}) as server:
        yield server


def prompt_on(on: ModelVersion, prompt: dict, name: str = "closer") -> ModelVersion:
    return register_prompt(
        project=on.project, name=name, on=on, prompt=prompt, by=admin_of(on.project)
    )


def evaluated(
    version: ModelVersion, eval_set: EvalSet, environment: Environment, **given: Any
) -> EvalRun:
    fields = {"split": Split.HOLDOUT, "samples_per_task": 4} | given
    return submit_eval(
        project=version.project,
        eval_set=eval_set,
        environment=environment,
        model_version=version,
        by=admin_of(version.project),
        **fields,
    )


def finished(run: EvalRun) -> EvalRun:
    runner.run(run)
    run.refresh_from_db()
    assert run.state == JobState.SUCCEEDED, run.error
    return run


@pytest.mark.django_db(transaction=True)
def test_a_prompt_change_is_evaluated_passes_the_gate_runs_and_is_rolled_back(
    live: Any, data_dir: Path
) -> None:
    project = make_project()
    model = make_endpoint(project, make_server(project, live.base))
    eval_set, environment = make_eval_set(project, holdout=32), make_environment(project)
    better = prompt_on(model, {"system_prompt": GOOD, "temperature": 0.0, "examples": []})
    worse = prompt_on(better, better.prompt | {"system_prompt": "Ask back."})
    runs = {one: finished(evaluated(one, eval_set, environment)) for one in (model, better, worse)}
    rates = [run.result["metrics"]["success"]["mean"] for run in runs.values()]
    assert rates == [0.0, 1.0, 0.0]
    assert (
        runs[better].spec["agent_hash"] != runs[model].spec["agent_hash"] == environment.agent_hash
    )

    channel = actions.channel_of(project)
    actions.set_initial(channel=channel, version=model, by=None)
    member = make_member(project)
    report = actions.make_gate_report(
        baseline=runs[model], candidate=runs[better], by=member, channel=channel
    )
    assert report.verdict == "promote", report.report["summary"]
    assert ("new", f"system_prompt: {GOOD}") in report.report["agent_changes"]
    actions.promote(channel=channel, report=report, by=member, reason="it closes tickets")
    assert (
        actions.make_gate_report(baseline=runs[better], candidate=runs[worse], by=member).verdict
        == "reject"
    )

    headers = {"HTTP_AUTHORIZATION": f"Bearer {make_key(project)}"}
    ask = reverse("promotion_api:channel", args=["production"])
    said = Client().get(ask, **headers).json()
    assert (said["model"], said["kind"], said["prompt"]["system_prompt"]) == (
        "closer-v1",
        "prompt",
        GOOD,
    )
    channel.refresh_from_db()
    actions.rollback(channel=channel, by=member, reason="too eager")
    assert Client().get(ask, **headers).json()["model"] == str(model)


@pytest.fixture
def model(db: None, settings: Any, data_dir: Path) -> ModelVersion:
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = True
    return make_endpoint(make_project())


def with_tools(project: Project, **harness: Any) -> Environment:
    verifier = make_environment(project).verifier
    given = {"tools": TOOLS, "temperature": 0.3, "max_new_tokens": 50, "max_turns": 1, **harness}
    return save_environment(
        project=project,
        slug="calls",
        kind="single_turn",
        harness=given,
        verifier=verifier,
        by=admin_of(project),
    )


def test_what_the_prompt_leaves_out_is_the_environments(model: ModelVersion) -> None:
    tool = TOOLS[0] | {"function": TOOLS[0]["function"] | {"description": "Only this one."}}
    version = prompt_on(model, {"tools": [tool], "temperature": 0.9})
    environment = with_tools(model.project, system_prompt="Work.")
    run = evaluated(version, make_eval_set(model.project), environment)
    harness = as_read(evaluation_spec(run)).environment.harness
    assert (harness.temperature, harness.max_new_tokens, harness.system_prompt) == (
        0.9,
        50,
        "Work.",
    )
    assert (
        harness.tools == TOOLS
        and harness.shown_tools[0]["function"]["description"] == "Only this one."
    )
    assert run.agent_part["temperature"] == 0.9 and "tools" not in run.agent_part


def test_a_description_of_a_tool_that_is_not_shown_is_refused(model: ModelVersion) -> None:
    eval_set = make_eval_set(model.project)
    other = prompt_on(model, {"tools": [{"function": {"name": "tickets.burn"}}]})
    with pytest.raises(EvalSetError, match=r"tickets\.burn, which the environment does not show"):
        evaluated(other, eval_set, with_tools(model.project))
    one = prompt_on(model, {"tools": TOOLS[:1]})
    with pytest.raises(EvalSetError, match="shows none"):
        evaluated(one, eval_set, make_environment(model.project))
    evaluated(one, eval_set, with_tools(model.project))


def test_a_prompt_that_shows_what_is_held_out_is_not_evaluated(model: ModelVersion) -> None:
    eval_set = make_eval_set(model.project)
    held = eval_set.tasks.holdout()[0].messages[0]["content"]
    for prompt in (
        {"system_prompt": f"For instance: {held}"},
        {"examples": [{"role": "user", "content": held}]},
    ):
        with pytest.raises(HoldoutLeak, match="would reveal held-out data"):
            evaluated(
                prompt_on(model, prompt),
                eval_set,
                make_environment(model.project),
                split=Split.TRAIN,
            )


def test_general_capability_is_of_the_bare_model(model: ModelVersion) -> None:
    environment = general_environment(project=model.project, by=None)
    run = evaluated(
        prompt_on(model, {"system_prompt": "Only JSON."}), make_eval_set(model.project), environment
    )
    assert run.prompt == {} and evaluation_spec(run).environment.harness.system_prompt is None
    like_it = save_environment(
        project=model.project,
        slug="mine",
        kind="single_turn",
        harness=environment.harness | {"max_turns": 2},
        verifier=save_verifier(
            project=model.project, name="x", spec=environment.verifier.spec, by=None
        ),
        by=None,
    )
    run = evaluated(prompt_on(model, {"system_prompt": "Only JSON."}), run.eval_set, like_it)
    assert run.prompt == {"system_prompt": "Only JSON."}


def test_a_prompt_version_has_no_weights_to_train(base: ModelVersion) -> None:
    version, environment = prompt_on(base, {"system_prompt": "x"}), make_environment(base.project)
    override(environment)
    dataset = freeze_dataset(eval_set=make_eval_set(base.project), by=None)
    with pytest.raises(TrainingError, match=f"Train {base}"):
        submit_training(
            project=base.project,
            method="sft",
            parent=version,
            dataset=dataset,
            environment=environment,
            config={"steps": 1, "learning_rate": 1e-4, "batch_size": 1},
            by=admin_of(base.project),
        )


@pytest.mark.proof
def test_the_page_of_a_version_shows_its_changes(base: ModelVersion) -> None:
    first = prompt_on(base, {"system_prompt": "Be <b>long</b>."})
    second = register_prompt(
        project=base.project,
        name="closer",
        on=first,
        prompt={"system_prompt": "Be <i>brief</i>."},
        by=None,
        notes="Shorter <b>",
    )
    client = Client()
    client.force_login(make_member(base.project))
    page = client.get(
        reverse("promotion:model", args=[base.project.slug, second.pk])
    ).content.decode()
    assert (
        "− system_prompt: Be &lt;b&gt;long&lt;/b&gt;." in page
        and "+ system_prompt: Be &lt;i&gt;brief" in page
    )
    assert "Shorter &lt;b&gt;" in page and f">{first}</a>" in page
    assert (
        "<h2>Prompt</h2>"
        not in client.get(
            reverse("promotion:model", args=[base.project.slug, base.pk])
        ).content.decode()
    )
