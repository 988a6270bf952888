"""A generated task, and word lists that the kinds share. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

LAST_LINE = "Reason step by step if you like, then put only the answer on the last line."
NAMES = (
    "Ada",
    "Ben",
    "Cleo",
    "Dan",
    "Eve",
    "Finn",
    "Gus",
    "Hana",
    "Ivo",
    "June",
    "Kai",
    "Lou",
    "Mia",
    "Nils",
    "Ola",
    "Pia",
    "Quinn",
    "Rosa",
    "Sven",
    "Tara",
)
TOWNS = (
    "Lisbon",
    "Oslo",
    "Vienna",
    "Dublin",
    "Athens",
    "Prague",
    "Tallinn",
    "Bern",
    "Warsaw",
    "Riga",
    "Madrid",
    "Paris",
)
GOODS = (
    "lamps",
    "chairs",
    "kettles",
    "maps",
    "clocks",
    "ropes",
    "drums",
    "mirrors",
    "tents",
    "bowls",
    "pens",
    "shelves",
)
WORDS = (
    "anchor",
    "basket",
    "candle",
    "desert",
    "engine",
    "forest",
    "garden",
    "harbour",
    "island",
    "jacket",
    "kitchen",
    "ladder",
    "market",
    "needle",
    "orchard",
    "pepper",
    "quarry",
    "ribbon",
    "saddle",
    "tunnel",
    "umbrella",
    "valley",
    "window",
    "yellow",
    "zipper",
    "bridge",
    "cotton",
    "dragon",
    "feather",
    "glacier",
    "hammer",
    "insect",
    "jungle",
    "kernel",
    "lantern",
    "mountain",
)


@dataclass(frozen=True)
class Made:
    """`right` is an answer that passes; `wrong` looks similar and does not pass."""

    request: str
    expected: dict
    right: str
    wrong: str
    tools: list[dict] = field(default_factory=list)


def number(request: str, value: int) -> Made:
    """A task whose answer is a whole number on the last line, with or without thousands
    separators.
    """
    forms = [str(value)] if abs(value) < 1000 else [str(value), f"{value:,}"]
    return Made(
        f"{request} {LAST_LINE}",
        {"answer": forms},
        f"It follows that\n{value}",
        f"It follows that\n{value + 1}",
    )
