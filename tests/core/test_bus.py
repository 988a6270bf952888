"""Events and questions: who is called, in which order, and that nobody is missing."""

from __future__ import annotations

from collections import defaultdict
from importlib import import_module
from types import NoneType
from typing import Any, Generic, TypeVar, get_args, get_type_hints

import pytest

from apps.core import bus
from apps.core.bus import Event, Listener, Question, ask, first, on, publish

M = TypeVar("M")


class Moved(Event, Generic[M]):
    row: M

    @property
    def about(self) -> type:
        return type(self.row)


class HowMany(Question[int]):
    limit: int


@pytest.fixture(autouse=True)
def listeners(monkeypatch: pytest.MonkeyPatch) -> dict[Any, list[Listener]]:
    """Those of these events go with the test."""
    monkeypatch.setattr(bus, "LISTENERS", defaultdict(list, bus.LISTENERS))
    return bus.LISTENERS


def test_an_event_reaches_each_listener_in_the_order_of_names() -> None:
    heard = []

    @on(Moved)
    def second(event: Moved) -> None:
        heard.append(("second", event.row))

    @on(Moved)
    def first_of_all(event: Moved) -> None:
        heard.append(("first", event.row))

    assert publish(Moved(3)) is None
    assert heard == [("first", 3), ("second", 3)]


def test_a_listener_may_choose_what_the_event_is_about() -> None:
    heard = []

    @on(Moved[str])
    def of_texts(event: Moved[str]) -> None:
        heard.append(event.row)

    publish(Moved(3))
    publish(Moved("three"))
    assert heard == ["three"]


def test_what_a_listener_raises_stops_the_sender_and_those_after_it() -> None:
    heard = []

    @on(Moved)
    def forbids(event: Moved) -> None:
        raise PermissionError

    @on(Moved)
    def later(event: Moved) -> None:
        heard.append(event)

    with pytest.raises(PermissionError):
        publish(Moved(3))
    assert not heard


def test_a_question_collects_the_answers_of_those_that_have_one() -> None:
    assert ask(HowMany(5)) == [] and first(HowMany(5)) is None

    @on(HowMany)
    def four(question: HowMany) -> int | None:
        return 4 if question.limit > 4 else None

    @on(HowMany)
    def none_at_all(question: HowMany) -> int:
        return 0

    assert ask(HowMany(5)) == [4, 0] and first(HowMany(5)) == 4
    assert ask(HowMany(4)) == [0]


def subclasses(kind: type[Event]) -> set[type[Event]]:
    found = {kind}.union(*(subclasses(one) for one in kind.__subclasses__()))
    return {
        one
        for one in found
        if one.__module__.startswith("apps.") and one.__module__ != "apps.core.bus"
    }


EVENTS = sorted(
    (one for one in subclasses(Event) if not one.__name__.startswith("_")),
    key=lambda one: one.__qualname__,
)


@pytest.mark.parametrize("event", EVENTS, ids=lambda one: one.__name__)
def test_somebody_listens_and_declares_what_it_takes_and_gives(event: type[Event]) -> None:
    assert bus.LISTENERS[event], "nobody listens"
    answers = [
        get_args(base)[0]
        for one in event.__mro__
        for base in getattr(one, "__orig_bases__", ())
        if issubclass(event, Question) and getattr(base, "__origin__", None) is Question
    ]
    for listener in bus.LISTENERS[event]:
        module, name = listener.name.rsplit(".", 1)
        assert getattr(import_module(module), name) is listener.call, f"@on is not above {name}"
        hints = get_type_hints(listener.call)
        (takes,) = (hint for argument, hint in hints.items() if argument != "return")
        assert takes == (event[listener.about] if listener.about else event), listener.name
        assert answers or hints["return"] is NoneType, f"{listener.name} answers an event"
