"""What the page that starts an evaluation knows about the choice: what it is compared with, how
long the same took before, and how often the hold-out was viewed.
"""

from __future__ import annotations

from typing import Any

from apps.core.forms import whole
from apps.core.operations.forms import OperationForm
from apps.evals.baseline import baseline_of, like
from apps.evals.holdout.view_log import view_count
from apps.evals.models import EvalSet
from apps.evals.pace import pace_before
from apps.registry.engines import LONGEST_AGENT_S


def advice(form: OperationForm, eval_set: EvalSet) -> dict[str, Any]:
    """For the page. The form starts with the settings of the evaluation to compare with."""
    named = whole(str(form.initial.get("model_version", "")))
    version = _row(form, "model_version", named) if named else None
    baseline = version and baseline_of(version, eval_set, form.initial.get("split", ""))
    if baseline:
        form.initial |= like(baseline)
    elif played := version and version.lineage.get("harness"):
        form.initial["played_by"] = played["agent"]  # as it was trained
    sent = form.data or form.initial
    pace = pace_before(
        _selected(form, "model_version"),
        _selected(form, "environment"),
        sent.get("engine", ""),
        whole(sent.get("timeout_s"), 1, LONGEST_AGENT_S) or 0,
    )
    return {
        "version": version,
        "baseline": baseline,
        "parent": version.parent if version and not baseline else None,
        "pace": pace,
        "views": view_count(eval_set),
    }


def _row(form: OperationForm, name: str, key: int | None) -> Any:
    """The row that a field has selected; the first of its choices if none is."""
    rows = form.fields[name].queryset
    return (rows.filter(pk=key) if key else rows).first()


def _selected(form: OperationForm, name: str) -> Any:
    value = form[name].value()
    return _row(form, name, whole(str(getattr(value, "pk", value))))
