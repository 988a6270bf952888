"""The effect of a promotion: a page, and the fragment that the version's page loads."""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render

from apps.core.access import project_view
from apps.core.models import Project
from apps.core.query import whole_number
from apps.core.timeouts import TooLong, patience
from apps.promotion.effects.report import costs_of, effect_of
from apps.promotion.effects.windows import LONGEST, USUAL
from apps.promotion.models import Promotion

SPANS = (1, 7, 30, 90)
EFFECT_MS = 6_000


@project_view(query={"days": whole_number(1, LONGEST)})
def effect(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    """For htmx only the part before and after."""
    rows = Promotion.objects.filter(channel__project=project)
    move = get_object_or_404(
        rows.select_related(
            "channel__project", "from_version", "to_version__parent", "by", "gate_report"
        ),
        pk=pk,
    )
    days = int(request.GET.get("days") or USUAL)
    context: dict[str, Any] = {
        "move": move,
        "days": days,
        "spans": SPANS,
        "costs": costs_of(move.to_version),
    }
    with suppress(TooLong), patience(EFFECT_MS):
        found = effect_of(move, days)
        context |= {
            "found": found,
            "sides": [
                (name, one, urlencode(one.window.query), times)
                for name, one, times in zip(
                    ("Before", "After"), (found.before, found.after), found.times, strict=True
                )
            ],
            "slower": found.latency_ratio,
            "others_of_channel": (
                rows.filter(channel=move.channel).select_related("to_version")[:12]
            ),
        }
    return render(request, f"promotion/{'_effect' if request.htmx else 'effect'}.html", context)
