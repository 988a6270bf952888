"""The routes below /env/<slug>@<version>/. The key determines the project; errors of the caller are
JSON.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt
from rest_framework.exceptions import AuthenticationFailed

from apps.core import scopes
from apps.core.api import TooManyRefused, key_of
from apps.core.bus import publish
from apps.core.routes import needing, shows
from apps.core.scopes import RUN
from apps.environments.clients import load_for
from apps.environments.models import Environment
from apps.environments.protocol import sessions
from apps.environments.protocol.aggregate import aggregate
from apps.environments.protocol.bodies import (
    MAX_METRICS,
    MAX_ROW,
    MAX_TOOL,
    Refusal,
    answer,
    drain,
    object_of,
    parts,
    read,
    value_of,
)
from apps.environments.protocol.guards import Use, UsingTask
from apps.environments.protocol.rows import ASKED, said_in, task_of
from apps.environments.protocol.scoring import as_members, call, score
from workers.lib.environments.packages import Package
from workers.lib.errors import SpecError
from workers.lib.messages import flat_tool, to_items
from workers.lib.sandbox import RETRY_AFTER_S, Busy, visiting

log = logging.getLogger(__name__)
NO_KEY = (
    "Send an API key of the project as “Authorization: Bearer <key>”, or as the password in the"
    " URL."
)
NAMED = (  # a session's name given by the caller, as nemo-gym's environment servers do
    "resources_session_id"
)
MAX_NAME = 200


def served(method: str) -> Callable:
    """Decorates `view(request, environment, …)`: checks key, method and environment; returns
    refusals as JSON.
    """

    def decorate(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
        @needing(**{method: RUN})
        @csrf_exempt
        @wraps(view)
        def wrapper(request: HttpRequest, slug: str, version: int, **kwargs: Any) -> HttpResponse:
            try:
                key = key_of(request)
                if key is None:
                    return _unknown_caller(NO_KEY)
                request.auth = key  # type: ignore[attr-defined]
                scopes.require(key, request, method)
                environment = sessions.of_project(key.project, slug, version)
                if request.method != method:
                    raise Refusal(405, f"This route takes {method}.")
                with visiting(f"project:{key.project_id}"):
                    return view(request, environment, **kwargs)
            except Busy as busy:
                response = answer({"detail": str(busy)}, 503)
                response["Retry-After"] = str(RETRY_AFTER_S)
                return response
            except TooManyRefused as error:
                response = answer({"detail": str(error.detail)}, 429)
                response["Retry-After"] = str(error.wait)
                return response
            except scopes.MissingScope as error:
                return answer({"detail": str(error.detail)}, 403)
            except AuthenticationFailed as error:
                return _unknown_caller(str(error.detail))
            except Refusal as refusal:
                return answer({"detail": refusal.sentence}, refusal.status)
            except SpecError as error:
                return answer({"detail": f"{slug}@{version} cannot be loaded: {error}"}, 409)
            finally:
                drain(request)

        return wrapper

    return decorate


def _unknown_caller(sentence: str) -> HttpResponse:
    response = answer({"detail": sentence}, 401)
    response["WWW-Authenticate"] = "Bearer"
    return response


@csrf_exempt
def nothing(request: HttpRequest, rest: str = "") -> HttpResponse:
    drain(request)
    return answer({"detail": "Not found. Environments are at /env/<slug>@<version>/."}, 404)


@served("GET")
def describe(request: HttpRequest, environment: Environment) -> HttpResponse:
    loaded = load_for(environment)
    return answer(
        {
            "name": environment.slug,
            "version": environment.version,
            "hash": environment.hash,
            "kind": environment.kind,
            "tools": [flat_tool(tool) for tool in loaded.tools],
            "input": to_items(environment.opening),
            "limits": {
                name: environment.harness.get(name) for name in ("max_turns", "max_new_tokens")
            },
            "session_header": sessions.HEADER,
        }
    )


@shows("that a task is held out; with the right it is opened")
@served("POST")
def seed_session(request: HttpRequest, environment: Environment) -> HttpResponse:
    row = object_of(read(request, MAX_ROW), "The task's row")
    name = row.get(NAMED)
    if name is not None and (not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME):
        raise Refusal(422, f"“{NAMED}” must be text of 1 to {MAX_NAME} characters.")
    task = task_of(_data(row))
    publish(UsingTask(request.auth, task, Use.OPEN))  # type: ignore[attr-defined]
    _check_start(environment, task)
    token = sessions.start(environment, task, name or "")
    response = answer({NAMED: name} if name else {})
    response[sessions.HEADER] = token
    response.set_cookie(
        sessions.COOKIE,
        token,
        path=f"/env/{environment}/",
        httponly=True,
        samesite="Lax",
        secure=request.is_secure(),
    )
    return response


def _check_start(environment: Environment, task: dict) -> None:
    """Raises Refusal for a row that no episode can begin with: usually one without what only the
    exported row has.
    """
    try:
        loaded = load_for(environment)
        loaded.open(task)
        if isinstance(loaded, Package):
            loaded.start(task)
    except (SpecError, Refusal):
        raise
    except Exception as error:
        raise Refusal(
            422,
            f"{environment} cannot start this row: {error or type(error).__name__}. Send the row as"
            " it was exported, with “verifier_metadata.flywheel”.",
        ) from error


def _data(row: dict) -> dict:
    """The task's row, which nemo-gym's environment servers put below `task_data`."""
    inner = row.get("task_data")
    return inner if NAMED in row and isinstance(inner, dict) else row


@served("POST")
def tool(request: HttpRequest, environment: Environment, tool: str) -> HttpResponse:
    args = value_of(read(request, MAX_TOOL) or b"{}")
    with sessions.locked(environment, sessions.token_of(request)) as session:
        done = call(load_for(environment), session.task, session.state, tool, args)
        session.state, session.calls = done.state, session.calls + 1
    return answer({"output": done.observation})


@shows("scores of answers to held-out tasks, with the right, up to a daily limit")
@served("POST")
def verify(request: HttpRequest, environment: Environment) -> HttpResponse:
    """The two echoed fields are given back byte for byte."""
    given = parts(read(request, MAX_ROW))
    for name in (ASKED, "response"):
        if name not in given:
            raise Refusal(
                422, f"“{name}” is missing: send the task's row and the model's response."
            )
    row = {name: value_of(raw) for name, raw in given.items()}
    said = said_in(row.pop("response"))
    token = sessions.token_of(request)
    session = sessions.found(environment, token)
    task = session.task if session else task_of(row)
    publish(UsingTask(request.auth, task, Use.SCORE))  # type: ignore[attr-defined]
    found = score(
        load_for(environment), task, said, session.state if session and session.calls else None
    )
    sessions.close(environment, token)
    if found.masked:
        log.warning("%s masked a sample: %s", environment, found.mask_reason)
    kept = {name: raw for name, raw in given.items() if name.startswith("_ng_")}
    return answer(kept | {ASKED: given[ASKED], "response": given["response"]} | as_members(found))


@served("POST")
def aggregate_metrics(request: HttpRequest, environment: Environment) -> HttpResponse:
    body = object_of(read(request, MAX_METRICS), "The body")
    return answer(aggregate(body.get("verify_responses")))


@served("POST")
def close_session(request: HttpRequest, environment: Environment) -> HttpResponse:
    body = object_of(read(request, MAX_TOOL), "The body")
    name = body.get(NAMED)
    sessions.close(environment, name if isinstance(name, str) else sessions.token_of(request))
    response = answer({NAMED: name} if isinstance(name, str) else {})
    response.delete_cookie(sessions.COOKIE, path=f"/env/{environment}/")
    return response


@served("GET")
def reverify_mode(request: HttpRequest, environment: Environment) -> HttpResponse:
    """nemo-gym asks whether stored responses may be verified again: they may, by replaying them."""
    return answer("stateless")


ROUTES: dict[str, Callable[..., HttpResponse]] = {
    view.__name__: view
    for view in (seed_session, verify, aggregate_metrics, close_session, reverify_mode)
}
