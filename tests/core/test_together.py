from __future__ import annotations

import threading
from collections.abc import Sequence

from django.db import OperationalError

from apps.core.together import Together


class Store:
    """Stands still in its first call until `go` is set."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.entered, self.go = threading.Event(), threading.Event()
        self.bad: dict[str, Exception] = {}

    def __call__(self, items: Sequence[str]) -> None:
        self.calls.append(list(items))
        self.entered.set()
        self.go.wait(10)
        if errors := [self.bad[item] for item in items if item in self.bad]:
            raise errors[0]


def run(store: Store, *later: str) -> dict[str, Exception | None]:
    """`first` is under way while the others come; what each of them raised."""
    together, raised = Together(store), {}

    def do(item: str) -> None:
        try:
            together.do(item)
            raised[item] = None
        except Exception as error:
            raised[item] = error
        except SystemExit:  # of whoever is stopped while it works for all
            return

    threads = [threading.Thread(target=do, args=["first"])]
    threads[0].start()
    assert store.entered.wait(10)
    for count, item in enumerate(later, 1):
        threads.append(threading.Thread(target=do, args=[item]))
        threads[-1].start()
        while len(together._waiting) < count:
            pass
    store.go.set()
    for thread in threads:
        thread.join(10)
    return raised


def test_what_comes_meanwhile_is_done_with_one_call_in_its_order() -> None:
    store = Store()
    assert run(store, "a", "b", "c") == dict.fromkeys(["first", "a", "b", "c"])
    assert store.calls == [["first"], ["a", "b", "c"]]


def test_one_that_fails_fails_alone() -> None:
    store = Store()
    store.bad["b"] = ValueError("bad")
    raised = run(store, "a", "b", "c")
    assert raised.pop("b") is store.bad["b"]
    assert raised == dict.fromkeys(["first", "a", "c"])
    assert store.calls[1:] == [["a", "b", "c"], ["a"], ["b"], ["c"]]


def test_an_outage_is_everybodys_and_nothing_is_tried_again() -> None:
    store = Store()
    store.bad["b"] = OperationalError("the connection is closed")
    raised = run(store, "a", "b", "c")
    assert all(raised[item] is store.bad["b"] for item in "abc")
    assert store.calls[1:] == [["a", "b", "c"]]


def test_nobody_takes_what_was_interrupted_for_done() -> None:
    store = Store()
    store.bad["a"] = SystemExit()  # type: ignore[assignment]
    raised = run(store, "a", "b")
    assert [type(raised[item]) for item in "ab" if item in raised] == [OperationalError]
