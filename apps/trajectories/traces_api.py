"""Over REST: which OTLP traces were accepted and gave no run."""

from __future__ import annotations

import msgspec
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.openapi import described
from apps.core.routes import api
from apps.core.scopes import READABLE
from apps.trajectories import silent
from workers.lib.typed import json_schema

LISTED = {
    "type": "object",
    "required": ["results"],
    "properties": {"results": {"type": "array", "items": json_schema(silent.SilentTrace)}},
}


@extend_schema(
    operation_id="v1_traces_without_run",
    responses=described({200: LISTED}, 403),
    description=(
        f"The traces that gave no run, the newest first, and why: at most {silent.SHOWN} of the"
        f" latest {silent.LATEST:,} traces of three days."
    ),
)
@api(GET=READABLE)
def without_run(request: Request) -> Response:
    found = silent.silent_traces(request.auth.project)
    return Response({"results": [msgspec.to_builtins(trace) for trace in found]})
