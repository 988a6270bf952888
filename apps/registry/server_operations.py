"""What is done with a server that is there, by page and by the API."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from msgspec import Meta, Struct, field

from apps.core.models import JobState, Role
from apps.core.openapi import LINE
from apps.core.operations import Page, Rest, Written, choice_of, operation
from apps.registry import managed, schema, servers
from apps.registry.models import Server, ServerProbe
from workers.lib.typed import FormError, plain

SERVER = Written(schema.SERVER, lambda request, server: schema.server_json(server))


class Probing(Struct):
    """A probe that was queued, or is under way."""

    pk: UUID = field(name="id")
    state: choice_of(JobState)  # type: ignore[valid-type]


@operation(
    "servers_read",
    rest=Rest("GET", "servers/<slug:name>/", "server"),
    gives=SERVER,
)
def read(*, server: Server) -> None:
    """One server, with its health and what the last probe found out."""


@operation(
    "servers_edit",
    rest=Rest("PATCH", "servers/<slug:name>/", "server"),
    gives=SERVER,
    role=Role.OPERATOR,
    says={"server.edited": "edited the server {name}[: {changed}]"},
)
def edit(*, server: Server, by: Any, changes: schema.ServerChanges) -> Server:
    """Changes the fields that are sent. Address and kind stay where model versions use the server.

    Raises ServerError, and FormError for a field that the server's kind does not have.
    """
    fields = plain(changes)
    if server.is_managed:
        return managed.edit_managed(
            server=server,
            fields=schema.managed_fields(fields, dict(fields), server.project),
            by=by,
        )
    if "managed" in fields:
        raise FormError("managed", "only applies to managed servers; this one is run externally")
    return servers.edit_server(server=server, fields=fields, by=by)


@operation(
    "servers_remove",
    rest=Rest("DELETE", "servers/<slug:name>/", "server"),
    page=Page(
        "servers/<slug:name>/remove/",
        "server_remove",
        then="registry:servers",
        done="{target} is removed.",
    ),
    role=Role.OPERATOR,
    says={"server.removed": "removed the server {name}[ at {base_url}]"},
)
def remove(*, server: Server, by: Any) -> None:
    """Only where no model version uses it; else 409 says which do."""
    servers.remove_server(server=server, by=by)


@operation(
    "servers_probe",
    rest=Rest("POST", "servers/<slug:name>/probe/", "server_probe", 202),
    page=Page("servers/<slug:name>/probe/", "server_probe"),
    gives=Probing,
    role=Role.OPERATOR,
)
def probe(
    *, server: Server, by: Any, model: Annotated[str, Meta(max_length=200, pattern=LINE)] = ""
) -> ServerProbe:
    """Finds out, in the background, what the server can do; with the model named, else one that is
    registered or listed. A probe that is under way is not started twice.
    """
    return servers.submit_probe(server=server, by=by, model=model.strip())


@operation(
    "servers_start",
    rest=Rest("POST", "servers/<slug:name>/start/", "server_start", 202),
    page=Page("servers/<slug:name>/start/", "server_start"),
    gives=SERVER,
    role=Role.OPERATOR,
)
def start(*, server: Server, by: Any) -> None:
    """Starts a managed server; a running one is left unchanged."""
    managed.start(server=server, by=by)


@operation(
    "servers_stop",
    rest=Rest("POST", "servers/<slug:name>/stop/", "server_stop", 202),
    page=Page(
        "servers/<slug:name>/stop/",
        "server_stop",
        done=lambda target, returned: "" if returned else f"{target} is not running.",
    ),
    gives=SERVER,
    role=Role.OPERATOR,
)
def stop(*, server: Server, by: Any) -> bool:
    """Stops a managed server. Jobs that use it fail."""
    return managed.stop(server=server, by=by)
