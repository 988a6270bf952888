"""Views without REST framework, for what agents send: its work for a request was a third of that
for a small one. Keys, scopes and errors are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt
from rest_framework.exceptions import NotAuthenticated

from apps.core import scopes
from apps.core.api import HasProjectKey, key_of
from apps.core.api_errors import answer_of
from apps.core.http import ReadableJson
from apps.core.models import ApiKey

Answer = Callable[[HttpRequest, ApiKey], HttpResponse]


def plain(answer: Answer) -> Callable[[HttpRequest], HttpResponse]:
    """The view of a function, which is called for keys that may do what the route needs."""

    @csrf_exempt
    @wraps(answer)
    def view(request: HttpRequest) -> HttpResponse:
        try:
            key = key_of(request)
            if key is None:
                raise NotAuthenticated(HasProjectKey.message)
            request.auth = key  # type: ignore[attr-defined]
            scopes.require(key, request)
            return answer(request, key)
        except Exception as error:
            response = answer_of(error, {"request": request})
            if response is None:
                raise
            headers = {"WWW-Authenticate": "Bearer"} if response.status_code == 401 else {}
            if "Retry-After" in response.headers:
                headers["Retry-After"] = response.headers["Retry-After"]
            return ReadableJson(response.data, status=response.status_code, headers=headers)

    return view


def plainly(**answers: Answer) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Answers these methods of a view of the API plainly, where no query is to be checked."""
    views = {method: plain(answer) for method, answer in answers.items()}

    def decorate(view: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(view)
        def choose(request: HttpRequest, **path: Any) -> Any:
            quick = views.get(request.method or "")
            if quick is None or path or request.META.get("QUERY_STRING"):
                return view(request, **path)
            return quick(request)

        return choose

    return decorate
