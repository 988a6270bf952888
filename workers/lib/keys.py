"""Keys for other servers. Specs contain the name of an environment variable, never its value.
Light: no torch.
"""

from __future__ import annotations

import os

from workers.lib.errors import SpecError


class RefusedKey(SpecError):
    """A key that cannot or may not be sent. The message says why, never including the key."""


def key_in(variable: str) -> str:
    """The key in an environment variable; "" if no variable is named. Raises RefusedKey."""
    if not variable:
        return ""
    key = os.environ.get(variable, "").strip()
    if not key:
        raise RefusedKey(
            f"The environment variable {variable}, which should hold the key, is not set."
        )
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise RefusedKey(f"The environment variable {variable} holds something that is not a key.")
    return key


def checked_key(
    variable: str, host: str, hosts: dict[str, str] | None, *, operator: bool = True
) -> str:
    """The key for a server; "" if no variable is named. Raises RefusedKey.

    `hosts` maps the variables that may be read to the hosts that their key may be sent to ("" is
    any); None if this process was only given variables that it may read. `operator`: whether an
    operator chose the server; otherwise a key without a fixed host is refused, since whoever can
    choose a server could obtain it.
    """
    if not variable or hosts is None:
        return key_in(variable)
    if variable not in hosts:
        allowed = ", ".join(sorted(hosts)) or "none"
        raise RefusedKey(
            f"The variable {variable} may not be read for this. Allowed (FLYWHEEL_OUTGOING_KEYS):"
            f" {allowed}."
        )
    only = hosts[variable]
    if only not in ("", host.lower()):
        raise RefusedKey(f"The key in {variable} may go to {only} only, not to {host}.")
    if not only and not operator:
        raise RefusedKey(
            f"The key in {variable} is bound to no host, so only an operator may name a server for"
            f" it. FLYWHEEL_OUTGOING_KEYS binds it: {variable}@{host}."
        )
    return key_in(variable)


def bearer(key: str) -> dict[str, str]:
    """The header with a key; {} without one."""
    return {"Authorization": f"Bearer {key}"} if key else {}


def refusal(key: str) -> str:
    """What HTTP 401 and 403 say about a request with this key."""
    return "refused the key" if key else "wants a key"


def hidden(text: str, key: str) -> str:
    """A server's text with our key removed, in case it repeats it: people and agents see the text,
    and samples store it.
    """
    return text.replace(key, "[key]") if key else text
