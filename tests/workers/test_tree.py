"""Log-probabilities and gradients over a tree of rows, held against the same model on each row by
itself.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from tests.amounts import amount
from workers.lib.errors import JobError
from workers.lib.prefixes import Tree
from workers.ml import attention, losses, tree
from workers.ml.tree import logprobs_of, prefill, scored_parts, use_tree

SIZES = {
    "vocab_size": 16,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "initializer_range": 0.3,
}
# Llama's norms compute in float32 whatever its weights are, GPT-2's do not.
TOLERANCES = {
    ("gpt2", torch.float64): 1e-11,
    ("llama", torch.float64): 2e-5,
    ("llama", torch.float32): 3e-5,
}


@dataclass
class Row:
    ids: list[int]
    learnt: list[bool]


@st.composite
def row_sets(draw: Any) -> list[Row]:
    """Rows that go on from one another's beginnings: forks at any depth, duplicates, one that
    another begins with, none learnt.
    """
    rows: list[Row] = []
    for _ in range(draw(st.integers(1, 7))):
        before = draw(st.sampled_from(rows)).ids if rows and draw(st.booleans()) else []
        kept = draw(st.integers(0, len(before)))
        ids = before[:kept] + draw(
            st.lists(st.integers(0, 15), min_size=0 if kept else 1, max_size=6)
        )
        learnt = draw(st.lists(st.booleans(), min_size=len(ids), max_size=len(ids)))
        rows.append(Row(ids, learnt))
    return rows


def make(kind: str, dtype: torch.dtype) -> tuple[Any, Any]:
    """(the plain model, the same over a tree)."""
    torch.manual_seed(0)
    plain = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SIZES)).to(dtype).eval()
    ours = copy.deepcopy(plain)
    use_tree(ours)
    return plain, ours


MODELS = {key: make(*key) for key in TOLERANCES}


def targets(row: Row) -> list[int]:
    return [at for at in range(1, len(row.ids)) if row.learnt[at]]


def row_loss(logprobs: Tensor, number: int) -> Tensor:
    """Not a sum over tokens: the gradient of each depends on all of its row, as with a ratio of
    sequences.
    """
    weights = torch.linspace(-1, 1, 6, dtype=logprobs.dtype).repeat(20)[
        number : number + len(logprobs)
    ]
    return (logprobs * weights).sum() + 0.1 * logprobs.mean().exp() * logprobs.sum()


def gradients(model: Any) -> Tensor:
    found = torch.cat(
        [
            (p.grad if p.grad is not None else torch.zeros_like(p)).flatten()
            for p in model.parameters()
        ]
    ).double()
    model.zero_grad()
    return found


def plainly(model: Any, rows: list[Row]) -> tuple[dict[int, Tensor], Tensor]:
    found = {}
    for number, row in enumerate(rows):
        if at := targets(row):
            logprobs = model(input_ids=torch.tensor([row.ids])).logits[0].log_softmax(-1)
            found[number] = logprobs[[one - 1 for one in at], [row.ids[one] for one in at]]
            row_loss(found[number], number).backward()
            found[number] = found[number].detach()
    return found, gradients(model)


def by_the_tree(model: Any, rows: list[Row]) -> tuple[dict[int, Tensor], Tensor]:
    found: dict[int, Tensor] = {}
    for some in scored_parts(model, rows):
        parts = zip(some.rows.tolist(), some.tokens.logprobs, some.real, strict=True)
        loss = 0
        for number, logprobs, real in parts:
            assert number not in found and real.tolist() == sorted(real.tolist(), reverse=True)
            found[number] = logprobs[real].detach()
            loss = loss + row_loss(logprobs[real], number)
            assert not logprobs[~real].any()
        loss.backward()
    return found, gradients(model)


def close(found: Tensor, expected: Tensor, tolerance: float) -> None:
    """Within `tolerance` of the largest."""
    assert found.shape == expected.shape
    assert float((found - expected).abs().max()) <= tolerance * max(
        1.0, float(expected.abs().max())
    )


# a first answer that two rows share, each with a second turn of its own; one row is given twice
SHARED_ANSWER = [
    Row([1, 2, 3, 4, 5, 6, 7, 8], [False] * 2 + [True] * 2 + [False] * 2 + [True] * 2),
    Row([1, 2, 3, 4, 5, 9, 9], [False] * 2 + [True] * 2 + [False] + [True] * 2),
    Row([1, 2, 3, 4], [False] * 2 + [True] * 2),
    Row([1, 2, 3, 4, 5, 9, 9], [False] * 2 + [True] * 2 + [False] + [True] * 2),
    Row([1, 2], [False, False]),
]


@pytest.mark.parametrize("key", TOLERANCES, ids=str)
@pytest.mark.more(rows=1)
@settings(
    max_examples=amount(8, 40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(rows=row_sets(), part=st.sampled_from([1, 4, 9, 1000]), block=st.sampled_from([1, 3, 64]))
@example(rows=SHARED_ANSWER, part=1, block=1)
@example(rows=SHARED_ANSWER, part=4, block=64)
@example(rows=[Row([3], [True])], part=4, block=3)
def test_logprobs_and_gradients_are_those_of_each_row_alone(
    key: tuple[str, torch.dtype], rows: list[Row], part: int, block: int
) -> None:
    plain, ours = MODELS[key]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(tree.PART, "cpu", part)
        patch.setitem(attention.BLOCK, "cpu", block)
        expected, expected_gradients = plainly(plain, rows)
        found, found_gradients = by_the_tree(ours, rows)
    assert (
        found.keys()
        == expected.keys()
        == {number for number, row in enumerate(rows) if targets(row)}
    )
    for number, logprobs in expected.items():
        close(found[number], logprobs, TOLERANCES[key])
    close(found_gradients, expected_gradients, TOLERANCES[key])


def test_without_gradients_it_is_one_table() -> None:
    plain, ours = MODELS["gpt2", torch.float64]
    table = logprobs_of(ours, SHARED_ANSWER)
    expected, _ = plainly(plain, SHARED_ANSWER)
    assert table.shape == (5, 4) and not table.requires_grad and table[4].tolist() == [0] * 4
    for number, logprobs in expected.items():
        assert table[number, : len(logprobs)].tolist() == pytest.approx(logprobs.tolist(), abs=1e-6)
        assert not table[number, len(logprobs) :].any()


def counted(run: Callable[[], object]) -> list[int]:
    """The tokens of each forward pass."""
    passes: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        forward = tree.forward_part
        patch.setattr(
            tree,
            "forward_part",
            lambda d, part, above: passes.append(len(part.ids)) or forward(d, part, above),
        )
        run()
    return passes


def episodes(tasks: int = 3, samples: int = 4) -> list[Row]:
    """Of two turns; half of the samples share their first answer."""
    rows = []
    for task in range(tasks):
        for sample in range(samples):
            prompt, first = [1] * 20 + [2 + task] * 4, [5, 6, 7, 8 + sample // 2]
            second = [9, 9, 10, 11, sample]
            rows.append(
                Row(prompt + first + second, [False] * 24 + [True] * 4 + [False] * 2 + [True] * 3)
            )
    return rows


def test_every_distinct_token_is_computed_once_with_gradients_and_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(tree.PART, "cpu", 16)
    _, ours = MODELS["gpt2", torch.float64]
    rows = episodes()
    distinct = len(Tree([row.ids[:-1] for row in rows]))  # nothing is predicted from a row's last
    assert distinct < sum(len(row.ids) for row in rows) / 3
    assert sum(counted(lambda: by_the_tree(ours, rows))) == distinct
    assert sum(counted(lambda: logprobs_of(ours, rows))) == distinct


def most_alive(model: Any, rows: list[Row]) -> int:
    """The largest number of tokens whose activations exist at a time: those that the first layer
    keeps for its backward pass.
    """
    alive = most = 0

    class Kept:
        def __init__(self, tensor: Tensor) -> None:
            nonlocal alive, most
            self.tensor, self.tokens = tensor, tensor.shape[-2]
            alive += self.tokens
            most = max(most, alive)

        def __del__(self) -> None:
            nonlocal alive
            alive -= self.tokens

    class Marked(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.kept = Kept(x)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, arriving: Tensor) -> Tensor:
            ctx.kept = None
            return arriving

    embedding = model.get_input_embeddings()
    handle = embedding.register_forward_hook(lambda _, __, out: Marked.apply(out))
    try:
        by_the_tree(model, rows)
    finally:
        handle.remove()
    assert alive == 0
    return most


@pytest.mark.proof
def test_activations_of_one_path_and_one_part_exist_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many tasks and samples there are."""
    monkeypatch.setitem(tree.PART, "cpu", 16)
    _, ours = MODELS["gpt2", torch.float64]
    few, many = most_alive(ours, episodes(2, 4)), most_alive(ours, episodes(8, 8))
    assert (
        few <= many <= 20 + 16 + 16
    )  # what all begin with, a task's top, the part that is being computed
    monkeypatch.setitem(tree.PART, "cpu", 10**6)
    assert most_alive(ours, episodes(8, 8)) > 3 * many


