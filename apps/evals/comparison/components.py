"""The components of the reward, as measures."""

from __future__ import annotations

import msgspec
import numpy as np

from apps.evals.comparison.measures import REWARD, Measure
from apps.evals.comparison.tables import COMPONENTS, SEPARATOR, Tables

MOST = 12  # components shown


def components_of(tables: Tables) -> list[Measure]:
    """The most frequent ones; a sample without a component does not count for it, nor does a value
    that is not a number.
    """
    numbers: dict[
        str, int
    ] = {}  # by distinct text: there are far fewer than samples if components take few values
    places, codes = [], []
    for at, task, text in tables.texts(COMPONENTS):
        found = [numbers.setdefault(one, len(numbers)) for one in text.split(SEPARATOR)]
        codes += found
        places += [at * len(tables) + task] * len(found)
    values = _values([msgspec.json.decode(text) for text in numbers])
    per_text = np.bincount(codes, minlength=len(numbers)) if codes else np.zeros(0)
    counts = {name: int(per_text[~np.isnan(of)].sum()) for name, of in values.items()}
    chosen = sorted(values, key=lambda name: (-counts[name], name))[:MOST]
    shape, at = (len(tables.runs), len(tables)), np.array(places, dtype=int)
    means = {
        name: _means(at, values[name][codes], shape[0] * shape[1]).reshape(shape) for name in chosen
    }
    return [Measure(f"component:{name}", name, REWARD, 1, of) for name, of in means.items()]


def _values(texts: list[dict]) -> dict[str, np.ndarray]:
    """{component: [texts]}, NaN if a text lacks it; only components that are a number somewhere."""
    found: dict[str, np.ndarray] = {}
    for at, components in enumerate(texts):
        for name, value in components.items():
            if type(value) is float or type(value) is int:
                if name not in found:
                    found[name] = np.full(len(texts), np.nan)
                found[name][at] = value
    return found


def _means(places: np.ndarray, values: np.ndarray, size: int) -> np.ndarray:
    """[size]: the mean of the known values at each position; NaN if there are none."""
    known = ~np.isnan(values)
    places, values = places[known], values[known]
    counts = np.bincount(places, minlength=size)
    return np.divide(
        np.bincount(places, values, minlength=size),
        counts,
        out=np.full(size, np.nan),
        where=counts > 0,
    )
