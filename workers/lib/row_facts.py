"""What the rows of a run say about themselves, as metrics of the first step that the alarms read.
Pure.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from statistics import median
from typing import Any

import msgspec

from workers.lib.specs.kto import Labelled
from workers.lib.specs.rows import Pair


def pair_facts(rows: Sequence[Pair]) -> dict[str, float]:
    """`data/contradictory`: the share of pairs that are also there the other way round;
    `data/chosen_length`: how many times as long as the rejected answer the chosen one is.
    """
    if not rows:
        return {}
    sides = [(_asked(row), row.chosen.strip(), row.rejected.strip()) for row in rows]
    known = set(sides)
    against = sum((asked, rejected, chosen) in known for asked, chosen, rejected in sides)
    lengths = [len(chosen) / max(1, len(rejected)) for _, chosen, rejected in sides]
    return {
        "data/contradictory": against / len(rows),
        "data/chosen_length": median(lengths),
    }


def label_facts(rows: Sequence[Labelled]) -> dict[str, float]:
    """`data/contradictory`: the share of answers that are both good and bad; `data/lopsided`: how
    many there are on the larger side for each on the other.
    """
    if not rows:
        return {}
    labels = [(_asked(row), row.completion.strip(), row.good) for row in rows]
    known = set(labels)
    against = sum((asked, answer, not good) in known for asked, answer, good in labels)
    good = sum(row.good for row in rows)
    bad = len(rows) - good
    return {
        "data/contradictory": against / len(rows),
        "data/lopsided": max(good, bad) / max(1, min(good, bad)),
    }


def use_facts(rows: Sequence[Any], learned: int) -> dict[str, float]:
    """`data/uses`: how often each different row is learned from, in a run that learns from
    `learned` rows, repeated ones included.
    """
    different = {msgspec.json.encode(row, order="deterministic") for row in rows}
    return {"data/uses": learned / len(different)} if different else {}


def _asked(row: Pair | Labelled) -> str:
    return json.dumps([row.messages, row.tools], sort_keys=True)
