"""Pages of inference servers, and of registering model versions."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.db.models import Count
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.text import slugify

from apps.core.access import project_view
from apps.core.forms import query_of
from apps.core.http import progress
from apps.core.models import Project, Role
from apps.core.paging import page_of
from apps.core.query import PAGE_NUMBER, Query, whole_number
from apps.registry import managed, registering, servers, trained_elsewhere
from apps.registry.actions import ModelError
from apps.registry.copies import elsewhere
from apps.registry.forms import ManagedForm, ServerForm
from apps.registry.models import ModelKind, Server
from apps.registry.prices import write_prices
from apps.registry.profiles import profiles
from apps.registry.server_states import NO_WORKER, has_worker, state_of
from apps.registry.servers import ServerError
from workers.lib.vllm import write_options

CAPABILITIES = {
    "chat": "Answers chats",
    "tools": "Native tool calls",
    "responses": "Responses API",
    "logprobs": "Log-probabilities",
    "token_ids": "Token ids (return_token_ids)",
    "runtime_lora": "Loads LoRA adapters at run time",
    "lora_slots": "Free LoRA slots",
    "context": "Context length (tokens)",
    "answer_ms": "Answer time (ms)",
}


@project_view()
def listing(request: HttpRequest, project: Project) -> HttpResponse:
    rows = (
        Server.objects.filter(project=project)
        .select_related("base")
        .annotate(versions=Count("model_versions"))
    )
    servers = [{"row": row, "state": _state(row)["state"]} for row in rows]
    return render(request, "registry/servers.html", {"servers": servers})


@project_view(query={"page": PAGE_NUMBER, "was": None, "seen": whole_number(0)})
def detail(request: HttpRequest, project: Project, name: str) -> HttpResponse:
    server = get_object_or_404(
        Server.objects.select_related("created_by", "base"), project=project, name=name
    )
    versions = list(server.model_versions.all())
    of_model = {version.served_as: version for version in reversed(versions)}
    listed = {row["id"] for row in server.served}
    typed = [{"id": name, "context": None, "parent": ""} for name in of_model if name not in listed]
    rows = [
        row | {"version": of_model.get(row["id"]), "slug": slugify(row["id"])[:80]}
        for row in [*typed, *server.served]
    ]
    context = {
        "server": server,
        "page": page_of(request, rows),
        "count": len(rows),
        "versions": versions,
        "capabilities": [
            (title, server.capabilities.get(key)) for key, title in CAPABILITIES.items()
        ],
    }
    context["options"] = write_options(server.serving.get("options", {}))
    if far := elsewhere(server):
        context |= {
            "far": far,
            "copies": far.copies.select_related("version").order_by("-asked_at")[:20],
        }
    return render(request, "registry/server.html", context | _probe(server))


def _probe(server: Server) -> dict[str, Any]:
    return {"probe": server.probes.first()} | _state(server)


def _state(server: Server) -> dict[str, Any]:
    """The newest run and the state of a managed server."""
    run = server.runs.first() if server.is_managed else None
    return {"run": run, "state": state_of(run) if server.is_managed else None}


@project_view()
def status(request: HttpRequest, project: Project, name: str) -> HttpResponse:
    """The fragment that polls itself during a probe; afterwards the page is reloaded."""
    server = get_object_or_404(Server, project=project, name=name)
    context = {"server": server} | _probe(server)
    return progress(
        request,
        "registry/_probe.html",
        context,
        runs=context["probe"] is not None and context["probe"].is_active,
    )


@project_view(query={"was": None, "seen": whole_number(0)})
def run_status(request: HttpRequest, project: Project, name: str) -> HttpResponse:
    """The state and the log of a managed server, which poll themselves. The page is reloaded when
    the state changes from `?was=`; nothing is sent if everything is as in `?seen=`.
    """
    server = get_object_or_404(Server, project=project, name=name, base__isnull=False)
    context = {"server": server} | _state(server)
    run, name_now = context["run"], context["state"].name
    if run and request.GET.get("was") == name_now and request.GET.get("seen") == str(run.last_seq):
        return HttpResponse(status=204)
    response = render(request, "registry/_run.html", context)
    if request.GET.get("was") != name_now:
        response["HX-Refresh"] = "true"
    return response


@project_view(Role.OPERATOR)
def new_managed(request: HttpRequest, project: Project) -> HttpResponse:
    form = ManagedForm(project, request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            server = managed.add_managed(project=project, fields=form.cleaned_data, by=request.user)
            return redirect("registry:server", project.slug, server.name)
        except ServerError as error:
            form.add_error(error.field or None, str(error))
    return render(request, "registry/managed_form.html", _managed_context(form))


def _managed_context(form: ManagedForm) -> dict[str, Any]:
    return {
        "form": form,
        "options": {kind.label: sorted(options) for kind, options in managed.OPTIONS_OF.items()},
        "has_worker": has_worker(),
        "no_worker": NO_WORKER,
    }


def _edit_managed(request: HttpRequest, project: Project, server: Server) -> HttpResponse:
    given = {
        "name": server.name,
        "base": server.base_id,
        "kind": server.kind,
        "dialect": server.dialect,
        **server.serving,
    }
    given |= {
        "options": write_options(server.serving["options"]),
        "context": server.serving["context"] or None,
    }
    form = ManagedForm(project, request.POST or None, initial=given)
    if request.method == "POST" and form.is_valid():
        try:
            changed = managed.edit_managed(server=server, fields=form.cleaned_data, by=request.user)
            return redirect("registry:server", project.slug, changed.name)
        except ServerError as error:
            form.add_error(error.field or None, str(error))
    return render(
        request,
        "registry/managed_form.html",
        _managed_context(form) | {"server": server} | _state(server),
    )


@project_view(Role.OPERATOR)
def new(request: HttpRequest, project: Project) -> HttpResponse:
    form = ServerForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            server = servers.add_server(
                project=project, fields=form.cleaned_data, by=request.user, operator=True
            )
            return redirect("registry:server", project.slug, server.name)
        except ServerError as error:
            form.add_error(error.field or None, str(error))
    return render(request, "registry/server_form.html", {"form": form})


@project_view(Role.OPERATOR)
def edit(request: HttpRequest, project: Project, name: str) -> HttpResponse:
    server = get_object_or_404(Server.objects.select_related("base"), project=project, name=name)
    if server.is_managed:
        return _edit_managed(request, project, server)
    form = ServerForm(request.POST or None, initial=_initial(server))
    if request.method == "POST" and form.is_valid():
        try:
            server = servers.edit_server(
                server=server, fields=form.cleaned_data, by=request.user, operator=True
            )
            return redirect("registry:server", project.slug, server.name)
        except ServerError as error:
            form.add_error(error.field or None, str(error))
    context = {"form": form, "server": server, "uses": servers.uses_of(server)}
    return render(request, "registry/server_form.html", context)


def _initial(server: Server) -> dict[str, Any]:
    return {field: getattr(server, field) for field in ServerForm.base_fields} | {
        "prices": write_prices(server.prices)
    }


OF_REGISTRATION: Query = {
    **{name: kind for form in registering.FORMS.values() for name, kind in query_of(form).items()},
    "kind": list(registering.FORMS),
}


@project_view(Role.ENGINEER, query=OF_REGISTRATION)
def register(request: HttpRequest, project: Project) -> HttpResponse:
    """`?kind=`: what to register; other parameters fill in the form."""
    kind = request.GET.get("kind", "")
    kind = kind if kind in registering.FORMS else next(iter(registering.FORMS))
    given = (request.POST, request.FILES) if request.method == "POST" else (None,)
    form = registering.FORMS[kind](
        project, *given, initial={name: value for name, value in request.GET.items() if value}
    )
    if request.method == "POST" and form.is_valid():
        try:
            version = registering.register(
                project=project, kind=kind, fields=form.cleaned_data, by=request.user
            )
            messages.success(request, f"{version} is registered.")
            return redirect(version)
        except ModelError as error:
            form.add_error(error.field if error.field in form.fields else None, str(error))
    context = {
        "form": form,
        "kind": kind,
        "kinds": registering.TITLES,
        "title": registering.TITLES[kind],
    } | {
        "folders": trained_elsewhere.folders(),
        "profiles": profiles() if kind == ModelKind.BASE else (),
    }
    return render(request, "registry/register.html", context)
