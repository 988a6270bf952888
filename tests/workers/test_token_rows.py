"""Rows of tokens: nothing that was sampled is lost, changed or learnt twice, however an episode's
turns came about.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.lib.policies import Reply
from workers.lib.rollouts import Finished
from workers.lib.token_rows import rows_of, rows_of_replies

STOP = 2
TOKENS = st.integers(3, 9)  # few, so that sequences begin alike by chance


@dataclass
class Invented:
    """An episode as a sampler saw it, and which of its turns continue the one before."""

    replies: list[Reply] = field(default_factory=list)
    joined: list[bool] = field(default_factory=list)


def reply(prompt: list[int], tokens: list[int], logprobs: list[float] | None = None) -> Reply:
    logprobs = [-float(1 + token) for token in tokens] if logprobs is None else logprobs
    return Reply(
        {"role": "assistant"},
        prompt_token_ids=prompt,
        token_ids=tokens,
        logprobs=logprobs,
        output_tokens=len(tokens),
        truncated=not tokens or tokens[-1] != STOP,
    )


@st.composite
def episodes(draw: st.DrawFn) -> Invented:
    """Turns that are cut off, that are a stop token alone or nothing at all; observations;
    templates that write earlier turns anew, which is also how calls that were parsed out of text
    come back."""
    made, so_far = Invented(), draw(st.lists(TOKENS, min_size=1, max_size=6))
    for _ in range(draw(st.integers(0, 6))):
        text = draw(st.lists(TOKENS, max_size=5))
        tokens = text + [STOP] * draw(st.booleans())
        made.replies.append(reply(list(so_far), tokens))
        kind = draw(st.sampled_from(["keeps", "drops", "changes", "shortens"]))
        so_far = so_far + tokens
        if kind == "drops" and tokens:  # as templates do with old thinking
            so_far = so_far[: -len(tokens)] + tokens[-1:]
        elif kind == "changes":
            at = draw(st.integers(0, len(so_far) - 1))
            so_far = [*so_far[:at], 10, *so_far[at + 1 :]]
        elif kind == "shortens":
            so_far = so_far[: draw(st.integers(1, len(so_far)))]
        so_far = so_far + draw(st.lists(TOKENS, max_size=4))
    return made


def finished(replies: list[Reply]) -> Finished:
    return Finished(
        SimpleNamespace(messages=[]), SimpleNamespace(masked=False), replies, "stop", 0.0
    )  # type: ignore[arg-type]


@given(episodes())
def test_every_sampled_token_is_learnt_once_with_the_prompt_it_was_sampled_from(
    made: Invented,
) -> None:
    rows = rows_of(finished(made.replies))
    left = iter([one for one in made.replies if one.token_ids])
    for row in rows:
        assert len(row.ids) == len(row.learnt) == len(row.logprobs)
        assert all(
            value == 0 for value, mine in zip(row.logprobs, row.learnt, strict=True) if not mine
        )
        at = 0
        while at < len(row.ids):
            turn = next(left)
            prompt, end = (
                len(turn.prompt_token_ids),
                len(turn.prompt_token_ids) + len(turn.token_ids),
            )
            assert (
                row.ids[:prompt] == turn.prompt_token_ids and row.ids[prompt:end] == turn.token_ids
            )
            assert row.logprobs[prompt:end] == turn.logprobs
            assert not any(row.learnt[at:prompt]) and all(row.learnt[prompt:end])
            at = end
        assert row.prompt + row.completion == row.ids and row.learnt[row.start]
    assert next(left, None) is None


@given(episodes())
def test_a_row_goes_on_wherever_it_can(made: Invented) -> None:
    rows = rows_of_replies(made.replies)
    turns = [one for one in made.replies if one.token_ids]
    breaks = sum(
        after.prompt_token_ids[: len(before.prompt_token_ids + before.token_ids)]
        != before.prompt_token_ids + before.token_ids
        for before, after in pairwise(turns)
    )
    assert len(rows) == (breaks + 1 if turns else 0)


def test_an_observation_between_two_turns_carries_no_loss() -> None:
    [row] = rows_of_replies(
        [reply([1, 4], [5, STOP], [-0.5, -0.1]), reply([1, 4, 5, STOP, 7, 7], [6], [-0.3])]
    )
    assert row.ids == [1, 4, 5, STOP, 7, 7, 6]
    assert row.learnt == [False, False, True, True, False, False, True]
    assert row.logprobs == [0, 0, -0.5, -0.1, 0, 0, -0.3]
    assert (row.prompt, row.completion) == ([1, 4], [5, STOP, 7, 7, 6])


def test_a_template_that_changes_an_earlier_turn_gives_a_row_for_each_turn() -> None:
    rows = rows_of_replies([reply([1, 4], [5, 6, STOP]), reply([1, 4, 6, STOP, 7], [8, STOP])])
    assert [(row.prompt, row.completion) for row in rows] == [
        ([1, 4], [5, 6, STOP]),
        ([1, 4, 6, STOP, 7], [8, STOP]),
    ]


def test_a_turn_of_no_tokens_is_passed_over() -> None:
    first = reply([1, 4], [5, STOP])
    [row] = rows_of_replies(
        [first, reply([1, 4, 5, STOP, 7], []), reply([1, 4, 5, STOP, 7, 8], [9])]
    )
    assert row.ids == [1, 4, 5, STOP, 7, 8, 9] and sum(row.learnt) == 3
    assert rows_of_replies([reply([1], [])]) == [] == rows_of_replies([])


@pytest.mark.parametrize(
    "changes", [{"logprobs": [-0.1]}, {"prompt_token_ids": []}, {"token_ids": [], "logprobs": []}]
)
def test_an_engine_that_gives_no_tokens_is_said_to(changes: dict) -> None:
    with pytest.raises(ValueError, match="Turn 2 has no token ids or log-probabilities"):
        rows_of_replies([reply([1], [STOP]), replace(reply([1, STOP], [5, STOP]), **changes)])
