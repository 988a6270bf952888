"""The comments on one object as a page shows them."""

from __future__ import annotations

from typing import Any

from apps.core.models import Membership, Project, Role
from apps.teamwork.actions import readers_of
from apps.teamwork.models import LONGEST, Comment
from apps.teamwork.targets import Kind
from apps.teamwork.text import pieces

SHOWN = 30  # the newest; earlier ones are loaded on request


def thread_of(
    user: Any,
    membership: Membership,
    kind: Kind,
    target: Any,
    *,
    until: Comment | None = None,
    error: str = "",
    draft: str = "",
) -> dict[str, Any]:
    """`until`: the last one shown, else the newest. What this person may not see now is not
    fetched.
    """
    project: Project = membership.project
    context: dict[str, Any] = {
        "kind": kind.name,
        "target": target,
        "project": project,
        "user": user,
        "longest": LONGEST,
        "open": kind.may_see(target, user, membership.role),
        "needs": kind.role(target).label,
        "may_open": membership.may(kind.role(target)),
    }
    if not context["open"]:
        return context
    rows = Comment.objects.filter(project=project).about(target).select_related("by")
    total = rows.count()
    if until is not None:
        rows = rows.filter(created_at__lte=until.created_at)
    found = list(rows.order_by("-created_at", "-pk")[: SHOWN + 1])
    earlier = found[SHOWN] if len(found) > SHOWN else None
    names = list(readers_of(kind, target, project).values_list("username", flat=True))
    shown = [
        {"row": row, "pieces": list(pieces(row.text, names))} for row in reversed(found[:SHOWN])
    ]
    return context | {
        "comments": shown,
        "total": total,
        "earlier": earlier,
        "may_write": membership.may(Role.REVIEWER),
        "error": error,
        "draft": draft,
        "is_newest": until is None,
    }
