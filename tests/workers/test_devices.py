"""The workers on a device that is not the processor (a pretended one), and in other dtypes than
float32.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from tests.amounts import amount
from tests.workers.conftest import Recorder, tasks, typed
from tests.workers.elsewhere import ELSEWHERE, Far, elsewhere
from tests.workers.test_engine import small
from workers import grpo, sft
from workers.grpo import Trainer
from workers.lib import policies
from workers.lib.engines import Prompt, Sampling
from workers.lib.errors import JobError, SpecError
from workers.lib.program import StopFlag
from workers.lib.specs.engines import InProcess, Model
from workers.lib.specs.training import Lora
from workers.ml import checkpoint
from workers.ml.models import load_base, lora
from workers.ml.policies import open_policy
from workers.ml.transformers_engine import TransformersEngine
from workers.ml.tree import pad, use_tree
from workers.sft import add_gradients

CHATS = [
    [{"role": "user", "content": text}]
    for text in ("Close 12.", "Send Ana a mail about lunch.", "Hi")
]
CONFIG = {
    "steps": 2,
    "prompts_per_step": 2,
    "generations": 4,
    "learning_rate": 1e-2,
    "lora_rank": 4,
    "lora_alpha": 8,
    "max_new_tokens": 8,
    "save_every": 1,
    "updates_per_batch": 2,
    "beta": 0.1,
}
LORA = Lora(lora_rank=CONFIG["lora_rank"], lora_alpha=CONFIG["lora_alpha"])


def answered(engine: TransformersEngine) -> list[tuple[str, list[int]]]:
    asked = [
        Prompt(chat, [3 * index, 3 * index + 1, 3 * index + 2]) for index, chat in enumerate(CHATS)
    ]
    found = dict(engine.generate(asked, Sampling(1.0, 0.9, 12)))
    return [(output.text, output.token_ids) for index in sorted(found) for output in found[index]]


def test_the_pretended_device_refuses_a_mixture() -> None:
    with elsewhere():
        far = torch.ones(3, device=ELSEWHERE)
        assert isinstance(far + 1, Far) and (far * 2).tolist() == [2.0, 2.0, 2.0]
        with pytest.raises(AssertionError, match="mixes devices"):
            far + torch.ones(3)


@pytest.mark.proof
def test_generation_elsewhere_is_the_same_and_waits_once_a_token(tiny_model: Path) -> None:
    here = answered(TransformersEngine(*load_base(tiny_model), batch_size=64))
    model, tokenizer = load_base(tiny_model)
    with elsewhere() as device:
        engine = TransformersEngine(model.to(ELSEWHERE), tokenizer, batch_size=64)
        assert isinstance(engine.head.weight, Far)
        device.waits = 0
        assert answered(engine) == here
        # One for each of the 12 tokens, three for the answers as a whole.
        assert device.waits <= 12 + 3


@pytest.fixture
def spread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rewards that differ, so that there is something to learn from random weights."""
    rollout = Trainer.rollout

    def rewarded(trainer: Trainer, step: int) -> list:
        groups = rollout(trainer, step)
        for group in groups:
            for index, score in enumerate(group.scores):
                score.reward = float(index % 3)
        return groups

    monkeypatch.setattr(Trainer, "rollout", rewarded)


class ThreadsElsewhere(ThreadPoolExecutor):
    """The device is pretended in each thread by itself."""

    def submit(self, work: Callable, /, *args: object, **kwargs: object) -> Future:
        def there() -> object:
            with elsewhere():
                return work(*args, **kwargs)

        return super().submit(there)


def steps(spec: dict, events: Recorder, count: int) -> Trainer:
    trainer = Trainer(typed(spec, "grpo"), events, StopFlag())
    for _ in range(count):
        trainer.step()
    return trainer


