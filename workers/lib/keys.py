"""Keys for other servers. Specs hold the name of an environment variable, never what stands in it. Light: no torch."""

from __future__ import annotations

import os

from workers.lib.spec import SpecError


class RefusedKey(SpecError):
    """A key that cannot or may not be sent; says why, never with the key in it."""


def key_in(variable: str) -> str:
    """The key in an environment variable; "" where no variable is named. Raises RefusedKey."""
    if not variable:
        return ""
    key = os.environ.get(variable, "").strip()
    if not key:
        raise RefusedKey(f"The environment variable {variable}, which should hold the key, is not set.")
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise RefusedKey(f"The environment variable {variable} holds something that is no key.")
    return key


def bearer(key: str) -> dict[str, str]:
    """The header that carries a key; none without one."""
    return {"Authorization": f"Bearer {key}"} if key else {}


def hidden(text: str, key: str) -> str:
    """What a server said without our key, should it say it: people and agents see it, and samples keep it."""
    return text.replace(key, "[key]") if key else text
