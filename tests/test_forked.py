from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

from tests.forked import Child


def test_a_file_is_taken_when_the_last_test_of_the_one_before_has_run() -> None:
    events: list[str] = []
    files = deque([([0, 1], True), ([2], True), ([], False)])

    def run(item: Any, nextitem: Any) -> None:
        events.append(item.name)
        events.append("+" + "".join(nextitem.listchain()))

    hook = SimpleNamespace(pytest_runtest_protocol=run)
    child: Any = Child.__new__(Child)
    child.items, child.reports, child.gives_way = deque(), [], False
    child.session = SimpleNamespace(
        items=[
            SimpleNamespace(
                name=name, config=SimpleNamespace(hook=hook), listchain=lambda name=name: [name]
            )
            for name in ("a", "b", "c")
        ]
    )
    child.say = lambda kind, *values: events.append(kind)
    child.parent = SimpleNamespace(recv=lambda: files[0] if len(files) == 1 else files.popleft())

    child.run_items()

    assert " ".join(events) == "next a +b ended b next +c ended c next + ended next"
