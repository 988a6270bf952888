"""What runs of rows measure at intervals: the loss on what was held back and the success on
validation tasks, and nothing of it changes what they learn."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.workers.conftest import Recorder, tasks, typed
from tests.workers.test_dpo import pairs
from workers import dpo, kto, sft
from workers.lib.program import Stop, StopFlag
from workers.ml.models import load_base

CONFIG = {
    "batch_size": 3,
    "learning_rate": 1e-2,
    "lora_rank": 4,
    "warmup_steps": 1,
    "lora_dropout": 0.0,
    "steps": 4,
}


def rows_of(kind: str) -> list[dict]:
    if kind == "dpo":
        return pairs()
    said = [(row["messages"], row["chosen"], True) for row in pairs()]
    if kind == "sft":
        return [{"messages": messages, "completion": text} for messages, text, _ in said]
    said += [(row["messages"], row["rejected"], False) for row in pairs()]
    return [
        {"messages": messages, "completion": text, "good": good} for messages, text, good in said
    ]


MAIN = {"sft": sft.main, "dpo": dpo.main, "kto": kto.main}


def ran(kind: str, spec: dict, folder: Path) -> Recorder:
    recorder = Recorder(folder / f"{len(list(folder.glob('*.jsonl')))}.jsonl")
    MAIN[kind](typed(spec, kind), recorder, StopFlag())
    return recorder


def values(recorder: Recorder, prefix: str) -> dict[int, dict[str, float]]:
    found: dict[int, dict[str, float]] = {}
    for row in recorder.rows("metric"):
        some = {name: value for name, value in row["values"].items() if name.startswith(prefix)}
        if some:
            found.setdefault(row["step"], {}).update(some)
    return found


@pytest.mark.proof
@pytest.mark.parametrize("kind", ["sft", "dpo", "kto"])
def test_it_validates_at_intervals_and_trains_as_without(
    kind: str, make_spec: Callable[..., dict], tmp_path: Path
) -> None:
    spec = make_spec(rows=rows_of(kind), config=CONFIG)
    plain = ran(kind, spec, tmp_path)
    more = {
        "config": CONFIG | {"eval_every": 2},
        "validation_rows": rows_of(kind)[:2],
        "validation_tasks": tasks()[:2],
    }
    checked = ran(kind, spec | more, tmp_path)
    assert values(plain, "train/") == values(checked, "train/") and values(
        plain, "rewards/"
    ) == values(checked, "rewards/")
    found = values(checked, "validation/")
    assert sorted(found) == [0, 2, 4] and not values(plain, "validation/")
    expected = {"validation/loss", "validation/success", "validation/reward", "validation/samples"}
    assert expected <= set(found[0]) and ("validation/accuracy" in found[0]) == (kind == "dpo")
    assert found[4]["validation/loss"] < found[0]["validation/loss"]
    samples = checked.rows("sample")
    assert len(samples) == 6 and {row["phase"] for row in samples} == {"validation"}
    assert {row["step"] for row in samples} == {0, 2, 4}


def test_the_loss_kept_aside_of_sft_is_of_all_its_tokens(
    make_spec: Callable[..., dict], tiny_model: Path, tmp_path: Path
) -> None:
    """At step 0, by the plain base: a new adapter says nothing yet."""
    rows = rows_of("sft")
    spec = make_spec(
        rows=rows[:1], validation_rows=rows, config=CONFIG | {"steps": 1, "eval_every": 5}
    )
    found = values(ran("sft", spec, tmp_path), "validation/")[0]["validation/loss"]
    model, tokenizer = load_base(tiny_model)
    total, count = 0.0, 0
    for row in rows:
        prompt = tokenizer.apply_chat_template(row["messages"], add_generation_prompt=True)[
            "input_ids"
        ]
        answer = {"role": "assistant", "content": row["completion"]}
        whole = tokenizer.apply_chat_template([*row["messages"], answer])["input_ids"][
            :-1
        ]  # up to the end token
        with torch.no_grad():
            logprobs = model(torch.tensor([whole])).logits[0, :-1].log_softmax(-1)
        taken = logprobs.gather(-1, torch.tensor(whole[1:])[:, None])[len(prompt) - 1 :]
        total, count = total - float(taken.sum()), count + len(taken)
    assert found == pytest.approx(total / count, rel=1e-4)


def test_a_stop_during_the_validation_leaves_a_checkpoint(
    make_spec: Callable[..., dict], events: Recorder
) -> None:
    stop, sample = StopFlag(), events.sample

    def asks(**row: Any) -> None:
        sample(**row)
        stop.is_set = row["step"] == 2

    events.sample = asks  # type: ignore[method-assign]
    spec = make_spec(
        rows=rows_of("sft"),
        validation_tasks=tasks(),
        config=CONFIG | {"steps": 50, "eval_every": 2, "save_every": 50},
    )
    with pytest.raises(Stop):
        sft.main(typed(spec, "sft"), events, stop)
    [saved] = events.rows("checkpoint")
    assert (
        saved["step"] == 2
        and json.loads((Path(saved["path"]) / "state.json").read_text())["step"] == 2
    )
