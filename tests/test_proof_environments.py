"""Our served environments scored by other people's tools, unchanged: `vf-eval` of verifiers 0.4 and
`gym eval run` of nemo-gym 0.7 over /env/…, run by `make proof`. The models are scripts, so that the
rewards are known beforehand.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.flywheel.machine import Machine, free_port, up
from workers.lib.messages import flat_tool

pytestmark = pytest.mark.proof
ROOT = Path(__file__).resolve().parent.parent
VERIFIERS = ROOT / ".venv-verifiers" / "bin"
GYM, FORWARDER = ROOT / ".venv-gym", ROOT / "docs" / "nemo-gym"
KEY = "fw_proof-key-0123456789"
HAS_VERIFIERS = pytest.mark.skipif(
    not (VERIFIERS / "vf-eval").exists(), reason="no .venv-verifiers: run `make verifiers`"
)
HAS_GYM = pytest.mark.skipif(
    not (GYM / "bin" / "gym").exists(), reason="no .venv-gym: `make gym`, on Python 3.13"
)

MAKE = """
import json
from apps.core.models import ApiKey
from apps.environments.actions import save_environment, save_verifier
from workers.lib.environments import load
project, by = ApiKey.objects.get().project, None
made = {}
def make(slug, spec, **fields):
    verifier = save_verifier(project=project, name=slug, spec=spec, by=by)
    environment = save_environment(project=project, slug=slug, verifier=verifier, by=by, **fields)
    made[slug] = {"path": str(environment), "tools": load(environment.as_spec()).tools}
make("office", {"kind": "tables"}, builtin="workplace_assistant", harness={"max_turns": 6})
make("sums", {"kind": "number"}, kind="single_turn", harness={})
make("replay", {"kind": "calls"}, kind="replay", harness={"max_turns": 5})
print(json.dumps(made))
"""

FIND = {
    "name": "people.find",
    "parameters": {"type": "object", "properties": {"name": {"type": "string"}}},
}
MAIL = {"recipient": "a@example.com", "subject": "Lunch", "body": "At noon?"}
OTHER = MAIL | {"subject": "Dinner"}
RECORDED = [{"tool": "people.find", "args": {"name": "Ann"}, "content": "Ann Smith"}]


def call(tool: str, **args: str) -> dict:
    function = {"name": tool, "arguments": json.dumps(args)}
    return {"tool_calls": [{"id": f"call_{tool}", "type": "function", "function": function}]}


def says(text: str) -> dict:
    return {"content": text}


def gym_row(number: int, asked: str, tools: list[dict], **rest: Any) -> dict:
    asking = {"input": [{"role": "user", "content": asked}], "tools": tools}
    return {"id": number, "responses_create_params": asking, **rest}


def rows(office_tools: list[dict]) -> dict[str, dict]:
    flat = [flat_tool(tool) for tool in office_tools]
    find = {"type": "function", "function": FIND}
    kept = {
        "key": "replay",
        "messages": [{"role": "user", "content": "Who is Ann?"}],
        "expected": {"tool": "people.find", "args": {"name": "Ann"}},
        "tools": [find],
        "metadata": {"recorded_results": RECORDED},
    }
    truth = [{"name": "email_send_email", "arguments": json.dumps(MAIL)}]
    return {
        "office": gym_row(0, "Mail a@example.com about lunch at noon.", flat, ground_truth=truth),
        "sums": gym_row(1, "Six times seven?", [], expected_answer=42),
        "replay": gym_row(
            2, "Who is Ann?", [flat_tool(find)], verifier_metadata={"flywheel": kept}
        ),
    }


# model → environment → (its turns, the reward that they are to get)
MODELS: dict[str, dict[str, tuple[list[dict], float]]] = {
    "right": {
        "office": ([call("email_send_email", **MAIL), says("Sent.")], 1.0),
        "sums": ([says("42")], 1.0),
        "replay": ([call("people.find", name="Ann"), says("Ann Smith.")], 1.0),
    },
    "wrong": {
        "office": ([call("email_send_email", **OTHER), says("Sent.")], 0.0),
        "sums": ([says("41")], 0.0),
        "replay": ([says("I do not know.")], -1.0),
    },
}


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    folder = Path(tempfile.mkdtemp(prefix="flywheel-proof-"))
    folder.chmod(0o777)
    it = Machine(
        folder / "data",
        environment={"FLYWHEEL_API_KEY": KEY, "FLYWHEEL_ADMIN_PASSWORD": "correct horse battery"},
    )
    yield it
    it.kill_everything()
    shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class Served:
    """Where the environments are, and the task of each as a row."""

    urls: dict[str, str]
    rows: dict[str, dict]


@pytest.fixture(scope="module")
def served(machine: Machine) -> Served:
    port = free_port()
    up(machine, port)
    made = json.loads(machine.python(MAKE).splitlines()[-1])
    urls = {slug: f"http://127.0.0.1:{port}/env/{it['path']}" for slug, it in made.items()}
    return Served(urls, rows(made["office"]["tools"]))


def asked_of(row: dict) -> str:
    return row["responses_create_params"]["input"][-1]["content"]


def both(slug: str, row: dict) -> list[tuple[dict, list[dict], float]]:
    """The row asked twice, in the words that the model "both" knows each script by: (row, turns,
    reward).
    """
    found = []
    for model, told in MODELS.items():
        asking = {"input": [{"role": "user", "content": f"{asked_of(row)} ({model})"}]}
        again = row | {"responses_create_params": row["responses_create_params"] | asking}
        found.append((again, *told[slug]))
    return found


@pytest.fixture(scope="module")
def model_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    tasks, at = rows([]), tmp_path_factory.mktemp("model") / "script.json"
    script = {
        model: {asked_of(tasks[slug]): turns for slug, (turns, _) in told.items()}
        for model, told in MODELS.items()
    }
    script["both"] = {
        asked_of(row): turns for slug in tasks for row, turns, _ in both(slug, tasks[slug])
    }
    at.write_text(json.dumps(script))
    command = [sys.executable, "-m", "tests.evals.openai_server", str(at)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    process.kill()
    process.wait(30)


def config(folder: Path, url: str, dataset: Path, server: str, model: str) -> Path:
    path = folder / f"{dataset.stem}-{model}.toml"
    path.write_text(f"""model = "{model}"
