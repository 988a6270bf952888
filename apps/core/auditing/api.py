"""The audit log by API: for keys with `read`; as much of it as the role of whoever created the key
may read.
"""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.auditing.filters import QUERY, Filters
from apps.core.auditing.views import as_json
from apps.core.models import Role
from apps.core.openapi import described, page, told
from apps.core.paging import keyset
from apps.core.query import number_of, parameters, whole_number
from apps.core.routes import HOW_MANY, UNCOUNTED, api, shows
from apps.core.scopes import READABLE

PAGE, MAX_PAGE = 50, 500
EVENT = {
    "type": "object",
    "required": ["id", "at", "actor", "action", "sentence", "object", "about", "detail"],
    "properties": {
        "id": {"type": "integer"},
        "at": {"type": "string", "format": "date-time"},
        "actor": {"type": "string", "description": "A user, an API key, or `policy`"},
        "action": {"type": "string"},
        "sentence": {"type": "string"},
        "object": {
            "type": ["object", "null"],
            "properties": {"type": {"type": "string"}, "id": {"type": "string"}},
        },
        "about": {
            "type": "array",
            "items": {"type": "string"},
            "description": "All objects it concerns, as `object` filters",
        },
        "detail": {"type": "object"},
    },
}
EXAMPLE = {
    "id": 812,
    "at": "2026-11-23T06:02:11.120000+00:00",
    "actor": "ann",
    "action": "channel.promote",
    "sentence": (
        "ann promoted grpo-v3 to production with a gate report, overriding the gate: “Refunds are"
        " fixed”"
    ),
    "object": {"type": "promotion.channel", "id": "4"},
    "about": ["promotion.channel:4", "registry.modelversion:12", "registry.modelversion:9"],
    "detail": {
        "channel": "production",
        "version": "grpo-v3",
        "overridden": True,
        "reason": "Refunds are fixed",
    },
}


@shows(HOW_MANY, UNCOUNTED)
@extend_schema(
    operation_id="v1_audit_list",
    responses=described({200: page(EVENT)}, 400, 403),
    examples=[told("A promotion", {"results": [EXAMPLE], "next": None})],
    parameters=parameters(
        QUERY | {"cursor": None, "limit": whole_number(1, MAX_PAGE, PAGE)},
        who="The name of a user or key, as `actor` says it",
        action="One action, such as `channel.promote`",
        since="From this day on (UTC), such as 2026-11-01",
        until="Up to and including this day (UTC)",
        object="One of `about`, such as `registry.modelversion:12`",
        cursor="`next` of the page before",
    ),
    description="Who changed what in the project, newest first. People, keys and webhooks only for "
    "keys whose creator manages them.",
)
@api(GET=READABLE)
def audit(request: Request) -> Response:
    query = request.query_params.dict()
    asked = Filters.read(query)
    rows = asked.of(request.auth.project, Role(request.auth.maker_role))
    limit = number_of(request, "limit")
    found, following = keyset(rows, query.get("cursor", ""), limit, by="at")
    return Response({"results": [as_json(event) for event in found], "next": following})
