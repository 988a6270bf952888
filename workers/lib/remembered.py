"""Results that are kept by the text they were made of, within a bound on how much text: a number of
entries is no bound where a text may be a word or a book.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

T = TypeVar("T")
PART = 8  # a text of more than this part of the whole is not kept: it would displace the others


def remembered(characters: int) -> Callable[[Callable[[str], T]], Callable[[str], T]]:
    """Of a function of a text: the results of the texts that were asked for last, which have so
    many characters together. From any number of threads.
    """

    def decorate(function: Callable[[str], T]) -> Callable[[str], T]:
        kept: OrderedDict[str, T] = OrderedDict()
        lock, length = threading.Lock(), 0

        @wraps(function)
        def result(text: str) -> Any:
            nonlocal length
            with lock:
                if text in kept:
                    kept.move_to_end(text)
                    return kept[text]
            made = function(text)
            if len(text) * PART > characters:
                return made
            with lock:
                if text not in kept:
                    kept[text] = made
                    length += len(text)
                while length > characters:
                    length -= len(kept.popitem(last=False)[0])
            return made

        result.kept = kept  # type: ignore[attr-defined]
        return result

    return decorate
