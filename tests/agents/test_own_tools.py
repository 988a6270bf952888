"""Unchanged agents that run their own loop in an environment with a state, evaluated in all three
ways: their frameworks, their MCP clients and their HTTP are real, and their model is scripted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from apps.core.models import JobState
from apps.evals import traces
from apps.evals.models import EvalRun, SampleRollout
from apps.registry.models import ModelVersion, Reach
from tests.agents.test_examples import (
    EVALUATE,
    EXAMPLES,
    FROM_CI,
    SERVE,
    User,
    ended,
    needs_sdks,
)
from tests.amounts import amount
from tests.e2e.workers import worker
from tests.evals import office
from tests.registry.model_server import serving

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]
N = 3
AGENTS = ("langgraph_mcp_agent", "openai_agents_mcp_agent")
Visit = Callable[..., User]


def in_chat(body: dict) -> tuple[int, dict]:
    """A model that does what it is asked, by chat completions."""
    message: dict[str, Any] = {"role": "assistant", "content": "Done."}
    if body["messages"][-1]["role"] == "user":
        function = {"name": office.DELETE, "arguments": arguments(body["messages"][-1]["content"])}
        calls = [{"id": "call_1", "type": "function", "function": function}]
        message = {"role": "assistant", "content": None, "tool_calls": calls}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    whole = {"id": "c", "object": "chat.completion", "created": 0, "model": body["model"]}
    return 200, whole | {"choices": [choice]}


def in_responses(body: dict) -> tuple[int, dict]:
    """The same, by the Responses API."""
    last = body["input"][-1]
    text = {"type": "output_text", "text": "Done.", "annotations": []}
    item = {"type": "message", "id": "m", "role": "assistant", "content": [text]}
    if last.get("role") == "user":
        item = {"type": "function_call", "id": "f", "call_id": "call_1", "name": office.DELETE}
        item |= {"arguments": arguments(last["content"])}
    whole = {"id": "r", "object": "response", "created_at": 0, "model": body["model"]}
    whole |= {"status": "completed", "parallel_tool_calls": True, "tool_choice": "auto"}
    return 200, whole | {"tools": [], "output": [item | {"status": "completed"}]}


def arguments(asked: Any) -> str:
    found = re.search(r"\d{8}", json.dumps(asked))
    assert found
    return json.dumps({"email_id": found[0]})


MODEL = {("POST", "/v1/chat/completions"): in_chat, ("POST", "/v1/responses"): in_responses}


def made(project: Any) -> tuple[Any, Any]:
    return office.make_deletions(project, N), office.make_office(project)


@pytest.fixture
def visit(live_server: Any, data_dir: Path, tmp_path: Path, settings: Any) -> Iterator[Visit]:
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS, settings.FLYWHEEL_TRACES_SETTLE_S = True, 0
    settings.FLYWHEEL_URL = live_server.url

    @contextmanager
    def come(agent: str, script: dict = MODEL) -> Iterator[User]:
        with serving(script) as model:
            user = User(tmp_path, live_server.url, agent, made)
            user.env |= {"OPENAI_API_KEY": "x", "OPENAI_BASE_URL": model.base}
            user.env["OPENAI_AGENTS_DISABLE_TRACING"] = "1"
            try:
                yield user
            finally:
                user.leave()

    with worker(EvalRun):
        yield come


def check(run: EvalRun, success: float) -> None:
    assert (run.state, run.error) == (JobState.SUCCEEDED, "")
    assert run.result["metrics"]["success"]["mean"] == success
    counts = run.result["metrics"]["counts"]
    assert (counts["samples"], counts["masked"], counts["called"]) == (N, 0, N)
    rows = SampleRollout.objects.filter(run=run)
    assert list(rows.values_list("calls", flat=True)) == [1] * N
    assert not rows.filter(ended_at=None).exists()


@needs_sdks
@pytest.mark.more
@pytest.mark.parametrize("agent", amount(AGENTS[:1], AGENTS))
def test_a_right_agent_is_right_in_three_ways(visit: Visit, agent: str) -> None:
    with visit(agent) as user:
        user.sh(SERVE)
        user.sh(EVALUATE, MODEL_VERSION=ModelVersion.objects.get(reached_by=Reach.HTTP).pk)
        check(ended(), 1.0)
        user.sh(FROM_CI)
        check(ended(), 1.0)
        user.sh("python by_traces.py")
        assert traces.settle() == N
        check(ended(), 1.0)


@needs_sdks
@pytest.mark.proof
def test_a_wrong_agent_is_wrong(visit: Visit) -> None:
    def other(body: dict) -> tuple[int, dict]:
        status, said = in_chat(body)
        text = json.dumps(said)
        return status, json.loads(re.sub(r"0000(\d{4})", r"0009\1", text))

    with visit(AGENTS[0], MODEL | {("POST", "/v1/chat/completions"): other}) as user:
        user.sh(SERVE)
        user.sh(EVALUATE, MODEL_VERSION=ModelVersion.objects.get(reached_by=Reach.HTTP).pk)
        check(ended(), 0.0)


def test_the_examples_are_short_and_name_flywheel_only_where_they_are_asked() -> None:
    for agent in AGENTS:
        source = (EXAMPLES / f"{agent}.py").read_text(encoding="utf-8")
        assert len([line for line in source.splitlines() if line.strip()]) <= 40
        code = source.split('"""', 2)[2]
        named = [line.strip() for line in code.splitlines() if "flywheel" in line.lower()]
        assert all("flywheel_mcp" in one or "flywheel_model_url" in one for one in named)
        assert len(named) <= 2
        compile(source, agent, "exec")
