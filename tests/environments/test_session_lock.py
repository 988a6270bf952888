"""Calls of one session that come at once run one after the other, and none is lost."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection
from django.test import Client

from apps.environments.actions import save_environment, save_verifier
from apps.environments.models import EnvironmentSession
from apps.environments.protocol import sessions
from tests.environments.gym import make_gym, row
from tests.factories import admin_of, make_project

MAIL = {"recipient": "a@example.com", "subject": "Lunch", "body": "At noon?"}


@pytest.mark.django_db(transaction=True)
def test_concurrent_calls_of_a_session_are_all_kept() -> None:
    project = make_project()
    by = admin_of(project)
    verifier = save_verifier(project=project, name="own", spec={"kind": "tables"}, by=by)
    environment = save_environment(
        project=project,
        slug="office",
        builtin="workplace_assistant",
        harness={},
        verifier=verifier,
        by=by,
    )
    gym = make_gym(environment)
    headers = gym.headers | {
        "HTTP_X_FLYWHEEL_SESSION": gym.post("seed_session", row())[sessions.HEADER]
    }

    def call(number: int) -> Any:
        try:
            body = json.dumps(MAIL | {"subject": f"Lunch {number}"})
            url = f"/env/{environment}/email_send_email"
            return Client().post(url, body, content_type="application/json", **headers).status_code
        finally:
            connection.close()

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(call, range(16))) == [200] * 16
    session = EnvironmentSession.objects.get()
    assert session.calls == 16
    subjects = {call["args"]["subject"] for call in session.state["calls"]}
    assert (
        subjects == {f"Lunch {number}" for number in range(16)}
        and len(session.state["changes"]["email"]) == 16
    )
