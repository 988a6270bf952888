"""Where all places of the sandbox are taken, callers are told to come again: no page and no other
grader waits for them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from django.test import Client

from apps.environments.actions import save_environment, save_verifier
from apps.environments.models import EnvironmentKind
from tests.environments.gym import called, make_gym, row
from tests.factories import admin_of, key_headers, make_project
from workers.lib.sandbox import shared, visits

pytestmark = pytest.mark.django_db
SOURCE = "def grade(sample, item): return 1"


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(
        visits.visiting.__wrapped__, "__kwdefaults__", {"wait": 0.01, "seconds": visits.RUN_S}
    )
    with ExitStack() as taken:
        for _ in range(shared()._slots.size):
            taken.enter_context(shared()._slots.take(None))
        yield


def test_verify_says_so(full: None) -> None:
    project = make_project()
    by = admin_of(project)
    verifier = save_verifier(
        project=project, name="python", spec={"kind": "python", "source": SOURCE}, by=by
    )
    environment = save_environment(
        project=project,
        slug="python",
        kind=EnvironmentKind.SINGLE_TURN,
        harness={},
        verifier=verifier,
        by=by,
    )
    answer = make_gym(environment).post("verify", row() | {"response": called(text="Done.")})
    assert answer.status_code == 503, answer.content and answer["Retry-After"] == "5"
    assert "busy" in answer.json()["detail"]


@pytest.mark.parametrize("path", ["/api/v1/graders/run", "/v1/fine_tuning/alpha/graders/run"])
def test_a_grader_s_run_says_so(full: None, path: str) -> None:
    body = {"grader": {"type": "python", "source": SOURCE}, "model_sample": "x"}
    headers = key_headers(make_project())
    answer = Client().post(path, json.dumps(body), content_type="application/json", **headers)
    assert answer.status_code == 503 and answer["Retry-After"] == "5"
    assert answer.json()["error"]["code"] == "server_busy"
