"""An agent that is not ours is a model version too: identified by its name and its own version."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import IntegrityError, transaction

from apps.registry import harness
from apps.registry.actions import ModelError, register_agent
from apps.registry.engines import default_engine, model_spec
from apps.registry.models import Engine, ModelKind, ModelVersion, Reach
from tests.factories import make_project
from workers.lib.specs.engines import Model

pytestmark = pytest.mark.django_db
SHA = "3f2a9c1d5e7b8a0c4d6e8f0a1b2c3d4e5f6a7b8c"
URL = "https://agent.example.com/v1"


def agent(project: Any, agent_version: str = SHA, **fields: Any) -> ModelVersion:
    return register_agent(
        **{"project": project, "name": "support-agent", "agent_version": agent_version, "by": None}
        | fields
    )


def test_the_same_name_and_version_are_one_agent() -> None:
    project = make_project()
    first = agent(project)
    assert (first.kind, first.engine, first.reached_by) == (ModelKind.AGENT, Engine.AGENT, Reach.CI)
    assert agent(project, f" {SHA}\n") == first, "space around a SHA is no part of it"
    assert agent(project, reached_by=Reach.TRACES) == first
    assert str(first) == "support-agent@3f2a9c1d5e7b8a0c4d6e"
    second = agent(project, "v2")
    assert second != first and second.version == 2
    assert (
        len(
            {
                agent(project, name="other"),
                agent(project, reached_by=Reach.HTTP, base_url=URL),
                first,
                second,
            }
        )
        == 4
    )


def test_one_address_of_an_agent_is_one_version() -> None:
    project = make_project()
    spellings = (
        URL,
        f"{URL}/",
        "HTTPS://Agent.Example.com:443/v1",
        "https://agent.example.com./v1",
    )
    versions = {agent(project, reached_by=Reach.HTTP, base_url=url) for url in spellings}
    assert [version.base_url for version in versions] == [URL]


@pytest.mark.more(rows=4)
@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"reached_by": Reach.HTTP, "base_url": f"{URL}?code=1"}, "must not hold a query"),
        ({"agent_version": " "}, "agent_version is text in one line"),
        ({"agent_version": "a\nb"}, "agent_version is text in one line"),
        ({"agent_version": "a\x00b"}, "agent_version is text in one line"),
        ({"agent_version": "a" * 201}, "at most 200 characters"),
        ({"name": ""}, "name is text in one line"),
        ({"name": "support agent"}, "letters, numbers, underscores or hyphens"),
        ({"name": "a" * 81}, "at most 80 characters"),
        ({"base_url": URL}, "Only an agent that is called over HTTP"),
        ({"reached_by": Reach.HTTP}, "address"),
        ({"reached_by": Reach.HTTP, "base_url": "http://169.254.169.254/"}, "metadata service"),
        (
            {"reached_by": Reach.HTTP, "base_url": URL, "key_variable": "DATABASE_URL"},
            "may not be read",
        ),
    ],
)
def test_what_does_not_name_an_agent_is_refused(fields: dict, sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence):
        agent(make_project(), **fields)
    assert not ModelVersion.objects.exists()


def test_an_agent_that_waits_for_work_is_another_than_that_of_ci() -> None:
    project = make_project()
    waits = agent(project, reached_by=Reach.PULL)
    assert waits != agent(project) and waits == agent(project, reached_by=Reach.PULL)
    assert harness.why_not_played(waits) == "" and not ModelVersion.objects.evaluated_here()
    with pytest.raises(ModelError, match="Only an agent that is called over HTTP"):
        agent(project, reached_by=Reach.PULL, base_url=URL, agent_version="9")


def test_a_job_here_does_not_generate_for_an_agent() -> None:
    version = agent(make_project())
    assert not ModelVersion.objects.run_here()
    assert model_spec(version) == Model(base="support-agent")
    with pytest.raises(ModelError, match="runs elsewhere"):
        default_engine(version)


@pytest.mark.parametrize(
    "changes",
    [
        {"agent_version": ""},
        {"reached_by": ""},
        {"reached_by": "http"},
        {"base_url": URL},
        {"kind": "base"},
        {"engine": "openai"},
    ],
)
def test_the_database_wants_a_version_and_a_way_to_reach_an_agent(changes: dict) -> None:
    version = agent(make_project())
    with pytest.raises(IntegrityError), transaction.atomic():
        ModelVersion.objects.filter(pk=version.pk).update(**changes)
