"""Every route: anonymous people are sent to the login, strangers see nothing, viewers read, members write."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import NoReverseMatch, URLPattern, URLResolver, get_resolver, reverse
from django.utils import timezone

from apps.automation.actions import run_now, save_flow
from apps.automation.specs import read_yaml
from apps.core.models import Attempts, Role
from apps.evals import importing
from apps.evals.models import EvalSet
from apps.failures.actions.diagnose import classify_project
from apps.failures.reclassify import start as start_reclassification
from apps.promotion import actions as promotion
from apps.promotion.gate.policy import Policy, as_toml
from apps.prompts import playground
from apps.registry.managed import add_managed
from apps.registry.servers import add_server
from apps.reviews.actions import open_review
from apps.reviews.policy import DEFAULTS
from apps.reviews.rescoring import submit_probe, submit_rescore
from apps.training.actions import freeze_dataset, submit_training
from apps.training.models import Method
from apps.trajectories.actions.people import save_view
from apps.trajectories.actions.redaction import add as add_rule
from apps.trajectories.models import Arrival, Trace, Upload
from apps.webhooks.actions import create_webhook, send_test
from apps.webhooks.models import Event
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
    make_member,
    make_project,
    make_search,
    make_user,
    override,
)
from workers.lib.typed import plain

pytestmark = pytest.mark.django_db

OPEN = {"core:login", "core:logout", "core:projects", "healthz", "api:schema", "api:docs", "protocol:nothing"}
ADMIN_ONLY = {
    "webhooks:list", "webhooks:detail", "webhooks:log", "webhooks:edit", "webhooks:delete", "webhooks:switch", "webhooks:rotate",
    "webhooks:test", "webhooks:delivery", "webhooks:again", "core:settings", "core:keys", "core:revoke_key", "core:set_member", "core:remove_member", "core:unlock_member", "reviews:override", "reviews:policy_save", "reviews:probe_waive",
    "trajectories:retention", "trajectories:redaction_switch", "trajectories:redaction_add", "promotion:create_channel",
    "promotion:policy_save", "promotion:policy_import",
    "trajectories:redaction_edit", "trajectories:redaction_delete", "failures:rubric_save", "failures:rubric_switch",
}  # fmt: skip
WRITES = {
    "failures:recluster", "failures:cluster_rename", "failures:cluster_move", "failures:cluster_decide",
    "failures:reclassify_start", "failures:reclassification_apply", "failures:reclassification_discard",
    "webhooks:delete", "webhooks:switch", "webhooks:rotate", "webhooks:test", "webhooks:again",
    "core:revoke_key", "core:set_member", "core:remove_member", "core:unlock_member", "failures:classify", "failures:decide",
    "failures:undo", "failures:bulk", "failures:split", "failures:assign", "failures:mode_add", "failures:mode_save",
    "failures:mode_delete", "evals:create", "evals:show_holdout", "evals:add_trajectories", "evals:add_task", "evals:split",
    "evals:import_start", "evals:export_holdout", "evals:versions_with_holdout", "evals:general", "evals:make_variants",
    "evals:variant_job_start", "evals:variant_job_stop", "evals:meaning_start", "evals:meaning_stop", "evals:meaning_decide", "evals:meaning_undo", "evals:end_batch", "evals:confirm_task", "evals:judge_variant", "evals:freeze", "evals:new_version", "evals:remove_task", "evals:cancel", "evals:open_holdout", "evals:open_compared", "reviews:judge",
    "reviews:answer", "reviews:rule", "reviews:policy_save", "reviews:verifier_create", "reviews:verifier_check",
    "reviews:verifier_save", "reviews:verifier_try", "reviews:probe_run", "reviews:probe_cancel", "reviews:probe_waive", "reviews:score_run",
    "reviews:undo", "reviews:override", "training:cancel", "training:resume", "training:search_cancel", "training:search_resume", "training:search_save", "promotion:make_report", "promotion:prepare", "promotion:promote",
    "promotion:rollback", "promotion:create_channel", "promotion:policy_save", "promotion:policy_import", "automation:run_now", "automation:switch", "automation:secret", "automation:delete", "automation:cancel", "automation:answer", "automation:retry", "trajectories:bulk", "trajectories:bulk_undo",
    "trajectories:bulk_keep", "trajectories:save_view", "trajectories:delete_view", "trajectories:feedback",
    "trajectories:arrival_retry", "trajectories:arrival_discard", "trajectories:trace_retry", "trajectories:trace_discard",
    "trajectories:import_cancel", "evals:import_cancel",
    "trajectories:import_start", "trajectories:import_retry", "trajectories:retention",
    "trajectories:redaction_switch", "trajectories:redaction_add", "trajectories:redaction_edit",
    "trajectories:redaction_delete", "failures:rubric_save", "failures:rubric_switch", "failures:rubric_try",
    "failures:rubric_try_one", "failures:judge_run", "environments:test_connection",
    "registry:server_remove", "registry:server_probe", "registry:server_start", "registry:server_stop", "prompts:preview",
    "prompts:try_it", "prompts:playground_cancel", "prompts:playground_save_prompt", "prompts:playground_save_task",
}  # fmt: skip
MEMBER_PAGES = {
    "automation:new", "automation:edit", "automation:check",
    "registry:register", "registry:server_new", "registry:managed_new", "registry:server_edit", "prompts:new", "prompts:playground_new",
    "failures:mark", "environments:new", "environments:connect", "environments:import_grader", "evals:environment",
    "evals:new_run", "evals:meaning", "evals:meaning_status", "evals:task_from_failure", "evals:from_successes", "evals:to_tasks", "evals:import", "evals:import_status", "training:new", "training:search_new", "trajectories:import", "trajectories:import_detail", "trajectories:import_status",
    "reviews:open", "reviews:queue", "reviews:item", "reviews:step", "reviews:adjudicate",
}  # fmt: skip


@pytest.fixture
def world(data_dir: Path) -> dict[str, Any]:
    """One project with a row at every station."""
    project = make_project()
    by = admin_of(project)
    environment, base = make_environment(project), make_base(project, data_dir)
    adapter = make_adapter(project, base, data_dir)
    eval_set = make_eval_set(project)
    draft = make_eval_set(project, frozen=False)
    meaning = make_meaning_check(draft, base)
    trajectory = make_failed(project)
    classify_project(project=project)
    before = make_eval_run(eval_set, base, environment, success=0.25)
    after = make_eval_run(eval_set, adapter, environment, success=1.0)
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
        project=project, method=Method.SFT, parent=base, dataset=freeze_dataset(eval_set=eval_set, by=by),
        environment=environment, config={"steps": 2, "learning_rate": 1e-3, "batch_size": 1}, by=by,
    )  # fmt: skip
    server = add_server(project=project, fields={"name": "gpu", "base_url": "https://gpu.example.com/v1"}, by=by)
    endpoint = make_endpoint(project, server)
    search = make_search(endpoint, make_eval_set(project, validation=2), environment, server=server)
    search.candidates.create(number=1, parent=0, state="kept", prompt="Be exact.", score=0.5)
    local = add_managed(project=project, fields={"name": "local", "base": base}, by=by)
    channel = promotion.channel_of(project)
    promotion.set_initial(channel=channel, version=base, by=by)
    make_key(project)
    hook, _ = create_webhook(project=project, url="https://ci.example.com/", events=Event.values, by=by)
    flow = save_flow(project=project, name="hourly", spec=read_yaml("steps: [{do: classify}]"), by=by)
    flow_run = run_now(flow=flow, by=by)
    report = promotion.make_gate_report(baseline=before, candidate=after, by=by)
    sides = [playground.Side(base, {"system_prompt": "Be brief."})]
    tried = playground.start(
        project=project, environment=environment, sides=sides, step=playground.Step(trajectory, 1), by=by
    )
    upload = Upload.objects.create(
        project=project, name="a", format="chat", path="gone", size=1, state="failed", finished_at=timezone.now()
    )
    return {
        "project": project,
        "bodies": {
            "failures:split": {"mode": "bad_planning"},
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
                [f"webhooks:{name}" for name in ("detail", "log", "edit", "delete", "switch", "rotate", "test")],
                hook.pk,
            ),
            **dict.fromkeys(("webhooks:delivery", "webhooks:again"), send_test(hook=hook, by=by).pk),
            "core:revoke_key": project.api_keys.first().pk,
            **dict.fromkeys(("core:remove_member", "core:unlock_member"), project.memberships.first().pk),
            **dict.fromkeys(("trajectories:detail", "trajectories:raw", "trajectories:feedback"), trajectory.pk),
            "trajectories:part": (trajectory.pk, 0),
            "trajectories:revision": (trajectory.pk, trajectory.revisions.first().pk),
            "trajectories:delete_view": save_view(project=project, name="v", query="", shared=True, by=by).pk,
            **dict.fromkeys(("trajectories:import_detail", "trajectories:import_status"), upload.pk),
            **dict.fromkeys(("trajectories:import_retry", "trajectories:import_cancel"), upload.pk),
            **{f"trajectories:trace_{name}": trace_set_aside(project, name) for name in ("retry", "discard")},
            **{
                f"trajectories:arrival_{name}": Arrival.objects.create(project=project, problem="TypeError: a").pk
                for name in ("retry", "discard")
            },
            "trajectories:redaction_edit": add_rule(project=project, name="a", pattern="a+", by=by).pk,
            "trajectories:redaction_delete": add_rule(project=project, name="b", pattern="b+", by=by).pk,
            **dict.fromkeys(
                ("failures:cluster", "failures:cluster_rename", "failures:cluster_move", "failures:cluster_decide"),
                make_cluster(trajectory.failure).pk,
            ),
            **dict.fromkeys(
                [f"failures:reclassification{what}" for what in ("", "_status", "_apply", "_discard")],
                start_reclassification(project=project, by=by).pk,
            ),
            **dict.fromkeys(
                ("failures:case", "failures:decide", "failures:step", "failures:similar", "failures:assign"),
                trajectory.failure.pk,
            ),
            "failures:split": trajectory.failure.pk,
            "failures:mark": trajectory.pk,
            **dict.fromkeys(("failures:mode_save", "failures:mode_delete"), project.failure_modes.last().pk),
            **dict.fromkeys(
                ("evals:detail", "evals:show_holdout", "evals:new_run", "evals:new_version", "evals:environment"),
                eval_set.pk,
            ),
            **dict.fromkeys(("evals:add_trajectories", "evals:add_task", "evals:split", "evals:freeze"), draft.pk),
            "evals:remove_task": draft.tasks.first().pk,
            "evals:task_from_failure": trajectory.failure.pk,
            **dict.fromkeys(
                ("evals:versions", "evals:versions_with_holdout", "evals:export", "evals:export_holdout"), eval_set.pk
            ),
            **dict.fromkeys(("evals:from_successes", "evals:import", "evals:import_start", "evals:general"), draft.pk),
            **dict.fromkeys(("evals:variants", "evals:make_variants", "evals:end_batch"), draft.pk),
            **dict.fromkeys([f"evals:variant_job_{what}" for what in ("start", "status", "stop")], draft.pk),
            **dict.fromkeys([f"evals:meaning{what}" for what in ("", "_start", "_status", "_stop")], draft.pk),
            **dict.fromkeys(("evals:meaning_decide", "evals:meaning_undo"), meaning.pairs.get().pk),
            **dict.fromkeys(("evals:confirm_task", "evals:judge_variant"), draft.tasks.trainable().last().pk),
            **dict.fromkeys(("evals:import_status", "evals:import_cancel"), (draft.pk, task_import(draft, by))),
            **dict.fromkeys(("evals:run", "evals:run_status", "evals:learnability", "evals:cancel"), before.pk),
            **dict.fromkeys(
                [
                    f"evals:{name}"
                    for name in ("samples", "open_holdout", "distributions", "export_samples", "to_tasks")
                ],
                before.pk,
            ),
            "evals:task_samples": (before.pk, before.samples.first().task_id),
            "evals:sample": (before.pk, before.samples.first().pk),
            "environments:detail": environment.pk,
            **dict.fromkeys([f"promotion:{name}" for name in ("pair", "pair_parts", "prepare")], (before.pk, after.pk)),
            **dict.fromkeys(
                [f"reviews:{name}" for name in ("detail", "undo", "queue", "adjudicate", "export")], review.pk
            ),
            **dict.fromkeys(
                [f"reviews:{name}" for name in ("item", "step", "judge", "answer", "rule")], review.items.first().pk
            ),
            **dict.fromkeys(
                ("reviews:open", "reviews:score_run", "reviews:override", "reviews:effect"), environment.verifier.pk
            ),
            **dict.fromkeys(
                [f"reviews:verifier{name}" for name in ("", "_edit", "_save", "_try")] + ["reviews:probe_run"],
                environment.verifier.pk,
            ),
            **dict.fromkeys([f"reviews:probe{name}" for name in ("", "_status", "_cancel", "_waive")], probe.pk),
            "reviews:rescore": rescore.pk,
            **dict.fromkeys([f"training:search{what}" for what in ("", "_status", "_cancel", "_resume")], search.pk),
            "training:search_save": (search.pk, 1),
            **dict.fromkeys(("training:detail", "training:status", "training:cancel", "training:resume"), training.pk),
            **dict.fromkeys(
                [f"registry:server{what}" for what in ("", "_status", "_edit", "_probe", "_remove")], server.name
            ),
            **dict.fromkeys([f"registry:server_{what}" for what in ("run", "start", "stop")], local.name),
            "promotion:model": adapter.pk,
            **dict.fromkeys(
                [f"prompts:playground{what}" for what in ("", "_status", "_cancel", "_save_task")], tried.pk
            ),
            "prompts:playground_save_prompt": (tried.pk, 0),
            **dict.fromkeys(("promotion:report", "promotion:promote", "promotion:report_file"), report.pk),
            **dict.fromkeys(("promotion:plan", "promotion:wear"), eval_set.pk),
            **dict.fromkeys(
                [f"automation:{name}" for name in ("flow", "edit", "dry_run", "run_now", "switch", "secret", "delete")],
                flow.pk,
            ),
            **dict.fromkeys(
                [f"automation:{name}" for name in ("run", "run_status", "cancel", "answer", "retry")], flow_run.pk
            ),
        },
    }


def trace_set_aside(project: Any, name: str) -> str:
    now = timezone.now()
    trace = Trace.objects.create(project=project, trace_id=name, first_at=now, touched_at=now, problem="TypeError: a")
    return trace.trace_id


def task_import(draft: EvalSet, by: Any) -> str:
    """A file of tasks that waits for a worker."""
    identity = importing.keep([b"{}"])
    importing.submit(identity=identity, eval_set=draft, name="a", choice=importing.Choice("flywheel"), by=by)
    return identity


def routes() -> list[str]:
    """The names of all URLs, from the resolver itself: a new route cannot be forgotten here."""
    found: list[str] = []

    def walk(patterns: list, namespace: str) -> None:
        for pattern in patterns:
            if isinstance(pattern, URLResolver):
                walk(pattern.url_patterns, pattern.namespace or namespace)
            elif isinstance(pattern, URLPattern):
                found.append(f"{namespace}:{pattern.name}" if namespace else pattern.name)

    walk(get_resolver().url_patterns, "")
    return found


WITH_A_KEY = (
    "api:",
    "evals_api:",
    "environments_api:",
    "reviews_api:",
    "hosted:",
    "promotion_api:",
    "registry_api:",
    "webhooks_api:",
    "training_api:",
    "prompts_api:",
    "automation_api:",
    "otlp:",
    "protocol:",
)
PAGES = [name for name in routes() if name not in OPEN and not name.startswith(WITH_A_KEY)]
API = [name for name in routes() if name.startswith(WITH_A_KEY) and name not in OPEN]


def url_of(name: str, world: dict[str, Any]) -> str:
    args: list = [world["project"].slug]
    if name == "promotion:rollback" or name.startswith("promotion:policy"):
        args.append("production")
    elif name in world["pks"]:
        pk = world["pks"][name]
        args += pk if isinstance(pk, tuple) else [pk]
    return reverse(name, args=args)


def body_of(name: str, world: dict[str, Any]) -> dict[str, Any]:
    if name == "promotion:policy_import":  # a file is read once
        return {"reason": "test", "file": SimpleUploadedFile("policy.toml", as_toml(Policy()).encode())}
    return world["bodies"].get(name, {})


def ask(client: Client, name: str, world: dict[str, Any]) -> int:
    url = url_of(name, world)
    response = client.post(url, body_of(name, world)) if name in WRITES else client.get(url)
    return response.status_code


def logged_in(user: Any) -> Client:
    client = Client(raise_request_exception=True)
    client.force_login(user)
    return client


def test_every_page(world: dict[str, Any]) -> None:
    project = world["project"]
    stranger = logged_in(make_user())
    viewer = logged_in(make_member(project, Role.VIEWER))
    member = logged_in(make_member(project, Role.MEMBER))
    for name in PAGES:
        response = Client().get(url_of(name, world))
        if name in WRITES:
            response = Client().post(url_of(name, world))
        assert response.status_code == 302 and "/login/" in response["Location"], name
        assert ask(stranger, name, world) == 404, name
        reads = name not in WRITES and name not in MEMBER_PAGES and name not in ADMIN_ONLY
        assert ask(viewer, name, world) in ((200, 302) if reads else (403,)), name
        if name in ADMIN_ONLY:
            assert ask(member, name, world) == 403, name
    for name in PAGES:
        if name not in ADMIN_ONLY:
            assert ask(member, name, world) in (200, 302), name
    admin = logged_in(admin_of(project))
    for name in sorted(ADMIN_ONLY - {"core:remove_member", "webhooks:delete"}):
        assert ask(admin, name, world) in (200, 302), name
    assert ask(admin, "webhooks:delete", world) == 302


def key_args(name: str) -> list:
    """Of a route that wants a key: something of the right form, which need not exist."""
    for args in (
        [],
        ["x"],
        [1],
        [UUID(int=1)],
        [UUID(int=1), UUID(int=1)],
        [UUID(int=1), 1],
        ["x", 1],
        ["x", 1, "tool"],
    ):
        with suppress(NoReverseMatch):
            reverse(name, args=args)
            return args
    raise AssertionError(f"{name}: say what it is given")


def test_every_api_route_wants_a_key(world: dict[str, Any]) -> None:
    for name in API:
        Attempts.objects.all().delete()  # else the address is slowed down after a hundred wrong keys
        url = reverse(name, args=key_args(name))
        for method in ("get", "post"):
            for headers in ({}, {"HTTP_AUTHORIZATION": "Bearer fw_wrong"}):
                response = getattr(Client(), method)(url, **headers)
                assert response.status_code in (401, 405), (name, method)
                assert response.status_code == 401 or method != "post", (name, method)


def test_a_key_sees_only_its_own_project(world: dict[str, Any]) -> None:
    other = make_key(make_project())
    trajectory = world["project"].trajectories.first()
    headers = {"HTTP_AUTHORIZATION": f"Bearer {other}"}
    assert Client().get(reverse("api:trajectory", args=[trajectory.external_id]), **headers).status_code == 404
    news, url = '{"outcome": {"status": "success"}}', reverse("api:feedback", args=[trajectory.external_id])
    assert Client().post(url, news, content_type="application/json", **headers).status_code == 202  # waits in its own
    trajectory.refresh_from_db()
    assert trajectory.outcome_status == "failure"
    foreign = world["project"].eval_sets.first()
    assert Client().get(reverse("evals_api:set", args=[foreign.pk]), **headers).status_code == 404
    assert Client().post(reverse("evals_api:tasks", args=[foreign.pk]), **headers).status_code == 404
    assert Client().get(reverse("evals_api:sets"), **headers).json()["results"] == []
    assert Client().get(reverse("api:trajectories"), **headers).json()["results"] == []
    assert Client().get(reverse("promotion_api:channel", args=["production"]), **headers).status_code == 404


NUMBERS = (
    "a", "after", "against", "ahead", "at", "before", "b", "back", "cap", "cut", "from", "g", "ids", "index", "limit", "message", "mode", "page",
    "per_group", "phase", "show", "since", "split", "step", "suggestion", "to", "version",
)  # fmt: skip


@pytest.mark.parametrize("value", ["9" * 5000, "-1", "²", "\x00", "0190a5c4-0000-7000-8000-000000000000"])
def test_no_page_breaks_at_a_number_that_is_none(world: dict[str, Any], value: str) -> None:
    """A person may have typed anything into an address or a form: the page is shown, or says what is wrong."""
    admin = logged_in(admin_of(world["project"]))
    for name in PAGES:
        if name in WRITES:
            body = body_of(name, world) | dict.fromkeys(NUMBERS, value) | {"did": "assign"}
            if not name.startswith(("core:", "trajectories:redaction", "trajectories:retention")):
                assert admin.post(url_of(name, world), body).status_code < 500, name
        else:
            assert admin.get(url_of(name, world), dict.fromkeys(NUMBERS, value)).status_code < 500, name
