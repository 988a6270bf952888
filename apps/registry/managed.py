"""Managed servers, which a worker on the queue `serve` starts and keeps running: configuring,
starting and stopping them, and their state.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models.functions import Now
from django.utils import timezone

from apps.core import jobs
from apps.core.actions import audit
from apps.core.models import JobState, Project, Role
from apps.core.operations import Page, Rest, Written, operation
from apps.core.runner import job_fields
from apps.registry import schema
from apps.registry.bases import base_folder
from apps.registry.models import Health, ModelKind, Phase, Server, ServerKind, ServerRun
from apps.registry.servers import (
    RESET,
    SERVER,
    ServerError,
    edit_server,
    insert,
    save,
    submit_probe,
)
from workers.lib.specs.serve import Serve, ServedModel
from workers.lib.typed import FormError, plain
from workers.lib.vllm import DTYPES, OPTIONS, OWN_OPTIONS, RANKS, checked_options

ATTEMPTS = 1_000_000  # a restarted worker takes the server up again, however often
LARGEST_CONTEXT, MOST_SLOTS = 10_000_000, 64
COLUMNS = ("name", "kind", "dialect", "prices")
OPTIONS_OF = {
    ServerKind.VLLM: OPTIONS,
    ServerKind.TRANSFORMERS: OWN_OPTIONS,
}  # the kinds that can be started
CHANGED_WHILE_RUNNING = "{} is running; stop it first, then change what it serves."


def checked_serving(kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The `serving` of a server: dtype, context, lora_slots, max_lora_rank, options. Raises
    ServerError with the field.
    """
    found = {
        "dtype": "auto",
        "context": 0,
        "lora_slots": 4,
        "max_lora_rank": 16,
        "options": {},
    } | dict(given)
    for field, right, wanted in (
        ("kind", kind in OPTIONS_OF, f"one of {', '.join(OPTIONS_OF)}"),
        ("dtype", found["dtype"] in DTYPES, f"one of {', '.join(DTYPES)}"),
        (
            "context",
            0 <= found["context"] <= LARGEST_CONTEXT,
            f"from 0 (as the model has) to {LARGEST_CONTEXT:,}",
        ),
        (
            "lora_slots",
            0 <= found["lora_slots"] <= MOST_SLOTS,
            f"from 0 (no adapters) to {MOST_SLOTS}",
        ),
        ("max_lora_rank", found["max_lora_rank"] in RANKS, f"one of {', '.join(map(str, RANKS))}"),
    ):
        if not right:
            raise ServerError(f"It must be {wanted}.", field)
    try:
        return found | {"options": checked_options(found["options"], OPTIONS_OF[ServerKind(kind)])}
    except ValueError as error:
        raise ServerError(str(error), "options") from error


