"""A caller of the protocol, as verifiers' nemo-gym taskset and nemo-gym's simple agent call it."""

from __future__ import annotations

import json
from typing import Any

from django.test import Client

from apps.environments.models import Environment
from tests.factories import make_environment, make_key, make_project

RIGHT = {"name": "tickets.close", "args": {"id": 1234}}
WRONG = {"name": "tickets.close", "args": {"id": 1}}


def row(**changes: Any) -> dict:
    return {
        "id": 3,
        "responses_create_params": {
            "input": [{"role": "user", "content": "Close ticket 1234."}],
            "tools": [],
            "temperature": 1.0,
        },
        "ground_truth": [{"name": "tickets.close", "arguments": '{"id": 1234}'}],
        "category": "tickets",
    } | changes


def called(*calls: dict, text: str = "") -> dict:
    """A Responses object in which each call was made and answered."""
    output: list[dict] = []
    for number, call in enumerate(calls):
        arguments = json.dumps(call["args"])
        output.append(
            {
                "type": "function_call",
                "call_id": f"c{number}",
                "name": call["name"],
                "arguments": arguments,
            }
        )
        output.append({"type": "function_call_output", "call_id": f"c{number}", "output": "…"})
    if text:
        part = {"type": "output_text", "text": text, "annotations": []}
        output.append({"type": "message", "role": "assistant", "content": [part]})
    return {"id": "resp_1", "object": "response", "model": "m", "created_at": 1.5, "output": output}


class Gym:
    """Holds cookies over its calls, as a rollout's client does."""

    def __init__(self, environment: Environment, key: str) -> None:
        self.environment, self.client = environment, Client(raise_request_exception=False)
        self.headers = {"HTTP_AUTHORIZATION": f"Bearer {key}"}

    def post(self, path: str, body: Any, **headers: str) -> Any:
        data = body if isinstance(body, bytes) else json.dumps(body)
        url = f"/env/{self.environment}/{path}"
        return self.client.post(
            url, data, content_type="application/json", **(self.headers | headers)
        )

    def verify(self, response: Any, **changes: Any) -> dict:
        answer = self.post("verify", row(**changes) | {"response": response})
        assert answer.status_code == 200, answer.content
        return answer.json()


def make_gym(environment: Environment | None = None) -> Gym:
    environment = environment or make_environment(make_project())
    return Gym(environment, make_key(environment.project))
