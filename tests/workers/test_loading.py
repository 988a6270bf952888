"""What is loaded fits and is whole: an adapter of another base, or a damaged checkpoint, is refused
in a sentence.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.workers.conftest import make_tiny_model
from workers.lib.errors import JobError
from workers.lib.specs.sft import SftConfig
from workers.lib.specs.training import Lora
from workers.ml import checkpoint
from workers.ml.models import add_adapter, load_base, lora

WEIGHTS = "adapter_model.safetensors"


def saved(base: Path, folder: Path, **fields: object) -> Path:
    lora(load_base(base)[0], Lora(lora_rank=4, **fields), None).save_pretrained(folder)  # type: ignore[arg-type]
    return folder


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hidden_size": 64}, "its layers have other sizes"),
        (
            {"num_hidden_layers": 3},
            r"2 of its weights do not match a layer here, such as .*layers\.2\.",
        ),
        (
            {"num_hidden_layers": 1},
            r"2 of its weights do not match a layer here, such as .*layers\.1\.",
        ),
    ],
)
def test_an_adapter_of_another_base_is_refused(
    changes: dict[str, int], said: str, tiny_model: Path, tmp_path: Path
) -> None:
    """With more or fewer layers it was loaded as far as they went."""
    adapter = saved(
        make_tiny_model(tmp_path / "other", **changes),
        tmp_path / "adapter",
        target_modules=["q_proj"],
    )
    with pytest.raises(JobError, match=f"was trained on another base model: .*{said}"):
        add_adapter(load_base(tiny_model)[0], adapter, trainable=True)


@pytest.mark.more(rows=2)
@pytest.mark.parametrize(
    "fields", [{}, {"use_dora": True}, {"target_modules": ["q_proj"]}, {"use_rslora": True}]
)
def test_an_adapter_of_the_same_base_fits(fields: dict, tiny_model: Path, tmp_path: Path) -> None:
    adapter = saved(tiny_model, tmp_path / "adapter", **fields)
    assert add_adapter(load_base(tiny_model)[0], adapter, trainable=False)


def test_one_with_nan_or_of_damaged_bytes_is_refused_as_what_it_is(
    tiny_model: Path, tmp_path: Path
) -> None:
    """NaN was taken for a model that cannot share prompts."""
    adapter = saved(tiny_model, tmp_path / "adapter")
    tensors = load_file(adapter / WEIGHTS)
    next(iter(tensors.values()))[0, 0] = float("nan")
    save_file(tensors, adapter / WEIGHTS)
    with pytest.raises(JobError, match="has weights that are NaN or infinite, such as base_model"):
        add_adapter(load_base(tiny_model)[0], adapter, trainable=True)
    (adapter / WEIGHTS).write_bytes((adapter / WEIGHTS).read_bytes()[:100])
    with pytest.raises(JobError, match="is damaged"):
        add_adapter(load_base(tiny_model)[0], adapter, trainable=True)


@pytest.mark.more(rows=2)
@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "state.json").unlink(),
        lambda folder: (folder / "state.json").write_text('{"step": '),
        lambda folder: (folder / "state.json").write_text("[]"),
        lambda folder: (folder / "optimizer.safetensors").unlink(),
        lambda folder: (folder / "optimizer.safetensors").write_bytes(b"x" * 50),
    ],
)
def test_a_damaged_checkpoint_is_said_to_be_one(
    damage: Callable[[Path], object], tiny_model: Path, tmp_path: Path
) -> None:
    config = SftConfig(steps=3, batch_size=1, learning_rate=1e-3)
    model = lora(load_base(tiny_model)[0], config, None)
    optimizer, _ = checkpoint.optimizer_of(model, config, None)
    model(input_ids=torch.tensor([[5, 6]]), labels=torch.tensor([[5, 6]])).loss.backward()
    optimizer.step()
    folder = checkpoint.save(tmp_path / "checkpoint-1", step=1, model=model, optimizer=optimizer)
    checkpoint.optimizer_of(model, config, str(folder))
    damage(folder)
    with pytest.raises(
        JobError, match=r"checkpoint-1 is missing or damaged .*Fork the run from another checkpoint"
    ):
        checkpoint.optimizer_of(model, config, str(folder))
