from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from django.apps import apps
from django.core.exceptions import ValidationError
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    StreamingHttpResponse,
)
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.utils import timezone

from apps.core.access import project_view
from apps.core.auditing import filters
from apps.core.auditing.filters import KINDS, QUERY, TABS, Filters
from apps.core.auditing.words import Piece, page_of, pieces, sentence
from apps.core.models import AuditEvent, Project
from apps.core.paging import keyset
from apps.core.routes import HOW_MANY, UNCOUNTED, shows
from apps.core.spreadsheets import as_text

PAGE = 50
AT_ONCE = 500


@dataclass(frozen=True)
class Line:
    event: AuditEvent
    pieces: list[Piece]


@shows(HOW_MANY, UNCOUNTED)
@project_view(archived=True, deleted=True, query=QUERY | {"cursor": None})
def audit(request: HttpRequest, project: Project) -> HttpResponse:
    """What a viewer may read: the events that are for others' eyes are left out
    (`AuditQuerySet.readable_as`).
    """
    asked = Filters.read(request.GET.dict())
    role = request.membership.role  # type: ignore[attr-defined]
    rows = asked.of(project, role)
    found, following = keyset(rows, request.GET.get("cursor", ""), PAGE, by="at")
    missing = filters.gone(found)
    labels = [(kind, label) for kind, (label, _) in KINDS.items()]
    context = {
        "lines": [Line(event, pieces(event, project.slug, missing)) for event in found],
        "next": following,
        "filters": asked,
        "tabs": [("", "All"), *labels[:TABS]],
        "kinds": labels,
        "people": (
            project.memberships.order_by("user__username").values_list("user__username", flat=True)
        ),
        "about": _about(asked.object, project),
    }
    return render(request, "core/audit.html", context)


def _about(name: str, project: Project) -> Piece | None:
    """The object that the log is filtered to, of this project."""
    kind, _, pk = name.partition(":")
    try:
        row = apps.get_model(kind)._default_manager.filter(pk=pk).first() if name else None
    except (LookupError, ValueError, ValidationError):
        row = None
    if not name:
        return None
    if row is None or getattr(row, "project_id", None) != project.pk:
        return Piece(name)
    return Piece(str(row), page_of(kind, pk, project.slug))


@shows(HOW_MANY, UNCOUNTED)
@project_view(archived=True, deleted=True, query=QUERY)
def export(request: HttpRequest, project: Project, format: str) -> HttpResponseBase:
    """All that the filters find, as a file, the newest first; 400 for a filter that makes no
    sense.
    """
    if format not in FILES:
        raise Http404
    asked = Filters.read(request.GET.dict())
    rows = asked.of(project, request.membership.role)  # type: ignore[attr-defined]
    written, kind = FILES[format]
    name = f"audit-{project.slug}-{timezone.now():%Y-%m-%d}.{format}"
    return StreamingHttpResponse(
        written(rows.iterator(chunk_size=AT_ONCE)),
        content_type=kind,
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )


def as_json(event: AuditEvent) -> dict[str, Any]:
    target = {"type": event.target_type, "id": event.target_id} if event.target_type else None
    return {
        "id": event.pk,
        "at": event.at.isoformat(),
        "actor": event.actor_label,
        "action": event.action,
        "sentence": sentence(event),
        "object": target,
        "about": event.about,
        "detail": event.detail,
    }


def as_lines(events: Iterable[AuditEvent]) -> Iterator[bytes]:
    for event in events:
        yield json.dumps(as_json(event), ensure_ascii=False).encode() + b"\n"


COLUMNS = ("at", "actor", "action", "sentence", "object_type", "object_id", "detail")


def as_csv(events: Iterable[AuditEvent]) -> Iterator[bytes]:
    """UTF-8 with a byte order mark, which spreadsheets need; what one would run as a formula gets a
    quote in front.
    """
    writer = csv.writer(_Echo())
    yield b"\xef\xbb\xbf" + writer.writerow(COLUMNS)  # type: ignore[operator]
    for event in events:
        detail = json.dumps(event.detail, ensure_ascii=False)
        cells = (
            event.actor_label,
            event.action,
            sentence(event),
            event.target_type,
            event.target_id,
            detail,
        )
        yield writer.writerow([event.at.isoformat(), *map(as_text, cells)])  # type: ignore[misc]


class _Echo:
    def write(self, text: str) -> bytes:
        return text.encode()


FILES = {"csv": (as_csv, "text/csv; charset=utf-8"), "jsonl": (as_lines, "application/x-ndjson")}
