"""What PostgreSQL and UTF-8 cannot hold: NUL and halves of surrogate pairs. Only the standard
library.

Text that somebody types in is refused (apps.core.storable); what a machine says is kept without
them.
"""

from __future__ import annotations

import re
from typing import Any

REPLACEMENT = "\ufffd"
UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def is_storable(text: str) -> bool:
    if "\x00" in text:
        return False
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def storable(text: str, instead: str = REPLACEMENT) -> str:
    """The text with `instead` for each character that cannot be stored."""
    return text if is_storable(text) else UNSTORABLE.sub(instead, text)


def storable_json(value: Any) -> Any:
    """A JSON value with all its texts and names `storable`."""
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, dict):
        return {storable(name): storable_json(item) for name, item in value.items()}
    if isinstance(value, list):
        return [storable_json(item) for item in value]
    return value
