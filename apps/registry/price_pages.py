"""The page of prices; what is done on it are operations of `model_prices`."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from apps.core.access import project_view
from apps.core.models import Project
from apps.registry.model_prices import model_prices, models_used


@project_view()
def listing(request: HttpRequest, project: Project) -> HttpResponse:
    used = models_used(project=project)
    entered = {row.model: row for row in model_prices(project=project)}
    rows = [{"use": use, "entered": entered.pop(use.model, None)} for use in used]
    return render(
        request,
        "registry/prices.html",
        {
            "rows": rows,
            "others": entered.values(),
            "missing": sum(use.price is None for use in used),
        },
    )
