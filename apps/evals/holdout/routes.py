"""What every route can show of a hold-out, in one table: `manage.py holdout_routes` writes it into
docs/holdout-routes.md.

A new route is not in the table, and a test fails until somebody has classified it. Another test
calls every route that shows something and checks that the view count rises, and every other route
and checks that its response contains no held-out request.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from django.urls import URLPattern, URLResolver, get_resolver

from apps.core import operations

# Shows held-out requests, answers, outputs, scores of single tasks, or what is held out; each view
# is counted.
RUNS = "the runs from which held-out tasks were made"
OUTPUTS = "outputs and scores on held-out tasks"
SAID = "comments on a hold-out"
SIDES = "that a row is a held-out task, or similar to one"
COUNTED: dict[str, str] = {
    **dict.fromkeys(
        (
            "api:trajectories",
            "api:trajectory",
            "api:feedback",
            "trajectories:list",
            "trajectories:export",
            "dashboard:search",
            "trajectories:bulk",
            "trajectories:sessions",
            "trajectories:session",
            "trajectories:compare",
            "trajectories:redaction_test",
            "trajectories:detail",
            "trajectories:raw",
            "trajectories:part",
            "trajectories:revision",
            "trajectories:spans",
            "trajectories:span_text",
            "trajectories:live_rows",
            "failures:list",
            "failures:case",
            "failures:part",
            "failures:similar",
            "failures:step",
            "failures:decide",
            "failures:split",
            "failures:blame",
            "failures:assign",
            "failures:undo",
            "failures:mark",
            "failures:cluster",
            "failures:reclassify",
            "failures:reclassification",
            "failures:rubric",
            "failures:rubric_save",
            "failures:checks",
            "failures:check_part",
            "failures:policy",
            "failures_api:policy_rules",
            "failures_api:policy_rule",
            "failures:rubric_try",
            "failures:rubric_try_one",
            "failures:verdicts",
            "evals:from_successes",
        ),
        RUNS,
    ),
    **dict.fromkeys(
        (
            "evals:open_holdout",
            "evals:open_compared",
            "evals:open_task",
            "evals:learnability",
            "promotion:report",
            "reviews:detail",
            "reviews:export",
            "reviews:adjudicate",
            "reviews:item",
            "reviews:step",
            "reviews:judge",
            "reviews:answer",
            "reviews:undo",
            "reviews:rescore",
        ),
        OUTPUTS,
    ),
    **dict.fromkeys(
        [f"teamwork:{name}" for name in ("thread", "add", "edit", "delete")],
        f"{SAID}, once the person has opened it",
    ),
    **dict.fromkeys(("teamwork_api:comments", "teamwork_api:comment"), f"{SAID}, with the right"),
    **dict.fromkeys(("evals:run", "evals:samples"), f"{OUTPUTS}, once the person has opened them"),
    "evals:compared_task": "a held-out task and outputs on it, once the person has opened them",
    **dict.fromkeys(
        ("evals:task", "evals:edit_task"), "a held-out task, once the person has opened it"
    ),
    **dict.fromkeys(
        ("evals_api:edit_task", "evals_api:change_tasks"),
        "that a task is held out, or similar to a held-out one",
    ),
    "evals:compare": "which held-out tasks passed, once the person has opened them",
    "evals:compared_breakdown": "groups of held-out tasks, once the person has opened them",
    "evals:export_compared": (
        "which held-out tasks passed, as a file, once the person has opened them"
    ),
    "evals:export_samples": (
        "held-out tasks and outputs on them, as a file, once the person has opened them"
    ),
    "evals_api:export_samples": "held-out tasks and outputs on them, as a file, with the right",
    "evals_api:run_sample": "a held-out task and an output on it, with the right",
    "evals_api:runs_compare": "which held-out tasks passed, with the right",
    "evals:sample": "a held-out task and an output on it, once the person has opened them",
    "promotion:report_file": "which held-out tasks moved",
    "promotion_api:unsafe_outputs": f"{OUTPUTS}, with the right",
    "promotion_api:gate_report": "which held-out tasks moved, with the right",
    "reviews:effect": "scores on labelled held-out tasks",
    "reviews:open": "outputs on held-out tasks, drawn for a review",
    "evals:show_holdout": "the held-out tasks",
    "evals:versions_with_holdout": "the held-out tasks that differ",
    "evals:export_holdout": "the held-out tasks, as a file",
    **dict.fromkeys(
        ("evals:meaning", "evals:meaning_decide", "evals:meaning_undo"),
        "held-out requests next to similar ones",
    ),
    "evals:meaning_start": (
        "the part of the hold-out that is sent to a server; the pairs of the last check, if the"
        " form is invalid"
    ),
    "evals_api:meaning_check": "held-out requests next to similar ones, with the right",
    "evals_api:meaning_checks": "the part of the hold-out that is sent to a server, with the right",
    "evals:new_run": "scores of a model on the hold-out, once it has run",
    "evals_api:runs": "scores of a model on the hold-out, once it has run, with the right",
    "evals_api:run_tasks": "the held-out tasks, to an agent with the right",
    "evals_api:run_samples": f"{OUTPUTS}, with the right",
    "evals_api:export": "the held-out tasks, as a file, with the right",
    "evals_api:changes": "the held-out tasks that differ, with `holdout=1` and the right",
    "evals_api:learnability": f"{OUTPUTS}, with the right",
    "evals_api:set": "the held-out tasks, with `holdout=1` and the right",
    **dict.fromkeys(
        (
            "evals:add_trajectories",
            "evals:add_task",
            "evals:change_tasks",
            "evals:tasks_from_cluster",
            "evals:import_start",
            "evals:general",
            "evals:make_variants",
            "evals:export",
            "evals:to_tasks",
            "evals_api:tasks",
            "evals_api:from_production",
            "evals_api:from_evaluation",
            "evals_api:from_environment",
            "evals:package_tasks",
            "evals_api:general",
            "evals_api:imports",
            "evals_api:variants",
            "training:new",
            "training_api:runs",
            "training:search_new",
            "training:search_save",
            "training_api:searches",
            "training_api:search_save",
        ),
        SIDES,
    ),
    **dict.fromkeys(("evals:task_from_failure", "evals_api:from_failure"), f"{RUNS}; {SIDES}"),
    **dict.fromkeys(
        ("prompts:playground_new", "prompts_api:playgrounds", "prompts_api:playground_save_task"),
        SIDES,
    ),
    "prompts_api:playground": f"{RUNS}, and answers to them, with the right",
    **dict.fromkeys(("prompts:playground", "prompts:playground_status"), RUNS),
    "prompts:playground_save_task": f"{RUNS}; {SIDES}",
    "protocol:seed_session": "that a task is held out; with the right it is opened",
    "protocol:verify": "scores of answers to held-out tasks, with the right, up to a daily limit",
    "environments_api:grader_run": (
        "scores of answers to held-out rows, with the right, up to a daily limit"
    ),
    "hosted:grader_run": "scores of answers to held-out rows, with the right, up to a daily limit",
}
# Shows only aggregates over an evaluation, which was itself counted when it was started.
TOTALS: dict[str, str] = dict.fromkeys(
    (
        "dashboard:home",
        "dashboard:promotion_effect",
        "evals:list",
        "evals:run_status",
        "evals:distributions",
        "evals:compared_distributions",
        "training:list",
        "training:compare",
        "training_api:runs_compare",
        "promotion:models",
        "promotion:model",
        "promotion:compare",
        "promotion:pair",
        "promotion:pair_parts",
        "promotion:plan",
        "promotion:wear",
        "promotion_api:plan",
        "reviews:list",
        "automation:run",
        "automation:run_status",
        "automation_api:run",
        "webhooks:delivery",
        "evals_api:sets",
        "promotion_api:channel",
        "reviews_api:reviews",
        "reviews_api:review",
        "evals_api:run",
        "evals_api:run_cancel",
        "evals_api:run_finish",
        "promotion_api:gate_reports",
        "promotion:model_card",
        "promotion:model_download",
        "promotion_api:card",
        "promotion_api:download",
    ),
    "aggregates of evaluations",
)
# Has held-out tasks but does not show them: only that there are some, and how many.
MASKED: dict[str, str] = dict.fromkeys(
    (
        "evals:detail",
        "evals:versions",
        "evals:import",
        "evals:import_status",
        "evals:variants",
        "core:audit",
        "core:audit_export",
        "core_api:audit",
        "training:examples",
        "training_api:examples",
    ),
    "how many are held out",
)
# Shows nothing of a hold-out: forms, settings, aggregated production data, jobs on other splits,
# and redirects.
NOTHING: dict[str, str] = {
    "": (
        "healthz join account account_activity account_login account_logout account_inactive"
        " account_reset_password account_reset_password_done account_reset_password_from_key"
        " account_reset_password_from_key_done account_reauthenticate account_change_password"
        " account_set_password mfa_authenticate mfa_login_webauthn mfa_reauthenticate"
        " mfa_reauthenticate_webauthn mfa_index mfa_activate_totp mfa_deactivate_totp"
        " mfa_view_recovery_codes mfa_generate_recovery_codes mfa_download_recovery_codes"
        " mfa_list_webauthn mfa_add_webauthn mfa_edit_webauthn mfa_remove_webauthn"
        " usersessions_list socialaccount_connections socialaccount_signup"
        " socialaccount_login_cancelled socialaccount_login_error openid_connect_login"
        " openid_connect_callback"
    ),
    "core": (
        "projects settings keys project archive_project delete_project deletion deletion_again"
        " manage object_rename object_archive object_delete rotate_key revoke_key invite"
        " revoke_invitation set_member unlock_member remove_member"
    ),
    "core_api": "keys key key_rotate project object",
    "otlp": "traces logs metrics langfuse_traces",
    "api": "schema docs batch metrics imports import import_mappings import_mapping",
    "dashboard": (
        "failure_rate performance explore save_chart chart change_chart dashboards create dashboard"
        " rename duplicate delete"
    ),
    "environments_api": "environments environment packages package verifiers grader_validate",
    "hosted": "grader_validate",
    "protocol": (
        "describe describe_slash aggregate_metrics close_session reverify_mode tool nothing"
    ),
    "trajectories": (
        "first first_status live sums count trend bulk_undo bulk_keep arrivals arrival_retry"
        " arrival_discard trace_retry trace_discard save_view delete_view import import_preview"
        " import_mapping_delete import_start import_detail import_status import_retry import_cancel"
        " redaction retention redaction_switch redaction_presidio held redaction_add redaction_edit"
        " redaction_delete feedback"
    ),
    "failures": (
        "charts bulk classify classification_status triage policy_decide policy_undo policy_new"
        " policy_edit policy_remove modes mode_add mode_save mode_delete clusters recluster"
        " cluster_rename cluster_move cluster_decide reclassify_start reclassification_status"
        " reclassification_apply reclassification_discard measures check_answer check_undo"
        " check_share outcomes_train rubric_switch rubric_diff judge_run"
    ),
    "failures_api": "classification outcomes checks",
    "evals_api": (
        "meaning_check_cancel set_environment confirm_task import"
        " import_cancel judge_variant end_batch variant_job_start variant_job_stop"
    ),
    "evals": (
        "task_samples meaning_status meaning_stop create environment"
        " import_cancel end_batch variant_job_start variant_job_status variant_job_stop"
        " confirm_task judge_variant remove_task cancel"
    ),
    "notifications": "list count read open preferences",
    "teamwork": "comment people assign",
    "teamwork_api": "assignments",
    "webhooks": "list detail log",
    "prompts_api": "playground_cancel playground_save_prompt",
    "prompts": "new preview try_it playground_cancel playground_save_prompt",
    "registry": (
        "register servers server_new managed_new server server_status server_run server_edit"
        " server_remove server_probe server_start server_stop ray_clusters"
    ),
    "registry_api": (
        "adapter_uploads adapter_upload adapter_upload_part adapter_upload_finish servers"
        " server server_probe server_start server_stop model_versions model_version"
    ),
    "environments": (
        "list new connect test_connection import_grader detail packages package package_download"
        " package_upload package_use package_check"
    ),
    "reviews": (
        "policy policy_save policy_approve policy_withdraw score_run override queue rule"
        " verifier_new verifier_create verifier_check verifier verifier_edit verifier_save"
        " verifier_try probe_run probe probe_status probe_cancel probe_waive"
    ),
    "reviews_api": "lock locks probes probe probe_cancel probe_waive",
    "training": (
        "start_state budget fork_budget import export submit fork config new_from_yaml"
        " learned_from_trajectory learned_from_task run_examples outputs outputs_send rollouts"
        " rollout curve detail status resume cancel searches search search_status search_cancel"
        " search_resume"
    ),
    "training_api": (
        "lineage run run_estimate run_config run_export run_submit run_base run_result run_import"
        " run_cancel run_resume run_fork run_outputs run_outputs_send run_examples run_metrics"
        " run_rollouts run_rollout search search_cancel search_resume"
    ),
    "promotion_api": (
        "trial_forecast download_link merge channels history effect graph policy policy_approve"
        " policy_withdraw promote rollback"
        " preparation restore segment freeze targets target deployments deployment deployment_stop"
        " trials trial trial_stop trial_advance"
    ),
    "promotion": (
        "merge review_outputs trial_new trial trial_begin trial_stop trial_advance effect graph"
        " channel channel_status restore freeze unfreeze add_target remove_target deployment"
        " deployment_stop segment prepare make_report promote create_channel policy policy_save"
        " policy_import policy_file policy_approve policy_withdraw rollback"
    ),
    "serving": "endpoint limits",
    "serving_api": "endpoint limits",
    "automation": (
        "list runs flow new edit editor check dry_run run_now switch secret delete cancel answer"
        " retry"
    ),
    "automation_api": "flows flow dry_run flow_runs call cancel retry answer",
}
KEYED = (
    "api",
    "serving_api",
    "core_api",
    "evals_api",
    "environments_api",
    "hosted",
    "promotion_api",
    "registry_api",
    "webhooks_api",
    "teamwork_api",
    "automation_api",
    "reviews_api",
    "training_api",
    "prompts_api",
    "otlp",
    "protocol",
)
INTRO = """# Routes and the hold-out

