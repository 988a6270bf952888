"""Log-probabilities in chunks of tokens: the values and gradients of the plain form, and never all logits at once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from workers.ml import losses
from workers.ml.losses import token_logprobs

VOCABULARY, WIDTH, TOKENS = 50, 8, 13


class Head(torch.nn.Linear):
    """Remembers how many tokens it was asked for at a time."""

    seen: list[int]

    def forward(self, hidden: Tensor) -> Tensor:
        self.seen.append(len(hidden))
        return super().forward(hidden)


def head(*, frozen: bool) -> Head:
    torch.manual_seed(0)
    made = Head(WIDTH, VOCABULARY)
    made.seen = []
    return made.requires_grad_(not frozen)


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("tokens_at_once", [1, 4, 100])
def test_chunks_give_the_values_and_gradients_of_the_plain_form(
    frozen: bool, tokens_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(losses.CHUNK, "cpu", tokens_at_once * VOCABULARY)
    output = head(frozen=frozen)
    ids, weights = torch.randint(0, VOCABULARY, (TOKENS,)), torch.randn(TOKENS)
    hidden = torch.randn(TOKENS, WIDTH, requires_grad=True)
    trained = [hidden, *(p for p in output.parameters() if p.requires_grad)]
    plain = (output(hidden) / 0.7).log_softmax(-1)
    expected = plain.gather(-1, ids[:, None])[:, 0]
    gradients = torch.autograd.grad((expected * weights).sum(), trained)
    output.seen.clear()
    found = token_logprobs(output, hidden, ids, 0.7)
    torch.testing.assert_close(found.logprobs, expected)
    torch.testing.assert_close(found.entropies, -(plain.exp() * plain).sum(-1).detach())
    assert found.likeliest.tolist() == (plain.argmax(-1) == ids).tolist()
    assert not found.entropies.requires_grad and not found.likeliest.requires_grad
    for mine, theirs in zip(torch.autograd.grad((found.logprobs * weights).sum(), trained), gradients, strict=True):
        torch.testing.assert_close(mine, theirs)
    assert max(output.seen) <= tokens_at_once
    # The logits of a frozen head are computed once.
    assert sum(output.seen) == (1 if frozen else 2) * TOKENS


def test_without_gradients_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(losses.CHUNK, "cpu", 4 * VOCABULARY)
    output = head(frozen=True)
    with torch.no_grad():
        found = token_logprobs(output, torch.randn(TOKENS, WIDTH), torch.zeros(TOKENS, dtype=torch.long))
    assert max(output.seen) == 4 and not found.logprobs.requires_grad
