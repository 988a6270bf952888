"""External inference servers: adding, editing and removing them, their health, and their
capabilities.

Health is refreshed periodically and before an evaluation calls a server; a page never waits for
one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit
from uuid import UUID

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import ProtectedError
from django.urls import reverse
from django.utils import timezone
from django.utils.text import slugify
from httpx2 import URL
from msgspec import Meta, Struct, field

from apps.core import jobs, outbox
from apps.core.actions import audit
from apps.core.errors import Rejected
from apps.core.models import JobState, Project, Role
from apps.core.openapi import LINE
from apps.core.operations import Page, Rest, Written, choice_of, operation
from apps.core.outgoing_keys import key_hosts, key_of
from apps.core.runner import job_fields
from apps.notifications.actions import notify
from apps.notifications.catalogue import Topic
from apps.registry import schema
from apps.registry.models import Dialect, Health, ModelVersion, Server, ServerProbe
from apps.webhooks.actions import announce
from apps.webhooks.models import Event
from workers.lib.addresses import PrivateNetworks
from workers.lib.keys import RefusedKey
from workers.lib.outgoing import RefusedAddress, check_base_url
from workers.lib.serving import Address, Listing, list_models
from workers.lib.specs.check_server import CheckServer
from workers.lib.specs.engines import ServerAddress

MOST = 50  # servers per project: the health of each is checked every few minutes
RESERVED = ("auto", "transformers")
PROBE_S = 420.0
FIXED = ("base_url", "kind")  # a registered model version is identified by them
RESET: dict[str, Any] = {
    "health": Health.UNCHECKED,
    "health_detail": "",
    "checked_at": None,
    "served": [],
    "capabilities": {},
    "probed_model": "",
    "probed_at": None,
}


SERVER = Written(schema.SERVER, lambda request, server: schema.server_json(server))


class Probing(Struct):
    """A probe that was queued, or is under way."""

    pk: UUID = field(name="id")
    state: choice_of(JobState)  # type: ignore[valid-type]


class ServerError(Rejected):
    """An operation that is not allowed on a server. The message is a sentence for the page; `field`
    is the field that caused it.
    """


def check_address(base_url: str, key_variable: str, *, operator: bool = True) -> str:
    """The address as stored. Raises ServerError if this installation may not call it or send it the
    key.
    """
    url = _base_url(base_url)
    try:
        key_of(key_variable, url.host, operator=operator)
    except RefusedKey as error:
        raise ServerError(str(error), "key_variable") from error
    return str(url)


def stored_address(base_url: str) -> str:
    """The spelling in which an address is stored and compared. Raises ServerError."""
    return str(_base_url(base_url))


def _base_url(text: str) -> URL:
    try:
        return check_base_url(text, allow_private=settings.FLYWHEEL_ALLOW_PRIVATE_URLS)
    except RefusedAddress as error:
        raise ServerError(str(error), "base_url") from error


A = TypeVar("A", bound=ServerAddress)


def address_spec(form: type[A], base_url: str, key_variable: str, **more: Any) -> A:
    """A server in a job's spec; `allow_private` is the installation's unless given."""
    allow_private = more.pop("allow_private", settings.FLYWHEEL_ALLOW_PRIVATE_URLS)
    return form(base_url=base_url, api_key_env=key_variable, allow_private=allow_private, **more)


@operation(
    "servers_read",
    rest=Rest("GET", "servers/<slug:name>/", "server"),
    gives=SERVER,
)
def read_server(*, server: Server) -> None:
    """One server, with its health and what the last probe found out."""


@transaction.atomic
def add_server(
    *, project: Project, fields: Mapping[str, Any], by: Any, operator: bool = False
) -> Server:
    """`fields`: name, kind, base_url, key_variable, dialect, adapters_at, prices. `operator`:
    whether an operator chose the address (`outgoing_keys.key_of`). Raises ServerError."""
    base_url = check_address(fields["base_url"], fields.get("key_variable", ""), operator=operator)
    server = insert(Server(project=project, created_by=by, **dict(fields) | {"base_url": base_url}))
    audit(
        "server.added", project=project, by=by, target=server, name=server.name, base_url=base_url
    )
    transaction.on_commit(lambda: submit_probe(server=server, by=by))
    return server


def insert(server: Server) -> Server:
    """Insert the server in the caller's transaction. Raises ServerError if the project has too
    many, or its name is taken.
    """
    project = Project.objects.select_for_update().get(pk=server.project_id)
    if project.servers.count() >= MOST:
        raise ServerError(f"{project} has {MOST} servers, which is the most. Remove one first.")
    return save(server)


@transaction.atomic
def edit_server(
    *, server: Server, fields: Mapping[str, Any], by: Any, operator: bool = False
) -> Server:
    """Address and kind are fixed while model versions use the server. A new address or key discards
    the probe's results. Raises ServerError."""
    row = Server.objects.select_for_update().get(pk=server.pk)
    fields = dict(fields)
    before = {name: getattr(row, name) for name in ("base_url", "key_variable")}
    if fields.keys() & before.keys():
        after = {name: fields.get(name, value) for name, value in before.items()}
        fields["base_url"] = check_address(**after, operator=operator or after == before)
    changed = {name: value for name, value in fields.items() if getattr(row, name) != value}
    if (fixed := [name for name in FIXED if name in changed]) and (uses := uses_of(row)):
        raise ServerError(
            f"{row} is used by {uses}, so its address and kind cannot change. Add another server"
            " instead.",
            fixed[0],
        )
    for name, value in changed.items():
        setattr(row, name, value)
    moved = bool(changed.keys() & {"base_url", "kind", "key_variable"})
    for name, value in RESET.items() if moved else ():
        setattr(row, name, value)
    save(row)
    audit(
        "server.edited",
        project=row.project,
        by=by,
        target=row,
        name=row.name,
        changed=sorted(changed),
    )
    if moved:
        transaction.on_commit(lambda: submit_probe(server=row, by=by))
    return row


