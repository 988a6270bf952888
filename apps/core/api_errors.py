"""The API's response when a view raises: REST framework's exception handler."""

from __future__ import annotations

from typing import Any

from rest_framework.exceptions import ValidationError
from rest_framework.response import Response
from rest_framework.views import exception_handler

from apps.core.errors import Rejected, note_refusal
from apps.core.stores import StoreError
from flywheel.outages import RETRY_AFTER_S
from workers.lib.errors import SpecError
from workers.lib.typed import FormError


def answer_of(error: Exception, context: dict[str, Any]) -> Response | None:
    """What was sent wrongly is 400 with its place, what is in the way 409; all else as REST
    framework answers it.
    """
    if isinstance(error, Rejected):
        key = context["request"].auth
        note_refusal(key.project, error, by=key)
    if isinstance(error, FormError):
        error = ValidationError({"path": error.path, "error": error.problem})
    elif isinstance(error, SpecError):
        error = ValidationError({"path": "", "error": str(error)})
    elif isinstance(error, Rejected) and error.field is not None:
        error = ValidationError({"path": error.field, "error": str(error)})
    elif isinstance(error, Rejected):
        return Response({"detail": str(error)}, status=409)
    elif isinstance(error, StoreError):
        given = {"detail": f"Files are unavailable: {error}. Nothing was stored; send this again."}
        return Response(given, status=503, headers={"Retry-After": str(RETRY_AFTER_S)})
    return exception_handler(error, context)