def _split(fields: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(columns of the row, `serving`)."""
    columns = {name: value for name, value in fields.items() if name in (*COLUMNS, "base")}
    return columns, {name: value for name, value in fields.items() if name not in columns}


def _checked(base: Any) -> None:
    if base is None or base.kind != ModelKind.BASE:
        raise ServerError(
            "A managed server serves a base model; adapters are loaded on it.", "base"
        )


@transaction.atomic
def add_managed(*, project: Project, fields: Mapping[str, Any], by: Any) -> Server:
    """`fields`: name, base, kind (vLLM unless given), dialect, dtype, context, lora_slots,
    max_lora_rank, options. Starts it. Raises ServerError.
    """
    columns, serving = _split(fields)
    columns = {"kind": ServerKind.VLLM} | columns
    _checked(columns.get("base"))
    serving = checked_serving(columns["kind"], serving)
    server = insert(Server(project=project, created_by=by, serving=serving, **columns))
    audit(
        "server.added",
        project=project,
        by=by,
        target=server,
        name=server.name,
        serves=str(server.base),
    )
    start(server=server, by=by)
    return server


@transaction.atomic
def edit_managed(*, server: Server, fields: Mapping[str, Any], by: Any) -> Server:
    """Edit a server. What it serves can only be changed while it is stopped. Raises ServerError."""
    row = Server.objects.select_for_update().get(pk=server.pk)
    columns, serving = _split(fields)
    before = (row.base_id, row.kind, row.serving)
    for name, value in columns.items():
        setattr(row, name, value)
    _checked(row.base)
    row.serving = checked_serving(row.kind, row.serving | serving)
    if (row.base_id, row.kind, row.serving) != before and row.runs.active().exists():
        raise ServerError(CHANGED_WHILE_RUNNING.format(row))
    save(row)
    audit(
        "server.edited",
        project=row.project,
        by=by,
        target=row,
        name=row.name,
        changed=sorted(fields),
    )
    return row


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
        fields = schema.managed_fields(fields, dict(fields), server.project)
        return edit_managed(server=server, fields=fields, by=by)
    if "managed" in fields:
        raise FormError("managed", "only applies to managed servers; this one is run externally")
    return edit_server(server=server, fields=fields, by=by)


@operation(
    "servers_start",
    rest=Rest("POST", "servers/<slug:name>/start/", "server_start", 202),
    page=Page("servers/<slug:name>/start/", "server_start"),
    gives=Written(schema.SERVER, lambda request, run: schema.server_json(run.server)),
    role=Role.OPERATOR,
)
@transaction.atomic
def start(*, server: Server, by: Any) -> ServerRun:
    """Starts a managed server; a running one is left unchanged.

    Returns its active run. Raises ServerError.
    """
    row = (
        Server.objects.select_for_update(of=["self"])
        .select_related("base", "project")
        .get(pk=server.pk)
    )
    if row.base is None:
        raise ServerError(f"{row} is run externally, so Flywheel cannot start it.")
    if active := row.runs.active().first():
        return active
    run = ServerRun(project=row.project, name=f"Server {row}", server=row, max_attempts=ATTEMPTS)
    return jobs.submit(run, by=by)


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
    """Stops a managed server. Jobs that use it fail.

    False if it was not running.
    """
    run = server.runs.active().first()
    return run is not None and jobs.cancel(run, by=by)


# The server's job


def serve_spec(run: ServerRun) -> Serve:
    """Raises ModelError if the base's folder is incomplete."""
    server = Server.objects.select_related("base").get(pk=run.server_id)
    folder = str(base_folder(server.base))
    model = ServedModel(base=folder, name=served_name(server), **server.serving)
    ours = server.kind == ServerKind.TRANSFORMERS
    if ours and model.dtype == "auto":  # as for jobs that run in process
        model.dtype = settings.FLYWHEEL_DTYPE
    return Serve(
        **job_fields(run),
        command="" if ours else settings.FLYWHEEL_VLLM,
        model=model,
        host=settings.FLYWHEEL_SERVE_HOST,
        ports=settings.FLYWHEEL_SERVE_PORTS,
        environment={
            name: value for name, value in os.environ.items() if name.startswith("VLLM_CPU_")
        },
    )


def served_name(server: Server) -> str:
    """The name of the base on its server. It includes the digest, so that another base on the same
    server has another name.
    """
    return f"{server.base.name}-{server.base.digest[:12]}"


def store_events(run: ServerRun, events: list[dict]) -> None:
    """Called in the transaction that stores the events, once per attempt and event."""
    changes: dict[str, Any] = {}
    for event in events:
        if event["type"] == "tail":
            changes["tail"] = [str(line) for line in event["lines"]]
        elif event["type"] == "phase":
            phase = Phase(event["phase"])
            changes |= {
                "phase": phase,
                "detail": str(event["detail"])[:2000],
                "restarts": int(event["restarts"]),
            }
            changes["up_at"] = Now() if phase == Phase.UP else None
            _moved(run, str(event["base_url"]) if phase == Phase.UP else "")
    if changes:
        ServerRun.objects.held_by(run).update(**changes)


def _moved(run: ServerRun, base_url: str) -> None:
    """Store the server's new address; "" means that it is down."""
    fields = RESET | {"base_url": base_url}
    if base_url:
        fields |= {
            "health": Health.HEALTHY,
            "health_detail": "It is up.",
            "checked_at": timezone.now(),
        }
        transaction.on_commit(lambda: submit_probe(server=run.server, by=None))
    else:
        fields |= {"health": Health.DOWN, "health_detail": "It is not up."}
    Server.objects.filter(pk=run.server_id).update(**fields)


def ended(run: ServerRun) -> None:
    _moved(run, "")


def is_up(server: Server) -> bool:
    return (
        bool(server.base_url)
        and server.runs.filter(state=JobState.RUNNING, phase=Phase.UP).exists()
    )


def vllm_is_here() -> bool:
    """Whether vLLM is installed on this machine, which need not be the one that serves."""
    return Path(settings.FLYWHEEL_VLLM).is_file()