def save(server: Server) -> Server:
    """Raises ServerError if its name or address is taken."""
    if server.name in RESERVED:
        raise ServerError(
            f"“{server.name}” is a reserved engine name; choose another name for the server.",
            "name",
        )
    try:
        with transaction.atomic():
            server.save()
    except IntegrityError as error:
        if "one_server_per_address" in str(error):
            same = {
                name: getattr(server, name)
                for name in ("project", "base_url", "key_variable", "dialect")
            }
            other = Server.objects.filter(**same).exclude(pk=server.pk).first()
            raise ServerError(
                f"The server “{other}” already has this address, key variable and dialect. Change"
                " one of them.",
                "base_url",
            ) from error
        raise ServerError(f"A server named “{server.name}” already exists.", "name") from error
    return server


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
@transaction.atomic
def remove_server(*, server: Server, by: Any) -> None:
    """Only where no model version uses it; else 409 says which do.

    Raises ServerError if something uses it, and for a managed one that is running.
    """
    name, pk = server.name, server.pk
    if server.runs.active().exists():
        raise ServerError(f"{name} is running; stop it first.")
    try:
        with transaction.atomic():
            server.delete()
    except ProtectedError as error:
        uses = uses_of(Server.objects.get(pk=pk)) or ", ".join(
            sorted(map(str, error.protected_objects))
        )
        raise ServerError(f"{name} is used by {uses}, so it cannot be removed.") from error
    audit("server.removed", project=server.project, by=by, name=name, base_url=server.base_url)


def uses_of(server: Server) -> str:
    """What uses the server, as text; "" if nothing does."""
    names = [str(version) for version in server.model_versions.order_by("pk")[:4]]
    more = server.model_versions.count() - 3
    return ", ".join(names[:3]) + (f" and {more} more" if more > 0 else "")


# Health


def may_be_private(server: Server) -> PrivateNetworks:
    """Where inside this network its address may be: nobody entered the address of a managed
    server.
    """
    return server.is_managed or settings.FLYWHEEL_ALLOW_PRIVATE_URLS


def address_of(server: Server) -> Address:
    return Address(server.base_url, server.key_variable, may_be_private(server), key_hosts())


def refresh_health(server: Server) -> Server:
    """Ask the server for its list of models, within 10 s. The result is dropped if the address has
    changed meanwhile.
    """
    if server.base_url:
        _store(server, list_models(address_of(server)))
        server.refresh_from_db()
    return server


def refresh_soon(pk: int) -> None:
    """Have a worker check a server's health. A message that is lost is made good by the periodic
    check.
    """
    outbox.post("registry.check_server", pk, expires_s=200)


