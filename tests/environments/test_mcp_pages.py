"""An MCP server is connected in the browser, and served to others with a verifier of ours."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.core.models import Project
from apps.environments.actions import save_verifier
from tests.environments.gym import called, make_gym, row
from tests.factories import admin_of
from tests.workers.mcp_server import running

pytestmark = pytest.mark.django_db


def at(name: str, project: Project, **query: Any) -> str:
    return reverse(f"environments:{name}", args=[project.slug], query=query)


def test_a_server_is_connected_with_its_tools_and_served(
    project: Project, member: Client, settings: Any
) -> None:
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = True
    verifier = save_verifier(
        project=project, name="right", spec={"kind": "calls"}, by=admin_of(project)
    )
    body = {"slug": "till", "timeout_s": 5, "max_turns": 3, "max_new_tokens": 9, "temperature": 0.1}
    with running(streamed=True) as server:
        body |= {"url": server.url, "verifier": verifier.pk}
        told = member.post(at("test_connection", project, kind="mcp"), body).content.decode()
        member.post(at("connect", project, kind="mcp"), body)
        made = project.environments.get()
        assert "Tools (2): add, fail" in told and made.kind == "mcp" and made.verifier == verifier
        gym = make_gym(made)
        session = {"HTTP_X_FLYWHEEL_SESSION": gym.post("seed_session", row())["X-Flywheel-Session"]}
        answers = [gym.post("add", {"n": n}, **session).json()["output"].split()[1] for n in (1, 2)]
        scored = gym.post(
            "verify", row() | {"response": called({"name": "add", "args": {"n": 1}})}, **session
        ).json()
    assert answers == ["1", "3"] and scored["reward"] == 0 and not scored.get("mask_sample")
    page = member.get(reverse("environments:detail", args=[project.slug, made.pk])).content.decode()
    assert "Adds." in page and server.url in page and f"?from={made.pk}" in page
    again = member.get(at("connect", project), {"from": made.pk}).content.decode()
    assert "New version of till" in again and server.url in again


def test_a_server_that_is_none_is_told_and_not_connected(
    project: Project, member: Client, settings: Any
) -> None:
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = True
    body = {"slug": "till", "url": "http://127.0.0.1:1/mcp"}
    assert (
        "No connection"
        in member.post(at("test_connection", project, kind="mcp"), body).content.decode()
    )
    page = member.post(at("connect", project, kind="mcp"), body).content.decode()
    assert "This field is required" in page and not project.environments.exists()
