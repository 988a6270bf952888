"""Channels by API: list them, read the live model version, and every change. The key determines the
project.
"""

from __future__ import annotations

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.openapi import described, page
from apps.core.query import LARGEST_KEY, number_of, whole_number
from apps.core.routes import api
from apps.core.scopes import RESULT
from apps.evals.lookups import LIMIT
from apps.promotion.announcing import move_json
from apps.promotion.models import Channel
from apps.promotion.schema import MOVE, MOVE_EXAMPLE


@extend_schema(
    operation_id="v1_channels_history",
    responses=described({200: page(MOVE)}, 400, 404),
    examples=[MOVE_EXAMPLE],
    parameters=[
        OpenApiParameter(
            "cursor",
            whole_number(0, LARGEST_KEY, LARGEST_KEY),
            description="`next` of the page before",
        ),
        LIMIT,
    ],
    description="Every promotion and rollback of a channel, newest first.",
)
@api(GET=RESULT)
def history(request: Request, name: str) -> Response:
    limit = number_of(request, "limit")
    rows = find_channel(request, name).promotions.select_related(
        "channel", "from_version", "to_version", "by"
    )
    found = list(rows.filter(pk__lt=number_of(request, "cursor")).order_by("-pk")[: limit + 1])
    following = str(found[limit - 1].pk) if len(found) > limit else None
    return Response({"results": [move_json(move) for move in found[:limit]], "next": following})


def find_channel(request: Request, name: str) -> Channel:
    """Raises NotFound."""
    found = (
        Channel.objects.filter(project=request.auth.project, name=name)
        .select_related("project", "current")
        .first()
    )
    if found is None:
        raise NotFound(f"This project has no channel “{name}”.")
    return found
