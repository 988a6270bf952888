"""Policy rules over REST: those in system prompts, those people wrote, and their decisions. The API
key determines the project.
"""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiExample, OpenApiParameter, extend_schema
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.api import member_of
from apps.core.models import Project
from apps.core.openapi import described
from apps.core.openapi import page as page_schema
from apps.core.query import number_of, whole_number
from apps.core.routes import RUNS, api, shows
from apps.core.scopes import MANAGED, READABLE
from apps.failures.actions import rule_decisions
from apps.failures.actions.decisions import Refused
from apps.failures.models import PolicyRule, SystemPrompt
from apps.failures.prompts import MOST_COUNTED, MOST_EXAMPLES, rules_of
from apps.failures.rules.conditions import LONGEST_SENTENCE
from apps.failures.rules.written import FORMS, Invalid
from apps.trajectories.shown import runs_shown

PAGE, MAX_PAGE = 50, 200
STATES = list(PolicyRule.State.values)
UNDERSTOOD = {
    "type": "object",
    "additionalProperties": {"type": "string"},
    "description": (
        "`kind` and its fields: "
        + ", ".join(
            f"{kind} ({', '.join(fields)})" if fields else kind for kind, fields in FORMS.items()
        )
    ),
}
RULE = {
    "type": "object",
    "required": [
        "id",
        "prompt",
        "sentence",
        "meaning",
        "understood",
        "state",
        "decided_by",
        "decided_at",
        "written",
        "written_by",
        "version",
        "replaces",
        "runs",
        "examples",
    ],
    "properties": {
        "id": {"type": "integer"},
        "prompt": {
            "type": "object",
            "properties": {
                "digest": {
                    "type": "string",
                    "description": "Without dates, times of day and UUIDs; empty: all runs",
                },
                "opening": {"type": "string"},
                "first_seen": {"type": "string", "format": "date-time"},
            },
        },
        "sentence": {
            "type": "string",
            "description": "Of the system prompt, or as a person wrote it",
        },
        "meaning": {"type": "string", "description": "How it was understood"},
        "understood": UNDERSTOOD,
        "state": {"enum": STATES},
        "decided_by": {"type": ["string", "null"]},
        "decided_at": {"type": ["string", "null"], "format": "date-time"},
        "written": {"type": "boolean", "description": "By a person, not read in the prompt"},
        "written_by": {"type": ["string", "null"]},
        "version": {"type": "integer"},
        "replaces": {"type": ["integer", "null"], "description": "Id of the previous version"},
        "runs": {
            "type": "integer",
            "description": f"How many runs break the rule, counted up to {MOST_COUNTED}",
        },
        "examples": {
            "type": "array",
            "description": f"The newest runs that break the rule, at most {MOST_EXAMPLES}",
            "items": {
                "type": "object",
                "properties": {
                    "trajectory": {"type": "string"},
                    "message_index": {"type": "integer"},
                    "text": {"type": "string"},
                },
            },
        },
    },
}
DECISION = {
    "type": "object",
    "required": ["state"],
    "properties": {"state": {"enum": list(PolicyRule.DECISIONS)}},
}
CHANGED = {
    "type": "object",
    "required": ["sentence", "understood"],
    "properties": {
        "sentence": {"type": "string", "maxLength": LONGEST_SENTENCE},
        "understood": UNDERSTOOD,
        "state": {"enum": ["confirmed", "proposed"], "default": "confirmed"},
    },
}
WRITTEN = CHANGED | {
    "properties": (
        CHANGED["properties"]
        | {
            "prompt": {
                "type": "string",
                "description": "Digest of a system prompt; empty: all runs",
                "default": "",
            }
        }
    )
}
EXAMPLE = {
    "sentence": "Only pending orders may be cancelled.",
    "understood": {
        "kind": "if",
        "subject": "an order",
        "verb": "cancelled",
        "field": "status",
        "value": "pending",
    },
}


@shows(RUNS)
@extend_schema(
    methods=["GET"],
    operation_id="v1_policy_rules_list",
    responses=described({200: page_schema(RULE, "integer")}, 400, 403),
    parameters=[
        OpenApiParameter("state", str, enum=STATES),
        OpenApiParameter("limit", whole_number(1, MAX_PAGE, PAGE)),
        OpenApiParameter(
            "offset", whole_number(0, 10**6, 0), description="0, or `next` of the last page"
        ),
    ],
    description=(
        "Rules that the project's system prompts state or people wrote, newest prompts first."
        " Replaced versions and removed rules are listed only with their `state`."
    ),
)
@extend_schema(
    methods=["POST"],
    operation_id="v1_policy_rules_write",
    request={"application/json": WRITTEN},
    responses=described({201: RULE}, 400, 403, 404),
    description=(
        "Writes a rule, for runs with one system prompt or for all. Runs are then classified again."
    ),
    examples=[OpenApiExample("for all runs", value=EXAMPLE, request_only=True)],
)
@api(GET=READABLE, POST=MANAGED)
def rules(request: Request) -> Response:
    project = request.auth.project
    if request.method == "POST":
        return _written(request, project, _prompt(request, project))
    limit, offset = number_of(request, "limit"), number_of(request, "offset")
    rows = rules_of(project).order_by("-prompt__first_seen", "-prompt", "position", "pk")
    if state := request.query_params.get("state"):
        rows = rows.filter(state=state)
    else:
        rows = rows.current()
    found = list(rows[offset : offset + limit + 1])
    _shown(request, found[:limit])
    following = offset + limit if len(found) > limit else None
    return Response({"results": [as_json(rule) for rule in found[:limit]], "next": following})


