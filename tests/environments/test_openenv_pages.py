"""An OpenEnv server is connected in the browser and by API, and served to others; a remote one's
tools are discovered.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.core.models import Project
from apps.environments import remote
from tests.environments.gym import called, make_gym, row
from tests.factories import key_headers
from tests.workers.openenv_server import serving

pytestmark = pytest.mark.django_db
BODY = {
    "slug": "counter",
    "timeout_s": 5,
    "max_turns": 3,
    "max_new_tokens": 9,
    "temperature": 0.1,
    "success_at": 1,
    "verifier": "",
}


def at(name: str, project: Project, **query: Any) -> str:
    return reverse(f"environments:{name}", args=[project.slug], query=query)


def test_a_server_is_connected_with_its_tools_and_served(
    project: Project, member: Client, settings: Any
) -> None:
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = True
    with serving(by_mcp=True) as server:
        body = BODY | {"url": server.url}
        told = member.post(at("test_connection", project, kind="openenv"), body).content.decode()
        member.post(at("connect", project, kind="openenv"), body)
        made = project.environments.get()
        assert "An OpenEnv server answers there. Tools (1): add" in told
        assert (made.kind, made.config["mcp"], made.verifier.spec["kind"]) == (
            "openenv",
            True,
            "remote",
        )
        gym = make_gym(made)
        session = {"HTTP_X_FLYWHEEL_SESSION": gym.post("seed_session", row())["X-Flywheel-Session"]}
        answers = [gym.post("add", {"by": 1}, **session).json()["output"] for _ in range(2)]
        scored = gym.post(
            "verify", row() | {"response": called({"name": "add", "args": {"by": 1}})}, **session
        ).json()
    assert answers == ["1", "2"] and scored["reward"] == 1.0 and not scored.get("mask_sample")
    page = member.get(reverse("environments:detail", args=[project.slug, made.pk])).content.decode()
    assert "Adds." in page and f"?from={made.pk}" in page and "View verifier" not in page
    again = member.get(at("connect", project), {"from": made.pk}).content.decode()
    assert "New version of counter" in again and server.url in again


def test_the_api_connects_one_and_says_what_is_none(project: Project, settings: Any) -> None:
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = True
    key = key_headers(project)

    def post(url: str) -> Any:
        body = {"slug": "counter", "kind": "openenv", "url": url}
        return Client().post(
            reverse("environments_api:environments"),
            json.dumps(body),
            content_type="application/json",
            **key,
        )

    with serving() as server:
        made = post(server.url)
        server.mode = "nothing"
        refused = post(server.url)
    assert made.status_code == 201 and made.json()["tools"] == ["observe", "step"]
    assert (
        refused.status_code == 400
        and "This is not a usable OpenEnv server: /mcp answered HTTP 404"
        in refused.content.decode()
    )


def test_tools_of_a_resources_server_are_discovered_when_it_is_connected() -> None:
    tools = [
        {"type": "function", "function": {"name": "look", "description": "", "parameters": {}}}
    ]

    class Asked:
        def get(self, url: str) -> Any:
            listed = {"tools": [tools[0]["function"] | {"type": "function"}]}
            return type(
                "Response",
                (),
                {"content": json.dumps(listed if url.endswith("x/") else {}).encode()},
            )()

    found = remote._with_tools(Asked(), "http://x", "There.")  # type: ignore[arg-type]
    assert found["sentence"] == "There. Tools (1): look" and [
        tool["function"]["name"] for tool in found["tools"]
    ] == ["look"]
