"""What a page starts or reads, a program can: each page of these apps has a route of the API, or a
reason why not.
"""

from __future__ import annotations

import pytest

from apps.core.operations import REGISTRY
from tests.test_access import PAGES, ROUTES

APPS = (
    "evals",
    "environments",
    "registry",
    "promotion",
    "reviews",
    "prompts",
    "training",
    "automation",
    "failures",
)
# page: the method and the route of the API that start or read the same.
BY_API = {
    "evals:list": "GET evals_api:sets",
    "evals:create": "POST evals_api:sets",
    "evals:detail": "GET evals_api:set",
    "evals:show_holdout": "GET evals_api:set",
    "evals:add_trajectories": "POST evals_api:from_production",
    "evals:from_successes": "POST evals_api:from_production",
    "evals:task_from_failure": "POST evals_api:from_failure",
    "evals:tasks_from_cluster": "POST evals_api:proposals",
    "evals:tasks_from_failures": "POST evals_api:proposals",
    "evals:proposals": "GET evals_api:proposals",
    "evals:review_proposals": "GET evals_api:proposals",
    "evals:proposal": "GET evals_api:proposal",
    "evals:next_proposal": "GET evals_api:proposals",
    "evals:decide_proposal": "POST evals_api:proposal_confirm",
    "evals:edit_proposal": "POST evals_api:proposal_edit",
    "evals:draft_proposal": "POST evals_api:proposal_draft",
    "evals:undo_proposal": "POST evals_api:proposal_undo",
    "evals:confirm_proposals": "POST evals_api:proposals_confirm",
    "evals:failure_searches": "GET evals_api:step_searches",
    "evals:step_search": "GET evals_api:step_search",
    "evals:step_search_status": "GET evals_api:step_search",
    "evals:to_tasks": "POST evals_api:from_evaluation",
    "evals:general": "POST evals_api:general",
    "evals:add_task": "POST evals_api:tasks",
    "evals:remove_task": "DELETE evals_api:tasks",
    "evals:edit_task": "POST evals_api:edit_task",
    "evals:change_tasks": "POST evals_api:change_tasks",
    "evals:confirm_task": "POST evals_api:confirm_task",
    "evals:environment": "POST evals_api:set_environment",
    "evals:import": "POST evals_api:imports",
    "evals:import_start": "POST evals_api:imports",
    "evals:import_status": "GET evals_api:import",
    "evals:import_cancel": "POST evals_api:import_cancel",
    "evals:export": "GET evals_api:export",
    "evals:export_holdout": "GET evals_api:export",
    "evals:versions": "GET evals_api:changes",
    "evals:versions_with_holdout": "GET evals_api:changes",
    "evals:variants": "GET evals_api:variants",
    "evals:make_variants": "POST evals_api:variants",
    "evals:judge_variant": "POST evals_api:judge_variant",
    "evals:end_batch": "POST evals_api:end_batch",
    "evals:variant_job_start": "POST evals_api:variant_job_start",
    "evals:variant_job_status": "GET evals_api:variants",
    "evals:variant_job_stop": "POST evals_api:variant_job_stop",
    "evals:meaning": "GET evals_api:meaning_checks",
    "evals:meaning_start": "POST evals_api:meaning_checks",
    "evals:meaning_status": "GET evals_api:meaning_check",
    "evals:meaning_stop": "POST evals_api:meaning_check_cancel",
    "evals:run": "GET evals_api:run",
    "evals:run_status": "GET evals_api:run",
    "evals:samples": "GET evals_api:run_samples",
    "evals:open_holdout": "GET evals_api:run_samples",
    "evals:task_samples": "GET evals_api:run_samples",
    "evals:distributions": "GET evals_api:run_samples",
    "evals:sample": "GET evals_api:run_sample",
    "evals:export_samples": "GET evals_api:export_samples",
    "evals:learnability": "GET evals_api:learnability",
    "evals:compare": "GET evals_api:runs_compare",
    "evals:compared_breakdown": "GET evals_api:runs_compare",
    "evals:export_compared": "GET evals_api:runs_compare",
    "evals:open_compared": "GET evals_api:runs_compare",
    "evals:compared_task": "GET evals_api:runs_compare",
    "evals:task": "GET evals_api:set",
    "evals:open_task": "GET evals_api:set",
    "evals:compared_distributions": "GET evals_api:run_samples",
    "environments:list": "GET environments_api:environments",
    "environments:detail": "GET environments_api:environment",
    "environments:new": "POST environments_api:environments",
    "environments:connect": "POST environments_api:environments",
    "environments:import_grader": "POST environments_api:verifiers",
    "environments:packages": "GET environments_api:packages",
    "environments:package": "GET environments_api:package",
    "environments:package_check": "GET environments_api:package",
    "environments:package_use": "POST environments_api:environments",
    "environments:package_upload": "POST environments_api:environments",
    "evals:package_tasks": "POST evals_api:from_environment",
    "registry:register": "POST registry_api:model_versions",
    "registry:servers": "GET registry_api:servers",
    "registry:server_new": "POST registry_api:servers",
    "registry:ray_clusters": "GET registry_api:ray_clusters",
    "registry:prices": "GET registry_api:model_prices_used",
    "training:submit": "POST training_api:run_submit",
    "registry:managed_new": "POST registry_api:servers",
    "registry:server": "GET registry_api:server",
    "registry:server_status": "GET registry_api:server",
    "registry:server_run": "GET registry_api:server",
    "registry:server_edit": "PATCH registry_api:server",
    "promotion:models": "GET promotion_api:channels",
    "promotion:effect": "GET promotion_api:effect",
    "promotion:graph": "GET promotion_api:graph",
    "promotion:model": "GET registry_api:model_version",
    "promotion:compare": "GET evals_api:runs",
    "promotion:pair": "GET promotion_api:preparation",
    "promotion:pair_parts": "GET promotion_api:preparation",
    "promotion:prepare": "POST promotion_api:preparation",
    "promotion:make_report": "POST promotion_api:gate_reports",
    "promotion:report": "GET promotion_api:gate_report",
    "promotion:review_outputs": "POST promotion_api:unsafe_outputs",
    "promotion:report_file": "GET promotion_api:gate_report",
    "promotion:plan": "GET promotion_api:plan",
    "promotion:wear": "GET promotion_api:plan",
    "promotion:create_channel": "POST promotion_api:channels",
    "promotion:policy": "GET promotion_api:policy",
    "promotion:policy_file": "GET promotion_api:policy",
    "promotion:policy_save": "PUT promotion_api:policy",
    "promotion:policy_import": "PUT promotion_api:policy",
    "promotion:policy_approve": "POST promotion_api:policy_approve",
    "promotion:policy_withdraw": "POST promotion_api:policy_withdraw",
    "promotion:channel": "GET promotion_api:targets",
    "promotion:channel_status": "GET promotion_api:deployments",
    "promotion:add_target": "POST promotion_api:targets",
    "promotion:remove_target": "DELETE promotion_api:target",
    "promotion:deployment": "GET promotion_api:deployment",
    "promotion:trial": "GET promotion_api:trial",
    "promotion:trial_new": "POST promotion_api:trial_forecast",
    "promotion:trial_begin": "POST promotion_api:trials",
    "promotion:trial_stop": "POST promotion_api:trial_stop",
    "promotion:trial_advance": "POST promotion_api:trial_advance",
    "promotion:deployment_stop": "POST promotion_api:deployment_stop",
    "promotion:model_card": "GET promotion_api:card",
    "promotion:model_download": "POST promotion_api:download_link",
    "promotion:merge": "POST promotion_api:merge",
    "reviews:list": "GET reviews_api:reviews",
    "reviews:detail": "GET reviews_api:review",
    "reviews:verifier": "GET environments_api:verifiers",
    "reviews:verifier_new": "POST environments_api:verifiers",
    "reviews:verifier_create": "POST environments_api:verifiers",
    "reviews:verifier_edit": "POST environments_api:verifiers",
    "reviews:verifier_save": "POST environments_api:verifiers",
    "reviews:probe_run": "POST reviews_api:probes",
    "reviews:probe": "GET reviews_api:probe",
    "reviews:probe_status": "GET reviews_api:probe",
    "reviews:probe_cancel": "POST reviews_api:probe_cancel",
    "reviews:probe_waive": "POST reviews_api:probe_waive",
    "prompts:new": "POST registry_api:model_versions",
    "prompts:try_it": "POST prompts_api:playgrounds",
    "prompts:playground_new": "POST prompts_api:playgrounds",
    "prompts:playground": "GET prompts_api:playground",
    "prompts:playground_status": "GET prompts_api:playground",
    "prompts:playground_save_prompt": "POST prompts_api:playground_save_prompt",
    "prompts:playground_save_task": "POST prompts_api:playground_save_task",
    "automation:list": "GET automation_api:flows",
    "automation:flow": "GET automation_api:flow",
    "automation:new": "POST automation_api:flows",
    "automation:edit": "PUT automation_api:flow",
    "automation:switch": "PUT automation_api:flow",
    "automation:delete": "DELETE automation_api:flow",
    "automation:dry_run": "GET automation_api:dry_run",
    "automation:run_now": "POST automation_api:flow_runs",
    "automation:runs": "GET automation_api:flow_runs",
    "automation:run": "GET automation_api:run",
    "automation:run_status": "GET automation_api:run",
    "training:list": "GET training_api:runs",
    "training:new": "POST training_api:runs",
    "training:new_from_yaml": "POST training_api:runs",
    "training:config": "GET training_api:run_config",
    "training:export": "POST training_api:run_export",
    "training:import": "POST training_api:run_import",
    "training:detail": "GET training_api:run",
    "training:status": "GET training_api:run",
    "training:compare": "GET training_api:runs_compare",
    "training:learned_from_trajectory": "GET training_api:lineage",
    "training:learned_from_task": "GET training_api:lineage",
    "training:curve": "GET training_api:run_metrics",
    "training:budget": "POST training_api:run_estimate",
    "training:fork_budget": "POST training_api:run_estimate",
    "training:examples": "GET training_api:examples",
    "training:run_examples": "GET training_api:run_examples",
    "training:rollouts": "GET training_api:run_rollouts",
    "training:rollout": "GET training_api:run_rollout",
    "training:fork": "POST training_api:run_fork",
    "training:outputs": "GET training_api:run_outputs",
    "training:outputs_send": "POST training_api:run_outputs_send",
    "training:searches": "GET training_api:searches",
    "training:search_new": "POST training_api:searches",
    "training:search": "GET training_api:search",
    "training:search_status": "GET training_api:search",
    "training:search_save": "POST training_api:search_save",
    "failures:list": "GET failures_api:failures",
    "failures:case": "GET failures_api:failure",
    "failures:triage": "GET failures_api:failures",
    "failures:decide": "POST failures_api:failure_decide",
    "failures:bulk": "POST failures_api:failure_decide",
    "failures:classify": "POST failures_api:classification",
    "failures:classification_status": "GET failures_api:classification",
    "failures:policy": "GET failures_api:policy_rules",
    "failures:policy_decide": "POST failures_api:policy_rule",
    "failures:policy_new": "POST failures_api:policy_rules",
    "failures:policy_edit": "PUT failures_api:policy_rule",
    "failures:clusters": "GET failures_api:clusters",
    "failures:recluster": "POST failures_api:clusters_again",
    "failures:cluster": "GET failures_api:cluster",
    "failures:cluster_rename": "PATCH failures_api:cluster",
    "failures:cluster_move": "POST failures_api:cluster_move",
    "failures:cluster_merge": "POST failures_api:cluster_merge",
    "failures:cluster_split": "POST failures_api:cluster_split",
    "failures:measures": "GET failures_api:accuracy",
    "failures:checks": "GET failures_api:checks",
    "failures:check_answer": "POST failures_api:checks",
    "failures:check_share": "PUT failures_api:checks_share",
    "failures:rubric": "GET failures_api:judge",
    "failures:rubric_save": "POST failures_api:rubrics",
    "failures:rubric_diff": "GET failures_api:rubrics",
    "failures:rubric_examples": "POST failures_api:rubric_examples",
    "failures:judge_share": "PATCH failures_api:judge_shares",
    "failures:judge_measurement": "GET failures_api:judge_measurement",
    "failures:judge_measurement_status": "GET failures_api:judge_measurement",
    "failures:rubric_search": "GET failures_api:rubric_search",
    "failures:rubric_search_status": "GET failures_api:rubric_search",
    "failures:verdicts": "GET failures_api:judge_verdicts",
    "failures:replies": "GET failures_api:reply_forms",
    "failures:replies_decide": "POST failures_api:reply_forms_decide",
    "failures:signals": "GET failures_api:signals",
    "failures:signal": "GET failures_api:signal",
    "failures:signal_label": "POST api:scores",
}
JUDGING = "people judge blind, on the pages"
LOCK = "what opens the lock of training is decided by people, on the pages"
TRYING = (
    "tries what is typed in a form; a program sends the whole and is told what is wrong with it"
)
TRIAGE = "a step of a person's work on a case; a program decides: POST failures_api:failure_decide"
NOT_BY_API = {
    **dict.fromkeys(
        [
            f"failures:{name}"
            for name in (
                "assign",
                "split",
                "blame",
                "mark",
                "undo",
                "check_undo",
                "policy_undo",
                "replies_undo",
            )
        ],
        TRIAGE,
    ),
    "failures:cluster_decide": TRIAGE,
    **dict.fromkeys(
        [f"failures:{name}" for name in ("part", "check_part", "step", "similar", "charts")],
        "a part of a page, which is loaded later",
    ),
    **dict.fromkeys(
        [f"failures:{name}" for name in ("modes", "mode_add", "mode_save", "mode_delete")],
        "what the failure modes mean is written by people, on the page",
    ),
    **dict.fromkeys(
        [
            f"failures:{name}"
            for name in (
                "reclassify",
                "reclassify_start",
                "reclassification",
                "reclassification_status",
                "reclassification_apply",
                "reclassification_discard",
            )
        ],
        "newer rules change the past once a person has looked at what changes",
    ),
    **dict.fromkeys(
        ("evals:meaning_decide", "evals:meaning_undo"),
        "whether two requests are the same task a person decides",
    ),
    "environments:test_connection": TRYING,
    "environments:package_download": (
        "files for a person's own folder; `manage.py new_environment` writes the same"
    ),
    "training:start_state": TRYING,
    "automation:check": TRYING,
    "automation:editor": TRYING,
    "automation:secret": "the secret of a webhook is shown once, to a person",
    **dict.fromkeys(
        ("reviews:verifier_check", "reviews:verifier_try", "reviews:rescore", "prompts:preview"),
        TRYING,
    ),
    **dict.fromkeys(("failures:rubric_try", "failures:rubric_try_one"), TRYING),
    **dict.fromkeys(
        [
            f"reviews:{name}"
            for name in ("open", "score_run", "queue", "item", "step", "judge", "answer", "undo")
        ],
        JUDGING,
    ),
    **dict.fromkeys(
        [f"reviews:{name}" for name in ("adjudicate", "rule", "export", "effect")], JUDGING
    ),
    **dict.fromkeys(
        [
            f"reviews:{name}"
            for name in ("policy", "policy_save", "policy_approve", "policy_withdraw", "override")
        ],
        LOCK,
    ),
}


def test_every_page_has_a_route_of_the_api_or_a_reason() -> None:
    declared = {one.page_route for one in REGISTRY.values() if one.rest}
    pages = {name for name in PAGES if name.startswith(tuple(f"{app}:" for app in APPS))} - declared
    missing, gone = (
        pages - BY_API.keys() - NOT_BY_API.keys(),
        (BY_API.keys() | NOT_BY_API.keys()) - pages,
    )
    assert not missing, (
        "Name the API's route that starts or reads the same, or say why there is none:"
        f" {sorted(missing)}"
    )
    assert not gone and not BY_API.keys() & NOT_BY_API.keys()


@pytest.mark.parametrize("named", sorted(set(BY_API.values())))
def test_the_route_is_there(named: str) -> None:
    method, _, route = named.partition(" ")
    assert method in ROUTES.get(route, {}), named
