"""Synthetic variants over REST: created by templates or a model, reviewed, used or discarded. The
key determines the project.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal
from uuid import UUID

from drf_spectacular.utils import extend_schema
from msgspec import Meta, Struct, field
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.api import member_of
from apps.core.http import uuid_of
from apps.core.models import JobState
from apps.core.openapi import JSON, LINE, described, sent, told
from apps.core.routes import SIDES, api, shows
from apps.core.scopes import MANAGED, READABLE
from apps.evals.lookups import find_set, form_of
from apps.evals.models import EvalSet, Split, Task, VariantJob
from apps.evals.variants import batches, model_job, templates
from apps.evals.variants.from_model import WRITTEN
from workers.lib.typed import Seed, Text, json_schema

Each = Annotated[int, Meta(ge=1, le=20)]
Line = Annotated[str, Meta(max_length=200, pattern=LINE)]
Kinds = Annotated[list[Literal[tuple(templates.KINDS)]], Meta(min_length=1)]  # type: ignore[valid-type]
WrittenKinds = Annotated[list[Literal[tuple(WRITTEN)]], Meta(min_length=1)]  # type: ignore[valid-type]


class Make(Struct, forbid_unknown_fields=True, kw_only=True):
    """Up to `each` variants of every kind from every confirmed task of the train split."""

    kinds: Kinds = field(default_factory=lambda: list(templates.KINDS))
    each: Each = 2
    seed: Seed = 0


class Write(Struct, forbid_unknown_fields=True, kw_only=True):
    """Whom to ask: the project's judge, or with `base_url` and `model` another server, which only
    an operator may name. `tokens`: at most; 0: what was estimated allows."""

    kinds: WrittenKinds = field(default_factory=lambda: list(WRITTEN))
    each: Each = 2
    tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    base_url: Line = ""
    model: Line = ""
    key_variable: Annotated[str, Meta(max_length=80, pattern=LINE)] = ""


class Judge(Struct, forbid_unknown_fields=True, kw_only=True):
    task: Text
    verdict: Literal["accepted", "rejected"]


class End(Struct, forbid_unknown_fields=True, kw_only=True):
    do: Literal["use", "discard"]


class Confirm(Struct, forbid_unknown_fields=True, kw_only=True):
    key: Annotated[str, Meta(min_length=1, max_length=120, pattern=LINE)]


REVIEW = {
    "type": ["object", "null"],
    "description": "The batch waiting for review; null if there is none",
    "properties": {
        "batch": {"type": "string"},
        **{key: {"type": "integer"} for key in ("size", "looked", "accepted", "needed")},
        "may_be_used": {
            "type": "boolean",
            "description": "Enough were reviewed, and enough of them accepted",
        },
    },
}
VARIANT = {
    "type": "object",
    "properties": {
        "task": {"type": "string", "format": "uuid"},
        "key": {"type": "string"},
        "kind": {"type": "string"},
        "seed": {
            "type": ["string", "null"],
            "description": "The key of the task that it was made from",
        },
        "messages": {"type": "array", "items": {"type": "object"}},
        "expected": {"type": "object"},
        "verdict": {"enum": ["accepted", "rejected", None]},
    },
}
JOB = {
    "type": "object",
    "required": ["id", "state", "done", "total", "error", "used", "result"],
    "properties": {
        "id": {"type": "string", "format": "uuid"},
        "state": {"enum": JobState.values},
        "model": {"type": "string"},
        "done": {"type": "integer"},
        "total": {"type": "integer", "description": "Questions to the model"},
        "error": {"type": "string"},
        "used": {"type": "object", "description": "Calls and tokens so far"},
        "result": {
            "type": "object",
            "description": "How many were made and left out, once it has ended",
        },
    },
}
PAGE = {
    "type": "object",
    "required": ["seeds", "review", "sample", "job"],
    "properties": {
        "seeds": {"type": "integer", "description": "Confirmed tasks of the train split"},
        "review": REVIEW,
        "sample": {
            "type": "array",
            "items": VARIANT,
            "description": "A random sample of variants to review",
        },
        "job": (
            JOB
            | {
                "type": ["object", "null"],
                "description": "The last job in which a model wrote variants",
            }
        ),
    },
}
MADE = {
    "type": "object",
    "required": ["batch", "made", "faulty", "alike", "guarded"],
    "properties": {
        "batch": {"type": "string"},
        "made": {"type": "integer"},
        "faulty": {"type": "integer"},
        "alike": {
            "type": "integer",
            "description": "Similar to another variant or a task in the set",
        },
        "guarded": {"type": "integer", "description": "Too similar to a hold-out"},
    },
}
ENDED = {
    "type": "object",
    "properties": {"used": {"type": "integer"}, "discarded": {"type": "integer"}},
}
CONFIRMED = {"type": "object", "properties": {"confirmed": {"type": "string"}}}
TASK = "8d0e3c1e-7c0d-4b0e-9d3a-2f5a1b1f9a11"
ALL = {
    "seeds": 40,
    "review": {
        "batch": "5f0c3c1e7c0d",
        "size": 80,
        "looked": 10,
        "accepted": 9,
        "needed": 10,
        "may_be_used": True,
    },
    "sample": [
        {
            "task": TASK,
            "key": "close-12-paraphrase",
            "kind": "paraphrase",
            "seed": "close-12",
            "messages": [{"role": "user", "content": "Could you close ticket 12?"}],
            "expected": {"tool": "tickets.close", "args": {"id": 12}},
            "verdict": "accepted",
        }
    ],
    "job": None,
}
JOB_VALUE = {
    "id": TASK,
    "state": "queued",
    "model": "gpt-5",
    "done": 0,
    "total": 80,
    "error": "",
    "used": {},
    "result": {},
}


@shows(SIDES)
@extend_schema(
    methods=["GET"],
    operation_id="v1_variants_read",
    responses=described({200: PAGE}, 404),
    examples=[told("A batch", ALL)],
    description=(
        "The batch of synthetic variants waiting for review, the variants to review, and the last"
        " generation job. Poll it while a model is writing."
    ),
)
@extend_schema(
    methods=["POST"],
    operation_id="v1_variants_make",
    request={JSON: json_schema(Make)},
    responses=described({201: MADE}, 400, 403, 404, 409, 413),
    examples=[
        sent("Other words", {"kinds": ["paraphrase"], "each": 2}),
        told(
            "Made",
            {"batch": "5f0c3c1e7c0d", "made": 80, "faulty": 3, "alike": 5, "guarded": 0},
            "201",
        ),
    ],
    description=(
        "Generates variants of a draft's confirmed training tasks from templates. They wait until"
        " enough of them have been reviewed."
    ),
)
@api(GET=READABLE, POST=MANAGED)
def variants(request: Request, pk: UUID) -> Response:
    eval_set = find_set(request, pk)
    if request.method == "GET":
        return Response(as_json(eval_set))
    by, asked = member_of(request).user, form_of(request, Make)
    given = {"kinds": asked.kinds, "each": asked.each, "seed": asked.seed}
    made = batches.make_batch(eval_set=eval_set, by=by, viewer=request.auth, **given)
    return Response(asdict(made), status=201)


@extend_schema(
    operation_id="v1_variants_judge",
    request={JSON: json_schema(Judge)},
    responses=described({200: PAGE}, 400, 403, 404, 409, 413),
    examples=[
        sent("A good one", {"task": TASK, "verdict": "accepted"}),
        told("What waits now", ALL),
    ],
    description="Accepts or rejects one variant of the waiting batch.",
)
@api(POST=MANAGED)
def judge(request: Request, pk: UUID) -> Response:
    eval_set, by, asked = find_set(request, pk), member_of(request).user, form_of(request, Judge)
    task = _task(eval_set, {"pk": uuid_of(asked.task)})
    batches.judge(task=task, verdict=asked.verdict, by=by)
    return Response(as_json(eval_set))


@extend_schema(
    operation_id="v1_variants_end",
    request={JSON: json_schema(End)},
    responses=described({200: ENDED}, 400, 403, 404, 409, 413),
    examples=[sent("Use it", {"do": "use"}), told("Tasks now", {"used": 72})],
    description=(
        "Uses the waiting batch, turning its variants (except rejected ones) into training tasks,"
        " or discards it. 409 if too few were reviewed or accepted."
    ),
)
@api(POST=MANAGED)
def end(request: Request, pk: UUID) -> Response:
    eval_set, by, asked = find_set(request, pk), member_of(request).user, form_of(request, End)
    if asked.do == "use":
        return Response({"used": batches.use_batch(eval_set=eval_set, by=by)})
    return Response({"discarded": batches.discard_batch(eval_set=eval_set, by=by)})


@extend_schema(
    operation_id="v1_variants_write",
    request={JSON: json_schema(Write)},
    responses=described({202: JOB}, 400, 403, 404, 409, 413),
    examples=[
        sent("By the judge", {"kinds": ["paraphrase", "edge"], "each": 1}),
        told("Queued", JOB_VALUE, "202"),
    ],
    description=(
        "Has a model write variants, on a worker; poll the set's variants until `job` has finished."
    ),
)
@api(POST=MANAGED)
def write(request: Request, pk: UUID) -> Response:
    eval_set, by, asked = find_set(request, pk), member_of(request).user, form_of(request, Write)
    server = {"base_url": asked.base_url, "model": asked.model, "key_variable": asked.key_variable}
    if not asked.base_url:
        server = model_job.judge_server(eval_set.project) or {}
    if not server.get("model"):
        raise ValidationError(
            {
                "path": "model",
                "error": "the project has no judge: name a server, “base_url” and “model”",
            }
        )
    wanted = model_job.WriteOrder(kinds=asked.kinds, each=asked.each, tokens=asked.tokens, **server)
    job = model_job.submit(eval_set=eval_set, wanted=wanted, by=by)
    return Response(job_json(job), status=202)


@extend_schema(
    operation_id="v1_variants_cancel",
    request=None,
    responses=described({200: PAGE}, 403, 404, 409),
    examples=[told("Stopped", ALL | {"job": JOB_VALUE | {"state": "cancelled"}})],
    description="Stops variant generation; nothing is stored.",
)
@api(POST=MANAGED)
def cancel(request: Request, pk: UUID) -> Response:
    eval_set, by = find_set(request, pk), member_of(request).user
    model_job.stop(eval_set=eval_set, by=by)
    return Response(as_json(eval_set))


@extend_schema(
    operation_id="v1_eval_sets_confirm_task",
    request={JSON: json_schema(Confirm)},
    responses=described({200: CONFIRMED}, 400, 403, 404, 409, 413),
    examples=[
        sent("By its key", {"key": "close-12"}),
        told("Confirmed", {"confirmed": "close-12"}),
    ],
    description=(
        "Confirms that a draft task's expected answer is right: variants are only generated from"
        " confirmed tasks."
    ),
)
@api(POST=MANAGED)
def confirm(request: Request, pk: UUID) -> Response:
    eval_set, by, asked = find_set(request, pk), member_of(request).user, form_of(request, Confirm)
    batches.confirm(task=_task(eval_set, {"key": asked.key}), by=by)
    return Response({"confirmed": asked.key})


def _task(eval_set: EvalSet, where: dict[str, Any]) -> Task:
    """Of any split; a held-out task is indistinguishable from a missing one. Raises NotFound."""
    rows = eval_set.tasks.exclude(split=Split.HOLDOUT).select_related("eval_set", "project")
    found = rows.filter(**where).first()
    if found is None:
        raise NotFound("This eval set has no such task outside its hold-out.")
    return found


def as_json(eval_set: EvalSet) -> dict[str, Any]:
    review, job = batches.review_of(eval_set), model_job.latest(eval_set)
    reviewed = (
        asdict(review) | {"needed": review.needed, "may_be_used": review.may_be_used}
        if review
        else None
    )
    sample = batches.sample(batches.waiting_in(eval_set).select_related("variant_of"))
    return {
        "seeds": batches.seeds_of(eval_set).count(),
        "review": reviewed,
        "sample": [_variant(task) for task in sample],
        "job": job_json(job) if job else None,
    }


def _variant(task: Task) -> dict[str, Any]:
    about = task.metadata["variant"]
    return {
        "task": str(task.pk),
        "key": task.key,
        "kind": about["kind"],
        "verdict": about["verdict"],
        "seed": task.variant_of.key if task.variant_of else None,
        "messages": task.messages,
        "expected": task.expected,
    }


def job_json(job: VariantJob) -> dict[str, Any]:
    found = {
        name: getattr(job, name) for name in ("state", "done", "total", "error", "used", "result")
    }
    return {"id": str(job.pk), "model": job.spec["wanted"]["model"]} | found
