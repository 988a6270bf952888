"""Prompt versions: what they may say, how they are registered and hashed, and what differs from
what they were made from.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.test import Client
from django.urls import reverse

from apps.registry import engines
from apps.registry.actions import ModelError, register_agent, register_prompt
from apps.registry.models import ModelKind, ModelVersion
from tests.factories import admin_of, make_adapter, make_base, make_endpoint, make_key, make_project
from workers.lib.prompts import applied, as_lines, checked_prompt, from_harness, shown, tool_problem
from workers.lib.typed import FormError

CLOSE = {
    "type": "function",
    "function": {
        "name": "close",
        "description": "Close it.",
        "parameters": {
            "type": "object",
            "properties": {
                "id": {"type": "integer", "description": "Its number"},
                "title": {"type": "string"},
            },
        },
    },
}


def described(**changes: Any) -> dict:
    return CLOSE | {"function": CLOSE["function"] | changes}


# What a prompt may say


def test_a_prompt_is_brought_into_one_form() -> None:
    given = {
        "tools": [{"function": {"name": "close"}}],
        "examples": [{"role": "user"}],
        "temperature": 0,
    }
    assert checked_prompt(given) == {
        "examples": [{"role": "user", "content": None}],
        "tools": [{"function": {"name": "close", "description": ""}, "type": "function"}],
        "temperature": 0.0,
    }


@pytest.mark.parametrize(
    ("given", "path", "problem"),
    [
        ({}, "", "says nothing"),
        ([], "", "must be an object"),
        ({"system_promt": "x"}, "system_promt", "did you mean “system_prompt”"),
        ({"system_prompt": 7}, "system_prompt", "must be a text"),
        ({"system_prompt": "x" * 200_001}, "system_prompt", "at most 200000 characters"),
        ({"system_prompt": "a\x00b"}, "", "characters that no text may have"),
        ({"examples": [{"role": "system", "content": "x"}]}, "examples[0].role", "must be one of"),
        (
            {"examples": [{"role": "user", "content": []}]},
            "examples[0].content",
            "must be a text or null",
        ),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "is missing"),
        ({"tools": [{"function": {"name": ""}}]}, "tools[0].function.name", "is empty"),
        ({"tools": [CLOSE, CLOSE]}, "tools", "names close twice"),
        ({"temperature": -1}, "temperature", "at least 0"),
        ({"temperature": float("nan")}, "temperature", "at least 0"),
        ({"top_p": 0}, "top_p", "more than 0"),
        ({"max_new_tokens": 0}, "max_new_tokens", "at least 1"),
        ({"tools": [described(parameters={"x": "y" * 400_000})]}, "", "400,000 is the most"),
    ],
)
def test_what_is_no_prompt_is_refused_by_field(given: Any, path: str, problem: str) -> None:
    with pytest.raises(FormError) as error:
        checked_prompt(given)
    assert error.value.path == path and problem in error.value.problem


def test_a_harness_has_the_prompts_part_in_place_of_its_own() -> None:
    harness = {"system_prompt": "Old.", "tools": [CLOSE], "max_turns": 3, "temperature": 1.0}
    prompt = {"system_prompt": "New.", "tools": [described(description="Shut it.")]}
    changed = applied(harness, prompt)
    assert (changed["system_prompt"], changed["tools"], changed["max_turns"]) == (
        "New.",
        [CLOSE],
        3,
    )
    assert from_harness(changed) == prompt | {"temperature": 1.0}
    assert applied(harness, {}) == harness


def test_the_model_is_shown_the_prompts_descriptions() -> None:
    other = {"type": "function", "function": {"name": "open"}}
    one, two = shown([CLOSE, other], [described(description="Shut it.")])
    assert one["function"]["description"] == "Shut it." and two is other


@pytest.mark.parametrize(
    ("tool", "problem"),
    [
        (described(description="Shut it."), ""),
        (
            described(
                parameters={
                    "type": "object",
                    "properties": {
                        "id": {"type": "integer"},
                        "title": {"type": "string", "title": "Its title", "description": "Of it"},
                    },
                }
            ),
            "",
        ),
        (described(name="shut"), "the environment does not show. It shows: close"),
        (
            described(parameters={"type": "object", "properties": {"id": {"type": "integer"}}}),
            "not those that",
        ),
        (
            described(
                parameters={
                    "type": "object",
                    "properties": {"id": {"type": "string"}, "title": {"type": "string"}},
                }
            ),
            "not those that",
        ),
    ],
)
def test_a_prompt_describes_tools_and_changes_none(tool: dict, problem: str) -> None:
    found = tool_problem([tool], [CLOSE])
    assert problem in found if problem else not found


def test_it_is_read_line_by_line() -> None:
    assert as_lines({"temperature": 0.5, "system_prompt": "a\nb"}) == [
        "system_prompt:",
        "  a",
        "  b",
        "temperature: 0.5",
    ]


# Versions


@pytest.fixture
def world(db: None, data_dir: Path) -> dict[str, Any]:
    project = make_project()
    return {
        "project": project,
        "base": make_base(project, data_dir),
        "by": admin_of(project),
        "folder": data_dir,
    }


def prompt_on(
    world: dict[str, Any], on: ModelVersion, text: str = "Be brief.", **given: Any
) -> ModelVersion:
    given = {"name": "short", "prompt": {"system_prompt": text}} | given
    return register_prompt(project=world["project"], on=on, by=world["by"], **given)


def test_the_same_prompt_for_the_same_model_is_one_version(world: dict[str, Any]) -> None:
    first = prompt_on(world, world["base"])
    assert (str(first), first.kind, first.parent, first.model) == (
        "short-v1",
        ModelKind.PROMPT,
        world["base"],
        world["base"],
    )
    assert (
        first.base == world["base"].base and first.lineage["model_digest"] == world["base"].digest
    )
    assert prompt_on(world, world["base"], name="another") == first
    second = prompt_on(world, first, "Be brief.\nBe kind.")
    assert (str(second), second.parent, second.model) == ("short-v2", first, world["base"])
    assert prompt_on(world, second) == first, "changed back, it is what it was"
    adapter = make_adapter(world["project"], world["base"], world["folder"])
    assert prompt_on(world, adapter).digest != first.digest


def test_the_difference_is_to_the_parents_prompt_or_to_the_environments(
    world: dict[str, Any],
) -> None:
    first = prompt_on(
        world,
        world["base"],
        started_from={"name": "desk@1", "prompt": {"system_prompt": "Be long."}},
    )
    assert first.prompt_changes() == [
        ("gone", "system_prompt: Be long."),
        ("new", "system_prompt: Be brief."),
    ]
    second = prompt_on(world, first, prompt=first.prompt | {"temperature": 0.0})
    assert second.prompt_changes() == [("new", "temperature: 0.0")]
    assert prompt_on(world, world["base"], "Hello").prompt_changes() == [
        ("new", "system_prompt: Hello")
    ]


def test_the_difference_is_field_by_field(world: dict[str, Any]) -> None:
    """Lines of a text are never shown below another field, and a change deep in one names it."""
    before = {"system_prompt": "One.\nTwo.", "temperature": 0.8, "top_p": 1.0}
    made = prompt_on(
        world, world["base"], "One.\nThree.", started_from={"name": "desk@1", "prompt": before}
    )
    assert [line for kind, line in made.prompt_changes() if kind != "same"] == [
        "  Two.",
        "  Three.",
        "temperature: 0.8",
        "top_p: 1.0",
    ]
    long = "\n".join(str(number) for number in range(20))
    deep = prompt_on(
        world,
        world["base"],
        f"{long}\nEnd.",
        started_from={"name": "desk@1", "prompt": {"system_prompt": long}},
    )
    assert deep.prompt_changes()[0] == ("skip", "system_prompt:") and deep.prompt_changes()[-1] == (
        "new",
        "  End.",
    )


def test_it_is_generated_as_the_model_that_it_stands_on(
    world: dict[str, Any], settings: Any
) -> None:
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = True
    adapter = make_adapter(world["project"], world["base"], world["folder"])
    endpoint = make_endpoint(world["project"], served_as="served")
    for model in (world["base"], adapter, endpoint):
        version = prompt_on(world, prompt_on(world, model), "Be kind.")
        assert engines.choose(version) == engines.choose(model)
        assert engines.model_spec(version) == engines.model_spec(model)
        assert engines.default_engine(version) == engines.default_engine(model)


def test_an_agent_brings_its_own_prompt(world: dict[str, Any]) -> None:
    agent = register_agent(project=world["project"], name="desk", agent_version="1", by=world["by"])
    with pytest.raises(ModelError, match="part of its own code"):
        prompt_on(world, agent)


def test_the_database_knows_no_prompt_version_without_a_prompt(world: dict[str, Any]) -> None:
    rows = ModelVersion.objects.filter(pk=prompt_on(world, world["base"]).pk)
    for wrong in ({"prompt": {}}, {"parent": None}, {"kind": ModelKind.BASE}):
        with pytest.raises(IntegrityError), transaction.atomic():
            rows.update(**wrong)


# By API


def call(world: dict[str, Any], body: Any) -> Any:
    headers = {"HTTP_AUTHORIZATION": f"Bearer {make_key(world['project'])}"}
    return Client().post(
        reverse("registry_api:model_versions"), json.dumps(body), "application/json", **headers
    )


def test_it_is_registered_and_read_by_api(world: dict[str, Any]) -> None:
    body = {
        "kind": "prompt",
        "name": "short",
        "on": world["base"].pk,
        "prompt": {"system_prompt": "Be brief."},
    }
    made = call(world, body | {"notes": "Shorter\nthan before"})
    assert made.status_code == 201, made.content
    assert made.json()["prompt"] == body["prompt"] and made.json()["parent"] == world["base"].pk
    assert call(world, body).status_code == 200
    headers = {"HTTP_AUTHORIZATION": f"Bearer {make_key(world['project'])}"}
    read = (
        Client()
        .get(reverse("registry_api:model_version", args=[made.json()["id"]]), **headers)
        .json()
    )
    assert read["changes"] == [{"kind": "new", "line": "system_prompt: Be brief."}] and read[
        "notes"
    ].startswith("Shorter")
    listed = (
        Client().get(reverse("registry_api:model_versions"), {"kind": "prompt"}, **headers).json()
    )
    assert [row["model"] for row in listed["results"]] == ["short-v1"]


@pytest.mark.more(rows=2)
@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"on": 0}, "on"),
        ({"on": 2**70}, "on"),
        ({"prompt": {}}, ""),
        ({"prompt": {"examples": [{"role": "x"}]}}, "prompt.examples[0].role"),
        ({"prompt": {"tools": [CLOSE, CLOSE]}}, "tools"),
        ({"name": "a b"}, "name"),
        ({"notes": "a\x00"}, "notes"),
    ],
)
def test_a_bad_request_is_told_where(world: dict[str, Any], changes: dict, path: str) -> None:
    body = {
        "kind": "prompt",
        "name": "short",
        "on": world["base"].pk,
        "prompt": {"system_prompt": "x"},
    }
    answer = call(world, body | changes)
    assert (answer.status_code, answer.json()["path"]) == (400, path), answer.content


def test_another_projects_model_is_none(world: dict[str, Any]) -> None:
    other = make_base(make_project(), world["folder"])
    body = {"kind": "prompt", "name": "short", "on": other.pk, "prompt": {"system_prompt": "x"}}
    assert call(world, body).json()["path"] == "on"
