"""A merged model is base and adapter, in the base's dtype, or it is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.workers.conftest import Recorder, typed
from workers import merge_adapter
from workers.lib.errors import JobError
from workers.lib.program import StopFlag
from workers.lib.weights_proof import TEXT
from workers.merge_adapter import main, require_memory, require_same, require_whole, stored


def tiny_in(dtype: str, source: Path, folder: Path) -> Path:
    import torch
    from transformers import AutoTokenizer, LlamaForCausalLM

    LlamaForCausalLM.from_pretrained(source, dtype=getattr(torch, dtype)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    return folder


def tuned(base: Path, folder: Path, modules: list[str], scale: float = 0.2) -> Path:
    import torch
    from peft import LoraConfig, get_peft_model

    from workers.ml.models import load_base

    torch.manual_seed(1)
    model = get_peft_model(
        load_base(base)[0],
        LoraConfig(r=4, lora_alpha=8, target_modules=modules, task_type="CAUSAL_LM"),
    )
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=scale)
    model.save_pretrained(folder, save_embedding_layers=False)
    (folder / "README.md").unlink(missing_ok=True)
    return folder


def merged(base: Path, adapter: Path, make_spec: Callable[..., dict], events: Recorder) -> dict:
    spec = make_spec(
        kind="merge_adapter", model={"base": str(base), "adapter": str(adapter)}, text=TEXT
    )
    main(typed(spec, "merge_adapter"), events, StopFlag())
    return events.rows("result")[0]


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_merged_model_is_in_the_dtype_of_its_base(
    dtype: str, tiny_model: Path, tmp_path: Path, make_spec: Callable[..., dict], events: Recorder
) -> None:
    base = tiny_in(dtype, tiny_model, tmp_path / "base")
    result = merged(
        base,
        tuned(base, tmp_path / "adapter", ["q_proj", "v_proj", "down_proj"]),
        make_spec,
        events,
    )
    assert (
        stored(Path(result["folder"])) == stored(base)
        and stored(base)[0] == result["dtype"] == dtype
    )
    assert (
        result["gap"] < merge_adapter.TOLERANCE[dtype] and result["lost"] < merge_adapter.MOST_LOST
    )
    assert json.loads((Path(result["folder"]) / "config.json").read_text())["dtype"] == dtype
    assert (Path(result["folder"]) / "tokenizer.json").is_file()


def test_weights_that_two_layers_share_are_not_merged_wrongly(
    tiny_model: Path, tmp_path: Path, make_spec: Callable[..., dict], events: Recorder
) -> None:
    """What changes the output's weights changes the embedding's with them."""
    with pytest.raises(JobError, match="is not base and adapter"):
        merged(tiny_model, tuned(tiny_model, tmp_path / "adapter", ["lm_head"]), make_spec, events)


WANTED, BASE = [-1.0, -2.0, -3.0], [-1.5, -2.5, -2.5]


@pytest.mark.parametrize(
    ("values", "dtype", "refused"),
    [
        ([-1.0, -2.0, -3.0], "float32", ""),
        ([-1.0, -2.0, -3.0005], "float32", ""),
        ([-1.0, -2.0, -3.01], "float32", "0.001 is the most in float32"),
        ([-1.0, -2.0, -3.01], "bfloat16", ""),
        ([-1.5, -2.5, -2.5], "bfloat16", "0.05 is the most in bfloat16"),
        ([-1.0, math.nan, -3.0], "float32", "not numbers"),
    ],
)
def test_the_tolerance_is_by_dtype(values: list[float], dtype: str, refused: str) -> None:
    if not refused:
        gap, lost = require_same(WANTED, BASE, values, dtype)
        assert gap <= 0.01 and lost < 0.02
        return
    with pytest.raises(JobError, match=refused):
        require_same(WANTED, BASE, values, dtype)


def test_a_small_adapter_that_rounding_takes_away_is_refused() -> None:
    with pytest.raises(JobError, match="loses 100% of what the adapter changes"):
        require_same([-1.0, -2.0], [-1.01, -2.01], [-1.01, -2.01], "bfloat16")
    assert require_same([-1.0, -2.0], [-1.0, -2.0], [-1.0, -2.0], "bfloat16") == (0.0, 0.0), (
        "one that changes nothing"
    )


def test_what_is_quantized_or_not_whole_or_too_large(tiny_model: Path, tmp_path: Path) -> None:
    from workers.ml.models import load_base

    model = load_base(tiny_model)[0]
    require_whole(tiny_model, "float32", model)
    with pytest.raises(JobError, match="not stored whole"):
        require_whole(tiny_model, "bfloat16", model)
    model.model.extra = model.lm_head.__class__(4, 4)
    with pytest.raises(JobError, match="not stored whole"):
        require_whole(tiny_model, "float32", model)
    base = tiny_in("float32", tiny_model, tmp_path / "quantized")
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(
        json.dumps(config | {"quantization_config": {"quant_method": "fp8"}})
    )
    with pytest.raises(JobError, match="is quantized"):
        stored(base)
    with pytest.raises(JobError, match="of memory"):
        require_memory(10**15)
