"""Rejection sampling that samples itself: what passes is learned from, once, and a stop loses
nothing of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.workers.conftest import Recorder, typed
from workers import best_of_n
from workers.best_of_n import COUNTED, SAMPLED, kept_of, unusable, why_nothing
from workers.lib.errors import JobError
from workers.lib.program import Stop, StopFlag
from workers.lib.specs.best_of_n import BestOfNConfig
from workers.lib.verifiers import Score, masked
from workers.ml import checkpoint
from workers.ml.transformers_engine import TransformersEngine

CONFIG = {
    "batch_size": 2,
    "learning_rate": 1e-2,
    "lora_rank": 4,
    "steps": 3,
    "save_every": 2,
    "samples": 4,
    "max_new_tokens": 8,
}
LEARNING = {"steps": 1, "learning_rate": 1.0, "batch_size": 1}


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task at a time, and a model that ends its answers: with random weights it hardly ever
    would.
    """
    load = TransformersEngine.load

    def ends(engine: Any, model: Any) -> TransformersEngine:
        made = load(engine, model)
        made.stop_ids = list(range(0, 400, 2))
        made.stops = torch.tensor(made.stop_ids)
        return made

    monkeypatch.setattr(best_of_n, "SAMPLED_TOGETHER", 1)
    monkeypatch.setattr(best_of_n.TransformersEngine, "load", ends)


def spec_of(make_spec: Callable[..., dict], pattern: str = "(?s).", **config: Any) -> dict:
    spec = make_spec(config=CONFIG | config)
    spec["environment"]["kind"], spec["environment"]["name"] = "single_turn", ""
    spec["environment"]["verifier"] = {"kind": "regex", "pattern": pattern}
    return spec


def main(spec: dict, events: Recorder, stop: StopFlag | None = None) -> None:
    best_of_n.main(typed(spec, "best_of_n"), events, stop or StopFlag())


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / SAMPLED).read_text().splitlines()]


def test_it_samples_keeps_what_passes_and_learns_it(
    make_spec: Callable[..., dict], events: Recorder, tmp_path: Path
) -> None:
    main(spec_of(make_spec, keep="all"), events)
    rows = events.rows("sample")
    assert len(rows) == 12 and {(row["phase"], row["step"]) for row in rows} == {("train", 0)}
    kept = [row for row in rows if row["components"]["kept"]]
    found = lines(tmp_path / "out")
    assert 0 < len(kept) == sum(len(one["rows"]) for one in found) and all(
        row["success"] and not row["truncated"] for row in kept
    )
    assert {row["completion"] for one in found for row in one["rows"]} == {
        row["output"] for row in kept
    }
    [totals] = [row["values"] for row in events.rows("metric") if row["step"] == 0]
    assert totals["rejection/samples"] == 12 and totals["rejection/kept"] == len(kept)
    assert [row["step"] for row in events.rows("metric") if "train/loss" in row["values"]] == [
        1,
        2,
        3,
    ]
    assert events.rows()[-1]["type"] == "result"


def test_stopped_while_it_samples_it_goes_on_there_and_ends_as_the_unbroken_one(
    make_spec: Callable[..., dict], events: Recorder, tmp_path: Path
) -> None:
    main(spec_of(make_spec), events)
    stop, sample = StopFlag(), Recorder.sample
    broken = Recorder(tmp_path / "broken.jsonl")

    def asks(**row: Any) -> None:
        sample(broken, **row)
        stop.is_set = len(broken.rows("sample")) == 8

    broken.sample = asks  # type: ignore[method-assign]
    spec = spec_of(make_spec) | {"out_dir": str(tmp_path / "again")}
    with pytest.raises(Stop):
        main(spec, broken, stop)
    assert len(lines(tmp_path / "again")) == 2
    with (tmp_path / "again" / SAMPLED).open("a") as file:
        file.write('{"task": "task-3456", "sam')  # as a crash leaves it
    [saved] = broken.rows("checkpoint")
    assert saved["step"] == 0 == checkpoint.step_of(saved["path"])
    resumed = Recorder(tmp_path / "resumed.jsonl")
    main(spec | {"resume_from": saved["path"]}, resumed)
    assert len(resumed.rows("sample")) == 4 and lines(tmp_path / "again") == lines(tmp_path / "out")
    first, second = (
        load_file(tmp_path / name / "adapter/adapter_model.safetensors")
        for name in ("out", "again")
    )
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_resumed_while_it_learns_it_samples_nothing(
    make_spec: Callable[..., dict], events: Recorder, tmp_path: Path
) -> None:
    spec = spec_of(make_spec)
    main(spec, events)
    again = Recorder(tmp_path / "again.jsonl")
    main(spec | {"resume_from": str(tmp_path / "out" / "checkpoint-2")}, again)
    assert not again.rows("sample") and [
        row["step"] for row in again.rows("metric") if "train/loss" in row["values"]
    ] == [3]


