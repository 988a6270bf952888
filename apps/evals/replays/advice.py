"""What the page that starts a step search knows about the choice."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

from apps.core.operations.forms import OperationForm
from apps.evals.actions import EvalSetError
from apps.evals.holdout.view_log import record_refusal
from apps.evals.replays.episode import Replayable, replayable, usual_environment
from apps.evals.replays.forecast import Forecast
from apps.evals.replays.preparing import prepared
from apps.evals.replays.schema import MOST_EACH, NewSearch
from apps.failures.models import Failure
from apps.registry import engines

ROWS = ("environment", "model_version", "task")
WARM = 0.7  # offered where the environment samples at temperature 0


def advice(form: OperationForm, failure: Failure, request: HttpRequest) -> dict[str, Any]:
    """Why the run cannot be replayed, or what replaying it will use."""
    try:
        run = replayable(failure)
    except EvalSetError as error:
        record_refusal(failure.project, error, by=request.user)
        return {"problem": str(error)}
    if not form.is_bound:
        form.initial = _usual(failure, run) | form.initial
    return {"run": run, "forecast": _forecast(form, failure)}


def _usual(failure: Failure, run: Replayable) -> dict[str, Any]:
    environment = usual_environment(run)
    versions = failure.project.model_versions.current().evaluated_here()
    said = (failure.trajectory.model, failure.agent_version)
    own = next((one for one in versions if str(one) in said), versions.first())
    usual = {"environment": environment and environment.pk, "model_version": own and own.pk}
    if environment and not environment.harness.get("temperature", 1.0):
        usual["temperature"] = WARM
    return usual


def _forecast(form: OperationForm, failure: Failure) -> Forecast | str | None:
    """A sentence if it cannot be made; None if the form has no environment or model yet."""
    sent = {name: form[name].value() for name in form.fields}
    rows = {name: _selected(form, name, sent[name]) for name in ROWS}
    each = str(sent["each"] or "")
    if not rows["environment"] or not rows["model_version"] or not each.isdecimal():
        return None
    given = NewSearch(
        failure=failure,
        each=min(int(each), MOST_EACH),
        every=sent["every"] in (True, "on", "true", "True"),
        engine=sent.get("engine") or engines.AUTO,
        **rows,
    )
    try:
        return prepared(given).forecast
    except EvalSetError as error:
        return str(error)


def _selected(form: OperationForm, name: str, value: Any) -> Any:
    key = str(getattr(value, "pk", value) or "")
    return form.fields[name].queryset.filter(pk=key).first() if key else None
