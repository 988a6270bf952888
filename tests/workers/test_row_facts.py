"""What rows say about themselves before the first step."""

from __future__ import annotations

import pytest

from workers.lib.row_facts import label_facts, pair_facts, use_facts
from workers.lib.specs.kto import Labelled
from workers.lib.specs.rows import Pair

ASKED = [{"role": "user", "content": "Ist der Auftrag fertig?"}]
OTHER = [{"role": "user", "content": "Und dieser?"}]


@pytest.mark.parametrize(
    ("rows", "against", "length"),
    [
        ([Pair(messages=ASKED, chosen="Ja.", rejected="Nein.")], 0, 0.6),
        (
            [
                Pair(messages=ASKED, chosen="Ja.", rejected="Nein"),
                Pair(messages=ASKED, chosen="Nein", rejected=" Ja."),
            ],
            1,
            (3 / 4 + 4 / 3) / 2,
        ),
        (
            [
                Pair(messages=ASKED, chosen="Ja.", rejected="Nee"),
                Pair(messages=OTHER, chosen="Nee", rejected="Ja."),
            ],
            0,
            1,
        ),
        ([Pair(messages=ASKED, chosen="Ja" * 10, rejected="Ja")], 0, 10),
    ],
)
def test_pairs(rows: list[Pair], against: float, length: float) -> None:
    facts = {"data/contradictory": against, "data/chosen_length": pytest.approx(length)}
    assert pair_facts(rows) == facts


def test_how_often_each_different_row_is_used() -> None:
    pairs = [Pair(messages=ASKED, chosen="Ja.", rejected=f"Nein {at % 2}.") for at in range(6)]
    assert use_facts(pairs, 40 * 8) == {"data/uses": 160}
    assert use_facts([{"a": 1, "b": 2}, {"b": 2, "a": 1}], 4) == {"data/uses": 4}
    assert use_facts([], 4) == {}


def test_labels() -> None:
    good = [Labelled(messages=ASKED, completion=f"Ja {at}", good=True) for at in range(3)]
    bad = Labelled(messages=ASKED, completion="Ja 0 ", good=False)
    facts = label_facts([*good, bad])
    assert facts == {"data/contradictory": 0.5, "data/lopsided": 3.0}
    assert label_facts([]) == pair_facts([]) == {}
