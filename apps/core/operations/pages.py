"""The pages of operations: where forms are posted to, and the beat of a page with a form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import URLPattern, path
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.auditing.words import page_of_row
from apps.core.errors import Rejected, note_refusal
from apps.core.following import followed
from apps.core.forms import query_of
from apps.core.models import Project
from apps.core.operations.declared import REGISTRY, Operation, Page
from apps.core.operations.forms import OperationForm, form_of
from apps.core.operations.inputs import call
from apps.core.query import Query
from workers.lib.typed import FormError

NOT_DONE = object()
REFUSALS = (Rejected, FormError, PermissionDenied)  # whose sentences are for the page


def page_urls(app: str) -> list[URLPattern]:
    """The addresses that forms of an app's operations are posted to."""
    return [
        path(each.page.path, _view(each, each.page), name=each.page.route)
        for each in REGISTRY.values()
        if each.app == app and each.page
    ]


def _view(operation: Operation, page: Page) -> Any:
    prefills = page.template and operation.target is None

    @project_view(
        operation.role, query=(_prefilled(operation) if prefills else {}) | {"back": None}
    )
    def view(request: HttpRequest, project: Project, **address: Any) -> HttpResponse:
        target, rows = _named(operation, project, address)
        form, returned = submitted(request, operation.body, target, rows)
        if isinstance(returned, HttpResponse):
            return returned
        known = {"request": request, "project": project, "form": form, "target": target} | rows
        if returned is NOT_DONE and page.template:
            shown = {operation.target_name: target} if target else {}
            context = {"form": form} | shown | rows | call(page.context, known)
            return render(request, page.template, context)
        if returned is NOT_DONE:
            problems = [problem for field in form.errors.values() for problem in field]
            messages.error(request, " ".join(problems))
            return _back(page, project, target, rows)
        if operation.outcome:
            _, returned = operation.outcome(returned)
        known["returned"] = returned
        text = call(page.done, known) if callable(page.done) else page.done.format(**known)
        if text:
            messages.success(request, text)
        if is_here(back := request.GET.get("back", ""), project):
            return redirect(back)
        answer = _onwards(page, project, known, rows)
        if page.follows:
            answer["Location"] = followed(answer["Location"])
        return answer

    view.__name__ = operation.page_route
    view.shows = operation.shows  # type: ignore[attr-defined]
    return view if page.template else require_POST(view)


def is_here(address: str, project: Project) -> bool:
    """Whether it is a page of the project: `back` names the one that led to a form."""
    here = url_has_allowed_host_and_scheme(address, allowed_hosts=None)
    return here and address.startswith(f"/p/{project.slug}/")


def _onwards(
    page: Page, project: Project, known: Mapping[str, Any], rows: Mapping[str, Any]
) -> HttpResponse:
    """To the page that follows what was done."""
    target, returned = known["target"], known["returned"]
    if callable(page.then):
        return redirect(call(page.then, known))
    if page.then:
        return redirect(page.then, project.slug)
    if target is None or isinstance(returned, type(target)):
        target, rows = returned, {}
    return _back(page, project, target, rows)


def _prefilled(operation: Operation) -> Query:
    """What the address of a form may fill in: choices and numbers that its fields can have. Texts,
    and fields that name a row, are looked at by the form.
    """
    inputs, query = operation.inputs, dict(query_of(form_of(operation)))
    for name in query.keys() & inputs.query.keys() - inputs.references.keys():
        schema = dict(inputs.query[name]) | {"required": False}
        query[name] = query[name] if schema.get("type") in ("string", "array") else schema
    return query


def _back(page: Page, project: Project, target: Any, rows: Mapping[str, Any]) -> HttpResponse:
    """To the page of what the address names last, or else to the route that follows."""
    named = [row for row in (target, *rows.values()) if row is not None]
    links = [link for row in named if (link := page_of_row(row, project.slug))]
    return redirect(links[-1]) if links else redirect(page.then, project.slug)


def _named(
    operation: Operation, project: Project, address: Mapping[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """The object and the references of a page's address. Raises Http404."""
    references = operation.inputs.references
    names = {name: value for name, value in address.items() if name in references}
    lookup = {name: value for name, value in address.items() if name not in references}
    rows = {name: references[name].find(project, value) for name, value in names.items()}
    if rows and not lookup and operation.target:
        return getattr(next(iter(rows.values())), operation.target_name), rows
    return operation.object_of(project, lookup), rows


def submitted(
    request: HttpRequest, body: Any, target: Any = None, rows: Mapping[str, Any] | None = None
) -> tuple[OperationForm, Any]:
    """The form of an operation, and what the operation has returned: `NOT_DONE` unless it was
    posted, valid and not refused. The initial values are the object's, or without one those of the
    address (`?seed=3`).
    """
    operation, project = body.operation, request.project  # type: ignore[attr-defined]
    form_class = form_of(operation)
    initial = {
        name: request.GET.get(name) if target is None else getattr(target, name, None)
        for name in form_class.base_fields
        if target is not None or name in request.GET
    }
    data = request.POST if request.method == "POST" else None
    form = form_class(data, initial=initial, project=project, rows=rows, target=target)
    if not form.is_valid():
        return form, NOT_DONE
    try:
        return form, operation.run(form.values, target, project=project, by=request.user)
    except REFUSALS as error:
        page = operation.page
        if page and page.refused and (answer := page.refused(request, target, error)):
            return form, answer
        note_refusal(project, error, by=request.user)
        form.add_refusal(error)
        return form, NOT_DONE
