"""Access is in the lookup: a view that has a project has been given leave to see it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import BadRequest, PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect

from apps.core.errors import invalid_query
from apps.core.models import Membership, Role, Stage
from apps.core.query import Query, QueryError, from_browser
from apps.core.storable import refuse_unstorable_fields
from flywheel import logs
from workers.lib.typed import FormError

NOTHING: Query = {}
ARCHIVED = "{} is archived and read-only. An owner can unarchive it under Settings → Project."


def get_membership(user: Any, slug: str, role: Role = Role.VIEWER) -> Membership:
    """The user's membership of the project. Raises Http404 for a stranger, PermissionDenied below
    `role`.
    """
    membership = (
        Membership.objects.select_related("project").filter(project__slug=slug, user=user).first()
    )
    if membership is None:
        raise Http404
    if not membership.may(role):
        raise PermissionDenied(
            f"This needs the role “{role.label}” in {membership.project}; you are"
            f" {membership.role}."
        )
    return membership


def page_of_request(request: HttpRequest) -> str:
    """Where to continue after logging in: the requested page, or, for a submitted form, the page
    with the form.
    """
    if request.method in ("GET", "HEAD"):
        return request.get_full_path()
    sent_from = urlsplit(request.headers.get("Referer", ""))
    return urlunsplit(("", "", sent_from.path or "/", sent_from.query, ""))


def address_fields(request: HttpRequest) -> Iterator[tuple[str, Iterable[str]]]:
    """Of the path, as the route's converters read it, and of the query."""
    if (match := request.resolver_match) is not None:
        yield from (
            (name, [value]) for name, value in match.kwargs.items() if isinstance(value, str)
        )
    if request.META.get("QUERY_STRING"):
        yield from request.GET.lists()


def refuse_unstorable_text(request: HttpRequest) -> None:
    """Raises BadRequest (400) for text that cannot be stored in the address or the form: no page of
    ours sends any.
    """
    try:
        refuse_unstorable_fields([*address_fields(request), *request.POST.lists()])
    except FormError as error:
        raise BadRequest(str(error)) from error


def takes(query: Query) -> Callable:
    """Decorates a page: what `query` does not declare is refused; so is what the view refuses."""

    def decorate(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
        @wraps(view)
        def wrapper(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            try:
                request.GET = from_browser(request.GET, query)
                return view(request, *args, **kwargs)
            except QueryError as error:
                return invalid_query(request, error)

        wrapper.query = query  # type: ignore[attr-defined]
        return wrapper

    return decorate


def project_view(
    role: Role = Role.VIEWER,
    *,
    archived: bool = False,
    deleted: bool = False,
    query: Query = NOTHING,
) -> Callable:
    """Decorates `view(request, project, …)` at a URL with `<slug:slug>`; sets `request.membership`.

    An archived project is read-only but for views that say `archived`, a deleted one closed but for
    those that say `deleted`.
    `query` declares what the page's address may hold: nothing else is accepted.
    """

    def decorate(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
        view = takes(query)(view)

        @wraps(view)
        def wrapper(request: HttpRequest, slug: str, *args: Any, **kwargs: Any) -> HttpResponse:
            if not request.user.is_authenticated:
                return redirect_to_login(page_of_request(request))
            refuse_unstorable_text(request)
            membership = get_membership(request.user, slug, role)
            request.membership = membership  # type: ignore[attr-defined]
            request.project = membership.project  # type: ignore[attr-defined]
            logs.note(project=slug)
            stage = membership.project.stage
            if stage in (Stage.DELETING, Stage.DELETED) and not deleted:
                if request.method in ("GET", "HEAD"):
                    return redirect("core:deletion", slug)
                raise PermissionDenied(f"{membership.project} is being deleted.")
            if stage == Stage.ARCHIVED and request.method not in ("GET", "HEAD") and not archived:
                raise PermissionDenied(ARCHIVED.format(membership.project))
            return view(request, membership.project, *args, **kwargs)

        wrapper.role = role  # type: ignore[attr-defined]
        return wrapper

    return decorate
