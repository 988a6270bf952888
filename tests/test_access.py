"""Every route of the URL configuration × everybody: the role (or scope) that it declares opens it,
nothing less does, and what a page offers, its reader may do."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.apps import apps as installed
from django.conf import settings
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import ValidationError
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import DataError, transaction
from django.db.models import Model
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.test import Client, RequestFactory, override_settings
from django.urls import NoReverseMatch, URLPattern, URLResolver, get_resolver, reverse
from django.utils import timezone
from django.utils.html import escape

from apps.automation.actions import run_now, save_flow
from apps.automation.specs import read_yaml
from apps.core import access, errors
from apps.core.actions import create_api_key, invite
from apps.core.models import Attempts, Role
from apps.core.operations import REGISTRY, Operation, Reference
from apps.core.routes import by_key
from apps.core.scopes import ROLE_FOR
from apps.dashboard.actions import add_chart, create_dashboard
from apps.dashboard.charts import Spec
from apps.evals import importing
from apps.evals.models import EvalSet
from apps.failures.actions.diagnose import classify_project
from apps.failures.actions.signals import NewSignal
from apps.failures.actions.signals import add as add_signal
from apps.failures.models import JudgeMeasurement, Rubric, RubricSearch
from apps.failures.reclassify import start as start_reclassification
from apps.promotion import actions as promotion
from apps.promotion.deployment.actions import begin
from apps.promotion.deployment.models import Deployment, Target
from apps.promotion.gate.policy import Policy, as_toml
from apps.promotion.models import Trial
from apps.prompts import playground
from apps.registry.managed import add_managed
from apps.registry.models import ModelPrice
from apps.registry.ray_clusters import NewCluster, add_cluster
from apps.registry.servers import add_server
from apps.reviews.actions import open_review
from apps.reviews.policy import DEFAULTS
from apps.reviews.rescoring import submit_probe, submit_rescore
from apps.teamwork.actions import add_comment
from apps.teamwork.targets import kind_named
from apps.training.actions import freeze_dataset, submit_training
from apps.training.models import Method
from apps.trajectories.actions.alerts import NewAlert
from apps.trajectories.actions.alerts import add as add_alert
from apps.trajectories.actions.people import save_view
from apps.trajectories.actions.redaction import add as add_rule
from apps.trajectories.models import Arrival, DataDeletion, Trace, Upload
from apps.webhooks.actions import create_webhook, send_test
from apps.webhooks.models import Event
from tests.amounts import amount
from tests.factories import (
    admin_of,
    make_adapter,
    make_base,
    make_cluster,
    make_endpoint,
    make_environment,
    make_eval_run,
    make_eval_set,
    make_failed,
    make_key,
    make_meaning_check,
    make_medium,
    make_member,
    make_package,
    make_policy_rule,
    make_project,
    make_proposal,
    make_reply_form,
    make_rollouts,
    make_search,
    make_step_search,
    make_user,
    override,
)
from tests.offers import refused
from tests.shared import copied
from workers.lib.typed import plain

pytestmark = pytest.mark.django_db
ONLY = "whoever created it has only the role"

# To anybody, signed in or not; and to everybody who is signed in.
OPEN = {
    "healthz",
    "livez",
    "readyz",
    "metrics",
    "api:schema",
    "api:docs",
    "protocol:nothing",
    "rollouts:rollout",
    "rollouts:nothing",
    "account_login",
    "account_logout",
    "account_inactive",
    "mfa_authenticate",
    "mfa_login_webauthn",
    "account_reset_password",
    "account_reset_password_done",
    "account_reset_password_from_key",
    "account_reset_password_from_key_done",
    "socialaccount_signup",
    "socialaccount_login_cancelled",
    "socialaccount_login_error",
    "openid_connect_login",
    "openid_connect_callback",
    "automation_api:call",
    "join",
    "training_api:run_base",
    "training_api:run_result",
    "promotion_api:download",
}
OWN = {
    "core:projects",
    "notifications:list",
    "notifications:count",
    "notifications:read",
    "notifications:open",
    "notifications:preferences",
    "account",
    "account_reauthenticate",
    "mfa_reauthenticate",
    "mfa_reauthenticate_webauthn",
    "account_change_password",
    "account_set_password",
    "mfa_index",
    "mfa_activate_totp",
    "mfa_deactivate_totp",
    "mfa_view_recovery_codes",
    "mfa_generate_recovery_codes",
    "mfa_download_recovery_codes",
    "mfa_list_webauthn",
    "mfa_add_webauthn",
    "mfa_edit_webauthn",
    "mfa_remove_webauthn",
    "usersessions_list",
    "socialaccount_connections",
    "account_activity",
}
# To superusers; to others they do not exist (tests/dashboard/test_operator.py).
OPERATORS = {"operator:home", "operator:mend", "operator:mute", "operator:drain"}


@pytest.fixture
def world(kept_world: tuple[dict[str, Any], Path], db: None, settings: Any) -> dict[str, Any]:
    settings.FLYWHEEL_ENVIRONMENTS_DIR = kept_world[1] / "environments"
    return copied(kept_world, settings)


@pytest.fixture
def own_world(data_dir: Path, settings: Any) -> dict[str, Any]:
    """For tests that remove files of it."""
    return make_world(data_dir)


@override_settings()
def make_world(data_dir: Path) -> dict[str, Any]:
    """One project with a row at every station."""
    settings.FLYWHEEL_ENVIRONMENTS_DIR = data_dir / "environments"
    project = make_project()
    by = admin_of(project)
    own = make_package(project, settings.FLYWHEEL_ENVIRONMENTS_DIR)
    environment, base = make_environment(project), make_base(project, data_dir)
    adapter = make_adapter(project, base, data_dir)
    eval_set = make_eval_set(project)
    draft = make_eval_set(project, frozen=False)
    meaning = make_meaning_check(draft, base)
    steps = [{"name": "chat", "span_id": "a", "start_ms": 0, "duration_ms": 5}]
    trajectory = make_failed(project, metadata={"steps": steps})
    classify_project(project=project)
    before = make_eval_run(eval_set, base, environment, success=0.25)
    after = make_eval_run(eval_set, adapter, environment, success=1.0)
    replays = make_step_search(trajectory.failure, environment, base)
    review = open_review(runs=[before], by=by)
    override(environment)
    probe = submit_probe(environment=environment, eval_set=eval_set, by=by)
    rescore = submit_rescore(
        verifier=environment.verifier,
        candidate={"kind": "calls"},
        environment=environment,
        samples=before.samples.all(),
        by=by,
    )
    training = submit_training(
        project=project,
        method=Method.SFT,
        parent=base,
        dataset=freeze_dataset(eval_set=eval_set, by=by),
        environment=environment,
        config={"steps": 2, "learning_rate": 1e-3, "batch_size": 1},
        by=by,
    )
    server = add_server(
        project=project, fields={"name": "gpu", "base_url": "https://gpu.example.com/v1"}, by=by
    )
    endpoint = make_endpoint(project, server)
    search = make_search(endpoint, make_eval_set(project, validation=2), environment, server=server)
    search.candidates.create(number=1, parent=0, state="kept", prompt="Be exact.", score=0.5)
    local = add_managed(project=project, fields={"name": "local", "base": base}, by=by)
    channel = promotion.channel_of(project)
    promotion.set_initial(channel=channel, version=base, by=by)
    make_key(project)
    hook = create_webhook(
        project=project, url="https://ci.example.com/", events=Event.values, by=by
    )
    board = create_dashboard(project=project, name="Health", by=by)
    chart = add_chart(dashboard=board, spec=Spec.of({"measure": "cost"}), by=by)
    flow = save_flow(
        project=project, name="hourly", spec=read_yaml("steps: [{do: classify}]"), by=by
    )
    flow_run = run_now(flow=flow, by=by)
    report = promotion.make_gate_report(baseline=before, candidate=after, by=by)
    sides = [playground.Side(base, {"system_prompt": "Be brief."})]
    tried = playground.start(
        project=project,
        environment=environment,
        sides=sides,
        step=playground.Step(trajectory, 1),
        by=by,
    )
    upload = Upload.objects.create(
        project=project,
        name="a",
        format="chat",
        file="gone",
        size=1,
        state="failed",
        finished_at=timezone.now(),
    )
    said = add_comment(
        project=project,
        kind=kind_named("trajectory"),
        target=trajectory,
        text="Why does it close the ticket?",
        by=by,
    )
    cluster = make_cluster(trajectory.failure)
    alert = add_alert(project=project, by=by, given=NewAlert(name="a", measure="cost", line=1.0))
    signal = add_signal(project=project, by=by, given=NewSignal(name="a", question="Is it?"))
    ended = {"project": project, "state": "failed", "finished_at": timezone.now(), "name": "a"}
    rubric = Rubric.objects.create(
        project=project, text="a", base_url="https://judge.example.com/v1", model="m"
    )
    measured = JudgeMeasurement.objects.create(
        **ended,
        kind="strategies",
        rubric=rubric,
        spec={"variants": [], "decisions": [], "most_usd": 1.0, "earlier": 0},
    )
    searched = RubricSearch.objects.create(
        **ended, rubric=rubric, spec={"train": [], "validation": [], "most_usd": 1.0}
    )
    rays = add_cluster(
        project=project, given=NewCluster(name="rays", base_url="https://ray.example.com"), by=by
    )
    reply_form = make_reply_form(trajectory)
    deletion = DataDeletion.objects.create(
        project=project,
        name="Deletion of runs that match user",
        state="cancelled",
        finished_at=timezone.now(),
        wanted='{"filters": {"user": "nobody"}}',
    )
    return {
        "project": project,
        "bodies": {
            "teamwork:assign": {"user": by.pk, "on": "1"},
            "training:submit": {"cluster": rays.name, "engine": "trl"},
            "failures:split": {"mode": "bad_planning"},
            "failures:blame": {"message": 0},
            "failures:check_answer": {"answer": "fine"},
            "failures:policy_decide": {"state": "confirmed"},
            "failures:signal_label": {"value": "yes"},
            "failures:replies_decide": {"forms": reply_form.pk, "state": "confirmed"},
            "failures:check_share": {"percent": "2"},
            "failures:judge_share": {"unflagged": "10", "flagged": "100", "first": "200"},
            "reviews:policy_save": DEFAULTS | {"reason": "test"},
            "reviews:verifier_create": {"name": "new", "spec": '{"kind": "calls"}'},
            "reviews:verifier_save": {"spec": '{"kind": "calls"}'},
            "promotion:policy_save": plain(Policy()) | {"reason": "test"},
            "prompts:playground_save_prompt": {"name": "kept"},
            "promotion:make_report": {"baseline": before.pk, "candidate": after.pk},
            "evals:open_compared": {"run": [str(before.pk), str(after.pk)]},
        },
        "pks": {
            **dict.fromkeys(
                [
                    f"webhooks:{name}"
                    for name in ("detail", "log", "edit", "delete", "switch", "rotate", "test")
                ],
                hook.pk,
            ),
            **dict.fromkeys(
                ("webhooks:delivery", "webhooks:again"), send_test(hook=hook, by=by).pk
            ),
            "core:audit_export": "csv",
            "failures:signal": signal.pk,
            "failures:signal_label": (signal.pk, trajectory.pk),
            "failures:rubric_use": rubric.version,
            **dict.fromkeys(
                ("failures:judge_measurement", "failures:judge_measurement_status"), measured.pk
            ),
            **dict.fromkeys(
                ("failures:rubric_search", "failures:rubric_search_status"), searched.pk
            ),
            "trajectories:alert": alert.pk,
            **dict.fromkeys(
                ("core:manage", "core:object_rename", "core:object_archive", "core:object_delete"),
                ("set", str(draft.pk)),
            ),
            **dict.fromkeys(
                ("core:revoke_key", "core:rotate_key", "serving:limits"),
                project.api_keys.first().pk,
            ),
            **dict.fromkeys(
                [f"dashboard:{name}" for name in ("dashboard", "rename", "duplicate", "delete")],
                board.pk,
            ),
            **dict.fromkeys(("dashboard:chart", "dashboard:change_chart"), chart.pk),
            "core:revoke_invitation": (
                invite(project=project, email="a@example.org", role=Role.VIEWER, by=by)[0].pk
            ),
            **dict.fromkeys(
                ("core:remove_member", "core:unlock_member"), project.memberships.first().pk
            ),
            **dict.fromkeys(
                ("trajectories:detail", "trajectories:raw", "trajectories:feedback"), trajectory.pk
            ),
            **dict.fromkeys(("trajectories:spans", "trajectories:span_text"), trajectory.pk),
            "trajectories:part": (trajectory.pk, 0),
            "trajectories:medium": (trajectory.pk, make_medium(trajectory).digest),
            "trajectories:revision": (trajectory.pk, trajectory.revisions.first().pk),
            "trajectories:delete_view": (
                save_view(project=project, name="v", query="", shared=True, by=by).pk
            ),
            **dict.fromkeys(
                ("trajectories:import_detail", "trajectories:import_status"), upload.pk
            ),
            "trajectories:import_mapping_delete": (
                project.import_mappings.create(name="m", mapping={}).pk
            ),
            **dict.fromkeys(("trajectories:import_retry", "trajectories:import_cancel"), upload.pk),
            **dict.fromkeys(("trajectories:deletion", "trajectories:deletion_status"), deletion.pk),
            **{
                f"trajectories:trace_{name}": trace_set_aside(project, name)
                for name in ("retry", "discard")
            },
            **{
                f"trajectories:arrival_{name}": (
                    Arrival.objects.create(project=project, problem="TypeError: a").pk
                )
                for name in ("retry", "discard")
            },
            "trajectories:redaction_edit": (
                add_rule(project=project, name="a", pattern="a+", by=by).pk
            ),
            "trajectories:redaction_delete": (
                add_rule(project=project, name="b", pattern="b+", by=by).pk
            ),
            **dict.fromkeys(
                (
                    "failures:cluster",
                    "failures:cluster_rename",
                    "failures:cluster_move",
                    "failures:cluster_merge",
                    "failures:cluster_split",
                    "failures:cluster_decide",
                    "evals:tasks_from_cluster",
                ),
                cluster.pk,
            ),
            **dict.fromkeys(
                [f"teamwork:{name}" for name in ("comment", "edit", "delete")], said.pk
            ),
            **dict.fromkeys(
                [f"teamwork:{name}" for name in ("thread", "add", "people")],
                ("trajectory", str(trajectory.pk)),
            ),
            "teamwork:assign": ("cluster", str(cluster.pk)),
            **dict.fromkeys(
                [
                    f"failures:reclassification{what}"
                    for what in ("", "_status", "_apply", "_discard")
                ],
                start_reclassification(project=project, by=by).pk,
            ),
            **dict.fromkeys(
                (
                    "failures:case",
                    "failures:decide",
                    "failures:step",
                    "failures:similar",
                    "failures:assign",
                ),
                trajectory.failure.pk,
            ),
            "failures:split": trajectory.failure.pk,
            "failures:part": (trajectory.failure.pk, 0),
            "failures:check_part": (trajectory.pk, 0),
            "failures:blame": trajectory.failure.pk,
            "failures:mark": trajectory.pk,
            "failures:check_answer": trajectory.pk,
            **dict.fromkeys(
                [f"failures:policy_{what}" for what in ("decide", "edit", "remove")],
                make_policy_rule(trajectory).pk,
            ),
            **dict.fromkeys(
                ("failures:mode_save", "failures:mode_delete"), project.failure_modes.last().pk
            ),
            **dict.fromkeys(
                (
                    "evals:detail",
                    "evals:show_holdout",
                    "evals:new_run",
                    "evals:new_version",
                    "evals:reopen",
                    "evals:environment",
                ),
                eval_set.pk,
            ),
            **dict.fromkeys(
                ("evals:add_trajectories", "evals:add_task", "evals:split", "evals:freeze"),
                draft.pk,
            ),
            "evals:remove_task": draft.tasks.first().pk,
            "evals:edit_task": draft.tasks.trainable().last().pk,
            "evals:change_tasks": draft.pk,
            **dict.fromkeys(
                ("evals:task_from_failure", "evals:find_step", "evals:failure_searches"),
                trajectory.failure.pk,
            ),
            **dict.fromkeys(
                [f"evals:step_search{what}" for what in ("", "_status", "_cancel")], replays.pk
            ),
            **dict.fromkeys(
                [f"evals:{what}proposal" for what in ("", "next_", "decide_", "edit_", "draft_")],
                make_proposal(trajectory.failure).pk,
            ),
            **dict.fromkeys(
                (
                    "evals:versions",
                    "evals:versions_with_holdout",
                    "evals:export",
                    "evals:export_holdout",
                ),
                eval_set.pk,
            ),
            **dict.fromkeys(
                ("evals:from_successes", "evals:import", "evals:import_start", "evals:general"),
                draft.pk,
            ),
            **dict.fromkeys(("evals:variants", "evals:make_variants", "evals:end_batch"), draft.pk),
            **dict.fromkeys(
                [f"evals:variant_job_{what}" for what in ("start", "status", "stop")], draft.pk
            ),
            **dict.fromkeys(
                [f"evals:meaning{what}" for what in ("", "_start", "_status", "_stop")], draft.pk
            ),
            **dict.fromkeys(("evals:meaning_decide", "evals:meaning_undo"), meaning.pairs.get().pk),
            **dict.fromkeys(
                ("evals:confirm_task", "evals:judge_variant"), draft.tasks.trainable().last().pk
            ),
            **dict.fromkeys(
                ("evals:import_status", "evals:import_cancel"), (draft.pk, task_import(draft, by))
            ),
            **dict.fromkeys(
                ("evals:run", "evals:run_status", "evals:learnability", "evals:cancel"), before.pk
            ),
            **dict.fromkeys(
                [
                    f"evals:{name}"
                    for name in (
                        "samples",
                        "open_holdout",
                        "distributions",
                        "export_samples",
                        "to_tasks",
                    )
                ],
                before.pk,
            ),
            "evals:task_samples": (before.pk, before.samples.first().task_id),
            "evals:sample": (before.pk, before.samples.first().pk),
            **dict.fromkeys(
                ("evals:task", "evals:open_task"), eval_set.tasks.filter(split="holdout").first().pk
            ),
            "evals:compared_task": before.samples.first().task_id,
            "environments:detail": environment.pk,
            **dict.fromkeys(
                [f"environments:package{what}" for what in ("", "_use", "_check")], "counter"
            ),
            "evals:package_tasks": own.pk,
            "promotion:graph": adapter.pk,
            "promotion:effect": channel.promotions.get().pk,
            **dict.fromkeys(
                [f"promotion:{name}" for name in ("pair", "pair_parts", "prepare")],
                (before.pk, after.pk),
            ),
            **dict.fromkeys(
                [f"reviews:{name}" for name in ("detail", "undo", "queue", "adjudicate", "export")],
                review.pk,
            ),
            **dict.fromkeys(
                [f"reviews:{name}" for name in ("item", "step", "judge", "answer", "rule")],
                review.items.first().pk,
            ),
            **dict.fromkeys(
                ("reviews:open", "reviews:score_run", "reviews:override", "reviews:effect"),
                environment.verifier.pk,
            ),
            **dict.fromkeys(
                [f"reviews:verifier{name}" for name in ("", "_edit", "_save", "_try")]
                + ["reviews:probe_run"],
                environment.verifier.pk,
            ),
            **dict.fromkeys(
                [f"reviews:probe{name}" for name in ("", "_status", "_cancel", "_waive")], probe.pk
            ),
            "reviews:rescore": rescore.pk,
            **dict.fromkeys(
                [f"training:search{what}" for what in ("", "_status", "_cancel", "_resume")],
                search.pk,
            ),
            "training:search_save": (search.pk, 1),
            **dict.fromkeys(
                (
                    "training:detail",
                    "training:status",
                    "training:cancel",
                    "training:resume",
                    "training:fork",
                    "training:fork_budget",
                    "training:outputs",
                    "training:outputs_send",
                    "training:config",
                ),
                training.pk,
            ),
            **dict.fromkeys(("training:rollouts", "training:run_examples"), training.pk),
            **dict.fromkeys(("training:export", "training:submit"), training.pk),
            **dict.fromkeys(
                [f"registry:ray_cluster_{what}" for what in ("edit", "remove", "check")], rays.name
            ),
            "registry:price_remove": (
                ModelPrice.objects.create(project=project, model="m", input=1.0, output=2.0).pk
            ),
            "training:learned_from_trajectory": trajectory.pk,
            "training:learned_from_task": eval_set.tasks.first().pk,
            "training:rollout": (training.pk, make_rollouts(training, [1.0, 0.0])[0].pk),
            **dict.fromkeys(
                [
                    f"registry:server{what}"
                    for what in ("", "_status", "_edit", "_probe", "_remove")
                ],
                server.name,
            ),
            **dict.fromkeys(
                [f"registry:server_{what}" for what in ("run", "start", "stop")], local.name
            ),
            **dict.fromkeys(
                [f"promotion:model{what}" for what in ("", "_card", "_download")], adapter.pk
            ),
            "promotion:merge": adapter.pk,
            "promotion:remove_target": (
                Target.objects.create(channel=channel, kind="server", server=server).pk
            ),
            **dict.fromkeys(
                ("promotion:deployment", "promotion:deployment_stop"),
                begin(channel=channel, kind=Deployment.Kind.RESTORE, version=base, by=by).pk,
            ),
            **dict.fromkeys(
                [f"promotion:trial{what}" for what in ("", "_stop", "_advance")],
                Trial.objects.create(
                    project=project,
                    channel=channel,
                    kind="shadow",
                    version=adapter,
                    baseline=base,
                    by=by,
                    steps=[{"share": 0.1, "min_sessions": 1, "min_minutes": 0}],
                ).pk,
            ),
            **dict.fromkeys(
                [f"prompts:playground{what}" for what in ("", "_status", "_cancel", "_save_task")],
                tried.pk,
            ),
            "prompts:playground_save_prompt": (tried.pk, 0),
            **dict.fromkeys(
                (
                    "promotion:report",
                    "promotion:promote",
                    "promotion:report_file",
                    "promotion:review_outputs",
                ),
                report.pk,
            ),
            **dict.fromkeys(("promotion:plan", "promotion:wear"), eval_set.pk),
            **dict.fromkeys(
                [
                    f"automation:{name}"
                    for name in ("flow", "edit", "dry_run", "run_now", "switch", "secret", "delete")
                ],
                flow.pk,
            ),
            **dict.fromkeys(
                [
                    f"automation:{name}"
                    for name in ("run", "run_status", "cancel", "answer", "retry")
                ],
                flow_run.pk,
            ),
        },
    }


def trace_set_aside(project: Any, name: str) -> str:
    now = timezone.now()
    trace = Trace.objects.create(
        project=project, trace_id=name, first_at=now, touched_at=now, problem="TypeError: a"
    )
    return trace.trace_id


def task_import(draft: EvalSet, by: Any) -> str:
    """A file of tasks that waits for a worker."""
    identity = importing.keep([b"{}"])
    importing.submit(
        identity=identity, eval_set=draft, name="a", choice=importing.Choice("flywheel"), by=by
    )
    return identity


def patterns() -> dict[str, URLPattern]:
    """All URLs by name, from the resolver itself: a new route cannot be forgotten here."""
    found: dict[str, URLPattern] = {}

    def walk(patterns: list, namespace: str) -> None:
        for pattern in patterns:
            if isinstance(pattern, URLResolver):
                walk(pattern.url_patterns, pattern.namespace or namespace)
            elif isinstance(pattern, URLPattern):
                found[f"{namespace}:{pattern.name}" if namespace else str(pattern.name)] = pattern

    walk(get_resolver().url_patterns, "")
    return found


def only_posts(pattern: URLPattern) -> bool:
    request = RequestFactory().get("/")
    request.user = AnonymousUser()
    return pattern.callback(request, slug="-").status_code == 405


PATTERNS = patterns()
ROUTES = by_key()
API = list(ROUTES)
PAGES = [name for name in PATTERNS if name not in OPEN | OWN | OPERATORS and name not in ROUTES]
ROLES = {name: getattr(PATTERNS[name].callback, "role", None) for name in PAGES}
WRITES = {name for name in PAGES if only_posts(PATTERNS[name])}


ON_CHANNEL = [
    f"promotion:{name}"
    for name in (
        "rollback",
        "channel",
        "channel_status",
        "restore",
        "segment",
        "freeze",
        "unfreeze",
        "add_target",
        "remove_target",
        "deployment",
        "deployment_stop",
        "trial",
        "trial_new",
        "trial_begin",
        "trial_stop",
        "trial_advance",
    )
]


DECLARED = {one.page_route: one for one in REGISTRY.values() if one.page}


def args_of(one: Operation, project: Any) -> list[Any]:
    """Of the page of an operation: what its path names of some object of the project."""
    fields = re.findall(r"<(?:\w+:)?(\w+)>", one.page.path)
    rows = one.target._default_manager.filter(**{one.within: project}) if one.target else ()
    row = next(iter(rows), None)
    missing = [field for field in fields if not hasattr(row, field)]
    assert not missing, (
        f"{one.page_route}: `world` has no object with {', '.join(missing)} for it. Make one in"
        " `world`, or say in its “pks” what the address names."
    )
    return [getattr(row, field) for field in fields]


def url_of(name: str, world: dict[str, Any]) -> str:
    args: list = [world["project"].slug]
    if name in ON_CHANNEL or name.startswith("promotion:policy"):
        args.append("production")
        args += [world["pks"][name]] if name in world["pks"] else []
    elif name in world["pks"]:
        pk = world["pks"][name]
        args += pk if isinstance(pk, tuple) else [pk]
    elif name in DECLARED:
        args += args_of(DECLARED[name], world["project"])
    query = f"?report={world['pks']['promotion:report']}" if name == "promotion:trial_new" else ""
    return reverse(name, args=args) + query


def body_of(name: str, world: dict[str, Any]) -> dict[str, Any]:
    if name == "promotion:policy_import":  # a file is read once
        return {
            "reason": "test",
            "file": SimpleUploadedFile("policy.toml", as_toml(Policy()).encode()),
        }
    return world["bodies"].get(name, {})


def ask(
    client: Client, name: str, world: dict[str, Any], fields: dict[str, str] | None = None
) -> Any:
    url = url_of(name, world)
    return (
        client.post(url, body_of(name, world) | (fields or {}))
        if name in WRITES
        else client.get(url, fields)
    )


def logged_in(user: Any) -> Client:
    client = Client(raise_request_exception=True)
    client.force_login(user)
    return client


def undone(
    client: Client, name: str, world: dict[str, Any], fields: dict[str, str] | None = None
) -> Any:
    """The answer; what the request wrote is rolled back."""
    with transaction.atomic():
        answer = ask(client, name, world, fields)
        transaction.set_rollback(True)
    return answer


@pytest.fixture
def bare_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal is its sentence alone: half of what is asked here is refused, and the page around
    it is always the same.
    """
    monkeypatch.setattr(
        errors,
        "render",
        lambda request, page, context, status: HttpResponse(escape(context["text"]), status=status),
    )