[env.taskset]
id = "nemo-gym"
dataset = "{dataset}"
[env.taskset.task]
resources_url = "{url}"
headers = {{ Authorization = "Bearer {KEY}" }}
[env.agent.harness]
id = "null"
[env.agent.runtime]
type = "subprocess"
[client]
type = "eval"
base_url = "{server}/v1"
api_key_var = "MODEL_API_KEY"
""")
    return path


def evaluated(folder: Path, settings: Path) -> dict:
    """{reward, and what /verify said further} of the one trace that `vf-eval` writes."""
    out = folder / f"out-{settings.stem}"
    env = os.environ | {"MODEL_API_KEY": "none", "PATH": f"{VERIFIERS}:{os.environ['PATH']}"}
    command = [
        str(VERIFIERS / "vf-eval"),
        "@",
        str(settings),
        "--no-push",
        "--no-rich",
        "-o",
        str(out),
    ]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    lines = [line for file in out.rglob("traces.jsonl") for line in file.read_text().splitlines()]
    traces = [trace for line in lines for trace in json.loads(line)["traces"]]
    assert len(traces) == 1 and not traces[0].get("errors"), traces
    return {"reward": traces[0]["rewards"]["nemo_gym"]["score"]} | traces[0]["info"]["nemo_gym"]


@HAS_VERIFIERS
@pytest.mark.parametrize("slug", list(MODELS["right"]))
def test_vf_eval_scores_the_environments_that_we_serve(
    served: Served, model_server: str, tmp_path: Path, slug: str
) -> None:
    dataset = tmp_path / f"{slug}.jsonl"
    dataset.write_text(json.dumps(served.rows[slug]) + "\n")
    for model, told in MODELS.items():
        found = evaluated(
            tmp_path, config(tmp_path, served.urls[slug], dataset, model_server, model)
        )
        print(f"vf-eval {slug} {model}: {found}")
        assert found["reward"] == told[slug][1] and found["mask_sample"] is False


# Nemo-gym

SERVERS = (
    "resources_servers/flywheel",
    "responses_api_agents/simple_agent",
    "responses_api_models/vllm_model",
    "environment_servers/legacy_agent",
)


def collected(folder: Path, url: str, server: str) -> list[dict]:
    """The scored rollouts that `gym eval run` writes of tasks.jsonl, in the order of the tasks.

    Each of its servers would install an environment of its own from the network; they are told to
    take this one.
    """
    for name in SERVERS:
        (folder / "venvs" / name).mkdir(parents=True)
        (folder / "venvs" / name / ".venv").symlink_to(GYM)
    command = [
        str(GYM / "bin" / "gym"),
        "eval",
        "run",
        "--config",
        str(FORWARDER / "flywheel.yaml"),
        "--search-dir",
        str(FORWARDER),
        "--model-type",
        "vllm_model",
        "--model",
        "both",
        "--model-api-key",
        "none",
        "--model-url",
        f"{server}/v1",
        "--split",
        "validation",
        "--output",
        str(folder / "rollouts.jsonl"),
        f"+flywheel_url={url}",
        f"+uv_venv_dir={folder / 'venvs'}",
        "+skip_venv_if_present=true",
    ]
    env = os.environ | {"FLYWHEEL_API_KEY": KEY, "PATH": f"{GYM / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = [json.loads(line) for line in (folder / "rollouts.jsonl").read_text().splitlines()]
    return sorted(found, key=lambda rollout: rollout["_ng_task_index"])


@HAS_GYM
@pytest.mark.parametrize("slug", list(MODELS["right"]))
def test_nemo_gym_scores_the_environments_that_we_serve(
    served: Served, model_server: str, tmp_path: Path, slug: str
) -> None:
    """Both tasks run at the same time, in a session each."""
    tasks = both(slug, served.rows[slug])
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row, _, _ in tasks))
    found = collected(tmp_path, served.urls[slug], model_server)
    print(f"gym {slug}: {[(rollout['reward'], rollout['reward_components']) for rollout in found]}")
    assert [rollout["reward"] for rollout in found] == [reward for _, _, reward in tasks]
    assert not any(rollout["mask_sample"] for rollout in found)
