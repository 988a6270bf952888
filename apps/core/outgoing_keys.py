"""Which environment variables may be sent to other servers as a key, and to which: the setting
FLYWHEEL_OUTGOING_KEYS.

Users enter the name of a variable and the address of a server. Only the operator of this Flywheel
decides which variables may be read for that, so that nobody can have DATABASE_URL sent to their own
server.
"""

from __future__ import annotations

from django.conf import settings

from workers.lib.keys import checked_key


def key_hosts() -> dict[str, str]:
    """{variable: the host its key may go to, "" for any}, from the setting's “VARIABLE@host” and
    “VARIABLE”.
    """
    parts = (item.partition("@") for item in settings.FLYWHEEL_OUTGOING_KEYS)
    return {name: host.lower() for name, _, host in parts}


def key_variables() -> list[str]:
    """The environment variables whose values may be sent to some host."""
    return sorted(key_hosts())


def key_of(variable: str, host: str, *, operator: bool = True) -> str:
    """The key for a server, by the setting. Raises RefusedKey (workers.lib.keys.checked_key)."""
    return checked_key(variable, host, key_hosts(), operator=operator)
