"""What is said of a server by the log-probabilities of one fixed text: the right weights, others,
or nothing that could be proved.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from workers.lib.weights_proof import Measured, Reference, WrongWeights, judge

IDS = list(range(40))
BASE = [-1.0 - 0.01 * (at % 7) for at in range(39)]
OURS = [value + 0.2 * math.sin(at) for at, value in enumerate(BASE)]
THEIRS = [value + 0.2 * math.cos(at) for at, value in enumerate(BASE)]
OTHER_MODEL = [value - 2.0 for value in BASE]
NAN, INF = float("nan"), float("inf")

REFERENCE = Reference(IDS, OURS, BASE)
OTHERS = {"theirs@1": Reference(IDS, THEIRS, BASE)}


def measured(logprobs: list[float], base: list[float] | None = None, **fields: Any) -> Measured:
    return Measured(
        "ready",
        **{"ids": IDS, "logprobs": logprobs, "base": BASE if base is None else base} | fields,
    )


def shifted(values: list[float], by: float) -> list[float]:
    return [value + by * (-1) ** at for at, value in enumerate(values)]


def judged(
    found: Measured, reference: Reference | None = REFERENCE, is_adapter: bool = True
) -> Any:
    return judge("ours@1", found, reference, OTHERS, is_adapter=is_adapter)


@pytest.mark.parametrize(
    ("found", "reference", "level"),
    [
        (measured(OURS), REFERENCE, "weights"),
        (
            measured(shifted(OURS, 0.02), shifted(BASE, 0.02)),
            REFERENCE,
            "weights",
        ),  # another server's arithmetic
        (measured(OURS), Reference(IDS, OURS, BASE, computed=False), "same as first served"),
        (measured(OURS), None, "moves its base"),
        (
            measured(OURS),
            Reference(IDS[:-1], OURS[:-1], BASE[:-1]),
            "moves its base",
        ),  # another tokenizer's ids
        (measured([], [], ids=[], why_not="it has no such route"), REFERENCE, "answers"),
        (measured(BASE, []), Reference(IDS, BASE), "weights"),  # a base itself
    ],
)
def test_what_a_server_proves(found: Measured, reference: Reference | None, level: str) -> None:
    result = judged(found, reference)
    assert result.level == level and result.sentence.endswith(".")
    assert level != "weights" or result.move is None or result.move == pytest.approx(1.0, abs=0.05)


def test_a_distance_is_said_as_people_read_it() -> None:
    assert (
        "weights, to within 0.0001 on average"
        in judged(measured(shifted(OURS, 7e-6), shifted(BASE, 7e-6))).sentence
    )
    assert (
        "weights, ±0.02 on average"
        in judged(measured(shifted(OURS, 0.02), shifted(BASE, 0.02))).sentence
    )


@pytest.mark.parametrize(
    ("found", "reference", "said"),
    [
        (measured(BASE), REFERENCE, "the base without an adapter"),
        (measured(BASE), None, "answers as its base does"),
        (measured(THEIRS), REFERENCE, "It (seems to serve|serves) theirs@1"),
        (measured(OTHER_MODEL, OTHER_MODEL), REFERENCE, "another base model"),
        (measured([value - 5 for value in OURS]), REFERENCE, "does not serve|other weights"),
        (measured(OTHER_MODEL, []), Reference(IDS, BASE), "other weights"),
    ],
)
def test_other_weights_are_found_out(
    found: Measured, reference: Reference | None, said: str
) -> None:
    with pytest.raises(WrongWeights, match=said):
        judged(found, reference)


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("side", ["adapter", "base", "both"])
def test_what_is_no_number_proves_nothing(bad: float, side: str) -> None:
    ours, base = (
        [bad, *values[1:]] if side in (name, "both") else values
        for name, values in (("adapter", OURS), ("base", BASE))
    )
    with pytest.raises(WrongWeights):
        judged(measured(ours, base))


@pytest.mark.parametrize("cut", [1, 20, 38])
@pytest.mark.parametrize("side", ["adapter", "base", "both"])
def test_fewer_numbers_than_the_text_has_prove_nothing(cut: int, side: str) -> None:
    ours, base = (
        values[:-cut] if side in (name, "both") else values
        for name, values in (("adapter", OURS), ("base", BASE))
    )
    with pytest.raises(WrongWeights):
        judged(measured(ours, base))


def test_adapters_that_the_text_cannot_tell_apart_are_named() -> None:
    twin = Reference(IDS, [value + 1e-6 for value in OURS], BASE)
    found = judge("ours@1", measured(OURS), REFERENCE, {"twin@1": twin}, is_adapter=True)
    assert found.level == "weights" and "does not tell it from twin@1" in found.sentence
    same = Reference(IDS, list(BASE), BASE)
    assert (
        "too little to be told from its base"
        in judge("flat@1", measured(BASE), same, {}, is_adapter=True).sentence
    )