def test_nothing_is_computed_for_rows_without_a_learnt_token() -> None:
    _, ours = MODELS["gpt2", torch.float64]
    rows = [Row([1, 2, 3], [False] * 3), Row([4], [True])]
    assert counted(lambda: by_the_tree(ours, rows)) == []
    assert logprobs_of(ours, rows).shape == (2, 0)


def test_an_update_that_breaks_off_sends_nothing_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tree.PART, "cpu", 16)
    _, ours = MODELS["gpt2", torch.float64]
    with pytest.raises(KeyboardInterrupt):
        for _ in scored_parts(ours, episodes()):
            raise KeyboardInterrupt
    assert all(parameter.grad is None for parameter in ours.parameters())


def test_prompts_are_computed_once_for_generation() -> None:
    plain, ours = MODELS["gpt2", torch.float64]
    decoder = ours.get_decoder()
    prompts = [row.ids[:at] for row in episodes() for at in (24, 30)]
    with torch.inference_mode():
        made = counted(lambda: prefill(decoder, prompts))
        found = prefill(decoder, prompts)
        expected = [
            plain.get_decoder()(input_ids=torch.tensor([ids])).last_hidden_state[0, -1]
            for ids in prompts
        ]
    assert sum(made) == len(Tree(prompts)) == found.keys[0].shape[2]
    assert found.shared == 20 and found.lengths.tolist() == [24, 30] * 12
    assert found.own.shape == (24, 10) and found.real.sum(-1).tolist() == [4, 10] * 12
    close(found.last_hidden, torch.stack(expected), 1e-11)


def test_rows_beyond_the_attention_window_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tree.PART, "cpu", 4)
    sizes = SIZES | {"sliding_window": 20}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("mistral", **sizes)).eval()
    use_tree(model)
    fits = [
        Row([1] * 10 + [2 + fork] * 11, [False] + [True] * 20) for fork in range(3)
    ]  # the last token is not read
    assert logprobs_of(model, fits).shape == (3, 20)
    with pytest.raises(JobError, match="window of 20 tokens"):
        logprobs_of(model, [*fits, Row([1] * 22, [False] + [True] * 21)])


def test_a_model_that_gives_no_numbers_is_refused() -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **SIZES))
    model.model.layers[0].mlp.down_proj.weight.data.fill_(float("nan"))
    with pytest.raises(JobError, match="cannot be run with shared prompts"):
        use_tree(model)


def test_logits_are_there_for_some_tokens_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(losses.CHUNK, "cpu", 3 * 16)
    plain, ours = MODELS["gpt2", torch.float64]
    expected, _ = plainly(plain, episodes(1))
    found, _ = by_the_tree(ours, episodes(1))
    for number, logprobs in expected.items():
        close(found[number], logprobs, 1e-11)