def test_where_nothing_passes_it_says_what_to_do(
    make_spec: Callable[..., dict], events: Recorder
) -> None:
    with pytest.raises(JobError, match="None of the 4 samples of any of the 3 tasks passed"):
        main(spec_of(make_spec, "^never$"), events)
    assert len(events.rows("sample")) == 12


@pytest.mark.parametrize(
    ("passed", "masked", "said"),
    [
        (0, 0, "begin with SFT"),
        (0, 12, "could be scored. Open a rollout"),
        (5, 1, "5 of 12 samples passed, .* Cut off: 5. Raise max_new_tokens, which is 8"),
    ],
)
def test_it_says_why_there_is_nothing_to_learn_from(
    passed: int, masked: int, said: str, make_spec: Callable[..., dict]
) -> None:
    totals = dict.fromkeys(COUNTED, 0) | {
        "samples": 12,
        "passed": passed,
        "masked": masked,
        "cut_off": passed,
    }
    assert re.search(said, why_nothing(typed(spec_of(make_spec), "best_of_n"), totals))


def done(
    text: str,
    reward: float = 1.0,
    *,
    success: bool = True,
    score: Score | None = None,
    truncated: bool = False,
    ended: str = "stop",
) -> Any:
    score = score or Score(reward=reward, success=success)
    reply = SimpleNamespace(
        text=text, message={"role": "assistant", "content": text}, finish_reason=ended, model="m"
    )
    return SimpleNamespace(score=score, replies=[reply], truncated=truncated)


@pytest.mark.parametrize(
    ("sample", "reason", "advises_more_tokens"),
    [
        (done("", truncated=True, ended="length"), "cut_off", True),
        (done(""), "empty", False),
        (done(" ", ended="tool_calls"), "empty", False),
        (done("", ended=""), "unfinished", False),
        (done("half", ended="content_filter"), "filtered", False),
        (done("ok<|im_end|>\n<|im_start|>user\npay"), "control", False),
    ],
)
def test_more_tokens_are_advised_only_for_answers_that_were_cut_off(
    sample: Any, reason: str, advises_more_tokens: bool, make_spec: Callable[..., dict]
) -> None:
    """An empty answer that the teacher ended itself is as empty with more tokens."""
    assert unusable(sample, ["<|im_end|>"]) == reason and not kept_of(
        [sample], BestOfNConfig(**LEARNING), ["<|im_end|>"]
    )
    totals = dict.fromkeys(COUNTED, 0) | {"samples": 1, "passed": 1, reason: 1}
    assert (
        "Raise max_new_tokens" in why_nothing(typed(spec_of(make_spec), "best_of_n"), totals)
    ) is advises_more_tokens


@pytest.mark.parametrize(
    ("episodes", "best", "every"),
    [
        pytest.param([], [], [], id="nothing"),
        pytest.param(
            [done("a", 0.5), done("b", 0.9), done("c", 0.1, success=False)],
            [1],
            [1, 0],
            id="best first",
        ),
        pytest.param([done("a"), done(" a"), done("b")], [0], [0, 2], id="the same once"),
        pytest.param(
            [done(""), done("\n "), done("a")], [2], [2], id="empty, as where no call is right"
        ),
        pytest.param(
            [done("a", score=masked("judge away")), done("b", truncated=True)],
            [],
            [],
            id="masked and cut off",
        ),
    ],
)
def test_what_is_kept(episodes: list[Any], best: list[int], every: list[int]) -> None:
    assert kept_of(episodes, BestOfNConfig(**LEARNING)) == best
    assert kept_of(episodes, BestOfNConfig(**LEARNING, keep="all")) == every
