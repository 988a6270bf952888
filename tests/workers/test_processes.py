"""Several processes that train one adapter: the same run as by one, stopped and ended together."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests import warm
from tests.amounts import amount
from tests.registry.model_server import chat, serving
from tests.workers import in_parts
from tests.workers.conftest import Recorder, tasks, typed
from tests.workers.paid_grpo import rewarded
from workers import grpo
from workers.lib.errors import SpecError
from workers.lib.prefixes import Tree, shares
from workers.lib.program import StopFlag
from workers.ml.ranks import join

CONFIG = {
    "steps": 3,
    "prompts_per_step": 3,
    "generations": 4,
    "learning_rate": 1e-2,
    "lora_rank": 4,
    "max_new_tokens": 8,
    "save_every": 1,
    "eval_every": 1,
    "beta": 0.05,
    "dynamic_sampling": 1,
    "loss_type": "gspo",
}
OF_ROUNDING = (
    "train/ratio",
    "train/is_",
    "train/logp_diff",
    "train/kl",
    "time/",
)  # differences of nearly equal numbers


def started(spec: dict, program: str = "tests.workers.paid_grpo", **env: str) -> subprocess.Popen:
    """Two processes, their events on standard output."""
    return warm.Program(
        ["workers.lib.processes", program, "2", written(spec)],
        env=os.environ | {"OMP_NUM_THREADS": "1"} | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def written(spec: dict) -> str:
    path = Path(spec["out_dir"]).with_suffix(".json")
    path.write_text(json.dumps(spec))
    return str(path)


def ended(child: subprocess.Popen) -> tuple[int, list[dict], str]:
    """(status, events, what else it said)."""
    out, err = child.communicate()
    return (
        child.returncode,
        [json.loads(line) for line in out.splitlines() if line.startswith("{")],
        err,
    )


def metrics_of(rows: list[dict]) -> dict[tuple[int, str], float]:
    found = [(row["step"], row["values"]) for row in rows if row["type"] == "metric"]
    return {(step, name): value for step, values in found for name, value in values.items()}


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "adapter" / "adapter_model.safetensors")


@pytest.fixture
def grpo_spec(
    make_spec: Callable[..., dict], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., dict]:
    monkeypatch.setattr("workers.lib.environments.workplace.OneCall.score", rewarded)

    def make(name: str, processes: int = 2, config: dict | None = None, **fields: Any) -> dict:
        spec = make_spec(config=CONFIG | {"processes": processes} | (config or {}), seed=11)
        return (
            spec
            | {
                "validation_tasks": spec["tasks"][:1],
                "out_dir": str(tmp_path / name),
                "kind": "grpo",
            }
            | fields
        )

    return make


@pytest.mark.proof
def test_two_processes_take_the_steps_of_one_and_go_on_from_their_checkpoints(
    grpo_spec: Callable[..., dict], events: Recorder, tmp_path: Path
) -> None:
    grpo.main(typed(grpo_spec("one", 1), "grpo"), events, StopFlag())
    rest = grpo_spec("rest", resume_from=str(tmp_path / "two" / "checkpoint-1"))
    status, rows, said = ended(started(grpo_spec("two"), THEN=written(rest)))
    assert status == 0, said
    assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1))
    ends = [at for at, row in enumerate(rows, 1) if row["type"] == "result"]
    assert len(ends) == 2 and ends[1] == len(rows)
    rows, again_rows = rows[: ends[0]], rows[ends[0] :]
    one, two = metrics_of(events.rows()), metrics_of(rows)
    assert one.keys() == two.keys()
    for (step, name), value in one.items():
        if not name.startswith(OF_ROUNDING):
            assert math.isclose(value, two[step, name], rel_tol=1e-4, abs_tol=1e-6), (step, name)
    assert any(
        one[step, "train/grad_norm"] > 0 for step in (1, 2, 3) if (step, "train/grad_norm") in one
    )
    answers = [
        {
            (row["phase"], row["step"], row["task_id"], row["index"]): row["output"]
            for row in some
            if row["type"] == "sample"
        }
        for some in (events.rows(), rows)
    ]
    assert answers[0] == answers[1]
    first, second = weights_of(tmp_path / "one"), weights_of(tmp_path / "two")
    assert all(torch.allclose(first[name], second[name], rtol=0, atol=1e-5) for name in first)
    again = {
        key: value
        for key, value in metrics_of(again_rows).items()
        if not key[1].startswith("time/") and key[0] > 1
    }
    assert again == {key: two[key] for key in again} and len(again) > 20
    second, third = weights_of(tmp_path / "two"), weights_of(tmp_path / "rest")
    assert all(torch.equal(second[name], third[name]) for name in second)


def test_sigterm_to_one_of_them_ends_all_with_a_checkpoint_of_a_whole_step(
    grpo_spec: Callable[..., dict],
) -> None:
    child = started(
        grpo_spec("out", config={"steps": 10_000, "save_every": 10_000, "sampled_outputs": 0})
    )
    rows = []
    for line in child.stdout:
        rows += [json.loads(line)] if line.startswith("{") else []
        if len(rows) and rows[-1]["type"] == "metric" and rows[-1]["step"] == 2:
            break
    os.kill(ranks_of(child)[1], signal.SIGTERM)
    status, more, said = ended(child)
    assert status == 143, said
    saved = next(row for row in more if row["type"] == "checkpoint")
    assert (
        json.loads((Path(saved["path"]) / "state.json").read_text())["step"] == saved["step"] >= 2
    )


def ranks_of(child: subprocess.Popen) -> list[int]:
    found = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
    return sorted(map(int, found))


def test_a_process_that_is_killed_ends_the_other_and_it_is_said(
    grpo_spec: Callable[..., dict],
) -> None:
    status, rows, said = ended(started(grpo_spec("out"), KILLED="1,2"))
    assert status == 128 + signal.SIGKILL, said
    assert "Process 2 of 2 was killed (SIGKILL)" in rows[-1]["message"]
    assert [row["step"] for row in rows if row["type"] == "checkpoint"] == [1, 2]


def test_an_error_of_another_process_is_the_error_of_the_job(
    grpo_spec: Callable[..., dict],
) -> None:
    status, rows, said = ended(started(grpo_spec("out"), BROKEN="1"))
    assert status == 1, said
    (error,) = (row for row in rows if row["type"] == "error")
    assert "The second process broke." in error["message"]


# Methods that learn from rows, through TRL

ROWS_CONFIG = {
    "steps": 3,
    "batch_size": 4,
    "learning_rate": 1e-2,
    "lora_rank": 4,
    "lora_alpha": 8,
    "save_every": 1,
    "eval_every": 2,
}
ENVIRONMENT = {
    "kind": "single_turn",
    "name": "",
    "verifier": {"kind": "regex", "pattern": "(?s)."},
    "harness": {"system_prompt": "One JSON call.", "max_new_tokens": 6, "temperature": 1.0},
}
OPENING = [{"role": "system", "content": "Answer with one JSON call."}]
ANSWERS = ["{}", '{"tool": "a"}', "No.", "I cannot close this ticket.", "é🤖"]
CONVERSATIONS = [
    [*OPENING, {"role": "user", "content": f"Close {name}."}]
    for name in ("1", "12", "the last one")
]
PAIRS = [
    {"messages": messages, "chosen": good, "rejected": bad}
    for messages in CONVERSATIONS
    for good, bad in (ANSWERS[:2], ANSWERS[2:4])
]
DISTINCT = "train/distinct_tokens"
OF_METHOD: dict[str, dict[str, Any]] = {
    # Five rows: the batches are cut across epochs, and what the two compute differs in size.
    "sft": {
        "rows": [
            {"messages": CONVERSATIONS[at % 3], "completion": answer}
            for at, answer in enumerate(ANSWERS)
        ],
        "config": {"micro_batch": 1},
    },
    "dpo": {"rows": PAIRS, "config": {"micro_batch": 1}},
    "kto": {
        "rows": [
            {"messages": CONVERSATIONS[at % 3], "completion": answer, "good": at % 3 > 0}
            for at, answer in enumerate(ANSWERS)
        ]
    },
    "reward_model": {"rows": PAIRS, "config": {"center_rewards": 0.1}},
    "best_of_n": {"rows": [], "config": {"samples": 4, "keep": "all", "max_new_tokens": 8}},
}


METHODS = amount(("sft", "dpo"), tuple(OF_METHOD))
SHARDED = amount(("sft",), ("sft", "dpo", "kto", "reward_model"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """The folder of runs METHOD and METHOD-shard (two processes), RUN-again (from its first
    checkpoint), METHOD-one (one process), of three that the second process ends, and of two with a
    teacher on a server. One launch: importing TRL takes longer than all of them.
    """
    folder = tmp_path_factory.mktemp("runs")

    def run(name: str, after: str = "", **more: Any) -> dict[str, Any]:
        method, *kind = name.split("-")
        resume = str(folder / after / "checkpoint-1") if after else None
        return of_method(
            folder,
            tiny_model,
            name,
            method,
            config={"shard": True} if "shard" in kind else {},
            resume_from=resume,
            **more,
        )

    two = [one for method in METHODS for one in (run(method), run(f"{method}-again", after=method))]
    two += [
        run("dpo-stop", ending="stop"),
        run("dpo-rest", after="dpo-stop"),
        run("sft-fail", ending="fail"),
    ]
    two += [run(f"{method}-shard") for method in SHARDED]
    two += [run("sft-shard-again", after="sft-shard")]
    with serving({("POST", "/v1/chat/completions"): taught}) as server:
        at = {"kind": "openai", "base_url": server.base, "allow_private": True}
        two += [
            run(f"best_of_n-{name}", teacher_server=at | {"model": name})
            for name in ("taught", "lost")
        ]
        two += [run("sft-shard-fail", ending="fail")]  # which the processes do not survive
        (folder / "runs.json").write_text(json.dumps(two))
        status, _, said = ended(
            warm.Program(
                [
                    "workers.lib.processes",
                    "tests.workers.in_parts",
                    "2",
                    str(folder / "runs.json"),
                ],
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        (folder / "asked.json").write_text(
            json.dumps([json.loads(body)["model"] for *_, body in server.asked])
        )
    assert status == 0, said
    for method in METHODS:
        assert (
            in_parts.run(of_method(folder, tiny_model, f"{method}-one", method, processes=1))
            == "done"
        )
    return folder


def taught(body: dict) -> tuple[int, dict]:
    return (401, {"error": "no"}) if body["model"] == "lost" else chat({"content": "good"})


def of_method(
    folder: Path,
    model: Path,
    name: str,
    method: str,
    processes: int = 2,
    config: dict | None = None,
    **more: Any,
) -> dict[str, Any]:
    given = {
        "kind": method,
        "job_id": "job",
        "attempt": 1,
        "seed": 3,
        "resume_from": None,
        "out_dir": str(folder / name),
        "model": {"base": str(model), "adapter": None},
        "rows": OF_METHOD[method]["rows"],
        "engine": {"kind": "transformers", "dtype": "float32", "threads": 1, "batch_size": 8},
        "config": (
            ROWS_CONFIG
            | {"processes": processes}
            | OF_METHOD[method].get("config", {})
            | (config or {})
        ),
    }
    if method == "best_of_n":
        del given["rows"]
        return (
            given
            | {"environment": ENVIRONMENT, "tasks": tasks(), "validation_tasks": tasks()[:1]}
            | more
        )
    return given | {"validation_rows": given["rows"][:3]} | more


def of_run(folder: Path, name: str) -> dict[tuple[int, str], float]:
    return metrics_of(
        [json.loads(line) for line in (folder / name / "events.jsonl").read_text().splitlines()]
    )


@pytest.mark.more
@pytest.mark.parametrize("run", [*METHODS, *(f"{method}-shard" for method in SHARDED)])
def test_rows_are_learned_from_in_two_processes_as_in_one(run: str, runs: Path) -> None:
    """The reported metrics are those of the whole batch, KTO's KL among them; checkpoints are
    written once. Sharded, each holds half of the base's layers."""
    method = run.removesuffix("-shard")
    one, two = of_run(runs, f"{method}-one"), of_run(runs, run)
    measured = "validation/success" if method == "best_of_n" else "validation/loss"
    assert one.keys() == two.keys() and {(3, "train/loss"), (3, measured)} <= one.keys()
    for (step, name), value in one.items():
        # TRL averages DPO's entropy over micro-batches, of which one process has more; what rows
        # share is computed once in each process.
        if (method, name) not in (("dpo", "train/entropy"), ("dpo", DISTINCT), ("kto", DISTINCT)):
            assert math.isclose(value, two[step, name], rel_tol=1e-4, abs_tol=1e-5), (step, name)
    first, second = weights_of(runs / f"{method}-one"), weights_of(runs / run)
    assert all(torch.allclose(first[name], second[name], rtol=0, atol=1e-5) for name in first)
    rows = [json.loads(line) for line in (runs / run / "events.jsonl").read_text().splitlines()]
    assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1)) and rows[-1][
        "type"
    ] == "result"
    assert [row["step"] for row in rows if row["type"] == "checkpoint"] == [1, 2]
    if run != method:
        assert [json.loads((runs / run / f"held-{at}").read_text()) for at in (0, 1)] == [
            [0.5],
            [0.5],
        ]


