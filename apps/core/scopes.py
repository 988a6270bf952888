"""Who may do what: the roles of people, the scopes of API keys, and the one table of what each
route of the API needs.

A route or method that is not in the table is refused: a new route is opened here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from django.db import models
from rest_framework.exceptions import MethodNotAllowed, PermissionDenied


class Role(models.TextChoices):
    """From least to most: each may do what those before it may."""

    VIEWER = "viewer", "Viewer"
    REVIEWER = "reviewer", "Reviewer"
    ENGINEER = "engineer", "Engineer"
    OPERATOR = "operator", "Operator"
    OWNER = "owner", "Owner"

    @property
    def rank(self) -> int:
        return list(Role).index(self)

    @property
    def upward(self) -> list[Role]:
        """The roles that include this one."""
        return list(Role)[self.rank :]

    @property
    def about(self) -> str:
        return ABOUT_ROLES[self]


ABOUT_ROLES = {
    Role.VIEWER: "Reads everything in the project except individual held-out tasks",
    Role.REVIEWER: (
        "Triages failures, labels trajectories, judges and rules in reward reviews, confirms tasks"
    ),
    Role.ENGINEER: (
        "Builds eval sets, verifiers, environments and prompts; evaluates, trains, and promotes if"
        " the policy allows it"
    ),
    Role.OPERATOR: "Manages servers, flows, API keys, webhooks, the judge, redaction and retention",
    Role.OWNER: "Manages people and policies; overrides locks and gates, waives probes, deletes",
}


class Scope(models.TextChoices):
    INGEST = "ingest", "Send trajectories, feedback, and OpenTelemetry data"
    GENERATE = (
        "generate",
        "Call the models of channels at the endpoint (/v1/chat/completions, /v1/responses)",
    )
    READ = (
        "read",
        (
            "Read everything in the project: trajectories, eval sets, evaluations, models, gate"
            " reports"
        ),
    )
    EVALUATE = (
        "evaluate",
        (
            "Run evaluations, probes and gate reports and read their results; use environments and"
            " graders"
        ),
    )
    MANAGE = (
        "manage",
        (
            "Change the project: tasks, verifiers, environments, servers, models, policies,"
            " webhooks; comment and assign; promote; delete trajectories"
        ),
    )

    @property
    def about(self) -> str:
        return str(self.label)


INGEST, GENERATE, READ, EVALUATE, MANAGE = Scope
# The creator of a key must still be in its project. Ingesting and generating belong to the project:
# production continues when a person leaves.
ROLE_FOR = {Scope.READ: Role.VIEWER, Scope.EVALUATE: Role.ENGINEER, Scope.MANAGE: Role.ENGINEER}


class Needs(NamedTuple):
    scopes: tuple[Scope, ...]  # any of them is enough
    role: Role | None = None  # of the key's creator, if the scope's role (`ROLE_FOR`) is too low


SENT = Needs((INGEST,))
READABLE = Needs((READ,))
RUN = Needs((EVALUATE,))
RESULT = Needs((READ, EVALUATE))  # what a CI job that may read no trajectories needs to see
MANAGED = Needs((MANAGE,))
OPERATED = Needs((MANAGE,), Role.OPERATOR)
OWNED = Needs((MANAGE,), Role.OWNER)

# Those of operations are added by their declarations (`core.operations`).
ROUTES: dict[str, dict[str, Needs]] = {
    "api:trajectories": {"GET": READABLE, "POST": SENT},
    "api:metrics": {"GET": READABLE},
    "api:batch": {"POST": SENT},
    "api:imports": {"POST": MANAGED},
    "api:import": {"GET": READABLE},
    "api:import_mappings": {"GET": READABLE},
    "api:import_mapping": {"GET": READABLE, "PUT": MANAGED, "DELETE": MANAGED},
    "api:feedback": {"POST": SENT},
    "api:trajectory": {"GET": READABLE, "DELETE": OWNED},
    "otlp:traces": {"POST": SENT},
    "otlp:logs": {"POST": SENT},
    "otlp:metrics": {"POST": SENT},
    "otlp:langfuse_traces": {"POST": SENT},
    "core_api:audit": {"GET": READABLE},
    "core_api:object": {"GET": READABLE, "PATCH": MANAGED, "DELETE": OWNED},
    "core_api:keys": {"GET": OPERATED, "POST": OPERATED},
    "core_api:key": {"DELETE": OPERATED},
    "core_api:key_rotate": {"POST": OPERATED},
    "core_api:project": {"GET": READABLE, "PATCH": OWNED, "DELETE": OWNED},
    "teamwork_api:comments": {"GET": READABLE, "POST": MANAGED},
    "teamwork_api:comment": {"GET": READABLE, "PATCH": MANAGED, "DELETE": MANAGED},
    "teamwork_api:assignments": {"GET": READABLE, "PUT": MANAGED},
    "registry_api:servers": {"GET": READABLE, "POST": OPERATED},
    "registry_api:server": {"GET": READABLE, "PATCH": OPERATED, "DELETE": OPERATED},
    "registry_api:server_probe": {"POST": OPERATED},
    "registry_api:server_start": {"POST": OPERATED},
    "registry_api:server_stop": {"POST": OPERATED},
    "registry_api:adapter_uploads": {"GET": READABLE, "POST": MANAGED},
    "registry_api:adapter_upload": {"GET": READABLE, "DELETE": MANAGED},
    "registry_api:adapter_upload_part": {"PUT": MANAGED},
    "registry_api:adapter_upload_finish": {"POST": MANAGED},
    "registry_api:model_versions": {"GET": READABLE, "POST": MANAGED},
    "registry_api:model_version": {"GET": READABLE},
    "environments_api:environments": {"GET": READABLE, "POST": MANAGED},
    "environments_api:environment": {"GET": READABLE},
    "environments_api:packages": {"GET": READABLE},
    "environments_api:package": {"GET": RUN},
    "environments_api:verifiers": {"GET": READABLE, "POST": MANAGED},
    "environments_api:grader_run": {"POST": RUN},
    "environments_api:grader_validate": {"POST": RUN},
    "hosted:grader_run": {"POST": RUN},
    "hosted:grader_validate": {"POST": RUN},
    "protocol:describe": {"GET": RUN},
    "protocol:describe_slash": {"GET": RUN},
    "protocol:seed_session": {"POST": RUN},
    "protocol:verify": {"POST": RUN},
    "protocol:aggregate_metrics": {"POST": RUN},
    "protocol:close_session": {"POST": RUN},
    "protocol:reverify_mode": {"GET": RUN},
    "protocol:tool": {"POST": RUN},
    "failures_api:classification": {"GET": READABLE, "POST": MANAGED},
    "failures_api:outcomes": {"GET": READABLE, "POST": MANAGED},
    "failures_api:checks": {"GET": READABLE, "POST": MANAGED},
    "failures_api:policy_rules": {"GET": READABLE, "POST": MANAGED},
    "failures_api:policy_rule": {"POST": MANAGED, "PUT": MANAGED, "DELETE": MANAGED},
    "evals_api:sets": {"GET": READABLE, "POST": MANAGED},
    "evals_api:set": {"GET": READABLE},
    "evals_api:tasks": {"POST": MANAGED, "DELETE": MANAGED},
    "evals_api:from_production": {"POST": MANAGED},
    "evals_api:from_failure": {"GET": READABLE, "POST": MANAGED},
    "evals_api:from_evaluation": {"POST": MANAGED},
    "evals_api:from_environment": {"POST": MANAGED},
    "evals_api:general": {"POST": MANAGED},
    "evals_api:edit_task": {"POST": MANAGED},
    "evals_api:change_tasks": {"POST": MANAGED},
    "evals_api:confirm_task": {"POST": MANAGED},
    "evals_api:imports": {"GET": READABLE, "POST": MANAGED},
    "evals_api:import": {"GET": READABLE},
    "evals_api:import_cancel": {"POST": MANAGED},
    "evals_api:variants": {"GET": READABLE, "POST": MANAGED},
    "evals_api:judge_variant": {"POST": MANAGED},
    "evals_api:end_batch": {"POST": MANAGED},
    "evals_api:variant_job_start": {"POST": MANAGED},
    "evals_api:variant_job_stop": {"POST": MANAGED},
    "evals_api:export": {"GET": READABLE},
    "evals_api:changes": {"GET": READABLE},
    "evals_api:set_environment": {"GET": READABLE, "POST": MANAGED},
    "evals_api:runs": {"GET": RESULT, "POST": RUN},
    "evals_api:run": {"GET": RESULT},
    "evals_api:run_cancel": {"POST": RUN},
    "evals_api:run_samples": {"GET": RESULT, "POST": RUN},
    "evals_api:export_samples": {"GET": RESULT},
    "evals_api:run_sample": {"GET": RESULT},
    "evals_api:runs_compare": {"GET": RESULT},
    "evals_api:learnability": {"GET": RESULT},
    "evals_api:run_tasks": {"GET": RUN},
    "evals_api:run_finish": {"POST": RUN},
    "evals_api:meaning_checks": {"GET": RESULT, "POST": RUN},
    "evals_api:meaning_check": {"GET": RESULT},
    "evals_api:meaning_check_cancel": {"POST": RUN},
    "prompts_api:playgrounds": {"GET": RESULT, "POST": RUN},
    "prompts_api:playground": {"GET": RESULT},
    "prompts_api:playground_cancel": {"POST": RUN},
    "prompts_api:playground_save_prompt": {"POST": MANAGED},
    "prompts_api:playground_save_task": {"POST": MANAGED},
    "reviews_api:reviews": {"GET": READABLE},
    "reviews_api:review": {"GET": READABLE},
    "reviews_api:locks": {"GET": RESULT},
    "reviews_api:lock": {"GET": RESULT},
    "reviews_api:probes": {"GET": RESULT, "POST": RUN},
    "reviews_api:probe": {"GET": RESULT},
    "reviews_api:probe_cancel": {"POST": RUN},
    "reviews_api:probe_waive": {"POST": OWNED},
    "training_api:runs": {"GET": RESULT, "POST": MANAGED},
    "training_api:run_estimate": {"POST": MANAGED},
    "training_api:run_config": {"GET": RESULT},
    "training_api:runs_compare": {"GET": RESULT},
    "training_api:run": {"GET": RESULT},
    "training_api:run_examples": {"GET": READABLE},
    "training_api:examples": {"GET": READABLE},
    "training_api:run_import": {"POST": MANAGED},
    "training_api:run_export": {"POST": MANAGED},
    **{
        f"training_api:run_{name}": {"POST": MANAGED}
        for name in ("cancel", "resume", "fork", "outputs_send")
    },
    "training_api:run_outputs": {"GET": RESULT},
    "training_api:run_submit": {"POST": MANAGED},
    "training_api:run_metrics": {"GET": RESULT},
    "training_api:run_rollouts": {"GET": RESULT},
    "training_api:run_rollout": {"GET": RESULT},
    "training_api:lineage": {"GET": READABLE},
    "training_api:searches": {"GET": RESULT, "POST": MANAGED},
    "training_api:search": {"GET": RESULT},
    "training_api:search_cancel": {"POST": MANAGED},
    "training_api:search_resume": {"POST": MANAGED},
    "training_api:search_save": {"POST": MANAGED},
    "promotion_api:channels": {"GET": RESULT, "POST": OWNED},
    "promotion_api:channel": {"GET": RESULT},
    "promotion_api:history": {"GET": RESULT},
    "promotion_api:card": {"GET": READABLE},
    "promotion_api:download_link": {"POST": READABLE},
    "promotion_api:merge": {"GET": READABLE, "POST": MANAGED},
    "promotion_api:effect": {"GET": RESULT},
    "promotion_api:graph": {"GET": RESULT},
    "promotion_api:policy": {"GET": RESULT, "PUT": OWNED},
    "promotion_api:policy_approve": {"POST": MANAGED},
    "promotion_api:policy_withdraw": {"POST": OWNED},
    "promotion_api:plan": {"GET": RESULT},
    "promotion_api:promote": {"POST": MANAGED},
    "promotion_api:rollback": {"POST": MANAGED},
    "promotion_api:restore": {"POST": MANAGED},
    "promotion_api:segment": {"PUT": OWNED},
    "promotion_api:freeze": {"GET": RESULT, "PUT": OPERATED, "DELETE": OPERATED},
    "promotion_api:targets": {"GET": RESULT, "POST": OPERATED},
    "promotion_api:target": {"DELETE": OPERATED},
    "promotion_api:deployments": {"GET": RESULT},
    "promotion_api:deployment": {"GET": RESULT},
    "promotion_api:deployment_stop": {"POST": MANAGED},
    "promotion_api:trials": {"GET": RESULT, "POST": MANAGED},
    "promotion_api:trial_forecast": {"POST": RESULT},
    "promotion_api:trial": {"GET": RESULT},
    "promotion_api:trial_stop": {"POST": MANAGED},
    "promotion_api:trial_advance": {"POST": MANAGED},
    "promotion_api:gate_reports": {"GET": RESULT, "POST": RUN},
    "promotion_api:preparation": {"GET": RESULT, "POST": RUN},
    "promotion_api:gate_report": {"GET": RESULT},
    "promotion_api:unsafe_outputs": {"GET": RESULT, "POST": MANAGED},
    "serving_api:endpoint": {"GET": READABLE},
    "serving_api:limits": {"GET": OPERATED, "PUT": OPERATED},
    "automation_api:flows": {"GET": READABLE, "POST": OPERATED},
    "automation_api:flow": {"GET": READABLE, "PUT": OPERATED, "DELETE": OPERATED},
    "automation_api:dry_run": {"GET": READABLE},
    "automation_api:flow_runs": {"GET": READABLE, "POST": MANAGED},
    "automation_api:run": {"GET": READABLE},
    "automation_api:cancel": {"POST": MANAGED},
    "automation_api:retry": {"POST": MANAGED},
    "automation_api:answer": {"POST": MANAGED},
}


def declare(route: str, method: str, wanted: Needs) -> None:
    """Opens a route. Raises ValueError if it is open already."""
    methods = ROUTES.setdefault(route, {})
    if method in methods:
        raise ValueError(f"{method} of the route {route} is declared already.")
    methods[method] = wanted


class MissingScope(PermissionDenied):
    """403: the key has none of the scopes that the request needs, or its maker not the role."""


def needs(route: str, method: str) -> Needs:
    """What opens a route. Raises PermissionDenied for a route that declares none,
    MethodNotAllowed.
    """
    methods = ROUTES.get(route)
    if methods is None:
        raise PermissionDenied(f"The route {route} declares no scope, so no API key may use it.")
    if method not in methods:
        raise MethodNotAllowed(method)
    return methods[method]


def require(key: Any, request: Any, method: str = "") -> None:
    """`method`: the one that the view handles, if it handles several. Raises MissingScope, and as
    `needs` does.
    """
    asked = method or request.method
    if asked == "OPTIONS":  # what a route takes is no secret
        return
    refuse_closed(key.project, asked, request.resolver_match.view_name)
    wanted, role = needs(request.resolver_match.view_name, asked)
    held = [scope for scope in wanted if scope in key.scopes]
    if not held:
        raise MissingScope(
            f"This needs the scope {in_words(wanted)}, which the API key {key} does not have (it"
            f" has: {', '.join(key.scopes)}). Make a key with it under Settings → API keys."
        )
    if not any(key.may(scope) for scope in held) or (role and not key.maker_is(role)):
        now = f"has only the role “{key.maker_role}” in" if key.maker_role else "is not a member of"
        raise MissingScope(
            f"The API key {key} has the scope {in_words(held)}, but whoever created it {now} this"
            " project now. A key can do what its creator"
            f" can{f', and this needs the role “{role}”' if role else ''}. Make another one under"
            " Settings → API keys."
        )


class ProjectClosed(MissingScope):
    """403: the project is archived and takes nothing, or is being deleted."""


def refuse_closed(project: Any, method: str, route: str = "") -> None:
    """Raises ProjectClosed. An archived project can be read, and be brought back by the route of
    the project itself.
    """
    if project.stage in ("deleting", "deleted"):
        raise ProjectClosed(
            f"The project {project} is being deleted. It takes and answers nothing."
        )
    if (
        project.stage == "archived"
        and method not in ("GET", "HEAD")
        and route != "core_api:project"
    ):
        raise ProjectClosed(
            f"The project {project} is archived and takes nothing. An owner can bring it back under"
            " Settings → Project."
        )


def in_words(wanted: Iterable[Scope]) -> str:
    return " or ".join(f"“{scope.value}”" for scope in wanted)
