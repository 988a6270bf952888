"""A picture, sound or file of a run, as its page shows it and as it is downloaded."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import get_object_or_404
from django.utils.http import content_disposition_header

from apps.core.access import project_view
from apps.core.models import Project
from apps.core.query import FLAG
from apps.core.routes import RUNS, shows
from apps.trajectories.models import Medium
from apps.trajectories.shown import runs_shown

# It is somebody else's: wherever it is opened, it is a document without rights.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; sandbox"
SUFFIXES = {
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/gif": "gif",
    "image/webp": "webp",
    "audio/wav": "wav",
    "audio/mpeg": "mp3",
    "audio/ogg": "ogg",
    "audio/flac": "flac",
    "audio/mp4": "m4a",
    "application/pdf": "pdf",
}
# Of files whose type the bytes do not say: what opens without running anything.
PLAIN = ("csv", "docx", "json", "md", "odt", "pptx", "tsv", "txt", "xlsx", "zip")
UNSAFE = re.compile(r"[^\w.() -]|^\.+")


@shows(RUNS)
@project_view(query={"download": FLAG, "name": None})
def medium(request: HttpRequest, project: Project, pk: UUID, digest: str) -> HttpResponse:
    row = get_object_or_404(Medium, project=project, digest=digest, uses__trajectory_id=pk)
    runs_shown(project, [pk], to=request.user, where="run")
    name = request.GET.get("name", "")
    return response_of(row, download="download" in request.GET, name=name)


def response_of(row: Medium, *, download: bool = True, name: str = "") -> HttpResponse:
    """Its bytes under the type that they have; `name`: what a message calls it. Raises Http404 if
    the store has lost them.
    """
    inline = not download and row.kind != "file"
    try:
        chunks = row.chunks()
        first = next(chunks, b"")
    except OSError as error:
        raise Http404("This file is no longer in the artifact store.") from error
    headers: dict[str, Any] = {
        "Content-Disposition": content_disposition_header(not inline, file_name(row, name)),
        "Content-Length": row.size,
        "Content-Security-Policy": POLICY,
        "Cross-Origin-Resource-Policy": "same-origin",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "private, max-age=3600",
    }
    return StreamingHttpResponse(
        _joined(first, chunks), content_type=row.media_type, headers=headers
    )


def _joined(first: bytes, rest: Any) -> Any:
    yield first
    yield from rest


def file_name(row: Medium, name: str = "") -> str:
    """A plain name with the suffix of what it is: nobody is sent a page as `photo.html`."""
    stem, _, suffix = (name or row.name).rpartition(".")
    stem = UNSAFE.sub("_", stem or name or row.name)[:80].strip()
    usual = suffix.lower() if suffix.lower() in PLAIN else "bin"
    return f"{stem or row.digest[:12]}.{SUFFIXES.get(row.media_type, usual)}"