@pytest.mark.more
@pytest.mark.parametrize("method", [*METHODS, "sft-shard"])
def test_rows_are_learned_from_in_two_processes_after_a_checkpoint_to_the_last_bit(
    method: str, runs: Path
) -> None:
    whole, again = of_run(runs, method), of_run(runs, f"{method}-again")
    assert {key: value for key, value in again.items() if key[0] > 1} == {
        key: value for key, value in whole.items() if key[0] > 1
    }
    first, second = weights_of(runs / method), weights_of(runs / f"{method}-again")
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_what_ends_one_process_within_a_step_ends_both_at_once(runs: Path) -> None:
    """Where TRL exchanges something in the middle of its loss, and where nothing is exchanged
    before its end.
    """
    endings = {
        name: [(runs / name / f"ended-{at}").read_text() for at in (0, 1)]
        for name in ("dpo-stop", "sft-fail", "sft-shard-fail")
    }
    failed = ["PeerEnded", "JobError"]
    assert endings == {"dpo-stop": ["Stop", "Stop"], "sft-fail": failed, "sft-shard-fail": failed}
    state = json.loads((runs / "dpo-stop" / "checkpoint-1" / "state.json").read_text())
    assert state["step"] == 1 and not (runs / "dpo-stop" / "checkpoint-2").exists()
    first, second = weights_of(runs / "dpo"), weights_of(runs / "dpo-rest")
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_teacher_on_a_server_is_asked_by_the_first_process_and_both_learn_from_it(
    runs: Path,
) -> None:
    endings = {
        name: [(runs / name / f"ended-{at}").read_text() for at in (0, 1)]
        for name in ("best_of_n-taught", "best_of_n-lost")
    }
    assert endings == {
        "best_of_n-taught": ["done", "done"],
        "best_of_n-lost": ["TeacherLost", "PeerEnded"],
    }
    found, asked = of_run(runs, "best_of_n-taught"), json.loads((runs / "asked.json").read_text())
    assert (
        asked.count("taught") == 3 * 4
        and found[0, "teacher/tokens"] == 12 * 6
        and found[0, "rejection/kept"] == 3
    )
    assert (
        found[3, "train/grad_norm"] > 0
        and len(list((runs / "best_of_n-taught").glob("teacher*"))) == 1
    )
    assert [one.name for one in (runs / "best_of_n-lost").glob("checkpoint-*")] == ["checkpoint-0"]


