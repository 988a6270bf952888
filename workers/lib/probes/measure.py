"""Summary statistics of outputs' rewards. Pure; quantiles with linear interpolation, population
variance.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from statistics import fmean, median, pvariance

from workers.lib.probes.types import SHOWN, Outcome, Speed, Spread


def spread(rewards: Sequence[float]) -> Spread:
    if not rewards:
        return Spread(0, None, None, None, None)
    return Spread(len(rewards), fmean(rewards), pvariance(rewards), min(rewards), max(rewards))


def speed(micros: Sequence[float]) -> Speed:
    if not micros:
        return Speed(0, None, None)
    return Speed(len(micros), median(micros), quantile(micros, 0.95))


def quantile(values: Sequence[float], share: float) -> float:
    """Interpolates linearly between the two nearest values. Needs at least one value."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low, high = math.floor(place), math.ceil(place)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def rewards_of(outcomes: Sequence[Outcome]) -> list[float]:
    """The finite rewards; masked outputs have none."""
    return [
        item.reward for item in outcomes if item.reward is not None and math.isfinite(item.reward)
    ]


def shown(messages: list[dict]) -> str:
    """An input for a report: at most SHOWN characters, without characters that a database cannot
    store.
    """
    plain = (
        len(messages) == 1
        and not messages[0].get("tool_calls")
        and isinstance(messages[0].get("content"), str)
    )
    text = messages[0]["content"] if plain else json.dumps(messages, ensure_ascii=False)
    cut = text if len(text) <= SHOWN else f"{text[: SHOWN - 20]}… ({len(text)} in all)"
    return cut[:SHOWN].encode("utf-8", "backslashreplace").decode().replace("\x00", "\\x00")[:SHOWN]
