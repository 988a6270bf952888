"""One's own notifications, of all projects."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse

from apps.core.access import refuse_unstorable_text, takes
from apps.core.http import uuid_of
from apps.core.models import Project
from apps.core.paging import page_of
from apps.core.query import PAGE_NUMBER
from apps.notifications import actions
from apps.notifications.catalogue import RULES, Topic
from apps.notifications.models import Notification

ROWS = 40
COUNTED = 99


def unread_of(user: Any) -> str:
    """How many are unread: exact up to `COUNTED`; empty for none."""
    n = Notification.objects.visible_to(user).unread().order_by()[: COUNTED + 1].count()
    return f"{COUNTED}+" if n > COUNTED else str(n or "")


@login_required
@takes({"show": ("unread",), "topic": Topic.values, "project": None, "page": PAGE_NUMBER})
def listing(request: HttpRequest) -> HttpResponse:
    """Filters in the URL: `show=unread`, `topic`, `project`."""
    refuse_unstorable_text(request)
    rows = Notification.objects.visible_to(request.user).listed().select_related("project", "actor")
    given = {name: request.GET.get(name, "") for name in ("show", "topic", "project")}
    if given["show"] == "unread":
        rows = rows.unread()
    if given["topic"] in Topic.values:
        rows = rows.filter(topic=given["topic"])
    if given["project"]:
        rows = rows.filter(project__slug=given["project"])
    page = page_of(request, rows, ROWS)
    page.object_list = list(page.object_list)
    actions.withdraw_excerpts(page.object_list)
    context = {
        "page": page,
        "topics": Topic.choices,
        "projects": Project.objects.visible_to(request.user),
        "filtered": any(given.values()),
        "query": request.GET.urlencode(),
        "unread": unread_of(request.user),
    }
    return render(request, "notifications/list.html", context)


@login_required
@takes({})
def count(request: HttpRequest) -> HttpResponse:
    """The bell, which asks for itself once a minute."""
    return render(request, "notifications/_bell.html", {"unread": unread_of(request.user)})


@login_required
@takes({})
def opened(request: HttpRequest, pk: str) -> HttpResponse:
    """Marks it read and leads to its page; what this person may not see (any more) does not
    exist.
    """
    row = get_object_or_404(Notification.objects.visible_to(request.user), pk=pk)
    actions.mark_read(Notification.objects.filter(pk=row.pk))
    return redirect(row.page)


@login_required
@takes({})
def read(request: HttpRequest) -> HttpResponse:
    """One (`id`), or all of them; then back to the list as it was filtered."""
    refuse_unstorable_text(request)
    if request.method == "POST":
        rows, given = Notification.objects.filter(user=request.user), request.POST.get("id", "")
        actions.mark_read(rows.filter(pk=uuid_of(given)) if given else rows)
    query = request.POST.get("query", "")
    return redirect(f"{reverse('notifications:list')}{'?' if query else ''}{query}")


@login_required
@takes({})
def preferences(request: HttpRequest) -> HttpResponse:
    """Per event: in the app, by email. A box that is not sent is not chosen."""
    if request.method == "POST":
        refuse_unstorable_text(request)
        by_mail = {topic: f"mail:{topic}" in request.POST for topic in Topic}
        if not settings.FLYWHEEL_MAIL:  # the boxes are disabled, and browsers do not send those
            by_mail = {topic: mailed for topic, _, mailed in _chosen(request.user)}
        wanted = {topic.value: (f"app:{topic}" in request.POST, by_mail[topic]) for topic in Topic}
        actions.choose(user=request.user, wanted=wanted)
        messages.success(request, "Saved.")
        return redirect("notifications:preferences")
    groups = [
        (group, list(rows))
        for group, rows in groupby(_chosen(request.user), lambda row: RULES[row[0]].group)
    ]
    context = {"groups": groups, "mail": settings.FLYWHEEL_MAIL}
    return render(request, "notifications/preferences.html", context)


def _chosen(user: Any) -> list[tuple[Topic, bool, bool]]:
    """(topic, in the app, by email) of every topic."""
    chosen = {row.topic: (row.in_app, row.by_mail) for row in user.notification_preferences.all()}
    return [
        (topic, *chosen.get(topic, (RULES[topic].in_app, RULES[topic].by_mail))) for topic in Topic
    ]
