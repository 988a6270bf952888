from __future__ import annotations

from itertools import groupby
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.forms import whole
from apps.core.models import Project, Role
from apps.core.query import FLAG, KEY
from apps.environments import remote
from apps.environments.actions import save_verifier
from apps.environments.clients import load_for
from apps.environments.forms import (
    CONNECTIONS,
    ConnectionForm,
    EnvironmentForm,
    GraderForm,
    builtins,
    connection_of,
    initial_of,
)
from apps.environments.models import Environment, EnvironmentKind
from apps.environments.versions import changes
from workers.lib.errors import SpecError
from workers.lib.outgoing import RefusedAddress


@project_view(query={"archived": FLAG})
def listing(request: HttpRequest, project: Project) -> HttpResponse:
    archived = "archived" in request.GET
    rows = (
        project.environments.shown(archived).select_related("verifier").order_by("slug", "-version")
    )
    groups = [list(versions) for _, versions in groupby(rows, key=lambda row: row.slug)]
    context = {"archived": archived, "groups": groups, "verifiers": project.verifiers.all()[:200]}
    return render(request, "environments/list.html", context)


@project_view(query={"against": KEY})
def detail(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    rows = project.environments.select_related("verifier", "created_by", "project")
    environment = get_object_or_404(rows, pk=pk)
    versions = list(rows.filter(slug=environment.slug).order_by("-version"))
    against = request.GET.get("against", "")
    other = next((row for row in versions if str(row.version) == against), None)
    if against and other is None:
        raise Http404
    other = other or next((row for row in versions if row.version < environment.version), None)
    form = "connect" if environment.is_remote else "new"
    context = {
        "environment": environment,
        "new_version": reverse(
            f"environments:{form}", args=[project.slug], query={"from": environment.pk}
        ),
        "versions": versions,
        "other": other,
        "changes": list(changes(other, environment)) if other else [],
        "url": request.build_absolute_uri(f"/env/{environment}"),
        **_loaded(environment),
    }
    return render(request, "environments/detail.html", context)


def _loaded(environment: Environment) -> dict[str, Any]:
    """Its tools, or the problem if it can no longer be loaded."""
    try:
        return {"tools": load_for(environment).tools, "opening": environment.opening}
    except SpecError as error:
        return {"tools": [], "opening": environment.opening, "problem": str(error)}


@project_view(Role.ENGINEER, query={"verifier": KEY, "from": KEY})
def new(request: HttpRequest, project: Project) -> HttpResponse:
    """`?from=<pk>` starts with that environment's settings, `?verifier=<pk>` with that verifier."""
    start = project.environments.filter(pk=whole(request.GET.get("from"))).first()
    initial = initial_of(start) if start else {}
    if verifier := project.verifiers.filter(pk=whole(request.GET.get("verifier"))).first():
        initial |= {"verifier": verifier.pk}
    form = EnvironmentForm(project, request.POST or None, initial=initial)
    if request.method == "POST" and form.is_valid():
        made = made_by(form, by=request.user)
        if made is not None:
            return redirect("environments:detail", project.slug, made.pk)
    return render(
        request, "environments/new.html", {"form": form, "builtins": builtins(), "start": start}
    )


def made_by(form: EnvironmentForm, *, by: Any, dataset: dict | None = None) -> Environment | None:
    """None if it cannot be made; the form says why then."""
    try:
        return form.save(by=by, dataset=dataset)
    except SpecError as error:
        form.add_error(None, str(error))
        return None


@project_view(Role.ENGINEER, query={"kind": list(CONNECTIONS), "from": KEY})
def connect(request: HttpRequest, project: Project) -> HttpResponse:
    """`?kind=` remote or mcp; `?from=<pk>` begins with what that environment has."""
    start = project.environments.filter(
        kind__in=CONNECTIONS, pk=whole(request.GET.get("from"))
    ).first()
    kind = start.kind if start else _kind(request)
    initial = connection_of(start) if start else None
    form = CONNECTIONS[kind](
        project, request.POST or None, operator=_is_operator(request), initial=initial
    )
    if request.method == "POST" and form.is_valid():
        made = connected_by(form, _found(request, kind), by=request.user)
        if made is not None:
            return redirect("environments:detail", project.slug, made.pk)
    kinds = [choice for choice in EnvironmentKind.choices if choice[0] in CONNECTIONS]
    context = {"form": form, "kind": kind, "kinds": kinds, "start": start}
    return render(request, "environments/connect.html", context)


def connected_by(form: ConnectionForm, found: remote.Found, *, by: Any) -> Environment | None:
    """None if the server is not what it should be; the form says why then."""
    if not found.ok:
        form.add_error(found.field, found.sentence)
        return None
    try:
        return form.save(found=found, by=by)
    except (RefusedAddress, SpecError) as error:
        form.add_error(None, str(error))
        return None


def _kind(request: HttpRequest) -> str:
    kind = request.GET.get("kind", "")
    return kind if kind in CONNECTIONS else EnvironmentKind.REMOTE


def _is_operator(request: HttpRequest) -> bool:
    return request.membership.may(Role.OPERATOR)  # type: ignore[attr-defined]


def _found(request: HttpRequest, kind: str) -> remote.Found:
    """What is at the address that was sent."""
    url, key = request.POST.get("url", "")[:500], request.POST.get("api_key_env", "")[:80]
    allow = settings.FLYWHEEL_ALLOW_PRIVATE_URLS
    return remote.test(
        url, allow_private=allow, api_key_env=key, operator=_is_operator(request), kind=kind
    )


@require_POST
@project_view(Role.ENGINEER, query={"kind": list(CONNECTIONS)})
def test_connection(request: HttpRequest, project: Project) -> HttpResponse:
    return render(
        request, "environments/_connection.html", {"found": _found(request, _kind(request))}
    )


@project_view(Role.ENGINEER)
def import_grader(request: HttpRequest, project: Project) -> HttpResponse:
    """Saves an OpenAI grader as a verifier, unchanged."""
    form = GraderForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        spec = {"kind": "openai_grader", "grader": form.cleaned_data["grader"]}
        try:
            made = save_verifier(
                project=project,
                name=form.cleaned_data["name"],
                spec=spec,
                note="Imported",
                by=request.user,
            )
            messages.success(
                request, f"{made} is saved. Make an environment with it, and review its rewards."
            )
            return redirect("environments:list", project.slug)
        except SpecError as error:
            form.add_error("grader", str(error))
    return render(request, "environments/import_grader.html", {"form": form})
