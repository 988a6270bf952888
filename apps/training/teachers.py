"""Which model teaches another and where it runs, and which model would be the best teacher."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from apps.core.models import JobState
from apps.evals.models import EvalRun
from apps.registry import engines
from apps.registry.actions import ModelError
from apps.registry.bases import find_base
from apps.registry.models import Engine, ModelKind, ModelVersion, Server, ServerKind
from apps.training.models import Method, TrainingRun
from workers.lib.same_tokenizer import why_not_same

SCORING = (ServerKind.VLLM, ServerKind.TRANSFORMERS)  # kinds that give a text's probabilities
READ = 50  # newest evaluations that are considered


def best_teacher(run: EvalRun) -> tuple[str, float, bool] | None:
    """(name, success, whether it has the model's tokenizer and runs here) of the best other model
    on the same set and split; None if no other model was evaluated there.
    """
    own = run.model_version.model
    rows = EvalRun.objects.current().filter(
        project=run.project, eval_set=run.eval_set, split=run.split, state=JobState.SUCCEEDED
    )
    rows = rows.exclude(model_version__kind=ModelKind.AGENT).exclude(
        model_version=run.model_version
    )
    found = [
        (other.result["metrics"]["success"]["mean"], other.model_version)
        for other in rows.select_related("model_version").order_by("-created_at")[:READ]
        if other.result.get("metrics", {}).get("counts", {}).get("tasks")
        and other.model_version.model != own
    ]
    if not found:
        return None
    success, version = max(found, key=lambda one: one[0])
    folder = folder_of(version)
    same = (
        bool(folder)
        and own.engine == Engine.TRANSFORMERS
        and not why_not_same(Path(folder_of(own)), Path(folder))
    )
    return str(version), success, same and gives_probabilities(version)


TAUGHT = (Method.ON_POLICY, Method.BEST_OF_N)  # methods that use a teacher
SAMPLES_TEACH = (
    "Evaluate the train split with it and choose distillation, or choose rejection sampling in the"
    " run: both learn from its samples."
)


def choose_engine(teacher: ModelVersion, on: str = "") -> dict[str, Any]:
    """Where the teacher runs (`engines.choose`): a served model on its server; any other in the
    run's own process, or on the server named `on`. Raises ModelError.
    """
    served = teacher.kind == ModelKind.ENDPOINT
    return engines.choose(teacher, on or (engines.AUTO if served else engines.IN_PROCESS))


def chosen(
    method: Method,
    parent: ModelVersion,
    teacher: ModelVersion | None,
    on: str,
    config: dict[str, Any],
) -> dict[str, Any]:
    """The part of a run's spec about its teacher: {} without one, else {teacher, teacher_name,
    teacher_digest} and, for one on a server, {teacher_engine}. Raises ModelError if it cannot
    teach.
    """
    if why := _not_taught(method, parent, teacher, on):
        raise ModelError(why)
    limits = {
        "most_tokens": config.get("teacher_tokens") or 0,
        "most_usd": config.get("teacher_usd") or 0.0,
    }
    name = config.get("teacher_answers_as")
    if teacher is None:
        if any(limits.values()) or name:
            raise ModelError(
                f"{'A model name' if name else 'A limit'} for the teacher needs a teacher on a"
                " server; choose one."
            )
        return {}
    engine = engines.with_limits(choose_engine(teacher, on), **limits)
    if name and "server" not in engine:
        raise ModelError(
            "“teacher_answers_as” is for a teacher on a server; this one runs in this installation."
        )
    if method == Method.ON_POLICY and (why := _no_probabilities(parent, teacher, engine)):
        raise ModelError(why)
    found = {"teacher": teacher.pk, "teacher_name": str(teacher), "teacher_digest": teacher.digest}
    return found | ({"teacher_engine": engine} if "server" in engine else {})


def _not_taught(method: Method, parent: ModelVersion, teacher: ModelVersion | None, on: str) -> str:
    if method not in TAUGHT:
        only = "only on-policy distillation and rejection sampling in the run do."
        return f"{Method(method).label} does not use a teacher; {only}" if teacher or on else ""
    if teacher is None and method == Method.ON_POLICY:
        return (
            "On-policy distillation needs a teacher: a model with the same tokenizer, in this"
            " installation or on a vLLM server."
        )
    if teacher is None:
        return "Choose the teacher that is to run on this server." if on else ""
    if teacher.kind not in (ModelKind.BASE, ModelKind.ADAPTER, ModelKind.ENDPOINT):
        return f"{teacher} cannot teach: choose a base model, an adapter or a served model."
    if teacher == parent and method == Method.ON_POLICY:
        return f"{teacher} is the student itself. Choose another model as its teacher."
    return ""


def _no_probabilities(parent: ModelVersion, teacher: ModelVersion, engine: dict[str, Any]) -> str:
    """Why the teacher cannot score the student's tokens; "" if it can. For a served model whose
    folder is unknown, the run's job compares tokenizers with the server.
    """
    if "server" in engine and engine["server_kind"] not in SCORING:
        return (
            f"{teacher} runs on {engine['server_name']}, which is not a vLLM server, so it cannot"
            f" provide token probabilities. {SAMPLES_TEACH}"
        )
    folder = folder_of(teacher)
    if folder and (differ := why_not_same(Path(folder_of(parent)), Path(folder))):
        return (
            f"{teacher} uses a different tokenizer than {parent}: {differ}. Choose a teacher from"
            f" the same family, or learn from its samples. {SAMPLES_TEACH}"
        )
    return ""


def folder_of(version: ModelVersion) -> str:
    """The folder of the version's base model; "" for a served model whose weights are not known."""
    based = version.parent if version.kind == ModelKind.ENDPOINT else version
    if based is None or based.kind not in (ModelKind.BASE, ModelKind.ADAPTER):
        return ""
    return str(find_base(based) or based.base)


def gives_probabilities(version: ModelVersion) -> bool:
    return version.kind != ModelKind.ENDPOINT or version.server.kind in SCORING


def words_of_engine(run: TrainingRun) -> str:
    """Where a run's teacher runs, and its limits; "" if it runs in the run's own process."""
    engine = run.spec.get("teacher_engine")
    return engines.in_words(engine, run.parent) if engine else ""


def server_name_of(run: TrainingRun) -> str:
    """The current name of the server that the teacher was put on; "" if it was not chosen."""
    engine = run.spec.get("teacher_engine")
    if not engine or engine["asked"] == engines.AUTO:
        return ""
    now = (
        Server.objects.filter(project=run.project_id, pk=engine["server"])
        .values_list("name", flat=True)
        .first()
    )
    return now or engine["server_name"]


def teacher_of(run: TrainingRun) -> ModelVersion | None:
    """The run's teacher; None if its method has none. Raises ModelError if it was deleted."""
    if "teacher" not in run.spec:
        return None
    found = ModelVersion.objects.filter(project=run.project, pk=run.spec["teacher"]).first()
    if found is None:
        raise ModelError(
            f"The teacher {run.spec['teacher_name']} was deleted. Start a new run with another one."
        )
    return found
