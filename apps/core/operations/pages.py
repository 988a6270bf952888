"""The pages of operations: where forms are posted to, and the beat of a page with a form."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from django.contrib import messages
from django.core.exceptions import ObjectDoesNotExist
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import URLPattern, path
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.errors import Rejected, note_refusal
from apps.core.models import Project
from apps.core.operations.declared import REGISTRY, Operation
from apps.core.operations.forms import OperationForm, form_of

NOT_DONE = object()


def page_urls(app: str) -> list[URLPattern]:
    """The addresses that forms of an app's operations are posted to."""
    return [
        path(one.page.path, _form_page(one) if one.page.template else _button(one), name=route)
        for one in REGISTRY.values()
        if one.app == app and one.page and (route := one.page.route)
    ]


def _button(one: Operation) -> Any:
    @require_POST
    @project_view(one.role)
    def view(request: HttpRequest, project: Project, **address: Any) -> HttpResponse:
        target = _target(one, project, address)
        form = form_of(one)(request.POST) if one.takes else None
        if form is not None and not form.is_valid():
            problems = [problem for field in form.errors.values() for problem in field]
            messages.error(request, " ".join(problems))
            return _back(one, project, target)
        try:
            given = form.given if form else None
            returned = one.run(project=project, by=request.user, target=target, given=given)
        except Rejected as error:
            page = one.page
            if page and page.refused and (answer := page.refused(request, target, error)):
                return answer
            note_refusal(project, error, by=request.user)
            messages.error(request, str(error))
            return _back(one, project, target)
        return _done(one, request, project, target, returned)

    view.__name__ = one.page_route
    view.shows = one.shows  # type: ignore[attr-defined]
    return view


def _form_page(one: Operation) -> Any:
    page = one.page
    assert page is not None

    @project_view(one.role)
    def view(request: HttpRequest, project: Project, **address: Any) -> HttpResponse:
        target = _target(one, project, address)
        form, returned = submitted(
            request, one.body, project=project, target=target, only=page.only or None
        )
        if returned is not NOT_DONE:
            return _done(one, request, project, target, returned)
        return render(
            request, page.template, {"form": form} | ({one.target_name: target} if target else {})
        )

    view.__name__ = one.page_route
    view.shows = one.shows  # type: ignore[attr-defined]
    return view


def _done(
    one: Operation, request: HttpRequest, project: Project, target: Any, returned: Any
) -> HttpResponse:
    page = one.page
    assert page is not None
    if page.after:
        page.after(request, returned)
    if page.done:
        text = (
            page.done.format(target=target, returned=returned)
            if isinstance(page.done, str)
            else page.done(target, returned)
        )
        messages.success(request, text)
    if page.then:
        return redirect(page.then, project.slug)
    same = target is None or isinstance(returned, type(target))
    return _back(one, project, returned if same else target)


def _back(one: Operation, project: Project, target: Any) -> HttpResponse:
    own = getattr(target, "get_absolute_url", None)
    return redirect(own()) if own else redirect(one.page.then, project.slug)


def _target(one: Operation, project: Project, address: Mapping[str, Any]) -> Any:
    if one.target is None:
        return None
    try:
        return one.object_of(project, **address)
    except ObjectDoesNotExist as error:
        raise Http404(str(error)) from error


def submitted(
    request: HttpRequest,
    body: Any,
    *,
    project: Project,
    target: Any = None,
    only: Collection[str] | None = None,
) -> tuple[OperationForm, Any]:
    """The form of an operation on a page of its own, and what the operation has returned:
    `NOT_DONE` unless it was posted, valid and not refused. The initial values are the object's.
    """
    one: Operation = body.operation
    form_class = form_of(one, only)
    initial = (
        {name: getattr(target, name) for name in form_class.base_fields}
        if target is not None
        else None
    )
    form = form_class(request.POST or None, initial=initial)
    if request.method != "POST" or not form.is_valid():
        return form, NOT_DONE
    try:
        returned = one.run(project=project, by=request.user, target=target, given=form.given)
    except Rejected as error:
        note_refusal(project, error, by=request.user)
        form.add_refusal(error)
        return form, NOT_DONE
    return form, returned
