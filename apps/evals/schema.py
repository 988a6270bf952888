"""What the API says of eval sets."""

from __future__ import annotations

from typing import Any

from django.db.models import Count

from apps.evals.holdout.view_log import view_count
from apps.evals.models import EvalSet, EvalSetState

SET = {
    "type": "object",
    "required": ["id", "name", "version", "state", "counts", "holdout_views"],
    "properties": {
        "id": {"type": "string", "format": "uuid"},
        "name": {"type": "string"},
        "version": {"type": "integer"},
        "state": {"enum": EvalSetState.values},
        "digest": {"type": "string"},
        "description": {"type": "string"},
        "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
        "holdout_views": {"type": "integer"},
        "created_at": {"type": "string", "format": "date-time"},
        "frozen_at": {"type": ["string", "null"], "format": "date-time"},
    },
}


def as_json(eval_set: EvalSet) -> dict[str, Any]:
    counts = dict(eval_set.tasks.values_list("split").annotate(n=Count("pk")).order_by("split"))
    return {
        "id": str(eval_set.pk),
        "name": eval_set.slug,
        "version": eval_set.version,
        "state": eval_set.state,
        "digest": eval_set.digest,
        "description": eval_set.description,
        "counts": counts,
        "holdout_views": view_count(eval_set),
        "created_at": eval_set.created_at,
        "frozen_at": eval_set.frozen_at,
    }