@transaction.atomic
def _store(server: Server, listing: Listing, **more: Any) -> None:
    """A server that is down keeps its last list of models."""
    fields = {
        "health": listing.health,
        "health_detail": listing.sentence[:500],
        "checked_at": timezone.now(),
        **more,
    }
    if listing.health != Health.DOWN:
        fields["served"] = listing.models
    same = Server.objects.filter(
        pk=server.pk, base_url=server.base_url, key_variable=server.key_variable
    )
    was = same.select_for_update().values_list("health", flat=True).first()
    same.update(**fields)
    if listing.health == Health.DOWN and was not in (Health.DOWN, Health.UNCHECKED):
        _tell_that_it_is_down(server)


def _tell_that_it_is_down(server: Server) -> None:
    page = reverse("registry:server", args=[server.project.slug, server.name])
    subject = f"The server {server.name} does not answer"
    notify(
        topic=Topic.SERVER_DOWN,
        project=server.project,
        subject=subject,
        page=page,
        key=f"server:{server.pk}:{timezone.now():%F %H:%M}",
    )
    announce(
        project=server.project,
        event=Event.SERVER_DOWN,
        subject=subject,
        data={"server": server.name, "page": page},
    )


# Probing a server's capabilities


@operation(
    "servers_probe",
    rest=Rest("POST", "servers/<slug:name>/probe/", "server_probe", 202),
    page=Page("servers/<slug:name>/probe/", "server_probe"),
    gives=Probing,
    role=Role.OPERATOR,
)
def submit_probe(
    *, server: Server, by: Any, model: Annotated[str, Meta(max_length=200, pattern=LINE)] = ""
) -> ServerProbe:
    """Finds out, in the background, what the server can do; with the model named, else one that is
    registered or listed. A probe that is under way is not started twice.

    Returns the probe. Raises ServerError.
    """
    with transaction.atomic():
        server = Server.objects.select_for_update().get(pk=server.pk)
        if not server.base_url:
            raise ServerError(f"{server} is not up, so it cannot be probed. Start it first.")
        active = server.probes.active().first()
        if active:
            return active
        served = server.model_versions.order_by("pk").values_list("served_as", flat=True)
        spec = {
            name: getattr(server, name) for name in ("base_url", "key_variable", "kind", "dialect")
        } | {"model": model.strip(), "registered": list(dict.fromkeys(filter(None, served)))}
        probe = ServerProbe(
            project=server.project, name=f"Health check of {server}", server=server, spec=spec
        )
        return jobs.submit(probe, by=by)


def probe_spec(probe: ServerProbe) -> CheckServer:
    """Raises ServerError if permissions have changed."""
    asked, private = probe.spec, may_be_private(probe.server)
    address = asked["base_url"], asked["key_variable"]
    if not probe.server.is_managed:
        check_address(*address)
    return CheckServer(
        **job_fields(probe),
        server=address_spec(ServerAddress, *address, allow_private=private),
        server_kind=asked["kind"],
        model=asked["model"],
        registered=asked.get("registered", []),
        dialect=asked.get("dialect", Dialect.NATIVE),
    )


def complete_probe(probe: ServerProbe, result: dict) -> dict:
    """Store the result, unless the server's address or key has changed meanwhile."""
    server, given = probe.server, probe.spec
    server.base_url, server.key_variable = given["base_url"], given["key_variable"]
    listing = Listing(**result["listing"])
    found: dict[str, Any] = {}
    if result["capabilities"]:
        found = {
            "capabilities": result["capabilities"],
            "probed_model": result["model"],
            "probed_at": timezone.now(),
        }
    _store(server, listing, **found)
    return {"health": listing.health, "model": result["model"], "models": len(listing.models)}


def version_of(server: Server, served_as: str) -> ModelVersion | None:
    """The newest version registered for a model of the server."""
    return server.model_versions.filter(served_as=served_as).first()


@transaction.atomic
def server_at(project: Project, base_url: str, key_variable: str = "") -> Server:
    """The project's server at an address, added if there is none. For the command line. Raises
    ServerError.
    """
    base_url = check_address(base_url, key_variable)
    found = (
        project.servers.filter(base_url=base_url, key_variable=key_variable).order_by("pk").first()
    )
    if found is None:
        name = slugify(urlsplit(base_url).netloc.replace(":", "-").replace(".", "-"))[:70]
        taken = project.servers.filter(name=name).exists()
        fields = {
            "name": f"{name}-{project.servers.count() + 1}" if taken else name,
            "base_url": base_url,
        }
        return add_server(
            project=project, fields=fields | {"key_variable": key_variable}, by=None, operator=True
        )
    return found