@pytest.mark.parametrize(
    ("env", "asked", "said"),
    [
        ({"ACCELERATE_USE_FSDP": "true"}, 2, "FSDP"),
        ({}, 3, "“config.processes” must be 2, the number of processes that were started, not 3."),
    ],
)
def test_what_cannot_be_shared_is_refused(
    env: dict, asked: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ({"RANK": "0", "WORLD_SIZE": "2"} | env).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SpecError, match=re.escape(said)):
        join(asked)


ROWS = [[1, 2, 3, 4, 10], [1, 2, 3, 4, 11], [1, 2, 5, 6, 12], [1, 2, 5, 6, 13], [7, 8, 9]]


@pytest.mark.parametrize(
    ("rows", "count", "expected"),
    [
        (ROWS, 1, [[0, 1, 2, 3, 4]]),
        (
            [ROWS[0], ROWS[2], ROWS[1], ROWS[3]],
            2,
            [[0, 2], [1, 3]],
        ),  # what begins alike stays together
        (ROWS[:1], 3, [[0], [], []]),
        ([], 2, [[], []]),
        ([[1]] * 4, 2, [[0, 1, 2, 3], []]),  # the same tokens are computed once
    ],
)
def test_rows_are_shared_out_along_what_they_begin_with(
    rows: list, count: int, expected: list
) -> None:
    assert shares(rows, count) == expected


def test_no_share_is_needlessly_large() -> None:
    rows = [[1, 2, 3, *range(10 * n, 10 * n + n)] for n in range(1, 20)]
    found = shares(rows, 4)
    assert sorted(chain.from_iterable(found)) == list(range(len(rows)))
    assert max(len(Tree([rows[number] for number in share])) for share in found) <= 3 + 190 / 4 + 19
