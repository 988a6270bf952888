"""GET /livez: this process answers. GET /readyz: what the installation needs in order to work, by
part, from the declared conditions; 503 while a part is not well. What is wrong and keeps nobody
from working is listed as `warnings`. Neither needs a login, and neither names a project.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from django.http import HttpRequest, JsonResponse
from django.utils import timezone

from apps.core.watching.conditions import Checked, Condition, check_all, declared
from apps.core.watching.incidents import Memory, Wrong, with_rows

FRESH_S = 2.0  # however often it is asked


class Last:
    """What this process found last of some conditions."""

    def __init__(self, conditions: Callable[[], Iterable[Condition]]) -> None:
        self._conditions = conditions
        self._turn, self._memory = threading.Lock(), Memory()
        self._at = -FRESH_S
        self._found: tuple[list[Checked], list[Wrong]] = [], []

    def look(self) -> tuple[list[Checked], list[Wrong]]:
        with self._turn:
            if time.monotonic() - self._at >= FRESH_S:
                checked = check_all(self._conditions())
                wrongs = with_rows(self._memory.see(checked, timezone.now()))
                self._found, self._at = (checked, wrongs), time.monotonic()
            return self._found


ready = Last(lambda: [one for one in declared() if one.part])
everything = Last(declared)


def livez(request: HttpRequest) -> JsonResponse:
    return JsonResponse({"alive": True})


def readyz(request: HttpRequest) -> JsonResponse:
    """`?parts=database,schema` asks only for these: a load balancer that took every web process out
    because a model server is down would help nobody.
    """
    asked = [name for name in request.GET.get("parts", "").split(",") if name]
    checked, wrongs = ready.look() if asked else everything.look()
    names = list(dict.fromkeys(one.condition.part for one in checked if one.condition.part))
    if unknown := [name for name in asked if name not in names]:
        detail = f"There is no part {unknown[0]}. There are {', '.join(names)}."
        return JsonResponse({"detail": detail}, status=400)
    parts = {name: part_json(name, checked, wrongs) for name in asked or names}
    is_ready = all(part["state"] == "ok" for part in parts.values())
    answer = {"ready": is_ready, "parts": parts}
    if not asked:
        answer["warnings"] = [wrong_json(wrong) for wrong in wrongs if not wrong.condition.part]
    return JsonResponse(answer, status=200 if is_ready else 503)


def part_json(name: str, checked: Iterable[Checked], wrongs: Iterable[Wrong]) -> dict[str, Any]:
    found = [wrong_json(wrong) for wrong in wrongs if wrong.condition.part == name]
    if found:
        return {"state": "down", "wrong": found}
    unknown = [one.unknown for one in checked if one.condition.part == name and one.unknown]
    return {"state": "unknown", "why": unknown[0]} if unknown else {"state": "ok"}


def wrong_json(wrong: Wrong) -> dict[str, Any]:
    one = wrong.condition
    return {
        "condition": one.name,
        "says": f"{one.title}." if one.for_operators else wrong.says,
        "since": wrong.since.isoformat(timespec="seconds"),
        "todo": one.todo,
        "docs": one.docs,
    }
