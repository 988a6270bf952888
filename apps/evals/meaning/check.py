"""Starts a semantic check, and runs its job: compares all texts that could train with the set's
hold-out.

Vectors come from a registered model version (its hidden states, on a worker) or from a server's
`/v1/embeddings`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from django.db import transaction

from apps.core import jobs
from apps.core.actions import audit
from apps.core.models import Project, Role
from apps.core.runner import job_fields
from apps.evals.actions import EvalSetError
from apps.evals.canonical import digest_of
from apps.evals.holdout.view_log import record_view
from apps.evals.meaning.texts import TRAINS, content_of, held_text, trained_texts
from apps.evals.meaning.verdicts import judged_different
from apps.evals.models import EvalSet, MeaningCheck, MeaningPair, Task
from apps.registry.actions import ModelError
from apps.registry.artifacts import ArtifactError
from apps.registry.engines import default_engine, engine_spec, model_spec
from apps.registry.models import ModelVersion
from apps.registry.servers import ServerError, address_spec, check_address
from workers.lib.specs.compare_meaning import CompareMeaning, HeldText, TrainedTexts
from workers.lib.specs.engines import Engine, Model, Server

MOST_TEXTS = 50_000
PAIRS, MOST_PAIRS = 50, 500
BATCH = 16
LONGEST_S = 6 * 3600.0


@dataclass(frozen=True)
class Source:
    """Where vectors come from: a model version of the project (`version` is its id), or a server
    that somebody named.
    """

    version: int | None = None
    base_url: str = ""
    model: str = ""
    key_variable: str = ""

    @property
    def name(self) -> str:
        return f"{self.model} at {self.base_url}"


# Asking


@transaction.atomic
def submit(
    *, eval_set: EvalSet, source: Source, by: Any, most: int = PAIRS, asked_by: Any = None
) -> MeaningCheck:
    """Queues a check. Raises EvalSetError for everything that can be known beforehand.

    `asked_by`: the API key, if one was used. Sending held-out text to a server counts as a view by
    whoever started the check.
    """
    EvalSet.objects.select_for_update().get(pk=eval_set.pk)  # pressing twice queues one
    if eval_set.meaning_checks.active().exists():
        raise EvalSetError(
            "A semantic check is already running for this set. Wait for it, or stop it."
        )
    _check_size(eval_set)
    is_operator = (
        asked_by is None
        and eval_set.project.memberships.filter(user=by, role__in=Role.OPERATOR.upward).exists()
    )
    version = _version(eval_set.project, source)
    engine, _ = _engine_and_model(source, version, is_operator)
    name = str(version) if version else source.name
    if server := getattr(engine, "base_url", ""):
        record_view(
            eval_set=eval_set, by=asked_by or by, detail=f"sent to {server} for a semantic check"
        )
    audit(
        "meaning.asked_for",
        project=eval_set.project,
        by=by,
        target=eval_set,
        name=str(eval_set),
        source=name,
        server=server,
    )
    job = MeaningCheck(
        project=eval_set.project,
        eval_set=eval_set,
        name=f"Semantic check of {eval_set} by {name}"[:200],
        spec={"source": asdict(source), "by": name, "operator": is_operator, "most": most},
    )
    return jobs.submit(job, by=by)


def _check_size(eval_set: EvalSet) -> None:
    held, others = eval_set.tasks.holdout().count(), eval_set.tasks.filter(split__in=TRAINS).count()
    if not held:
        raise EvalSetError(
            f"{eval_set} has no hold-out to compare with. Split the tasks by group first."
        )
    if not others:
        raise EvalSetError(
            f"{eval_set} has no train or validation tasks to compare with its hold-out."
        )
    if held + others > MOST_TEXTS:
        raise EvalSetError(
            f"{eval_set} has {held + others:,} tasks to compare; a check takes at most"
            f" {MOST_TEXTS:,}."
        )


def _version(project: Project, source: Source) -> ModelVersion | None:
    if source.version is None:
        return None
    found = ModelVersion.objects.models().filter(project=project, pk=source.version).first()
    if found is None:
        raise EvalSetError("The project has no such model version.")
    return found


def _engine_and_model(
    source: Source, version: ModelVersion | None, is_operator: bool
) -> tuple[Engine, Model]:
    """The parts of the job's spec. Raises EvalSetError if the server may not be called or the model
    is gone.
    """
    try:
        if version is not None:
            return engine_spec(version, BATCH, default_engine(version)), model_spec(version)
        base_url = check_address(source.base_url, source.key_variable, operator=is_operator)
    except (ModelError, ArtifactError, ServerError) as error:
        raise EvalSetError(str(error)) from error
    if not source.model:
        raise EvalSetError("Enter the name of the model on that server.")
    engine = address_spec(Server, base_url, source.key_variable, model=source.model)
    return engine, Model(base=source.model)


def stop(*, eval_set: EvalSet, by: Any) -> None:
    """Raises EvalSetError if none is running."""
    job = eval_set.meaning_checks.first()
    if job is None or not jobs.cancel(job, by=by):
        raise EvalSetError("No semantic check is running for this set.")


# The job


def comparison_spec(job: MeaningCheck) -> CompareMeaning:
    """Also stores what was compared. Raises EvalSetError, since permissions may have changed since
    the check was queued.
    """
    eval_set, source = job.eval_set, Source(**job.spec["source"])
    _check_size(eval_set)
    engine, model = _engine_and_model(
        source, _version(eval_set.project, source), job.spec["operator"]
    )
    job.cursor = {"content": content_of(eval_set)}
    MeaningCheck.objects.filter(pk=job.pk).update(cursor=job.cursor)
    held = {task: held_text(task) for task in eval_set.tasks.holdout()}
    others = {task: trained_texts(task) for task in eval_set.tasks.filter(split__in=TRAINS)}
    if not any(held.values()) or not any(others.values()):
        raise EvalSetError("Either the hold-out or the trainable tasks have no text to compare.")
    known = judged_different(
        eval_set.project, held, {task: digest_of(texts) for task, texts in others.items()}
    )
    return CompareMeaning(
        **job_fields(job),
        engine=engine,
        model=model,
        held=[HeldText(id=str(task.pk), text=text) for task, text in held.items() if text],
        others=[
            TrainedTexts(id=str(task.pk), texts=texts) for task, texts in others.items() if texts
        ],
        known=[(str(held.pk), str(other.pk)) for held, other in known],
        most=job.spec["most"],
    )


def complete(job: MeaningCheck, result: dict) -> dict:
    """Stores the pairs whose tasks still exist."""
    found = result["pairs"]
    tasks = {str(task.pk): task for task in _tasks(job.eval_set, found)}
    made = []
    for pair in found:
        held, other = tasks.get(pair["held"]), tasks.get(pair["other"])
        texts = trained_texts(other) if other else []
        if held and pair["text"] < len(texts):
            made.append(
                MeaningPair(
                    job=job,
                    position=len(made),
                    held=held,
                    other=other,
                    ours=held.canonical_hash,
                    theirs=other.canonical_hash,
                    digest=digest_of(texts),
                    text=texts[pair["text"]],
                    score=pair["score"],
                )
            )
    MeaningPair.objects.bulk_create(made)
    return {"pairs": len(made), "content": job.cursor["content"]} | {
        name: result[name] for name in ("texts", "known")
    }


def _tasks(eval_set: EvalSet, pairs: Iterable[dict]) -> Iterable[Task]:
    return eval_set.tasks.filter(
        pk__in={pair[name] for pair in pairs for name in ("held", "other")}
    )