@shows(RUNS)
@extend_schema(
    methods=["POST"],
    operation_id="v1_policy_rules_decide",
    request={"application/json": DECISION},
    responses=described({200: RULE}, 400, 403, 404),
    description=(
        "Confirms or dismisses a rule; `proposed` takes the decision back. Runs are then classified"
        " again."
    ),
    examples=[OpenApiExample("confirm", value={"state": "confirmed"}, request_only=True)],
)
@extend_schema(
    methods=["PUT"],
    operation_id="v1_policy_rules_edit",
    request={"application/json": CHANGED},
    responses=described({201: RULE}, 400, 403, 404),
    description=(
        "Replaces a rule by a new version, which has an id of its own. Runs are then classified"
        " again."
    ),
    examples=[OpenApiExample("another value", value=EXAMPLE, request_only=True)],
)
@extend_schema(
    methods=["DELETE"],
    operation_id="v1_policy_rules_remove",
    request=None,
    responses=described({}, 400, 403, 404) | {204: None},
    description=(
        "Removes a rule that a person wrote. If it replaced one that was read in the prompt, that"
        " one is proposed again."
    ),
)
@api(POST=MANAGED, PUT=MANAGED, DELETE=MANAGED)
def rule(request: Request, pk: int) -> Response:
    project = request.auth.project
    rule = (
        PolicyRule.objects.filter(prompt__project=project, pk=pk).select_related("prompt").first()
    )
    if rule is None:
        raise NotFound
    if request.method == "PUT":
        return _written(request, project, rule.prompt, rule)
    by = member_of(request).user
    try:
        if request.method == "DELETE":
            rule_decisions.remove(project=project, rule=rule, by=by)
            return Response(status=204)
        rule_decisions.decide(
            project=project, rule=rule, state=str(_body(request).get("state")), by=by
        )
    except Refused as refused:
        raise ValidationError({"path": "state", "error": str(refused)}) from refused
    return _one(request, rule)


def _written(
    request: Request, project: Project, prompt: SystemPrompt | None, rule: PolicyRule | None = None
) -> Response:
    """The rule that the body describes, or a new version of `rule`."""
    given = _body(request)
    form = given.get("understood")
    if not isinstance(form, dict):
        raise ValidationError({"path": "understood", "error": "must be an object with `kind`"})
    fields = {
        "sentence": str(given.get("sentence") or ""),
        "form": {str(name): str(value) for name, value in form.items()},
        "state": str(given.get("state") or PolicyRule.State.CONFIRMED),
        "by": member_of(request).user,
    }
    try:
        if rule is None:
            done = rule_decisions.write(project=project, prompt=prompt, **fields)
        else:
            done = rule_decisions.edit(project=project, rule=rule, **fields)
    except Invalid as invalid:
        name, error = next(iter(invalid.errors.items()))
        place = name if name in ("sentence", "state") else f"understood.{name}"
        raise ValidationError({"path": place, "error": error}) from invalid
    except Refused as refused:
        raise ValidationError({"path": "", "error": str(refused)}) from refused
    return _one(request, done, status=201)


def _prompt(request: Request, project: Project) -> SystemPrompt | None:
    """The prompt whose digest is in the body; None for all runs."""
    digest = str(_body(request).get("prompt") or "").replace("\0", "")
    if not digest:
        return None
    prompt = project.system_prompts.filter(digest=digest).first()
    if prompt is None:
        raise ValidationError(
            {"path": "prompt", "error": "is the digest of no system prompt of the project"}
        )
    return prompt


def _body(request: Request) -> dict[str, Any]:
    return request.data if isinstance(request.data, dict) else {}


def _one(request: Request, rule: PolicyRule, status: int = 200) -> Response:
    rule = rules_of(request.auth.project).get(pk=rule.pk)
    _shown(request, [rule])
    return Response(as_json(rule), status=status)


def _shown(request: Request, found: list[PolicyRule]) -> None:
    runs = {one.trajectory_id for rule in found for one in rule.newest}
    runs_shown(request.auth.project, runs, to=request.auth, where="API")


def as_json(rule: PolicyRule) -> dict[str, Any]:
    prompt = {name: getattr(rule.prompt, name) for name in ("digest", "opening", "first_seen")}
    examples = [
        {
            "trajectory": one.trajectory.external_id,
            "message_index": one.message_index,
            "text": one.text,
        }
        for one in rule.newest
    ]
    names = (
        "sentence",
        "meaning",
        "understood",
        "state",
        "decided_at",
        "written",
        "version",
        "runs",
    )
    given = {name: getattr(rule, name) for name in names}
    people = {
        name: who.get_username() if (who := getattr(rule, name)) else None
        for name in ("decided_by", "written_by")
    }
    return {
        "id": rule.pk,
        "prompt": prompt,
        **given,
        **people,
        "replaces": rule.replaces_id,
        "examples": examples,
    }
