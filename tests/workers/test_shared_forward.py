"""DPO and KTO over the tree of a batch: loss, gradients and metrics are stock TRL's, and each
distinct token is computed once.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer

from tests.amounts import amount
from workers.lib.prefixes import Tree
from workers.lib.specs.training import Lora
from workers.ml import tree
from workers.ml.models import load_base, lora
from workers.ml.shared_forward import share_prompts

ASKED = ["Close 12.", "Close 12.", "Send Ana a mail.", "Hi"]
ANSWERS = [
    ('{"tool": 1}', '{"tool": 2}'),
    ("No.", "I will not."),
    ("Yes, at once.", "y"),
    ("🤖", "Hello there, you."),
]
SETTINGS = {
    "output_dir": "",
    "per_device_train_batch_size": 4,
    "max_length": None,
    "report_to": "none",
    "use_cpu": True,
    "bf16": False,
    "disable_tqdm": True,
    "gradient_checkpointing": False,
}


def prompt(text: str) -> list[dict]:
    return [
        {"role": "system", "content": "Answer with one call."},
        {"role": "user", "content": text},
    ]


def said(text: str) -> list[dict]:
    return [{"role": "assistant", "content": text}]


def trainer_of(kind: str, folder: Path, out: Path, from_adapter: bool, **config: Any) -> Any:
    base, tokenizer = load_base(folder)
    torch.manual_seed(0)
    model = lora(base, Lora(lora_rank=4), None)
    shaken(model, 1)
    if kind == "dpo":
        rows = [
            {"prompt": prompt(a), "chosen": said(b), "rejected": said(c)}
            for a, (b, c) in zip(ASKED, ANSWERS, strict=True)
        ]
    else:
        rows = [
            {"prompt": prompt(a), "completion": said(b[0]), "label": bool(at % 2)}
            for at, (a, b) in enumerate(zip(ASKED, ANSWERS, strict=True))
        ]
    make, settings = {"dpo": (DPOTrainer, DPOConfig), "kto": (KTOTrainer, KTOConfig)}[kind]
    trainer = make(
        model=model,
        processing_class=tokenizer,
        train_dataset=Dataset.from_list(rows),
        args=settings(**SETTINGS | {"output_dir": str(out)} | config),
    )
    if not from_adapter:
        model.delete_adapter("ref")
    shaken(
        model, 2
    )  # away from the reference, or many a loss would be the same whatever is computed
    return trainer


def shaken(model: Any, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_" in name and ".ref." not in name:
            parameter.data += 0.2 * torch.randn(parameter.shape, generator=generator)


def outcome(trainer: Any) -> tuple[float, dict[str, torch.Tensor], dict[str, list[float]]]:
    batch = next(iter(trainer.get_train_dataloader()))
    trainer.model.train()
    loss = trainer.compute_loss(trainer.model, copy.deepcopy(batch))
    loss.backward()
    gradients = {
        name: p.grad.clone() for name, p in trainer.model.named_parameters() if p.grad is not None
    }
    return float(loss), gradients, dict(trainer._metrics["train"])


CASES = [
    ("dpo", {"loss_type": ["sigmoid"], "label_smoothing": 0.0}),
    ("dpo", {"loss_type": ["ipo"]}),
    ("dpo", {"loss_type": ["robust"], "label_smoothing": 0.1}),
    ("kto", {"loss_type": "kto"}),
]


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(("kind", "config"), CASES)
@pytest.mark.parametrize(
    ("from_adapter", "part"), [(True, 6), *amount([], [(False, 6), (False, 256), (True, 256)])]
)
def test_loss_gradients_and_metrics_are_those_of_stock_trl(
    kind: str,
    config: dict,
    from_adapter: bool,
    part: int,
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(tree.PART, "cpu", part)
    stock, ours = (trainer_of(kind, tiny_model, tmp_path, from_adapter, **config) for _ in range(2))
    share_prompts(ours)
    expected, theirs, metrics = outcome(stock)
    found, mine, own = outcome(ours)
    assert found == pytest.approx(expected, rel=1e-4) and mine.keys() == theirs.keys()
    largest = max(float(gradient.abs().max()) for gradient in theirs.values())
    assert largest > 1e-3
    for name, gradient in theirs.items():
        assert float((mine[name] - gradient).abs().max()) < 1e-4 * largest, name
    for name in metrics.keys() - {"logits/chosen", "logits/rejected"}:
        assert own[name] == pytest.approx(metrics[name], rel=1e-3, abs=1e-4), name


def test_every_distinct_token_of_a_batch_is_computed_once(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = trainer_of("dpo", tiny_model, tmp_path, False)
    share_prompts(ours)
    batch = next(iter(ours.get_train_dataloader()))
    rows = [
        ids[mask.bool()].tolist()
        for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)
    ]
    last = [int(mask.nonzero().max()) for mask in batch["completion_mask"]]
    distinct = len(Tree([row[:at] for row, at in zip(rows, last, strict=True)]))
    computed, forward = [], tree.forward_part
    monkeypatch.setattr(
        tree,
        "forward_part",
        lambda d, part, above: computed.append(len(part.ids)) or forward(d, part, above),
    )
    ours.compute_loss(ours.model, batch)
    assert sum(computed) == 2 * distinct < sum(map(len, rows))  # by the policy and by the reference
