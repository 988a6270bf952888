"""Which model could teach another: the one that did best on the tasks that both were evaluated on."""

from __future__ import annotations

from pathlib import Path

from apps.core.models import JobState
from apps.evals.models import EvalRun
from apps.registry.actions import ModelError
from apps.registry.models import Engine, ModelKind, ModelVersion
from apps.training.models import TrainingRun
from workers.lib.same_tokenizer import why_not_same

READ = 50  # evaluations, the newest


def best_teacher(run: EvalRun) -> tuple[str, float, bool] | None:
    """(name, success, whether it has the model's tokenizer and runs here) of the best other model on the same set and split; None
    where no other was evaluated there."""
    own = run.model_version.model
    rows = EvalRun.objects.current().filter(
        project=run.project, eval_set=run.eval_set, split=run.split, state=JobState.SUCCEEDED
    )
    rows = rows.exclude(model_version__kind=ModelKind.AGENT).exclude(model_version=run.model_version)
    found = [
        (other.result["metrics"]["success"]["mean"], other.model_version)
        for other in rows.select_related("model_version").order_by("-created_at")[:READ]
        if other.result.get("metrics", {}).get("counts", {}).get("tasks") and other.model_version.model != own
    ]
    if not found:
        return None
    success, version = max(found, key=lambda one: one[0])
    here = version.engine == Engine.TRANSFORMERS and version.kind in (ModelKind.BASE, ModelKind.ADAPTER)
    same = here and own.engine == Engine.TRANSFORMERS and not why_not_same(Path(own.base), Path(version.base))
    return str(version), success, same


def teacher_of(run: TrainingRun) -> ModelVersion | None:
    """None where its method has none. Raises ModelError where it was deleted."""
    if "teacher" not in run.spec:
        return None
    found = ModelVersion.objects.filter(project=run.project, pk=run.spec["teacher"]).first()
    if found is None:
        raise ModelError(f"The teacher {run.spec['teacher_name']} was deleted. Start a new run with another one.")
    return found
