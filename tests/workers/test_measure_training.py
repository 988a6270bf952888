"""The measurement on a tiny model, and the tokens of a conversation without the transformers
library.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.workers.conftest import Recorder, typed
from workers import dpo, measure_training
from workers.lib.chat_tokens import ChatTokens, Conversation
from workers.lib.program import StopFlag
from workers.lib.specs.sft import SftConfig
from workers.lib.specs.training import Lora
from workers.lib.training_cost import Rates
from workers.ml.chat_writer import ChatWriter
from workers.ml.models import load_base, lora
from workers.ml.tree import pad, use_tree
from workers.sft import add_gradients


def test_it_measures_every_kind_of_work(make_spec: Callable[..., dict], events: Recorder) -> None:
    spec = make_spec(lora={"lora_rank": 4}, max_new_tokens=6, seconds=1.0)
    measure_training.main(typed(spec, "measure_training"), events, StopFlag())
    result = events.rows("result")[0]
    found = result["measured"]
    assert result["peak"]["memory"] > 10**7
    assert (
        found["machine"]["available"] > 0
        and found["kv_bytes"] == 2 * 2 * 2 * 8 * 4
        and found["part"] == 256
    )
    for name in ("plain", "sampling", "updates"):
        assert all(
            one["seconds"] > 0 and one["memory"] >= one["before"] > 0 for one in found[name]
        ), name
    rates = Rates.of(found)
    assert rates.update.at(1000) > 0 and rates.step.at(8) >= 0 and rates.load_s > 0


CHATS: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "Close ticket 7."}]},
    {
        "messages": [
            {"role": "system", "content": "One JSON call."},
            {"role": "user", "content": "é\u2028🤖 <|im_end|> {{ 7 * 7 }}"},
        ]
    },
    {
        "messages": [{"role": "user", "content": "x"}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
    },
]


@pytest.mark.parametrize("chat", CHATS)
def test_tokens_are_those_that_the_trainer_makes(tiny_model: Path, chat: dict[str, Any]) -> None:
    model, tokenizer = load_base(tiny_model)
    writer = ChatWriter(tokenizer, model)
    asked = Conversation(**chat, answers=['{"tool": "f"}'])
    found = ChatTokens(tiny_model).of(asked)
    assert found.prompt == writer.prompt_ids(asked.messages, asked.tools)
    answer = {"role": "assistant", "content": asked.answers[0]}
    assert found.answers == [writer.answer_ids(asked.messages, asked.tools, answer)]


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    "smaller", [{"micro_batch": 1}, {"micro_batch": 2}, {"gradient_checkpointing": True}]
)
def test_sft_in_smaller_parts_has_the_same_gradient(tiny_model: Path, smaller: dict) -> None:
    """Relative tolerance 1e-4, float32."""
    torch.manual_seed(1)
    model = lora(load_base(tiny_model)[0], Lora(lora_rank=4), None).eval()
    use_tree(model)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(0, 0.1)
    ids, real = pad([[5, 6, 7, 8, 9], [5, 6, 9, 4], [3, 4, 5]], 0)
    labels = ids.masked_fill(~real, -100)
    labels[:, 0] = -100

    def gradients(**config: Any) -> torch.Tensor:
        model.zero_grad()
        add_gradients(
            model, ids, real, labels, SftConfig(steps=1, learning_rate=1e-3, batch_size=3, **config)
        )
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    torch.testing.assert_close(gradients(**smaller), gradients(), rtol=1e-4, atol=1e-6)


@pytest.mark.proof
@pytest.mark.parametrize("smaller", [{"micro_batch": 1}, {"gradient_checkpointing": True}])
def test_dpo_in_smaller_parts_makes_the_same_adapter(
    make_spec: Callable[..., dict], events: Recorder, tmp_path: Path, smaller: dict
) -> None:
    """Relative tolerance 1e-3 of the weights after two steps."""
    from safetensors.torch import load_file

    from tests.workers.test_dpo import dpo_spec

    made = []
    for at, config in enumerate([{}, smaller]):
        spec = dpo_spec(make_spec, steps=2, batch_size=2, **config) | {
            "out_dir": str(tmp_path / f"out-{at}")
        }
        dpo.main(typed(spec, "dpo"), events, StopFlag())
        made.append(load_file(tmp_path / f"out-{at}" / "adapter" / "adapter_model.safetensors"))
    for name, weight in made[0].items():
        torch.testing.assert_close(made[1][name], weight, rtol=1e-3, atol=1e-5)