`python manage.py holdout_routes` writes this page, and a test checks that it is current. “The \
right” means an API key that may see
hold-outs. A view is counted once per person (or API key), task and place; scores by API and \
evaluations count each time
(docs/evals.md, The hold-out). Routes that are not in the table show nothing of a hold-out.
"""


@dataclass(frozen=True)
class Route:
    """A URL of the URLconf: `name` is namespace:name."""

    name: str
    path: str
    who: str

    @property
    def shows(self) -> tuple[str, str]:
        """(what it can show of a hold-out, whether that is counted). Raises KeyError for an
        unclassified route.
        """
        if self.name in (declared := _declared()):
            return declared[self.name]
        for table, counted in ((COUNTED, "yes"), (TOTALS, "when evaluated"), (MASKED, "–")):
            if self.name in table:
                return table[self.name], counted
        namespace, _, name = self.name.rpartition(":")
        if name in NOTHING.get(namespace, "").split():
            return "", "–"
        raise KeyError(self.name)


@cache
def _declared() -> dict[str, tuple[str, str]]:
    """By operations. A route whose methods show different things shows the most of them."""
    shown: dict[str, tuple[str, str]] = {}
    for one in operations.REGISTRY.values():
        for name in one.routes:
            shown[name] = max(shown.get(name, ("", "")), tuple(one.shows))
    return shown


def counted() -> dict[str, str]:
    """Every route that shows a hold-out and is counted, and what it shows."""
    return COUNTED | {name: what for name, (what, yes) in _declared().items() if yes == "yes"}


def routes() -> list[Route]:
    """Every URL of the URLconf, from the resolver itself."""
    return list(_walk(get_resolver().url_patterns, "", ""))


def _walk(patterns: list, namespace: str, prefix: str) -> Iterator[Route]:
    for pattern in patterns:
        path = f"{prefix}{pattern.pattern}"
        if isinstance(pattern, URLResolver):
            yield from _walk(pattern.url_patterns, pattern.namespace or namespace, path)
        elif isinstance(pattern, URLPattern):
            name = f"{namespace}:{pattern.name}" if namespace else str(pattern.name)
            yield Route(name, f"/{path}", _who(pattern, namespace))


def _who(pattern: URLPattern, namespace: str) -> str:
    role = getattr(pattern.callback, "role", None)
    return str(role.label) if role else "API key" if namespace in KEYED else "anyone"


def document() -> str:
    """The table as Markdown. Raises KeyError for an unclassified route."""
    found = [(route, *route.shows) for route in routes()]
    shown = [
        f"| `{route.path}` | {what} | {route.who} | {counted} |"
        for route, what, counted in found
        if what
    ]
    return "\n".join(
        [
            INTRO,
            "| route | what it shows of a hold-out | who | counted |",
            "|---|---|---|---|",
            *shown,
            "",
        ]
    )
