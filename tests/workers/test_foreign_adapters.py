"""Whatever loads an adapter refuses one that holds more than LoRA, and leaves the base that others
share as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

from tests.workers.conftest import make_tiny_model
from workers.lib.errors import JobError
from workers.lib.lora_files import CONFIG, PLAIN_INITS, WEIGHTS
from workers.lib.specs.training import Lora
from workers.ml.checkpoint import save_adapter
from workers.ml.hot_adapters import HotAdapters
from workers.ml.models import add_adapter, load_base, load_side_by_side, lora, lora_config
from workers.ml.reference import Reference
from workers.ml.reward_head import lora_with_head
from workers.ml.trl_runs import set_reference

IDS = torch.tensor([list(range(20, 40))])
BEGIN = "base_model.model."


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("untied"), tie_word_embeddings=False)


def make_adapter(base: Path, folder: Path, seed: int = 1, **given: Any) -> Path:
    torch.manual_seed(seed)
    fields = {"r": 2, "target_modules": ["q_proj", "up_proj"], "task_type": "CAUSAL_LM"} | given
    model = get_peft_model(load_base(base)[0], LoraConfig(**fields))
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight)
    return save_adapter(model, folder)


def with_more(adapter: Path, folder: Path, name: str, shape: tuple[int, ...]) -> Path:
    folder.mkdir()
    (folder / CONFIG).write_bytes((adapter / CONFIG).read_bytes())
    tensors = load_file(adapter / WEIGHTS)
    save_file(tensors | {f"{BEGIN}{name}": torch.randn(shape)}, folder / WEIGHTS)
    return folder


def test_a_base_whose_folder_holds_an_adapter_is_not_loaded(base: Path, tmp_path: Path) -> None:
    """Transformers would load the base that it names, and apply the adapter."""
    other = make_tiny_model(tmp_path / "other", tie_word_embeddings=False)
    make_adapter(other, tmp_path / "adapter")
    for name in (CONFIG, WEIGHTS):
        (other / name).write_bytes((tmp_path / "adapter" / name).read_bytes())
    config = json.loads((other / CONFIG).read_text())
    (other / CONFIG).write_text(json.dumps(config | {"base_model_name_or_path": str(base)}))
    with pytest.raises(JobError, match=f"holds {CONFIG}"):
        load_base(other)


FOREIGN = {
    "embedding": ("model.embed_tokens.weight", (259, 32)),
    "output": ("lm_head.weight", (259, 32)),
    "norm": ("model.norm.weight", (32,)),
    "a whole layer": ("model.layers.0.self_attn.v_proj.weight", (32, 32)),
    "a wrapped layer": ("model.layers.0.self_attn.q_proj.base_layer.weight", (32, 32)),
    "a bias": ("model.layers.0.self_attn.q_proj.lora_B.bias", (32,)),
}


@pytest.mark.more(rows=2)
@pytest.mark.parametrize("what", FOREIGN)
def test_hot_loading_refuses_it_and_the_shared_base_stays(
    base: Path, tmp_path: Path, what: str
) -> None:
    hot = HotAdapters(load_base(base)[0].eval(), 64)
    before = {name: weight.clone() for name, weight in hot.model.state_dict().items()}
    plain = make_adapter(base, tmp_path / "plain")
    bad = with_more(plain, tmp_path / "bad", *FOREIGN[what])
    with pytest.raises(JobError, match="which is not LoRA"):
        hot.load("first", str(bad))
    assert hot.peft is None, "nothing was loaded at all"
    loaded = hot.load("plain", str(plain))
    answers = logits(hot, None), logits(hot, loaded)
    with pytest.raises(JobError, match="which is not LoRA"):
        hot.load("bad", str(bad))
    assert torch.equal(logits(hot, None), answers[0]) and torch.equal(
        logits(hot, loaded), answers[1]
    )
    hot.remove(loaded)
    after = {
        name.replace(".base_layer", ""): weight for name, weight in hot.model.state_dict().items()
    }
    assert all(torch.equal(weight, after[name]) for name, weight in before.items())


def logits(hot: HotAdapters, loaded: Any) -> torch.Tensor:
    hot.use(loaded)
    with torch.no_grad():
        return (hot.peft or hot.model)(IDS).logits.clone()


LOADERS: dict[str, Callable[[Path, str], Any]] = {
    "evaluation, fingerprint, merging": lambda base, bad: add_adapter(
        load_base(base)[0], bad, trainable=False
    ),
    "several versions": lambda base, bad: load_side_by_side(
        [model_of(base, bad)], "float32", merged=False
    ),
    "training": lambda base, bad: lora(load_base(base)[0], Lora(), bad),
    "the KL's reference": lambda base, bad: Reference(lora(load_base(base)[0], Lora(), None), bad),
    "DPO's reference": lambda base, bad: set_reference(with_ref(base), bad),
    "a reward model's start": lambda base, bad: lora_with_head(
        load_base(base, scalar_head=True)[0], Lora(), start=bad, resume=None
    ),
}


def model_of(base: Path, adapter: str) -> Any:
    from workers.lib.specs.engines import Model

    return Model(base=str(base), adapter=adapter)


def with_ref(base: Path) -> Any:
    model = lora(load_base(base)[0], Lora(), None)
    model.add_adapter("ref", lora_config(Lora()))
    return model


@pytest.mark.more(rows=2)
@pytest.mark.parametrize("loader", LOADERS)
def test_every_program_refuses_it_before_it_loads(base: Path, tmp_path: Path, loader: str) -> None:
    plain = make_adapter(base, tmp_path / "plain")
    bad = with_more(plain, tmp_path / "bad", *FOREIGN["embedding"])
    with pytest.raises(JobError, match=r"model.embed_tokens.weight, which is not LoRA"):
        LOADERS[loader](base, str(bad))


@pytest.mark.more(rows=2)
@pytest.mark.parametrize("init", sorted(PLAIN_INITS))
def test_an_initialisation_that_is_taken_leaves_the_base_as_it_is(
    base: Path, tmp_path: Path, init: str
) -> None:
    plain = make_adapter(base, tmp_path / "plain")
    config = json.loads((plain / CONFIG).read_text()) | {"init_lora_weights": init}
    (plain / CONFIG).write_text(json.dumps(config))
    hot = HotAdapters(load_base(base)[0].eval(), 64)
    before = logits(hot, None)
    hot.load("plain", str(plain))
    assert torch.equal(logits(hot, None), before)


def test_an_adapter_of_the_output_layer_is_saved_without_the_embeddings(
    base: Path, tmp_path: Path
) -> None:
    made = make_adapter(base, tmp_path / "made", target_modules=["lm_head"])
    assert sorted(load_file(made / WEIGHTS)) == [
        f"{BEGIN}lm_head.lora_{part}.weight" for part in "AB"
    ]
    assert HotAdapters(load_base(base)[0].eval(), 64).load("made", str(made))
