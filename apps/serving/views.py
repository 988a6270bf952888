from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.models import ApiKey, Project, Role
from apps.core.paging import page_of
from apps.core.query import PAGE_NUMBER
from apps.core.scopes import Scope
from apps.promotion.policies import PRODUCTION
from apps.serving.actions import set_limits
from apps.serving.forms import LimitsForm
from apps.serving.routes import routes_of

ROWS = 30


@project_view(query={"page": PAGE_NUMBER})
def endpoint(request: HttpRequest, project: Project) -> HttpResponse:
    """The addresses of the project's channels, what answers, and what each key may request."""
    keys = (
        project.api_keys.live()
        .filter(scopes__contains=[Scope.GENERATE])
        .select_related("endpoint_limits")
    )
    routes = routes_of(project)
    names = [route.channel for route in routes] or [PRODUCTION]
    context = {
        "routes": routes,
        "example": PRODUCTION if PRODUCTION in names else names[0],
        "page": page_of(request, keys.order_by("name", "pk"), ROWS),
    }
    return render(request, "serving/endpoint.html", context)


@require_POST
@project_view(Role.OPERATOR)
def limits(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    key, form = (
        get_object_or_404(ApiKey.objects.live(), project=project, pk=pk),
        LimitsForm(request.POST),
    )
    if form.is_valid():
        set_limits(key=key, limits=form.cleaned_data, by=request.user)
        messages.success(request, f"Limits of {key.name} saved. They take effect within seconds.")
    else:
        messages.error(
            request,
            "; ".join(
                f"{form.fields[name].label or name}: {said[0]}"
                for name, said in form.errors.items()
            ),
        )
    return redirect("serving:endpoint", project.slug)
