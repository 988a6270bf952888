"""What layers tell and ask those above them, without knowing them.

What happens is an `Event`, what is asked a `Question`: Structs, defined next to the function
that publishes or asks them. Whoever has to act or knows an answer is a function marked `@on(…)`
(above its other decorators), in the module that knows the rule:

    @on(ProjectCreated)
    def add_first_rules(event: ProjectCreated) -> None: …

    @on(WhyNotDelete[EvalRun])
    def counts_on_holdout(question: WhyNotDelete[EvalRun]) -> str | None: …

Listeners run at once, in the sender's transaction. What one raises stops the sender, which is how
a listener forbids something. They run in the order of their names, and must not depend on each
other. `declares` of an AppConfig names the modules with listeners; they are loaded when Django is
ready.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar, get_args, get_origin

import msgspec

A = TypeVar("A")
F = TypeVar("F", bound=Callable[[Any], Any])


class Event(msgspec.Struct, frozen=True):
    """Something that has happened, or is about to."""

    @property
    def about(self) -> type | None:
        """What kind of object it concerns; `@on(Archived[Channel])` is called for channels only."""
        return None


class Question(Event, Generic[A]):
    """Something that other layers know. A listener that has no answer returns None."""


class Listener(NamedTuple):
    name: str
    call: Callable[[Any], Any]
    about: type | None = None  # None: any kind of object


LISTENERS: defaultdict[type[Event], list[Listener]] = defaultdict(list)


def on(what: Any) -> Callable[[F], F]:
    """Marks a function as a listener and leaves it as it is."""
    sent, (about, *_) = get_origin(what) or what, get_args(what) or (None,)

    def mark(function: F) -> F:
        name = f"{function.__module__}.{function.__qualname__}"
        LISTENERS[sent].append(Listener(name, function, about))
        LISTENERS[sent].sort(key=lambda listener: listener.name)
        return function

    return mark


def publish(event: Event) -> None:
    """Raises what a listener raises."""
    _call(event)


def ask(question: Question[A]) -> list[A]:
    """The answers of those that have one. Raises what a listener raises."""
    return [answer for answer in _call(question) if answer is not None]


def first(question: Question[A]) -> A | None:
    return next(iter(ask(question)), None)


def _call(event: Event) -> list[Any]:
    return [
        listener.call(event)
        for listener in LISTENERS[type(event)]
        if listener.about in (None, event.about)
    ]
