from __future__ import annotations

from collections import Counter
from typing import Any

from django import template

from apps.core.models import Role
from apps.teamwork.assigning import assignees as assignees_of
from apps.teamwork.assigning import workers_of
from apps.teamwork.models import Comment
from apps.teamwork.targets import kind_named
from apps.teamwork.threads import thread_of

register = template.Library()


@register.inclusion_tag("teamwork/_thread.html", takes_context=True)
def comments(context: Any, kind: str, target: Any) -> dict[str, Any]:
    """The comments on an object, on its page. What this person may not see now is not shown."""
    request = context["request"]
    return thread_of(request.user, request.membership, kind_named(kind), target) | {
        "csrf_token": context["csrf_token"]
    }


@register.inclusion_tag("teamwork/_assignees.html", takes_context=True)
def assignees(context: Any, kind: str, target: Any) -> dict[str, Any]:
    """The assignees of an object, and a menu that changes them for those who may act on it."""
    request, found = context["request"], kind_named(kind)
    return {
        "kind": kind,
        "target": target,
        "project": request.project,
        "user": request.user,
        "csrf_token": context["csrf_token"],
        "request": request,
        "assignees": list(assignees_of(target)),
        "people": list(workers_of(found, request.project)),
        "may_write": request.membership.may(found.worker or Role.OWNER),
    }


@register.simple_tag
def comment_counts(kind: str, targets: Any) -> dict[Any, int]:
    """{id: how many comments} of the rows of a list, in one query."""
    model, ids = kind_named(kind).model, {str(target.pk): target.pk for target in targets}
    rows = Comment.objects.filter(
        target_type=model._meta.label_lower, target_id__in=ids, deleted_at=None
    )
    return {ids[pk]: n for pk, n in Counter(rows.values_list("target_id", flat=True)).items()}
