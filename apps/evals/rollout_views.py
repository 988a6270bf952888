"""The routes below /rollout/<ID>/, for agents. The ID is all that they need: whoever has it may
call this sample's tools, until it ends.
"""

from __future__ import annotations

from urllib.parse import quote

from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt

from apps.environments.protocol.bodies import MAX_TOOL, Refusal, answer, drain, read
from apps.evals import rollouts
from workers.lib.errors import SpecError
from workers.lib.sandbox import RETRY_AFTER_S, Busy, visiting

UNKNOWN = "No rollout has this address."


@csrf_exempt
def rollout(request: HttpRequest, token: str, rest: str) -> HttpResponse:
    try:
        found = rollouts.find(token)
        if found is None:
            raise Refusal(404, UNKNOWN)
        body = read(request, MAX_TOOL)
        with visiting(f"project:{found.run.project_id}"):
            reply = rollouts.answer(found, request.method or "", quote(rest), request.headers, body)
        return HttpResponse(reply.body, status=reply.status, headers=reply.headers)
    except Busy as busy:
        response = answer({"detail": str(busy)}, 503)
        response["Retry-After"] = str(RETRY_AFTER_S)
        return response
    except Refusal as refusal:
        return answer({"detail": refusal.sentence}, refusal.status)
    except SpecError as error:
        return answer({"detail": f"The environment cannot be loaded: {error}"}, 409)
    finally:
        drain(request)


@csrf_exempt
def nothing(request: HttpRequest, rest: str = "") -> HttpResponse:
    drain(request)
    return answer({"detail": UNKNOWN}, 404)
