"""Log-probabilities in chunks of tokens: the values and gradients of the plain form, and never all
logits at once.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from workers.ml import losses
from workers.ml.losses import token_logprobs

VOCABULARY, WIDTH, TOKENS = 50, 8, 13


class Seen:
    """Output layers, and how many logits they gave at a time."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.logits: list[int] = []
        plain = functional.linear

        def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
            if x.shape[-1] == WIDTH:  # other products are those of the gradients
                self.logits.append(len(x) * len(weight))
            return plain(x, weight, bias)

        patch.setattr(functional, "linear", linear)


def head(*, frozen: bool, bias: bool = True) -> torch.nn.Linear:
    torch.manual_seed(0)
    return torch.nn.Linear(WIDTH, VOCABULARY, bias).requires_grad_(not frozen)


@pytest.mark.more(rows=6)
@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("logits", [1, 50, 7 * 13, 200, 5000])
@pytest.mark.parametrize("largest", ["first", "last"])
def test_chunks_give_the_values_and_gradients_of_the_plain_form(
    frozen: bool, logits: int, largest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(losses.CHUNK, "cpu", logits)
    output = head(frozen=frozen, bias=largest == "last")
    with torch.no_grad():
        output.weight[0 if largest == "first" else -1] *= 20
    ids, weights = torch.randint(0, VOCABULARY, (TOKENS,)), torch.randn(TOKENS)
    ids[:2] = torch.tensor([0, VOCABULARY - 1])
    hidden = torch.randn(TOKENS, WIDTH, requires_grad=True)
    trained = [hidden, *(p for p in output.parameters() if p.requires_grad)]
    plain = (output(hidden) / 0.7).log_softmax(-1)
    expected = plain.gather(-1, ids[:, None])[:, 0]
    gradients = torch.autograd.grad((expected * weights).sum(), trained)
    seen = Seen(monkeypatch)
    found = token_logprobs(output, hidden, ids, 0.7)
    torch.testing.assert_close(found.logprobs, expected)
    torch.testing.assert_close(found.entropies, -(plain.exp() * plain).sum(-1).detach())
    assert found.likeliest.tolist() == (plain.argmax(-1) == ids).tolist()
    assert not found.entropies.requires_grad and not found.likeliest.requires_grad
    for mine, theirs in zip(
        torch.autograd.grad((found.logprobs * weights).sum(), trained), gradients, strict=True
    ):
        torch.testing.assert_close(mine, theirs)
    assert max(seen.logits) <= max(logits, TOKENS if frozen else VOCABULARY)
    # The logits of a frozen head are computed once.
    assert sum(seen.logits) == (1 if frozen else 2) * TOKENS * VOCABULARY


def test_without_gradients_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(losses.CHUNK, "cpu", 4 * VOCABULARY)
    output, seen = head(frozen=True), Seen(monkeypatch)
    with torch.no_grad():
        found = token_logprobs(
            output, torch.randn(TOKENS, WIDTH), torch.zeros(TOKENS, dtype=torch.long)
        )
    assert max(seen.logits) <= 4 * VOCABULARY and not found.logprobs.requires_grad
