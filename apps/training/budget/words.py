"""An estimate as lines of text, for the command and for flows. Pure."""

from __future__ import annotations

from collections.abc import Callable

from apps.training.budget.estimate import Estimate
from apps.training.budget.numbers import Span
from workers.lib.memory import gigabytes


def seconds(value: float) -> str:
    return (
        f"{value:.0f} s"
        if value < 90
        else f"{value / 60:.1f} min"
        if value < 5400
        else f"{value / 3600:.1f} h"
    )


def span(found: Span, write: Callable[[float], str]) -> str:
    return (
        write(found.likely)
        if found.exact
        else f"{write(found.likely)} ({write(found.low)} to {write(found.high)})"
    )


def count(value: float) -> str:
    return f"{value:,.0f}"


def in_words(found: Estimate) -> str:
    """One line for each number that is known."""
    if found.problem:
        return found.problem
    lines = [f"{found.runs} runs, each:"] if found.runs > 1 else []
    if found.seconds:
        lines.append(f"time             {span(found.seconds, seconds)}")
    if found.memory:
        lines.append(
            f"peak memory      {span(found.memory, gigabytes)}, of {gigabytes(found.available)}"
        )
    if found.usd:
        lines.append(f"cost             {span(found.usd, lambda value: f'${value:,.4f}')}")
    if found.rollout_tokens:
        lines.append(f"rollout tokens   {span(found.rollout_tokens, count)}")
    if found.teacher_tokens:
        lines.append(f"teacher tokens   {span(found.teacher_tokens, count)}")
    if found.training_tokens and found.distinct_tokens:
        lines.append(
            f"training tokens  {span(found.distinct_tokens, count)} distinct,"
            f" {span(found.training_tokens, count)} in all"
        )
    for one in found.reduce:
        lines.append(
            f"reduce           {one.words}:"
            f" {gigabytes(one.memory)}{'' if one.same else ', which changes the run'}"
        )
    lines += [found.lengths] if found.lengths else []
    if not found.measured_at:
        lines.append(
            "Time and memory are unknown: this model has not been measured. Measure it on the New"
            " run page, or through the API."
        )
    return "\n".join(lines)