@pytest.mark.proof
def test_grpo_elsewhere_saves_and_resumes(
    make_spec: Callable[..., dict], events: Recorder, spread: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sampling, KL, two updates a batch, a checkpoint, and a step from it: all where the model is,
    with its results.
    """
    torch.manual_seed(0)
    config = CONFIG | {"max_new_tokens": 4}
    here = steps(make_spec(config=config), events, 2)
    # Loaded before: while it loads, the library has a use of its own for the device's name.
    loaded = [load_base(make_spec()["model"]["base"]) for _ in range(2)]
    monkeypatch.setattr(grpo, "load_base", lambda *_: loaded.pop())
    monkeypatch.setattr(grpo, "device", lambda: ELSEWHERE)
    monkeypatch.setattr(policies, "ThreadPoolExecutor", ThreadsElsewhere)
    with elsewhere():
        torch.manual_seed(0)
        trainer = steps(make_spec(config=config), events, 1)
        folder = checkpoint.save(
            trainer.out / "there", step=1, model=trainer.model, optimizer=trainer.optimizer
        )
        resumed = steps(make_spec(config=config, resume_from=str(folder)), events, 1)
        found = {
            name: p.detach().near for name, p in resumed.model.named_parameters() if p.requires_grad
        }
    expected = {name: p.detach() for name, p in here.model.named_parameters() if p.requires_grad}
    assert found.keys() == expected.keys() and found
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-4)


@pytest.mark.proof
def test_the_loss_of_sft_elsewhere_is_the_same(tiny_model: Path) -> None:
    ids, real = pad([[5, 6, 7, 8, 11, 12], [5, 6, 9, 14]], 0)
    labels = ids.masked_fill(~real, -100)
    labels[0, :4], labels[1, :3] = -100, -100
    losses = []
    for device in ("cpu", ELSEWHERE):
        torch.manual_seed(0)
        model = lora(load_base(tiny_model)[0], LORA, None)
        with elsewhere():
            model = model.to(device)
            use_tree(model)
            losses.append(
                add_gradients(model, ids.to(device), real.to(device), labels.to(device))[
                    "train/loss"
                ]
            )
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("dtype", "trained", "program"),
    [
        ("bfloat16", "bfloat16", "grpo"),
        ("float16", "float32", "sft"),
        *amount([], [("bfloat16", "bfloat16", "sft"), ("float16", "float32", "grpo")]),
    ],
)
def test_training_heeds_the_dtype_and_keeps_the_adapter_in_float32(
    dtype: str,
    trained: str,
    program: str,
    make_spec: Callable[..., dict],
    events: Recorder,
    spread: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded = []

    def watched(*arguments: str, **more: bool) -> tuple:
        loaded.append(load_base(*arguments, **more))
        return loaded[-1]

    monkeypatch.setattr(
        {"sft": "workers.ml.trl_runs", "grpo": "workers.grpo"}[program] + ".load_base", watched
    )
    spec = make_spec(config=CONFIG | {"batch_size": 3})
    spec["engine"]["dtype"] = dtype
    rows = [{"messages": task["messages"], "completion": "Done."} for task in tasks()]
    {"sft": sft, "grpo": grpo}[program].main(
        typed(spec | {"rows": rows}, program), events, StopFlag()
    )
    base = loaded[0][0]
    assert str(base.get_input_embeddings().weight.dtype) == f"torch.{trained}"
    losses = [
        row["values"]["train/loss"]
        for row in events.rows("metric")
        if "train/loss" in row["values"]
    ]
    assert len(losses) == 2 and all(loss is not None for loss in losses)
    adapter = load_file(Path(events.rows("result")[0]["adapter"]) / "adapter_model.safetensors")
    assert {value.dtype for value in adapter.values()} == {torch.float32}
    assert any(value.abs().max() > 0 for name, value in adapter.items() if "lora_B" in name)


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_deep_model_of_16_bits_is_not_refused_for_its_rounding(dtype: torch.dtype) -> None:
    """And its weights are afterwards what they were, those that were of 32 bits among them."""
    torch.manual_seed(0)
    size = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 16,
        "num_attention_heads": 4,
    }
    config = LlamaConfig(vocab_size=256, num_key_value_heads=2, initializer_range=0.3, **size)
    model = lora(LlamaForCausalLM(config).to(dtype), LORA, None)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert {value.dtype for value in before.values()} == {dtype, torch.float32}
    use_tree(model)
    after = model.state_dict()
    assert all(
        torch.equal(after[name], value) and after[name].dtype == value.dtype
        for name, value in before.items()
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("kind", "fields"), [("bloom", {}), ("granite", {"logits_scaling": 8.0})])
def test_a_model_that_would_be_computed_wrong_is_refused_in_16_bits_too(
    kind: str, fields: dict, dtype: torch.dtype
) -> None:
    model = small(kind, **fields).to(dtype)
    with pytest.raises(JobError, match="cannot be run with shared prompts"):
        use_tree(model)
    assert model.dtype == dtype


@pytest.mark.parametrize("dtype", ["int8", "no such type", "auto", "nn"])
def test_an_unknown_dtype_is_refused_by_name(dtype: str, tiny_model: Path) -> None:
    with pytest.raises(SpecError, match=r"engine\.dtype must be one of float32, bfloat16, float16"):
        open_policy(InProcess(dtype=dtype), Model(base=str(tiny_model)), Sampling())
