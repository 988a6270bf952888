"""Variants written by a model: a job of an eval set, run by NeMo Data Designer in a separate
environment.

It has one attempt: a job that was lost halfway has already cost money, so a person decides whether
to start again. Results take the same path as the templates' variants: `batches.store_batch`. The
tokens of the answers are estimated before the start; a limit is never exceeded, and the usage is
reported however the job ends.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import transaction

from apps.core import jobs
from apps.core.actions import audit
from apps.core.job_files import job_folder
from apps.core.models import Project, Role
from apps.core.runner import job_fields
from apps.environments.clients import judge_of
from apps.evals import actions
from apps.evals.formats.rows import Bad
from apps.evals.models import EvalSet, Task, VariantJob
from apps.evals.variants import batches, from_model
from apps.evals.variants.seeds import ARGUMENTS, Seed
from apps.registry.prices import price_for
from apps.registry.servers import ServerError, address_spec, check_address, stored_address
from workers.lib.prices import Price, price_as_json
from workers.lib.specs.engines import ModelServer
from workers.lib.specs.write_variants import Seed as SeedSpec
from workers.lib.specs.write_variants import WriteVariants
from workers.lib.variants.requests import Cost, expected

MOST_ASKED = 2_000  # answers of one job
TIMEOUT_S = 60  # for one answer
LONGEST_S = 3 * 3600.0
ABSENT = (
    "NeMo Data Designer is not installed here. The operator of this installation can add it with"
    " “make designer”."
)
IF_LOST = "Nothing was stored; start it again."


@dataclass(frozen=True)
class WriteOrder:
    """Which model to ask, and for what."""

    base_url: str
    model: str
    key_variable: str
    kinds: list[str]
    each: int
    tokens: int = 0  # at most; 0: Cost.most_tokens


def is_installed() -> bool:
    return shutil.which(settings.FLYWHEEL_DESIGNER_PYTHON) is not None


def judge_server(project: Project) -> dict[str, str] | None:
    """The address of the project's judge, if it is enabled."""
    server = judge_of(project)
    return server and {
        "base_url": server.base_url,
        "model": server.model,
        "key_variable": server.key_variable,
    }


# Starting


@transaction.atomic
def submit(*, eval_set: EvalSet, wanted: WriteOrder, by: Any) -> VariantJob:
    """Queues the job. Raises EvalSetError for everything that can be known before the first
    question.
    """
    if not is_installed():
        raise actions.EvalSetError(ABSENT)
    wanted = _checked(eval_set.project, wanted, by)
    eval_set = actions.locked_draft(eval_set)
    cost = cost_of(batches.usable_seeds(eval_set), wanted)
    limit = wanted.tokens or cost.most_tokens
    if limit < cost.max_request_tokens:
        raise actions.EvalSetError(
            f"One request may need up to {cost.max_request_tokens:,} tokens. Raise the limit to at"
            " least that."
        )
    if eval_set.variant_jobs.active().exists():
        raise actions.EvalSetError(
            "A model is already writing variants for this set. Wait for it, or stop it."
        )
    audit(
        "variants.asked_for",
        project=eval_set.project,
        by=by,
        target=eval_set,
        name=str(eval_set),
        asked=cost.questions,
        server=wanted.base_url,
        model=wanted.model,
        kinds=wanted.kinds,
        most_tokens=limit,
    )
    spec = {"wanted": asdict(wanted) | {"tokens": limit}, "expected": cost.tokens}
    job = VariantJob(
        project=eval_set.project,
        eval_set=eval_set,
        name=f"Variants by {wanted.model}"[:200],
        total=cost.questions,
        spec=spec | {"price": price_as_json(price_of(eval_set.project, wanted))},
        max_attempts=1,
    )
    return jobs.submit(job, by=by)


def _checked(project: Project, wanted: WriteOrder, by: Any) -> WriteOrder:
    """With the address as it is stored. Raises EvalSetError if it may not be called or sent the
    key. The judge's server was chosen by an operator.
    """
    judge = judge_server(project) or {}
    is_operator = project.memberships.filter(user=by, role__in=Role.OPERATOR.upward).exists()
    try:
        wanted = replace(wanted, base_url=stored_address(wanted.base_url))
        is_judges = (wanted.base_url, wanted.key_variable) == (
            judge.get("base_url"),
            judge.get("key_variable"),
        )
        check_address(wanted.base_url, wanted.key_variable, operator=is_judges or is_operator)
        return wanted
    except ServerError as error:
        raise actions.EvalSetError(str(error)) from error


def cost_of(seeds: list[Task], wanted: WriteOrder) -> Cost:
    """The expected cost. Raises EvalSetError if nothing, or too much, would be asked."""
    _count(seeds, wanted)
    return expected(spec_of(seeds, wanted))


def price_of(project: Project, wanted: WriteOrder) -> Price | None:
    return price_for(project, wanted.model, wanted.base_url)


