"""What an API key may do: four scopes, and the one table that says which of them each route of the API needs.

A route or method that is not in the table is refused: a new route is opened here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db import models
from rest_framework.exceptions import MethodNotAllowed, PermissionDenied


class Scope(models.TextChoices):
    INGEST = "ingest", "Send trajectories, feedback, and OpenTelemetry data"
    READ = "read", "Read everything in the project: trajectories, eval sets, evaluations, models, gate reports"
    EVALUATE = (
        "evaluate",
        "Run evaluations, probes and gate reports and read their results; use environments and graders",
    )
    MANAGE = (
        "manage",
        "Change the project: tasks, verifiers, environments, servers, models, policies, webhooks; promote; delete trajectories",
    )

    @property
    def about(self) -> str:
        return str(self.label)


INGEST, READ, EVALUATE, MANAGE = Scope
Needs = tuple[Scope, ...]  # any of them is enough
SENT: Needs = (INGEST,)
READABLE: Needs = (READ,)
RUN: Needs = (EVALUATE,)
RESULT: Needs = (READ, EVALUATE)  # what a CI job that may read no trajectories needs to see
MANAGED: Needs = (MANAGE,)

ROUTES: dict[str, dict[str, Needs]] = {
    "api:trajectories": {"GET": READABLE, "POST": SENT},
    "api:batch": {"POST": SENT},
    "api:feedback": {"POST": SENT},
    "api:trajectory": {"GET": READABLE, "DELETE": MANAGED},
    "otlp:traces": {"POST": SENT},
    "otlp:logs": {"POST": SENT},
    "otlp:metrics": {"POST": SENT},
    "otlp:langfuse_traces": {"POST": SENT},
    "webhooks_api:webhooks": {"GET": MANAGED, "POST": MANAGED},
    "webhooks_api:webhook": {"GET": MANAGED, "PATCH": MANAGED, "DELETE": MANAGED},
    "webhooks_api:secret": {"POST": MANAGED},
    "webhooks_api:test": {"POST": MANAGED},
    "webhooks_api:deliveries": {"GET": MANAGED},
    "webhooks_api:delivery": {"GET": MANAGED},
    "webhooks_api:again": {"POST": MANAGED},
    "registry_api:servers": {"GET": READABLE, "POST": MANAGED},
    "registry_api:server": {"GET": READABLE, "PATCH": MANAGED, "DELETE": MANAGED},
    "registry_api:server_probe": {"POST": MANAGED},
    "registry_api:server_start": {"POST": MANAGED},
    "registry_api:server_stop": {"POST": MANAGED},
    "registry_api:model_versions": {"GET": READABLE, "POST": MANAGED},
    "registry_api:model_version": {"GET": READABLE},
    "environments_api:environments": {"GET": READABLE, "POST": MANAGED},
    "environments_api:environment": {"GET": READABLE},
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
    "evals_api:sets": {"GET": READABLE, "POST": MANAGED},
    "evals_api:set": {"GET": READABLE},
    "evals_api:tasks": {"POST": MANAGED, "DELETE": MANAGED},
    "evals_api:from_production": {"POST": MANAGED},
    "evals_api:from_failure": {"GET": READABLE, "POST": MANAGED},
    "evals_api:from_evaluation": {"POST": MANAGED},
    "evals_api:general": {"POST": MANAGED},
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
    "evals_api:set_environment": {"POST": MANAGED},
    "evals_api:set_split": {"POST": MANAGED},
    "evals_api:set_freeze": {"POST": MANAGED},
    "evals_api:set_version": {"POST": MANAGED},
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
    "reviews_api:probe_waive": {"POST": MANAGED},
    "training_api:searches": {"GET": RESULT, "POST": MANAGED},
    "training_api:search": {"GET": RESULT},
    "training_api:search_cancel": {"POST": MANAGED},
    "training_api:search_resume": {"POST": MANAGED},
    "training_api:search_save": {"POST": MANAGED},
    "promotion_api:channels": {"GET": RESULT, "POST": MANAGED},
    "promotion_api:channel": {"GET": RESULT},
    "promotion_api:history": {"GET": RESULT},
    "promotion_api:policy": {"GET": RESULT, "PUT": MANAGED},
    "promotion_api:plan": {"GET": RESULT},
    "promotion_api:promote": {"POST": MANAGED},
    "promotion_api:rollback": {"POST": MANAGED},
    "promotion_api:gate_reports": {"GET": RESULT, "POST": RUN},
    "promotion_api:preparation": {"GET": RESULT, "POST": RUN},
    "promotion_api:gate_report": {"GET": RESULT},
    "automation_api:flows": {"GET": READABLE, "POST": MANAGED},
    "automation_api:flow": {"GET": READABLE, "PUT": MANAGED, "DELETE": MANAGED},
    "automation_api:dry_run": {"GET": READABLE},
    "automation_api:flow_runs": {"GET": READABLE, "POST": MANAGED},
    "automation_api:run": {"GET": READABLE},
    "automation_api:cancel": {"POST": MANAGED},
    "automation_api:retry": {"POST": MANAGED},
    "automation_api:answer": {"POST": MANAGED},
}


class MissingScope(PermissionDenied):
    """403: the key has none of the scopes that the request needs."""


def needs(route: str, method: str) -> Needs:
    """The scopes that open a route. Raises PermissionDenied for a route that declares none, MethodNotAllowed."""
    methods = ROUTES.get(route)
    if methods is None:
        raise PermissionDenied(f"The route {route} declares no scope, so no API key may use it.")
    if method not in methods:
        raise MethodNotAllowed(method)
    return methods[method]


def require(key: Any, request: Any, method: str = "") -> None:
    """`method`: the one that the view takes, where it answers others itself. Raises MissingScope, and as `needs` does."""
    asked = method or request.method
    if asked == "OPTIONS":  # what a route takes is no secret
        return
    wanted = needs(request.resolver_match.view_name, asked)
    if not any(key.may(scope) for scope in wanted):
        if held := [scope for scope in wanted if scope in key.scopes]:
            now = f"only a {key.maker_role}" if key.maker_role else "not a member"
            raise MissingScope(
                f"The API key {key} has the scope {in_words(held)}, but whoever created it is {now} of this project now. A key "
                "can do what its creator can. Make another one under Settings → API keys."
            )
        raise MissingScope(
            f"This needs the scope {in_words(wanted)}, which the API key {key} does not have (it has: {', '.join(key.scopes)}). "
            "Make a key with it under Settings → API keys."
        )


def in_words(wanted: Iterable[Scope]) -> str:
    return " or ".join(f"“{scope.value}”" for scope in wanted)
