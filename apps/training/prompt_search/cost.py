"""The cost of a prompt search, before it is started. Pure: no Django."""

from __future__ import annotations

from dataclasses import dataclass

from workers.lib.prices import PER_MILLION, Price

RECORD_TOKENS = 800  # upper estimate of the tokens of one failure as shown to the reflecting model
PROPOSAL_TOKENS = 800  # upper estimate of the tokens of a proposal
PROPOSALS, MINIBATCH = 20, 3  # defaults of a search


@dataclass(frozen=True)
class Size:
    """Tasks, samples per task, maximum number of proposals, training tasks per proposal."""

    validation: int
    samples: int = 1
    proposals: int = PROPOSALS
    minibatch: int = MINIBATCH

    @property
    def first_calls(self) -> int:
        """Samples until one proposal has been tried: the start prompt on validation, then the
        parent and the child on training tasks.
        """
        return self.samples * (self.validation + 2 * self.minibatch)

    @property
    def calls(self) -> int:
        """Maximum number of samples: every proposal is kept, and so is scored on all of
        validation.
        """
        return self.samples * (
            self.validation + self.proposals * (2 * self.minibatch + self.validation)
        )


@dataclass(frozen=True)
class Cost:
    """`usd` is None if a price is unknown."""

    calls: int
    tokens: int
    usd: float | None


def expected(
    size: Size,
    *,
    tokens: tuple[float, float],
    price: Price | None,
    reflecting: Price | None = None,
    most_calls: int | None = None,
) -> Cost:
    """Upper bound: tasks × samples × candidates × price. `tokens` per prompt and per answer of the
    agent, which is free in process.
    """
    calls = min(size.calls, most_calls or size.calls)
    asked, answered = (
        size.proposals * size.minibatch * RECORD_TOKENS,
        size.proposals * PROPOSAL_TOKENS,
    )
    usd = None
    if price is not None and reflecting is not None:
        agent = calls * (tokens[0] * price.input + tokens[1] * price.output)
        usd = (agent + asked * reflecting.input + answered * reflecting.output) / PER_MILLION
    return Cost(calls, round(calls * sum(tokens)) + asked + answered, usd)
