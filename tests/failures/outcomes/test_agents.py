"""Whose runs a model learned from, and which runs it is used for."""

from __future__ import annotations

import pytest

from apps.failures.outcomes.agents import FEWEST, Agents, Kind


def kind(name: str = "", *tools: str) -> Kind:
    return Kind(name, frozenset(tools))


@pytest.mark.parametrize(
    ("a", "b", "like"),
    [
        (kind("desk", "a"), kind("desk", "x", "y"), True),
        (kind("", "a", "b", "c"), kind("", "a", "b", "d"), True),
        (kind("", "a", "b", "c", "d", "e"), kind("other", "a"), True),
        (kind("", "a", "b", "c"), kind("", "c", "d", "e"), False),
        (kind("desk", "a"), kind("shop", "x"), False),
        (kind(), kind(), True),
        (kind("desk"), kind(), True),
        (kind("desk"), kind("shop"), False),
        (kind(), kind("", "a"), False),
    ],
)
def test_kinds_are_alike_by_name_or_by_their_tools(a: Kind, b: Kind, like: bool) -> None:
    assert a.is_like(b) is b.is_like(a) is like


def test_a_model_is_for_agents_with_enough_decided_runs() -> None:
    few = [kind("desk", "a")] * (FEWEST - 1)
    assert not Agents.of(few).include(kind("", "a"))
    assert Agents.of([*few, kind("", "a", "b")]).include(kind("", "a"))
    assert not Agents.of(few * 10).include(kind("shop", "x"))


def test_weights_that_learned_from_nobody_are_for_everybody() -> None:
    assert Agents().include(kind("shop", "x"))


def test_they_are_stored_as_json() -> None:
    agents = Agents.of([kind("desk", "b", "a")] * 3 + [kind("", "x")])
    assert Agents.from_json(agents.as_json()) == agents
