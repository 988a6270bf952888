"""What production asks: which model version is live in a channel."""

from __future__ import annotations

from django.shortcuts import get_object_or_404
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework.decorators import api_view
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from apps.promotion.models import Channel


@extend_schema(
    responses={200: OpenApiTypes.OBJECT, 304: None, 401: OpenApiTypes.OBJECT, 404: OpenApiTypes.OBJECT},
    description="The live model version of a channel; send If-None-Match to poll.",
)
@api_view(["GET"])
def channel(request: Request, name: str) -> Response:
    row = get_object_or_404(Channel.objects.select_related("current"), project=request.auth.project, name=name)
    if row.current is None:
        raise NotFound("This channel has no model yet.")
    version = row.current
    etag = f'"{version.digest}"'
    if request.headers.get("If-None-Match") == etag:
        return Response(status=304, headers={"ETag": etag})
    return Response(
        {
            "channel": row.name,
            "model": str(version),
            "version": version.version,
            "kind": version.kind,
            "base": version.base,
            "adapter": version.model.artifact_id,
            "prompt": version.prompt,
            "digest": version.digest,
            "updated_at": row.updated_at,
        },
        headers={"ETag": etag},
    )
