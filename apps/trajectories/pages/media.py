"""A picture, sound or file of a run, as its page shows it and as it is downloaded."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import get_object_or_404

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
UNSAFE = re.compile(r"[^\w.() -]|^\.+", re.ASCII)


@shows(RUNS)
@project_view(query={"download": FLAG})
def medium(request: HttpRequest, project: Project, pk: UUID, digest: str) -> HttpResponse:
    row = get_object_or_404(Medium, project=project, digest=digest, uses__trajectory_id=pk)
    runs_shown(project, [pk], to=request.user, where="run")
    return response_of(row, download="download" in request.GET)


def response_of(row: Medium, *, download: bool = True) -> HttpResponse:
    """Its bytes under the type that they have. Raises Http404 if the store has lost them."""
    inline = not download and row.kind != "file"
    try:
        chunks = row.chunks()
        first = next(chunks, b"")
    except OSError as error:
        raise Http404("This file is no longer in the artifact store.") from error
    headers: dict[str, Any] = {
        "Content-Disposition": (
            f'{"inline" if inline else "attachment"}; filename="{file_name(row)}"'
        ),
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


def file_name(row: Medium) -> str:
    """A plain name with the suffix of what it is: nobody is sent a page as `photo.html`."""
    stem = UNSAFE.sub("_", row.name.rpartition(".")[0] or row.name)[:80].strip()
    return f"{stem or row.digest[:12]}.{SUFFIXES.get(row.media_type, 'bin')}"
