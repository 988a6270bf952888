"""Environments made over REST: the same actions, limits and refusals as the pages."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.core.actions import create_api_key
from apps.core.models import Project, Role
from apps.core.scopes import Scope
from apps.environments import remote
from apps.environments.models import Environment, EnvironmentKind
from tests.environments.test_environment_pages import TOOL, exact, form, server
from tests.factories import admin_of, key_headers, make_eval_set, make_project

__all__ = ["server"]
pytestmark = pytest.mark.django_db


@pytest.fixture
def key(project: Project) -> dict[str, str]:
    return key_headers(project)


def post(key: dict, body: Any, name: str = "environments_api:environments", *args: Any) -> Any:
    return Client().post(reverse(name, args=args), body, content_type="application/json", **key)


def asked(project: Project, **changes: Any) -> dict[str, Any]:
    harness = {
        "system_prompt": "Answer.",
        "tools": [TOOL],
        "max_turns": 1,
        "max_new_tokens": 64,
        "temperature": 0.5,
    }
    return {
        "slug": "mine",
        "kind": "single_turn",
        "verifier": str(exact(project)),
        "harness": harness,
    } | changes


def test_an_environment_is_the_one_that_the_page_makes(project: Project, key: dict) -> None:
    made = post(key, asked(project))
    assert (
        made.status_code == 201
        and made.json()["verifier"]["name"] == "exact"
        and made.json()["tools"] == ["look"]
    )
    assert post(
        key, asked(project)
    ).status_code == 200 and Environment.objects.get().created_by == admin_of(project)
    client = Client()
    client.force_login(admin_of(project))
    client.post(reverse("environments:new", args=[project.slug]), form(exact(project)))
    assert Environment.objects.count() == 1  # the same content
    newer = post(key, asked(project, harness={"system_prompt": "Be brief."})).json()
    assert newer["version"] == 2 and newer["harness"]["max_new_tokens"] == 512
    url = reverse("environments_api:environment", args=["mine", 2])
    changes = Client().get(url, {"against": 1}, **key).json()["changes"]
    assert any("Be brief." in line["line"] for line in changes)
    assert Client().get(url, {"against": 9}, **key).status_code == 404
    assert Client().get(url, {"against": "x"}, **key).status_code == 400


def test_a_built_in_environment_brings_its_verifier(project: Project, key: dict) -> None:
    made = post(key, {"slug": "w", "kind": "builtin", "builtin": "workplace"})
    assert (
        made.status_code == 201
        and made.json()["builtin"] == "workplace"
        and "tickets.close" in made.json()["tools"]
    )


@pytest.mark.more(rows=4)
@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"slug": "a b"}, "slug"),
        ({"kind": "moon"}, "kind"),
        ({"verifier": None}, "verifier"),
        ({"verifier": "no@1"}, "verifier"),
        ({"verifier": "exact@x"}, "verifier"),
        ({"verifier": "exact@99999999999"}, "verifier"),
        ({"harness": {"max_turns": 0}}, "harness.max_turns"),
        ({"harness": {"temperature": -1}}, "harness.temperature"),
        ({"harness": {"tools": [{"type": "function"}]}}, "harness.tools"),
        ({"harness": {"turns": 1}}, "harness.turns"),
        ({"kind": "builtin", "builtin": "moon"}, "builtin"),
        ({"url": "https://a.example"}, "url"),
        ({"kind": "remote"}, "url"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_named_by_its_path(
    project: Project, key: dict, changes: dict, path: str
) -> None:
    answer = post(key, asked(project, **changes))
    assert (
        answer.status_code == 400
        and answer.json()["path"] == path
        and not Environment.objects.exists()
    )


@pytest.mark.parametrize("server", [(200, b"{}"), (404, b"")], indirect=True)
def test_a_remote_server_is_asked_before_it_is_stored(
    project: Project, key: dict, server: str
) -> None:
    answer = post(
        key,
        {"slug": "far", "kind": "remote", "url": server, "success_at": 0.5, "turn_rewards": True},
    )
    if answer.status_code == 201:
        made = Environment.objects.get()
        assert made.has_turn_rewards
        assert (
            made.kind == EnvironmentKind.REMOTE
            and made.config["success_at"] == 0.5
            and made.harness["max_turns"] == 10
        )
    else:
        assert answer.status_code == 400 and "no resources server" in answer.json()["error"]
        assert not Environment.objects.exists()


def test_an_mcp_servers_tools_are_kept(
    project: Project, key: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "test", lambda url, **more: remote.Found(True, "", tools=(TOOL,)))
    body = {"slug": "crm", "kind": "mcp", "url": "https://crm.example.com/mcp"}
    assert post(key, body).json()["path"] == "verifier"
    assert (
        post(key, body | {"verifier": str(exact(project)), "harness": {"tools": [TOOL]}}).json()[
            "path"
        ]
        == "harness.tools"
    )
    made = post(key, body | {"verifier": str(exact(project))})
    assert made.status_code == 201 and made.json()["config"]["tools"] == [TOOL]


def test_a_key_that_may_go_anywhere_is_an_operators_to_send(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_as = []
    monkeypatch.setattr(
        remote,
        "test",
        lambda url, **more: asked_as.append(more["operator"]) or remote.Found(False, "No."),
    )
    body, headers = (
        {"slug": "far", "kind": "remote", "url": "https://a.example.com"},
        key_headers(project),
    )
    assert post(headers, body).status_code == 400
    project.memberships.update(role=Role.ENGINEER)
    assert post(headers, body).status_code == 400 and asked_as == [True, False]


def test_an_environment_of_a_frozen_set_names_it(project: Project, key: dict) -> None:
    frozen, draft = make_eval_set(project), make_eval_set(project, frozen=False)
    made = post(key, asked(project), "evals_api:set_environment", frozen.pk)
    assert made.status_code == 201
    assert made.json()["dataset"] == {"name": str(frozen), "digest": frozen.digest, "tasks": 6}
    assert post(key, asked(project), "evals_api:set_environment", draft.pk).status_code == 409
    foreign = make_eval_set(make_project())
    assert post(key, asked(project), "evals_api:set_environment", foreign.pk).status_code == 404


def test_who_may_make_one(project: Project, key: dict) -> None:
    body, foreign = asked(project), exact(make_project())
    spec = {"name": "v", "spec": {"kind": "calls"}}
    assert post({}, body).status_code == 401
    reader = create_api_key(
        project=project, name="r", by=admin_of(project), scopes=[Scope.READ, Scope.EVALUATE]
    )[1]
    assert post({"HTTP_AUTHORIZATION": f"Bearer {reader}"}, body).status_code == 403
    stranger = key_headers(foreign.project)
    assert (
        post(stranger, body | {"slug": "x"}).status_code == 201
    )  # its own verifier of the same name
    project.memberships.update(role=Role.VIEWER)
    assert (
        post(key, body).status_code
        == 403
        == post(key, spec, "environments_api:verifiers").status_code
    )
    assert not Environment.objects.filter(project=project).exists()
