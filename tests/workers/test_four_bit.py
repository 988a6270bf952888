"""QLoRA: an adapter is trained on a base in 4 bits, and stands on the whole one. Needs
requirements/qlora.txt, but for the refusal.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.workers.conftest import Recorder, typed
from tests.workers.test_dpo import dpo_spec
from tests.workers.test_kto import kto_spec
from tests.workers.test_sft import sft_spec
from workers import dpo, grpo, kto, sft
from workers.lib.errors import SpecError
from workers.lib.program import StopFlag
from workers.lib.verifiers import Score
from workers.ml.four_bit import products_in_float32, size_of
from workers.ml.models import add_adapter, load_base
from workers.ml.tree import in_float32

SPECS = {"sft": (sft, sft_spec), "dpo": (dpo, dpo_spec), "kto": (kto, kto_spec)}
needs_bitsandbytes = pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None, reason="pip install -r requirements/qlora.txt"
)


def trained(kind: str, spec: dict, events: Recorder) -> dict[str, float]:
    """{step: loss}"""
    SPECS[kind][0].main(typed(spec, kind), events, StopFlag())
    return {
        row["step"]: row["values"]["train/loss"]
        for row in events.rows("metric")
        if "train/loss" in row["values"]
    }


@needs_bitsandbytes
@pytest.mark.parametrize("kind", list(SPECS))
def test_a_resumed_run_in_4_bits_is_the_unbroken_one_and_its_adapter_fits_the_whole_base(
    kind: str, make_spec: Callable[..., dict], events: Recorder, tmp_path: Path, tiny_model: Path
) -> None:
    spec = SPECS[kind][1](make_spec, steps=4, save_every=2, load_in_4bit=True)
    losses = trained(kind, spec, events)
    again = Recorder(tmp_path / "again.jsonl")
    resume = str(tmp_path / "out" / "checkpoint-2")
    resumed = trained(
        kind, spec | {"resume_from": resume, "out_dir": str(tmp_path / "resumed")}, again
    )
    assert (
        resumed == {step: loss for step, loss in losses.items() if step > 2} and len(resumed) == 2
    )
    first, second = (
        load_file(tmp_path / name / "adapter/adapter_model.safetensors")
        for name in ("out", "resumed")
    )
    assert first and all(torch.equal(first[name], second[name]) for name in first)
    model = add_adapter(load_base(tiny_model)[0], tmp_path / "out" / "adapter", trainable=False)
    weights = dict(model.named_parameters())
    assert all(
        torch.equal(weights[name.replace(".weight", ".default.weight")], value)
        for name, value in first.items()
    )


@needs_bitsandbytes
def test_grpo_in_4_bits_samples_from_the_weights_that_it_trains(
    make_spec: Callable[..., dict],
    events: Recorder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether the sampler has other weights shows in the log-probabilities of its tokens."""

    async def rewarded(episode: Any) -> Score:
        return Score(reward=sum(map(ord, episode.said[0]["content"] or "")) % 7 / 7, success=False)

    monkeypatch.setattr("workers.lib.environments.workplace.OneCall.score", rewarded)
    config = {
        "steps": 3,
        "prompts_per_step": 2,
        "generations": 4,
        "learning_rate": 1e-2,
        "max_new_tokens": 6,
        "save_every": 2,
        "kl_every": 1,
        "load_in_4bit": True,
    }
    spec = make_spec(config=config)
    found = grpo_steps(spec, events)
    assert [values["train/logp_diff_mean"] < 1e-5 for values in found] == [True] * 3
    whole = spec | {
        "config": config | {"load_in_4bit": False},
        "out_dir": str(tmp_path / "whole"),
    }
    others = grpo_steps(whole, Recorder(tmp_path / "whole.jsonl"))
    assert others[0]["train/entropy"] != found[0]["train/entropy"]
    assert found[-1]["train/kl"] > found[0]["train/kl"] == pytest.approx(0, abs=1e-6)
    resumed = grpo_steps(
        spec
        | {
            "resume_from": str(tmp_path / "out" / "checkpoint-2"),
            "out_dir": str(tmp_path / "resumed"),
        },
        Recorder(tmp_path / "again.jsonl"),
    )
    assert resumed[-1]["train/loss"] == found[-1]["train/loss"]


def grpo_steps(spec: dict, events: Recorder) -> list[dict[str, float]]:
    grpo.main(typed(spec, "grpo"), events, StopFlag())
    rows = [row["values"] for row in events.rows("metric")]
    return [values for values in rows if "train/loss" in values]


@needs_bitsandbytes
def test_sft_in_4_bits_starts_near_the_whole_models_loss_and_learns(
    make_spec: Callable[..., dict], events: Recorder, tmp_path: Path
) -> None:
    losses = trained("sft", sft_spec(make_spec, steps=12, load_in_4bit=True), events)
    whole = trained(
        "sft",
        sft_spec(make_spec, steps=1) | {"out_dir": str(tmp_path / "whole")},
        Recorder(tmp_path / "w"),
    )
    assert 0 < abs(losses[1] - whole[1]) < 0.1 * whole[1]
    assert losses[12] < losses[1] - 0.5


@needs_bitsandbytes
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_linear_layers_alone_are_quantized_and_do_not_change_by_being_used(
    dtype: str, tiny_model: Path
) -> None:
    model, _ = load_base(tiny_model, dtype, in_4bit=True)
    whole, _ = load_base(tiny_model, dtype)
    named = dict(model.named_parameters())
    for name, parameter in whole.named_parameters():
        linear = "_proj" in name
        assert size_of(named[name]) == parameter.numel() and named[name].dtype == (
            torch.uint8 if linear else parameter.dtype
        )
    before = {name: parameter.clone() for name, parameter in named.items()}
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        said = model.eval()(input_ids=ids).logits
        with products_in_float32(model), in_float32(model):
            model(input_ids=ids)
        assert torch.equal(model(input_ids=ids).logits, said)
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())


def test_without_bitsandbytes_it_says_what_to_install(
    make_spec: Callable[..., dict], events: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: Any = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *a: None if name == "bitsandbytes" else found(name, *a),
    )
    with pytest.raises(SpecError, match=r"needs bitsandbytes.*requirements/qlora\.txt"):
        trained("sft", sft_spec(make_spec, steps=1, load_in_4bit=True), events)
    assert not events.rows("metric")
