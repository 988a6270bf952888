"""On-policy distillation: the gradient is that of the formula, the student comes to write as the
teacher, other tokens are refused.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.workers.conftest import Recorder, typed
from tests.workers.test_dpo import an_adapter
from workers import on_policy
from workers.lib.errors import SpecError
from workers.lib.program import Stop, StopFlag
from workers.lib.same_tokenizer import why_not_same
from workers.lib.specs.grpo import GrpoConfig
from workers.lib.specs.training import Lora
from workers.lib.token_rows import TokenRow
from workers.ml import checkpoint
from workers.ml.models import load_base, load_policy, lora
from workers.ml.tree import logprobs_of, use_tree

CONFIG = {
    "learning_rate": 1e-2,
    "lora_rank": 4,
    "prompts_per_step": 2,
    "generations": 3,
    "max_new_tokens": 5,
}


def spec_of(make_spec: Callable[..., dict], teacher: str | None, **config: Any) -> dict:
    spec = make_spec(config=CONFIG | config)
    return spec | {"teacher": {"base": spec["model"]["base"], "adapter": teacher}}


def main(spec: dict, events: Recorder, stop: StopFlag | None = None) -> None:
    on_policy.main(typed(spec, "on_policy"), events, stop or StopFlag())


def some_rows() -> list[TokenRow]:
    """Of two prompts, three answers each, one in two turns with an observation between them."""
    draw = random.Random(5)
    rows = []
    for prompt in ([5, 6, 7, 8], [5, 6, 9]):
        for length in (1, 3, 5):
            row = TokenRow()
            row.given(prompt)
            row.sampled([draw.randrange(3, 250) for _ in range(length)], [0.0] * length)
            if length == 3:
                row.given([11, 12])
                row.sampled([40, 41], [0.0, 0.0])
            rows.append(row)
    return rows


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("micro_batch", [0, 4])
def test_its_gradient_is_that_of_the_reverse_kl_on_the_sampled_tokens(
    micro_batch: int, tiny_model: Path, tmp_path: Path
) -> None:
    """Against plain models, one row at a time: no tree, no padding."""
    rows = some_rows()
    start = an_adapter(tiny_model, tmp_path / "start")
    ours, plain = (lora(load_base(tiny_model)[0], Lora(), start).eval() for _ in range(2))
    teacher, _ = load_policy(tiny_model, None)
    use_tree(ours)
    tree_teacher, _ = load_policy(tiny_model, None)
    use_tree(tree_teacher)
    config = GrpoConfig(steps=1, learning_rate=1.0, micro_batch=micro_batch)
    found = on_policy.add_gradients(ours, rows, logprobs_of(tree_teacher, rows, 1.0), config)

    def of(model: Any, row: TokenRow) -> torch.Tensor:
        logprobs = model(torch.tensor([row.ids])).logits[0, :-1].log_softmax(-1)
        taken = logprobs.gather(-1, torch.tensor(row.ids[1:])[:, None])[:, 0]
        return taken[torch.tensor(row.learnt[1:])]

    student = torch.cat([of(plain, row) for row in rows])
    with torch.no_grad():
        theirs = torch.cat([of(teacher, row) for row in rows])
    gaps = (student - theirs).detach()
    (gaps * student).mean().backward()
    assert (
        found["train/loss"]
        == found["train/teacher_kl"]
        == pytest.approx(float(gaps.mean()), rel=1e-4)
    )
    assert found["train/teacher_logp"] == pytest.approx(float(theirs.mean()), rel=1e-4)
    expected = {
        name: value.grad for name, value in plain.named_parameters() if value.grad is not None
    }
    actual = {name: value.grad for name, value in ours.named_parameters() if value.grad is not None}
    assert expected.keys() == actual.keys() and expected
    for name, gradient in expected.items():
        assert torch.allclose(actual[name], gradient, atol=2e-5), name


@pytest.mark.proof
def test_the_student_comes_to_write_as_the_teacher(
    make_spec: Callable[..., dict], events: Recorder, tiny_model: Path, tmp_path: Path
) -> None:
    teacher = an_adapter(tiny_model, tmp_path / "teacher")
    main(spec_of(make_spec, teacher, steps=25, eval_every=25), events)
    found = [row["values"] for row in events.rows("metric") if "train/loss" in row["values"]]
    first, last = (
        sum(one["train/teacher_kl"] for one in some) / 3 for some in (found[:3], found[-3:])
    )
    assert last < 0.8 * first
    assert {
        "train/entropy",
        "train/grad_norm",
        "train/reward_mean",
        "train/success",
        "time/update_s",
    } <= set(found[0])
    assert "train" in {row["phase"] for row in events.rows("sample")}
    assert events.rows()[-1]["type"] == "result"


@pytest.mark.proof
def test_a_resumed_run_is_the_unbroken_one_to_the_last_bit(
    make_spec: Callable[..., dict], events: Recorder, tiny_model: Path, tmp_path: Path
) -> None:
    spec = spec_of(make_spec, an_adapter(tiny_model, tmp_path / "teacher"), steps=4, save_every=2)
    main(spec, events)
    again = Recorder(tmp_path / "again.jsonl")
    main(
        spec
        | {
            "resume_from": str(tmp_path / "out" / "checkpoint-2"),
            "out_dir": str(tmp_path / "resumed"),
        },
        again,
    )
    first, second = (
        load_file(tmp_path / name / "adapter/adapter_model.safetensors")
        for name in ("out", "resumed")
    )
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.proof
def test_a_stop_in_the_update_leaves_the_last_whole_step(
    make_spec: Callable[..., dict],
    events: Recorder,
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stop, gradients = StopFlag(), on_policy.add_gradients

    def stops(*given: Any) -> dict:
        stop.is_set = any("train/loss" in row["values"] for row in events.rows("metric"))
        return gradients(*given)

    monkeypatch.setattr(on_policy, "add_gradients", stops)
    with pytest.raises(Stop):
        main(
            spec_of(make_spec, an_adapter(tiny_model, tmp_path / "teacher"), steps=9), events, stop
        )
    [saved] = events.rows("checkpoint")
    assert saved["step"] == 1 == checkpoint.step_of(saved["path"])


def other_tokens(tiny_model: Path, folder: Path, change: Callable[[dict], Any]) -> Path:
    shutil.copytree(tiny_model, folder)
    file = json.loads((folder / "tokenizer.json").read_text())
    change(file)
    (folder / "tokenizer.json").write_text(json.dumps(file))
    return folder


def test_a_teacher_of_another_tokenizer_is_refused_with_what_to_do(
    make_spec: Callable[..., dict], events: Recorder, tiny_model: Path, tmp_path: Path
) -> None:
    other = other_tokens(
        tiny_model, tmp_path / "other", lambda file: file["model"]["vocab"].update(a=7777)
    )
    spec = spec_of(make_spec, None, steps=1)
    with pytest.raises(
        SpecError,
        match=(
            r"1 of 259 tokens differ \('a'\)\. Choose a teacher of the student's family, or distil"
        ),
    ):
        main(spec | {"teacher": {"base": str(other), "adapter": None}}, events)
    assert not events.rows("metric")


def test_tokenizers_are_compared_by_what_they_write(tiny_model: Path, tmp_path: Path) -> None:
    assert why_not_same(tiny_model, tiny_model) == ""
    copy = other_tokens(tiny_model, tmp_path / "copy", lambda file: file.update(truncation=None))
    assert why_not_same(tiny_model, copy) == ""
    split = other_tokens(
        tiny_model,
        tmp_path / "split",
        lambda file: file["pre_tokenizer"].update(add_prefix_space=True),
    )
    assert why_not_same(tiny_model, split) == "they split text differently (pre_tokenizer)"
    (copy / "tokenizer.json").unlink()
    assert why_not_same(tiny_model, copy) == "copy has no tokenizer.json to compare"
