"""Layers that do and keep less compute the same: gated ones to the last bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.amounts import amount
from workers.lib.specs.training import Lora
from workers.ml import products
from workers.ml.lean import _Gated, _Lora, keep_less
from workers.ml.models import load_base, lora
from workers.ml.tree import use_tree


def plain(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return functional.silu(gate) * up


def through(multiply: Any, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    gate, up = (torch.randn(3, 5, 16, dtype=dtype).mul_(4).requires_grad_() for _ in range(2))
    arriving = torch.randn(3, 5, 16, dtype=dtype)
    out = multiply(gate, up)
    out.backward(arriving)
    return out, gate.grad, up.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_values_and_gradients_are_those_of_the_plain_layer(dtype: torch.dtype) -> None:
    for found, expected in zip(through(_Gated.apply, dtype), through(plain, dtype), strict=True):
        assert torch.equal(found, expected)


def kept(layer: Any, x: torch.Tensor) -> int:
    """Numbers that a layer's forward pass keeps for the backward pass, of tensors that have its
    tokens.
    """
    sizes: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() > 1 and tensor.numel() // tensor.shape[-1] == x.shape[1]:
            sizes[tensor.data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        out = layer(x)
    out.sum().backward()
    return sum(sizes.values())


def test_a_layer_keeps_one_tensor_less(tiny_model: Path) -> None:
    model = load_base(tiny_model)[0]
    layer = model.model.layers[0].mlp
    x = torch.randn(1, 7, 32, requires_grad=True)
    before = kept(layer, x)
    keep_less(model)
    assert before - kept(layer, x) == 7 * 64


def test_training_and_generation_use_it(tiny_model: Path) -> None:
    model = load_base(tiny_model)[0]
    use_tree(model)
    assert all("lean" in layer.mlp.forward.__func__.__module__ for layer in model.model.layers)


def test_a_layer_of_another_function_is_left_alone(tiny_model: Path) -> None:
    model = load_base(tiny_model)[0]
    for layer in model.model.layers:
        layer.mlp.act_fn = torch.nn.GELU()
    keep_less(model)
    assert not any("forward" in vars(layer.mlp) for layer in model.model.layers)


def randomised(folder: Path, **config: Any) -> Any:
    torch.manual_seed(0)
    model = lora(load_base(folder)[0], Lora(lora_rank=4, **config), None)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = torch.randn_like(parameter) * 0.3
    return model


def outcome(model: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    torch.manual_seed(1)  # for dropout
    model.zero_grad()
    hidden = (
        model.get_base_model()
        .model(input_ids=torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]]))
        .last_hidden_state
    )
    (hidden * torch.linspace(-1, 1, hidden.shape[-1])).sum().backward()
    return hidden, {
        name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None
    }


OPTIONS = {
    "plain": {},
    "rank-stabilised": {"use_rslora": True},
    "dropout": {"lora_dropout": 0.4},
    "DoRA": {"use_dora": True},
    "some layers": {"target_modules": ["q_proj", "down_proj"]},
}


@pytest.mark.more(rows=3)
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize(
    ("smallest", "training"),
    [
        (1, True),
        (products.SMALLEST, False),
        *amount([], [(1, False), (products.SMALLEST, True)]),
    ],
)
def test_a_model_with_an_adapter_computes_the_same(
    name: str, training: bool, smallest: int, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By either library; the tiny model's own weights are too small for oneDNN."""
    monkeypatch.setattr(products, "SMALLEST", smallest)
    model = randomised(tiny_model, **OPTIONS[name]).train(training)
    expected, gradients = outcome(model)
    keep_less(model)
    found, mine = outcome(model)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert mine.keys() == gradients.keys()
    for parameter, gradient in gradients.items():
        torch.testing.assert_close(
            mine[parameter], gradient, rtol=1e-3, atol=1e-4 * float(gradient.abs().max())
        )


def calls_of_lora(model: Any, patch: pytest.MonkeyPatch) -> int:
    calls, plain = [], _Lora.apply
    patch.setattr(_Lora, "apply", lambda *given: calls.append(1) or plain(*given))
    outcome(model)
    patch.undo()
    return len(calls)


def test_the_adapter_in_use_is_the_active_one(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it changes after the switch, is switched off, or two are active."""
    model = randomised(tiny_model)
    model.add_adapter("second", model.peft_config["default"])
    for name, parameter in model.named_parameters():
        if "second" in name:
            parameter.data = torch.randn_like(parameter) * 0.3
    found: dict[bool, list[torch.Tensor]] = {}
    for switched in (False, True):
        if switched:
            keep_less(model)
        found[switched] = []
        for active in ("default", "second"):
            model.set_adapter(active)
            found[switched].append(outcome(model)[0])
        with model.disable_adapter():
            found[switched].append(
                model.get_base_model().model(input_ids=torch.tensor([[1, 2, 3]])).last_hidden_state
            )
        model.base_model.set_adapter(["default", "second"])
        found[switched].append(outcome(model)[0])
    assert not torch.allclose(found[True][0], found[True][1], atol=1e-2)
    for mine, theirs in zip(found[True], found[False], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    assert calls_of_lora(model, monkeypatch) == 0
    model.set_adapter("default")
    assert (
        calls_of_lora(model, monkeypatch) == 2 * 6
    )  # of seven a layer: the last is the gated layer's


def test_a_layer_with_an_adapter_keeps_less(tiny_model: Path) -> None:
    """Neither silu(gate) nor the product."""
    model = randomised(tiny_model)
    layer, x = model.get_base_model().model.layers[0], torch.randn(1, 7, 32, requires_grad=True)
    before = kept(layer.mlp, x)
    keep_less(model)
    after = kept(layer.mlp, x)
    assert after <= before - 7 * 2 * 64


def test_products_with_weights_that_are_not_trained_are_the_librarys() -> None:
    """Of whole weights, of their transposes, which a backward pass multiplies by, and of a slice of
    them.
    """
    torch.manual_seed(0)
    weight, bias, x = torch.randn(300, 200), torch.randn(300), torch.randn(2, 7, 200)
    assert (
        products.onednn_has(weight)
        and not products.onednn_has(weight[:100])
        and not products.onednn_has(weight.double())
    )
    for one, given, added in [
        (weight, x, bias),
        (weight, x, None),
        (weight[50:250], x, bias[50:250]),
        (weight.t(), torch.randn(7, 300), None),
    ]:
        assert products.onednn_has(one)
        with torch.inference_mode():
            found = products.product(given, one, added)
        torch.testing.assert_close(
            found, functional.linear(given, one, added), rtol=1e-5, atol=1e-4
        )
