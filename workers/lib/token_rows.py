"""Episodes as the tokens that were given and sampled, which is what training uses. Never tokenized
again from text. Light and pure.

Tokenizing a conversation again may give other tokens than the policy saw and wrote. So the ids are
those of the engine: a turn whose prompt begins with all ids so far continues the row; any other
turn begins a new row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from workers.lib.policies import Reply
from workers.lib.rollouts import Finished


@dataclass
class TokenRow:
    """One sequence. `learnt` [len(ids)] marks the tokens that the policy wrote, `logprobs`
    [len(ids)] are the sampler's (0 elsewhere).
    """

    ids: list[int] = field(default_factory=list)
    learnt: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def given(self, ids: Sequence[int]) -> None:
        """Append tokens without a loss: a prompt, an observation."""
        self._add(ids, False, [0.0] * len(ids))

    def sampled(self, ids: Sequence[int], logprobs: Sequence[float]) -> None:
        """Append tokens that the policy wrote."""
        self._add(ids, True, logprobs)

    def _add(self, ids: Sequence[int], learnt: bool, logprobs: Sequence[float]) -> None:
        self.ids.extend(ids)
        self.learnt.extend([learnt] * len(ids))
        self.logprobs.extend(logprobs)

    @property
    def start(self) -> int:
        """The position of the first token that the policy wrote, i.e. the length of the first
        prompt.
        """
        return self.learnt.index(True)

    @property
    def prompt(self) -> list[int]:
        return self.ids[: self.start]

    @property
    def completion(self) -> list[int]:
        """Everything after the first prompt, including later observations."""
        return self.ids[self.start :]


def rows_of(done: Finished) -> list[TokenRow]:
    """The rows of an episode: a single one if each turn's prompt begins with everything before it,
    else several. [] if nothing was sampled.
    """
    return rows_of_replies(done.replies)


def rows_of_replies(replies: Sequence[Reply]) -> list[TokenRow]:
    """Raises ValueError for an answer without token ids or log-probabilities."""
    rows: list[TokenRow] = []
    for turn, reply in enumerate(replies, 1):
        prompt, tokens = reply.prompt_token_ids, reply.token_ids
        if (
            len(reply.logprobs) != len(tokens)
            or (tokens and not prompt)
            or (reply.output_tokens and not tokens)
        ):
            raise ValueError(
                f"Turn {turn} has no token ids or log-probabilities: its engine does not give them."
            )
        if not tokens:
            continue
        if not rows or prompt[: len(rows[-1].ids)] != rows[-1].ids:
            rows.append(TokenRow())
        rows[-1].given(prompt[len(rows[-1].ids) :])
        rows[-1].sampled(tokens, reply.logprobs)
    return rows
