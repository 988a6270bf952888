"""A judge asked from a job's process, over HTTP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.workers.test_chat_client import Server, server  # noqa: F401
from workers.lib.clients import clients_of, key_variables
from workers.lib.specs.engines import Model
from workers.lib.specs.engines import Server as ServerSpec
from workers.lib.specs.environment import Clients, Environment, Harness
from workers.lib.specs.measure_latency import MeasureLatency, Timed
from workers.lib.specs.rollouts import Rollouts, RolloutServer

TASK = {"id": "t", "messages": [{"role": "user", "content": "Say hello."}], "expected": {}}
VERDICT = json.dumps(
    {"choices": [{"message": {"content": '{"score": 8, "reason": "kind"}'}}]}
).encode()


def spec(url: str, **judge: Any) -> dict:
    environment = {
        "kind": "single_turn",
        "harness": {},
        "verifier": {"kind": "judge", "rubric": "Is it kind?", "low": 0, "high": 10},
        "clients": {"judge": {"base_url": url, "model": "m", "allow_private": True} | judge},
    }
    return {
        "kind": "rescore",
        "environment": environment,
        "samples": [{"id": "s", "task": TASK, "messages": [], "output": "Hello!"}],
    }


def rescored(given: dict, folder: Path, **environ: str) -> dict:
    """What the program itself says of the one sample."""
    path = folder / "spec.json"
    path.write_text(json.dumps(given))
    done = subprocess.run(
        [sys.executable, "-m", "workers.rescore", str(path)],
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(Path.cwd())} | environ,
        timeout=60,
        check=False,
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_a_judge_scores_in_the_process_of_a_job(server: Server, tmp_path: Path) -> None:  # noqa: F811
    server.raw = VERDICT
    (score,) = rescored(spec(server.url, api_key_env="JUDGE_KEY"), tmp_path, JUDGE_KEY="k")[
        "scores"
    ]
    assert (score["reward"], score["success"], score["masked"]) == (0.8, True, False)
    ((body, authorization, path),) = server.seen
    assert authorization == "Bearer k" and path == "/v1/chat/completions"
    assert "Is it kind?" in json.dumps(body["messages"]) and body["temperature"] == 0


def test_a_judge_that_says_no_json_masks_the_sample(server: Server, tmp_path: Path) -> None:  # noqa: F811
    (score,) = rescored(spec(server.url), tmp_path)["scores"]
    assert score["masked"] and score["reward"] is None and score["mask_reason"]


def test_a_judge_inside_the_network_is_not_asked_where_that_is_not_allowed(
    server: Server,  # noqa: F811
    tmp_path: Path,
) -> None:
    said = rescored(spec(server.url, allow_private=False), tmp_path)
    assert (
        said["type"] == "error"
        and "FLYWHEEL_ALLOW_PRIVATE_URLS" in said["message"]
        and not server.seen
    )


def test_a_key_that_is_not_set_ends_the_job_with_a_sentence(tmp_path: Path) -> None:
    said = rescored(spec("http://127.0.0.1:9/v1", api_key_env="JUDGE_KEY"), tmp_path)
    assert said["type"] == "error" and "JUDGE_KEY" in said["message"]


def asked(key: str | None = None) -> ServerSpec:
    return ServerSpec(base_url="http://x/v1", model="m", api_key_env=key)


def environment(kind: str = "builtin", key: str = "", **clients: Any) -> Environment:
    return Environment(
        kind=kind,
        config={"url": "http://x"} | ({"api_key_env": key} if key else {}),
        harness=Harness(),
        verifier={},
        clients=Clients(**clients),
    )


def version(**parts: Any) -> Timed:
    made = {"engine": asked(), "environment": environment()} | parts
    return Timed(id="v", model=Model(base="m"), **made)


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        (environment(), []),
        (environment(judge=asked()), []),
        (environment(judge=asked("A")), ["A"]),
        (asked("C"), ["C"]),
        (environment("remote", "B"), ["B"]),
        (environment("remote"), []),
        (environment("replay", "DATABASE_URL"), []),
        (
            MeasureLatency(
                versions=[
                    version(engine=asked("A")),
                    version(environment=environment("remote", "B")),
                ],
                tasks=[{"id": "t", "api_key_env": "DATABASE_URL"}],
            ),
            ["A", "B"],
        ),
        (
            Rollouts(servers=[RolloutServer(base_url="u", model="m", api_key_env="A")], folder="f"),
            ["A"],
        ),
    ],
    ids=[
        "nothing",
        "no key",
        "judge",
        "engine",
        "remote with a key",
        "remote without",
        "not remote",
        "versions, and a task that names one",
        "rollouts",
    ],
)
def test_a_job_is_given_the_variables_its_clients_name(spec: Any, names: list[str]) -> None:
    assert key_variables(spec) == names


def test_without_a_judge_there_is_no_client() -> None:
    assert clients_of(Clients()) == {}
