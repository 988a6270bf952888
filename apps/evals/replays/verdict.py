"""What continuations say about the step that decided a failed run. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from apps.core.intervals import LEVEL, newcombe, wilson
from workers.lib.step_search import Tried, found


@dataclass(frozen=True)
class Value:
    """How often the run succeeds if it is resumed at a step. `low` and `high` are the 95%
    Wilson interval.
    """

    step: int
    successes: int
    n: int
    masked: int
    low: float
    high: float


@dataclass(frozen=True)
class Verdict:
    """`step` decided the run; `after` is the next step that was tried (None: the run's end). What
    was done at the step lowers the chance of success by `effect`, with an interval that is
    corrected for the number of steps tried. It is sure if the interval is above 0 and no step
    between the two could be meant.
    """

    step: int | None
    after: int | None = None
    effect: float = 0.0
    low: float = 0.0
    high: float = 0.0
    is_sure: bool = False
    text: str = ""


def values_of(steps: Sequence[int], tried: Mapping[int, Tried]) -> list[Value]:
    """Of all steps; those that were not tried have n = 0."""
    rows = [(step, tried.get(step, Tried())) for step in steps]
    return [
        Value(step, one.successes, one.n, one.masked, *wilson(one.successes, one.n))
        for step, one in rows
    ]


def verdict_of(
    steps: Sequence[int], tried: Mapping[int, Tried], *, ended: bool, differs: bool = False
) -> Verdict:
    """`steps` are those that could be tried. `ended`: the search found out what it wanted.
    `differs`: from the last of them on, the environment responds otherwise than in the run.
    """
    best = found(steps, tried)
    if best is None:
        return Verdict(None, text=_nothing(tried, ended))
    here, level = tried[best.step], 1 - (1 - LEVEL) / max(1, len(tried))
    if best.after is None:
        effect, (low, high) = here.share, wilson(here.successes, here.n, level)
        next_to = best.step == steps[-1] and not differs
    else:
        after = tried[best.after]
        effect = here.share - after.share
        low, high = newcombe((after.successes, after.n), (here.successes, here.n), level)
        between = steps[steps.index(best.step) + 1 : steps.index(best.after)]
        next_to = not between
    is_sure = ended and next_to and low > 0
    text = _sentence(best.step, best.after, tried)
    if not is_sure:
        text = f"{text} {_doubt(ended, next_to, differs and best.after is None)}"
    return Verdict(best.step, best.after, effect, low, high, is_sure, text)


def _sentence(step: int, after: int | None, tried: Mapping[int, Tried]) -> str:
    here = tried[step]
    succeed = f"{here.successes} of {here.n} continuations succeed"
    if after is None:
        return f"Resumed at the last step that can be tried, #{step}, {succeed}."
    then = tried[after]
    return f"Resumed at step #{step}, {succeed}; resumed at #{after}, {then.successes} of {then.n}."


def _doubt(ended: bool, next_to: bool, differs: bool) -> str:
    if not ended:
        return "Not certain: the search was stopped before it had tried enough."
    if differs:
        return (
            "Not certain: it may be a later step, which cannot be tried because the environment"
            " responds differently from the run there."
        )
    if not next_to:
        return "Not certain: continuations from the steps in between could not be scored."
    return "Not certain: the intervals overlap. Try more continuations for each step."


def _nothing(tried: Mapping[int, Tried], ended: bool) -> str:
    n = sum(one.n for one in tried.values())
    if n == 0:
        masked = sum(one.masked for one in tried.values())
        return f"No continuation could be scored ({masked} were tried)." if ended else ""
    return (
        f"None of {n} continuations succeeded, so they do not say which step it was. Choose a"
        " better model, try every step, or check that the task can be solved in this environment."
    )