def is_page(answer: Any) -> bool:
    return answer.status_code == 200 and not answer.streaming and "html" in answer["Content-Type"]


@pytest.mark.more
@pytest.mark.usefixtures("bare_errors")
def test_every_page_opens_to_its_role_and_those_above_and_offers_what_they_may_do(
    world: dict[str, Any],
) -> None:
    """One visit for both: every form, button and link of every page × every role, against what the
    routes allow. Who writes is asked at the border: the least role that may, and the one below. In
    the suite a page is opened at its border, every third to one more role, and to somebody who is
    either not logged in or no member; in proof to all.
    """
    project, seen = world["project"], Counter()
    stranger, people = (
        logged_in(make_user()),
        {role: logged_in(make_member(project, role)) for role in Role},
    )
    anybody, wrong = Client(), []
    for number, name in enumerate(PAGES):
        if number % 2 or amount(False, True):
            login = (anybody.post if name in WRITES else anybody.get)(url_of(name, world))
            to = reverse("account_login")
            assert login.status_code == 302 and login["Location"].startswith(to), name
        if not number % 2 or amount(False, True):
            assert ask(stranger, name, world).status_code == 404, name
        border = around(ROLES[name])
        # an owner is offered nothing too much: may do all
        others = [role for role in Role if role not in border and role != Role.OWNER]
        if name in WRITES:
            others = []
        for role in {*border, *amount([] if number % 3 else others[number // 3 % 2 :][:1], others)}:
            answer = undone(people[role], name, world)
            if answer.status_code not in ((200, 302) if role in ROLES[name].upward else (403,)):
                wrong.append(f"{name} answers {role} with {answer.status_code}")
            if name not in WRITES and is_page(answer):
                seen[role] += 1
                wrong += not_for(role, name, answer)
    more = {
        "evals:detail": "evals:add_task",
        "registry:server": "registry:server_run",
    }  # a draft, a managed server
    for name, other in more.items():
        for role, person in people.items():
            answer = person.get(reverse(name, args=[project.slug, world["pks"][other]]))
            assert is_page(answer), (name, role)
            wrong += not_for(role, name, answer)
    assert not wrong, "\n".join(wrong)
    assert min(seen[role] for role in Role if role != Role.OWNER) > amount(15, 60)


def around(least: Role) -> set[Role]:
    """The role and the one below it, if there is one."""
    return {least, *(role for role in Role if role.rank == least.rank - 1)}


def not_for(role: Role, name: str, page: Any) -> set[str]:
    """What this page offers the role and it may not do, a sentence each."""
    found = refused(ROLES, role, page.request["PATH_INFO"], page.content.decode())
    return {f"{name} offers {role}: {text}" for text in found}


def own_args(pattern: str) -> list:
    return [UUID(int=1)] if "uuid:pk" in pattern else [1] if "pk" in pattern else []


def test_ones_own_pages_need_an_account_and_nothing_else(project: Any) -> None:
    stranger, anybody = logged_in(make_user()), Client()
    assert anybody.get("/account/confirm/")["Location"].startswith("/login/")
    for name in OWN:
        url = reverse(name, args=own_args(str(PATTERNS[name].pattern)))
        answer = anybody.get(url)
        assert answer.status_code == 302 and answer["Location"].startswith(
            ("/login/", "/account/confirm/")
        ), name
        assert stranger.get(url).status_code in (200, 302, 404), name


def pages_of(role: Role) -> set[str]:
    return {name for name, needed in ROLES.items() if needed == role}


def test_what_more_than_reading_and_building_needs() -> None:
    """Everything else that changes something is an engineer's; a role that is declared by mistake
    shows here.
    """
    assert None not in ROLES.values() and not pages_of(Role.VIEWER) & WRITES - {
        "trajectories:redaction_test"
    }
    assert pages_of(Role.REVIEWER) == {
        "failures:decide",
        "failures:split",
        "failures:blame",
        "failures:assign",
        "failures:undo",
        "failures:bulk",
        "failures:mark",
        "failures:check_answer",
        "failures:check_undo",
        "failures:policy_decide",
        "failures:policy_look",
        "failures:policy_undo",
        "failures:policy_new",
        "failures:policy_edit",
        "failures:policy_remove",
        "failures:replies_decide",
        "failures:replies_look",
        "failures:replies_undo",
        "failures:signal_label",
        "failures:cluster_rename",
        "failures:cluster_move",
        "failures:cluster_merge",
        "failures:cluster_split",
        "failures:cluster_decide",
        "trajectories:save_view",
        "trajectories:delete_view",
        "trajectories:bulk",
        "trajectories:bulk_undo",
        "trajectories:bulk_keep",
        "trajectories:feedback",
        "trajectories:score_give",
        "reviews:queue",
        "reviews:item",
        "reviews:step",
        "reviews:judge",
        "reviews:answer",
        "reviews:policy_approve",
        "reviews:undo",
        "teamwork:add",
        "teamwork:edit",
        "teamwork:delete",
        "teamwork:people",
        "teamwork:assign",
        "reviews:adjudicate",
        "reviews:rule",
        "evals:confirm_task",
        "evals:judge_variant",
    }
    assert {name for name in pages_of(Role.OPERATOR) if not name.startswith("webhooks:")} == {
        "core:keys",
        "core:revoke_key",
        "core:rotate_key",
        "serving:limits",
        "automation:new",
        "automation:edit",
        "automation:check",
        "automation:editor",
        "automation:switch",
        "automation:secret",
        "automation:delete",
        "failures:rubric_examples",
        "failures:rubric_save",
        "failures:judge_off",
        "failures:rubric_use",
        "failures:judge_share",
        "registry:managed_new",
        "registry:server_new",
        "registry:server_edit",
        "registry:server_remove",
        "registry:server_probe",
        "registry:ray_cluster_new",
        "registry:ray_cluster_edit",
        "registry:ray_cluster_remove",
        "registry:ray_cluster_check",
        "registry:server_start",
        "registry:server_stop",
        "trajectories:retention",
        "trajectories:redaction_switch",
        "trajectories:redaction_presidio",
        "trajectories:held",
        "trajectories:redaction_add",
        "trajectories:redaction_edit",
        "trajectories:redaction_delete",
        "promotion:freeze",
        "promotion:unfreeze",
        "promotion:add_target",
        "promotion:remove_target",
    }
    assert all(ROLES[name] == Role.OPERATOR for name in PAGES if name.startswith("webhooks:"))
    assert pages_of(Role.OWNER) == {
        "core:project",
        "core:archive_project",
        "core:delete_project",
        "core:deletion_again",
        "core:object_delete",
        "core:settings",
        "core:invite",
        "core:revoke_invitation",
        "core:set_member",
        "core:remove_member",
        "core:unlock_member",
        "reviews:override",
        "reviews:policy_save",
        "reviews:policy_withdraw",
        "reviews:probe_waive",
        "trajectories:deletion_new",
        "trajectories:deletion_cancel",
        "trajectories:deletion_resume",
        "trajectories:deletions_preview",
        "promotion:create_channel",
        "promotion:policy_save",
        "promotion:policy_import",
        "promotion:policy_withdraw",
        "promotion:segment",
    }


def key_args(name: str) -> list:
    """Of a route that wants a key: something of the right form, which need not exist."""
    for args in (
        [],
        ["x"],
        [1],
        [UUID(int=1)],
        [UUID(int=1), UUID(int=1)],
        [UUID(int=1), 1],
        ["x", UUID(int=1)],
        ["x", 1],
        ["x", 1, "tool"],
        [UUID(int=1), "x", 1],
    ):
        with suppress(NoReverseMatch):
            reverse(name, args=args)
            return args
    raise AssertionError(f"{name}: say what it is given")


def call(name: str, method: str, secret: str) -> Any:
    headers = {"Authorization": f"Bearer {secret}"} if secret else {}
    return Client().generic(
        method,
        reverse(name, args=key_args(name)),
        "{}",
        content_type="application/json",
        headers=headers,
    )


METHODS = [
    (name, method, needed) for name, methods in ROUTES.items() for method, needed in methods.items()
]


@pytest.mark.more
def test_no_api_route_opens_without_a_key(project: Any) -> None:
    """In the suite, every fourth is asked with a wrong one too."""
    for number, (name, method, _) in enumerate(METHODS):
        assert call(name, method, "").status_code == 401, (name, method)
        if number % amount(4, 1):
            continue
        # else the address is slowed down after a hundred wrong keys
        Attempts.objects.all().delete()
        assert call(name, method, "fw_wrong").status_code == 401, (name, method)


@pytest.mark.parametrize("role", Role)
def test_every_api_route_opens_to_keys_of_its_role_and_those_above(
    project: Any, role: Role
) -> None:
    """A key with all scopes; test_scopes.py walks the scopes. Asked at the border, as pages are."""
    secret = create_api_key(project=project, name="all", by=make_member(project, role))[1]
    for name, method, needed in METHODS:
        least = min(
            (ROLE_FOR.get(scope, Role.VIEWER) for scope in needed.scopes), key=lambda one: one.rank
        )
        least = max(least, needed.role or Role.VIEWER, key=lambda one: one.rank)
        if role not in around(least):
            continue
        answer = call(name, method, secret)
        if role == least:
            assert (
                answer.status_code not in (401, 405) and ONLY not in answer.getvalue().decode()
            ), (
                name,
                method,
            )
        else:
            assert answer.status_code == 403 and f"{ONLY} “{role}”" in answer.json()["detail"], (
                name,
                method,
            )


def test_a_key_sees_only_its_own_project(project: Any, base: Any) -> None:
    other = make_key(make_project())
    trajectory, foreign = make_failed(project), make_eval_set(project)
    promotion.set_initial(channel=promotion.channel_of(project), version=base, by=admin_of(project))
    headers = {"HTTP_AUTHORIZATION": f"Bearer {other}"}
    assert (
        Client()
        .get(reverse("api:trajectory", args=[trajectory.external_id]), **headers)
        .status_code
        == 404
    )
    news, url = (
        '{"outcome": {"status": "success"}}',
        reverse("api:feedback", args=[trajectory.external_id]),
    )
    assert (
        Client().post(url, news, content_type="application/json", **headers).status_code == 202
    )  # waits in its own
    trajectory.refresh_from_db()
    assert trajectory.outcome_status == "failure"
    assert Client().get(reverse("evals_api:set", args=[foreign.pk]), **headers).status_code == 404
    assert (
        Client().post(reverse("evals_api:tasks", args=[foreign.pk]), **headers).status_code == 404
    )
    assert Client().get(reverse("evals_api:sets"), **headers).json()["results"] == []
    assert Client().get(reverse("api:trajectories"), **headers).json()["results"] == []
    assert (
        Client().get(reverse("promotion_api:channel", args=["production"]), **headers).status_code
        == 404
    )


def names_of(row: Any) -> list[Any]:
    """What may name a row in an address or a body."""
    known = ("pk", "slug", "name", "version", "external_id", "key", "digest")
    found = [value for name in known if (value := getattr(row, name, None)) not in (None, "")]
    return list(dict.fromkeys([*found, *map(str, found)]))


def found_by(reference: Reference, project: Any, name: Any) -> Any:
    """None where it is of another type, too."""
    invalid = (ValueError, TypeError, AttributeError, ValidationError, DataError)
    with suppress(Http404, *invalid), transaction.atomic():
        return reference.find(project, name)


def test_an_object_of_another_project_is_not_there_in_a_path(world: dict[str, Any]) -> None:
    """By its id in the path of each operation, whatever is sent."""
    other = make_project()
    secret = create_api_key(project=other, name="all", by=make_member(other, Role.OWNER))[1]
    asked = 0
    for one in REGISTRY.values():
        if one.rest is None or one.target is None:
            continue
        fields = re.findall(r"<(?:\w+:)?(\w+)>", one.rest.path)
        rows = one.target._default_manager.filter(**{one.within: world["project"]})
        if (row := rows.first()) is None or not all(hasattr(row, field) for field in fields):
            continue
        url = reverse(one.route, args=[getattr(row, field) for field in fields])
        for body in ("{}", '{"state": "confirmed", "on": true}'):
            answer = Client(headers={"Authorization": f"Bearer {secret}"}).generic(
                one.rest.method, url, body, content_type="application/json"
            )
            assert answer.status_code == 404, (one.name, answer.content)
        asked += 1
    assert asked > 60


def test_an_object_of_another_project_is_not_there_in_a_query_or_body(
    world: dict[str, Any],
) -> None:
    """By any of its names in each field that refers to one."""
    project, other = world["project"], make_project()
    fields = defaultdict(list)  # many refer in the same way
    for one in REGISTRY.values():
        for name, reference in one.inputs.references.items():
            fields[reference].append((one.name, name))
    looked_up = set()
    for reference, named in fields.items():
        model = Model  # the one that it finds, once that is known
        for row in reference_rows(reference, project):
            for known in names_of(row) if isinstance(row, model) else ():
                if found_by(reference, project, known) == row:
                    assert found_by(reference, other, known) is None, (named, known)
                    looked_up.update(named)
                    model = type(row)
    assert len(looked_up) > 15


def reference_rows(reference: Reference, project: Any) -> list[Any]:
    """Some that a field may refer to: those that a form offers, or else of each model."""
    if reference.rows:
        with suppress(TypeError):
            return list(reference.rows(project=project)[:3])
    models = [model for model in installed.get_models() if hasattr(model, "project_id")]
    return [row for model in models for row in model._default_manager.filter(project=project)[:1]]


@pytest.mark.more
def test_an_id_of_another_project_opens_no_route_that_is_written_by_hand(
    world: dict[str, Any],
) -> None:
    """Each such route of an app is asked by the ids of the app's objects; in the suite, every
    third.
    """
    project, other = world["project"], make_project()
    secret = create_api_key(project=other, name="all", by=make_member(other, Role.OWNER))[1]
    client = Client(headers={"Authorization": f"Bearer {secret}"})
    declared = {(one.route, one.rest.method) for one in REGISTRY.values() if one.rest}
    ids, own = dict[str, list[Any]](), set[Any]()  # numbers may be those of others' objects, too
    for model in installed.get_models():
        if hasattr(model, "project_id"):
            rows, app = model._default_manager, ids.setdefault(model._meta.app_label, [])
            app += rows.filter(project=project).values_list("pk", flat=True)[:1]
            own.update(rows.filter(project=other).values_list("pk", flat=True))
    routes = [(name, method) for name, method, _ in METHODS if (name, method) not in declared]
    for name, method in routes[:: amount(3, 1)]:
        app = name.partition("_api")[0].replace("api:", "trajectories").partition(":")[0]
        for pk in set(ids.get(app, ())) - own:
            with suppress(NoReverseMatch):
                url = reverse(name, args=[pk])
                answer = client.generic(method, url, "{}", content_type="application/json")
                assert answer.status_code in (400, 404, 409, 415), (name, method, answer.content)
                asks_more = answer.status_code == 400 and b"is required" in answer.content
                assert method != "GET" or answer.status_code == 404 or asks_more, name


NUMBERS = (
    "a",
    "after",
    "against",
    "ahead",
    "at",
    "before",
    "b",
    "back",
    "cap",
    "cut",
    "from",
    "g",
    "ids",
    "index",
    "limit",
    "message",
    "metric",
    "mode",
    "page",
    "per_group",
    "phase",
    "show",
    "since",
    "split",
    "step",
    "suggestion",
    "to",
    "version",
)


NUL = "\x00"
VALUES = ("9" * 5000, "-1", "²", NUL, "0190a5c4-0000-7000-8000-000000000000")
ALL = "all of them"
BY_NUMBER = {"trajectories:list", "trajectories:compare", "training:curve"}  # surely look at one


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of a request's fields that are looked at from now on; ALL where something goes
    through all but to refuse a NUL.
    """
    found: set[str] = set()

    def noted(method: str) -> None:
        plainly = getattr(QueryDict, method)

        def note(self: QueryDict, *name: Any) -> Any:
            if not self._mutable:  # else they are being filled
                found.add(name[0] if name else ALL)
            return plainly(self, *name)

        monkeypatch.setattr(QueryDict, method, note)

    for method in ("__getitem__", "__contains__", "getlist", "lists"):  # the others read by these
        noted(method)
    refuse = access.refuse_unstorable_text

    def unnoted(request: HttpRequest) -> None:
        before = found.copy()
        try:
            refuse(request)
        finally:
            found.intersection_update(before)

    monkeypatch.setattr(access, "refuse_unstorable_text", unnoted)
    return found


@pytest.mark.more
@pytest.mark.usefixtures("bare_errors")
def test_no_page_breaks_at_a_number_that_is_none(world: dict[str, Any], looked: set[str]) -> None:
    """A person may have typed anything into an address or a form: the page is shown, or says what
    is wrong. What looks at none of these fields when it is given the first value would do the same
    with each of the others, except that a NUL is refused before it. In the suite, every third page
    is given the first and one of the others.
    """
    admin, by_name = logged_in(admin_of(world["project"])), set()
    for number, name in enumerate(PAGES):
        if name in WRITES and name.startswith(
            ("core:", "trajectories:redaction", "trajectories:retention")
        ):
            continue
        if number % amount(3, 1) and name not in BY_NUMBER:
            continue
        others = VALUES[1:]
        for value in (VALUES[0], *amount([others[number % len(others)]], others)):
            if value not in (VALUES[0], NUL) and name not in by_name:
                continue
            fields = dict.fromkeys(NUMBERS, value) | ({"did": "assign"} if name in WRITES else {})
            looked.clear()
            assert undone(admin, name, world, fields).status_code < 500, (name, value)
            if looked & {*NUMBERS, ALL}:
                by_name.add(name)
    assert by_name >= BY_NUMBER