def _count(seeds: list[Task], wanted: WriteOrder) -> int:
    asked = wanted.each * sum(len(_kinds(task, wanted)) for task in seeds)
    if not asked:
        raise actions.EvalSetError(
            "No confirmed task ends with a plain text request that could be rephrased."
        )
    if asked > MOST_ASKED:
        raise actions.EvalSetError(
            f"This would take {asked:,} model calls; at most {MOST_ASKED:,} are allowed. Choose"
            " fewer variants."
        )
    return asked


def _kinds(task: Task, wanted: WriteOrder) -> list[str]:
    seed = batches.seed_of(task)
    return [
        kind
        for kind in wanted.kinds
        if seed.request is not None and (seed.calls or kind != ARGUMENTS)
    ]


def latest(eval_set: EvalSet) -> VariantJob | None:
    return eval_set.variant_jobs.first()


def stop(*, eval_set: EvalSet, by: Any) -> None:
    """Asks the job to stop; nothing of it is stored. Raises EvalSetError if none is running."""
    job = latest(eval_set)
    if job is None or not jobs.cancel(job, by=by):
        raise actions.EvalSetError("No model is writing variants for this set.")


# Doing it


def variants_spec(job: VariantJob) -> WriteVariants:
    if not is_installed():
        raise actions.EvalSetError(ABSENT)
    wanted = WriteOrder(**job.spec["wanted"])
    return spec_of(batches.usable_seeds(job.eval_set), wanted, **job_fields(job))


def store_events(job: VariantJob, events: list[dict]) -> None:
    """The latest usage numbers."""
    told = [event["values"] for event in events if event["type"] == "metric"]
    if told:
        VariantJob.objects.filter(pk=job.pk).update(
            used={name: int(value) for name, value in told[-1].items()}
        )


def complete(job: VariantJob, result: dict) -> dict:
    """Stores what the model wrote as a batch that waits for a review. Raises EvalSetError."""
    rows = _rows(job_folder(job) / "out" / "rows.jsonl")
    made = store(
        eval_set=job.eval_set, rows=rows, wanted=WriteOrder(**job.spec["wanted"]), by=job.created_by
    )
    return made | {name: result.get(name) for name in ("asked", "failed", "stopped")}


def ended(job: VariantJob) -> None:
    """Writes the usage to the audit log, however the job ended."""
    if job.attempt:
        used = dict.fromkeys(("calls", "input_tokens", "output_tokens", "estimated"), 0) | job.used
        audit(
            "variants.model_asked",
            project=job.project,
            by=job.created_by,
            target=job.eval_set,
            name=str(job.eval_set),
            model=job.spec["wanted"]["model"],
            **used,
        )
        transaction.on_commit(lambda: _tidy(job_folder(job)))


def _tidy(home: Path) -> None:
    """Deletes questions and answers: they are in the tasks now, or were not wanted."""
    for spec in home.glob("spec-*.json"):
        spec.unlink(missing_ok=True)
    shutil.rmtree(home / "out", ignore_errors=True)


def spec_of(seeds: list[Task], wanted: WriteOrder, **job: Any) -> WriteVariants:
    return WriteVariants(
        **job,
        server=address_spec(
            ModelServer,
            wanted.base_url,
            wanted.key_variable,
            model=wanted.model,
            timeout_s=TIMEOUT_S,
        ),
        seeds=[
            SeedSpec(
                key=str(task.pk),
                messages=task.messages,
                calls=from_model.calls_of(batches.seed_of(task)),
                tools=task.tools,
            )
            for task in seeds
            if _kinds(task, wanted)
        ],
        kinds=wanted.kinds,
        each=wanted.each,
        most_tokens=wanted.tokens,
    )


def _rows(path: Path) -> Iterator[Any]:
    with path.open() as file:
        for line in file:
            yield json.loads(line)


def store(*, eval_set: EvalSet, rows: Iterator[Any], wanted: WriteOrder, by: Any) -> dict:
    """The rows as a waiting batch: {batch, made, faulty, alike, guarded, problem}. Raises
    EvalSetError.
    """
    eval_set = actions.locked_draft(eval_set)
    seeds = {str(task.pk): task for task in batches.usable_seeds(eval_set)}
    found: list[tuple[Task, Seed]] = []
    problems: list[str] = []
    for row in rows:
        try:
            task = seeds.get(from_model.key_of(row))
            if task is None:
                raise Bad("verifier_metadata.key", "names no seed of now.")
            found.append((task, from_model.variant(batches.seed_of(task), row)))
        except Bad as error:
            problems.append(str(error))
    source = {"by": batches.MODEL, "model": wanted.model}
    made = batches.store_batch(eval_set=eval_set, found=found, source=source, by=by)
    counts = asdict(made) | {
        "faulty": made.faulty + len(problems),
        "problem": problems[0] if problems else "",
    }
    if not made.made:
        raise actions.EvalSetError(f"{batches.NONE} {left_out(counts)}")
    return counts


def left_out(counts: dict) -> str:
    """What happened to the rest, as a sentence."""
    return (
        f"Left out: {counts['faulty']:,} invalid, {counts['alike']:,} near-duplicates,"
        f" {counts['guarded']:,} too similar to a hold-out."
    )
