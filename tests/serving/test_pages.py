"""The endpoint's page and its twin by API."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.core import actions as core
from apps.core.models import AuditEvent, Project, Role
from apps.core.scopes import Scope
from apps.promotion import actions as promotion
from apps.promotion.policies import channel_of
from apps.serving.models import KeyLimits
from tests.factories import (
    admin_of,
    key_headers,
    make_endpoint,
    make_member,
    make_project,
    make_server,
)
from tests.serving.test_trial_answers import make_trial


@pytest.fixture(autouse=True)
def _here(settings: Any) -> None:
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = True
    settings.FLYWHEEL_ENDPOINT_URL = "https://models.example.com"


def page(project: Project, role: Role = Role.OPERATOR) -> str:
    client = Client()
    client.force_login(make_member(project, role))
    answer = client.get(reverse("serving:endpoint", args=[project.slug]))
    assert answer.status_code == 200
    return answer.content.decode()


def test_an_empty_project_says_what_to_do(project: Project) -> None:
    shown = page(project)
    assert (
        "No channel has a live version yet" in shown
        and "No API key may use the endpoint yet" in shown
    )


def test_the_page_says_what_answers_and_how_to_ask(project: Project) -> None:
    version = make_endpoint(project, make_server(project, name="gpu"))
    promotion.set_initial(
        channel=channel_of(project, "staging"), version=version, by=admin_of(project)
    )
    key, _ = core.create_api_key(
        project=project, name="<b>agent</b>", by=None, scopes=[Scope.GENERATE]
    )
    core.create_api_key(project=project, name="reader", by=None, scopes=[Scope.READ])
    shown = page(project)
    assert "staging" in shown and str(version) in shown and "gpu" in shown
    assert (
        "curl https://models.example.com/v1/chat/completions" in shown
        and "&quot;staging&quot;" not in shown
    )
    assert "&lt;b&gt;agent&lt;/b&gt;" in shown and "reader" not in shown
    assert f'action="{reverse("serving:limits", args=[project.slug, key.pk])}"' in shown
    assert "<input form=" not in page(project, Role.ENGINEER)


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("configured", "opened", "shown"),
    [
        ("https://models.example.com", "10.0.0.7:8000", "https://models.example.com/v1"),
        ("http://127.0.0.1:8001", "localhost:8000", "http://127.0.0.1:8001/v1"),
        ("http://127.0.0.1:8001", "10.0.0.7:8000", "http://10.0.0.7:8001/v1"),
        ("http://localhost:9001", "fly.example.com", "http://fly.example.com:9001/v1"),
        ("http://127.0.0.1:8001", "[fd00::7]:8000", "http://[fd00::7]:8001/v1"),
    ],
)
def test_the_endpoint_is_named_as_it_is_reached_from_where_the_page_is_read(
    project: Project, settings: Any, configured: str, opened: str, shown: str
) -> None:
    settings.FLYWHEEL_ENDPOINT_URL, settings.ALLOWED_HOSTS = configured, ["*"]
    client = Client(headers={"host": opened})
    client.force_login(make_member(project))
    text = client.get(reverse("serving:endpoint", args=[project.slug])).content.decode()
    assert f"curl {shown}/chat/completions" in text and f'base_url="{shown}"' in text
    answer = client.get("/api/v1/endpoint/", **key_headers(project))
    assert answer.json()["base_url"] == shown


def test_a_candidate_is_shown_beside_what_the_channel_runs(project: Project) -> None:
    trial = make_trial(project)
    shown = page(project)
    assert str(trial.version) in shown and "canary 25%" in shown and str(trial.baseline) in shown
    (channel,) = Client().get("/api/v1/endpoint/", **key_headers(project)).json()["channels"]
    found = channel["candidate"]
    assert (channel["model"], found["model"], found["kind"], found["share"]) == (
        str(trial.baseline),
        str(trial.version),
        "canary",
        0.25,
    )
    assert len(found["servers"]) == 1 and not found["problem"]


def test_an_operator_sets_limits(project: Project) -> None:
    key, _ = core.create_api_key(project=project, name="agent", by=None)
    client = Client()
    client.force_login(make_member(project, Role.OPERATOR))
    url = reverse("serving:limits", args=[project.slug, key.pk])
    client.post(url, {"requests_per_minute": "60", "tokens_per_minute": "", "at_once": "3"})
    row = KeyLimits.objects.get(key=key)
    assert (row.requests_per_minute, row.tokens_per_minute, row.at_once) == (60, 0, 3)
    assert AuditEvent.objects.filter(action="api_key.limited").count() == 1
    client.post(url, {"requests_per_minute": "-1"})
    assert KeyLimits.objects.get(key=key).requests_per_minute == 60
    other, _ = core.create_api_key(project=make_project(), name="theirs", by=None)
    assert client.post(reverse("serving:limits", args=[project.slug, other.pk])).status_code == 404


def test_the_api_has_the_same(project: Project) -> None:
    version = make_endpoint(project, make_server(project, name="gpu"))
    promotion.set_initial(channel=channel_of(project), version=version, by=admin_of(project))
    headers, client = key_headers(project), Client()
    assert client.get("/api/v1/endpoint/", **headers).json() == {
        "base_url": "https://models.example.com/v1",
        "channels": [
            {
                "channel": "production",
                "model": str(version),
                "servers": ["gpu"],
                "problem": "",
                "candidate": None,
            }
        ],
    }
    url = f"/api/v1/endpoint/limits/{project.api_keys.first().pk}/"
    sent = client.put(url, {"at_once": 2}, content_type="application/json", **headers)
    assert (
        sent.json()
        == client.get(url, **headers).json()
        == {"requests_per_minute": 0, "tokens_per_minute": 0, "at_once": 2}
    )
    assert (
        client.put(url, {"at_once": -2}, content_type="application/json", **headers).status_code
        == 400
    )
    assert client.get(url, **key_headers(make_project())).status_code == 404
