"""Which environment variables may be sent to other servers as a key, and to which: the setting FLYWHEEL_OUTGOING_KEYS.

People type the name of a variable and the address of a server. Only whoever runs this Flywheel says which variables may be
read for that, so that nobody has DATABASE_URL sent to a server of their own.
"""

from __future__ import annotations

from django.conf import settings

from workers.lib.keys import RefusedKey, key_in


def key_hosts() -> dict[str, str]:
    """{variable: the host its key may go to, "" for any}, from the setting's “VARIABLE@host” and “VARIABLE”."""
    parts = (item.partition("@") for item in settings.FLYWHEEL_OUTGOING_KEYS)
    return {name: host.lower() for name, _, host in parts}


def key_of(variable: str, host: str, hosts: dict[str, str] | None = None, *, admin: bool = True) -> str:
    """The key for a server; "" where no variable is named. Raises RefusedKey.

    `hosts`: what `key_hosts` said, for callers that read no setting. `admin`: whether an admin chose the server; a key
    that may go anywhere would be anybody's who may choose.
    """
    if not variable:
        return ""
    hosts = key_hosts() if hosts is None else hosts
    if variable not in hosts:
        allowed = ", ".join(sorted(hosts)) or "none"
        raise RefusedKey(
            f"The variable {variable} may not be read for this. Allowed (FLYWHEEL_OUTGOING_KEYS): {allowed}."
        )
    only = hosts[variable]
    if only not in ("", host.lower()):
        raise RefusedKey(f"The key in {variable} may go to {only} only, not to {host}.")
    if not only and not admin:
        raise RefusedKey(
            f"The key in {variable} is bound to no host, so only an admin may name a server for it. "
            f"FLYWHEEL_OUTGOING_KEYS binds it: {variable}@{host}."
        )
    return key_in(variable)
