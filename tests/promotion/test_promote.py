from __future__ import annotations

from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.core.exceptions import PermissionDenied
from django.core.management import CommandError, call_command
from django.db import IntegrityError, transaction
from django.test import Client
from django.urls import reverse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apps.core.auditing.words import sentence
from apps.core.managed import objects
from apps.core.managed.objects import KINDS, ManagedError
from apps.core.models import AuditEvent, Project, Role
from apps.environments.actions import save_environment
from apps.environments.models import Environment
from apps.evals.drafts import freeze, new_version
from apps.evals.models import EvalRun, EvalSet, Sample
from apps.promotion import actions, inputs
from apps.promotion.gate.policy import Policy
from apps.promotion.history import entries_of
from apps.promotion.models import Channel, GateReport, Promotion
from apps.promotion.moves import locked, move
from apps.promotion.policies import channel_of, save_policy
from apps.promotion.views import change_of, shown_of, suggested_pair
from apps.promotion.wear import comparison_number
from apps.registry.models import ModelVersion
from tests.amounts import amount
from tests.factories import (
    admin_of,
    key_headers,
    make_adapter,
    make_environment,
    make_eval_run,
    make_eval_set,
    make_member,
)
from tests.promotion.made import Pair

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("pair_kept")]


def report_on(
    project: Project,
    base: ModelVersion,
    folder: Path,
    before: float = 0.0,
    after: float = 1.0,
    eval_set: EvalSet | None = None,
) -> GateReport:
    eval_set, environment = (
        eval_set or make_eval_set(project, holdout=32),
        make_environment(project),
    )
    candidate = make_adapter(project, base, folder)
    return actions.make_gate_report(
        baseline=make_eval_run(eval_set, base, environment, success=before),
        candidate=make_eval_run(eval_set, candidate, environment, success=after),
        by=admin_of(project),
    )


def test_a_report_on_other_tasks_than_a_frozen_holdout_promotes_nothing(
    pair: Pair, project: Project, channel: Channel
) -> None:
    report = pair.report()
    EvalRun.objects.filter(pk=report.candidate_id).update(split="train")
    report.refresh_from_db()
    with pytest.raises(actions.PromotionError, match="Only a frozen hold-out may promote"):
        actions.promote(channel=channel, report=report, by=admin_of(project), reason="it is better")


def test_where_nothing_runs_yet_an_owner_decides(pair: Pair, project: Project) -> None:
    report, channel = pair.report(), actions.channel_of(project)
    Channel.objects.filter(pk=channel.pk).update(current=None)
    channel.refresh_from_db()
    with pytest.raises(PermissionDenied):
        actions.promote(
            channel=channel, report=report, by=make_member(project), reason="a weak baseline"
        )
    actions.promote(channel=channel, report=report, by=admin_of(project), reason="the first one")


def test_every_evaluation_of_the_same_tasks_counts_as_a_comparison(
    project: Project, base: ModelVersion, data_dir: Path
) -> None:
    """By the tasks' content, so that a new version of a set is not a fresh hold-out; whoever asks
    again gets the same.
    """
    eval_set, environment, by = (
        make_eval_set(project, holdout=32),
        make_environment(project),
        admin_of(project),
    )
    first = report_on(project, base, data_dir, eval_set=eval_set)
    version = freeze(eval_set=new_version(eval_set=eval_set, by=by), by=by)
    again = actions.make_gate_report(baseline=first.baseline, candidate=first.candidate, by=by)
    assert [first.comparison, again.comparison] == [1, 1]
    candidate = make_eval_run(version, make_adapter(project, base, data_dir), environment)
    assert comparison_number(first.baseline, candidate) == 2
    assert (
        report_on(project, base, data_dir, eval_set=make_eval_set(project, holdout=32)).comparison
        == 1
    )
    third = report_on(project, base, data_dir, eval_set=eval_set)
    assert third.comparison == 2 * 3 and third.report["level"] == pytest.approx(0.02 / 42)


def test_picking_the_best_before_the_gate_is_asked_is_paid_for(
    project: Project, base: ModelVersion, data_dir: Path
) -> None:
    """Ten candidates are evaluated and only the best is compared: there were ten comparisons.
    Prompts, seeds, cancelled evaluations and other evaluations of the baseline are ways to pick,
    too."""
    eval_set, environment, by = (
        make_eval_set(project, holdout=32),
        make_environment(project),
        admin_of(project),
    )
    baseline = make_eval_run(eval_set, base, environment)
    prompted = with_harness(environment, system_prompt="Think first.")
    for model, where in (
        (make_adapter(project, base, data_dir), environment),
        (base, prompted),
        (base, environment),
    ):
        make_eval_run(eval_set, model, where)
    EvalRun.objects.filter(eval_set=eval_set).exclude(pk=baseline.pk).update(state="cancelled")
    best = make_eval_run(eval_set, make_adapter(project, base, data_dir), environment, success=1.0)
    assert actions.make_gate_report(baseline=baseline, candidate=best, by=by).comparison == 2 * 3


def test_a_report_is_reproduced_from_the_stored_samples(pair: Pair) -> None:
    report = pair.report()
    said = StringIO()
    call_command("reproduce_gate_report", str(report.pk), stdout=said)
    assert "Reproduced" in said.getvalue() and "promote" in said.getvalue()
    Sample.objects.filter(run=report.candidate).order_by("pk")[:1].get().delete()
    with pytest.raises(CommandError, match="Not reproduced"):
        call_command("reproduce_gate_report", str(report.pk), stdout=said)


PROMPTS = [
    pytest.param({"system_prompt": "Answer with one call.\nNothing else."}, "+", id="prompt"),
    pytest.param({"examples": []}, "-", id="examples"),
    pytest.param({"temperature": 0.1, "max_new_tokens": 32}, "+", id="sampling"),
]


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(("harness", "sign"), PROMPTS)
def test_a_change_of_what_the_agent_brings_passes_the_gate_and_is_shown(
    harness: dict, sign: str, project: Project, base: ModelVersion, channel: Channel, pair: Pair
) -> None:
    eval_set, environment = pair.eval_set, pair.environment
    changed = with_harness(environment, **harness)
    assert (
        changed.task_hash == environment.task_hash and changed.agent_hash != environment.agent_hash
    )
    report = actions.make_gate_report(
        baseline=pair.runs[0],
        candidate=make_eval_run(eval_set, base, changed, success=1.0, samples=2),
        by=admin_of(project),
    )
    assert report.verdict == "promote" and inputs.reproduce(report)[1]
    kinds = {kind for kind, _ in report.report["agent_changes"]}
    assert {"+": "new", "-": "gone"}[sign] in kinds
    client = Client()
    client.force_login(admin_of(project))
    page = client.get(f"/p/{project.slug}/models/reports/{report.pk}/").content.decode()
    assert "Prompt and sampling" in page
    with pytest.raises(actions.PromotionError, match="compares the prompts of two environments"):
        actions.promote(
            channel=channel, report=report, by=admin_of(project), reason="a better prompt"
        )


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    "harness", [{"max_turns": 5}, {"max_seconds": 10}, {"tools": [{"type": "function"}]}]
)
def test_what_defines_the_task_stays_incomparable(
    harness: dict, project: Project, base: ModelVersion, pair: Pair
) -> None:
    eval_set, environment = pair.eval_set, pair.environment
    changed = with_harness(environment, **harness)
    assert (
        changed.task_hash != environment.task_hash and changed.agent_hash == environment.agent_hash
    )
    with pytest.raises(actions.PromotionError, match="differ in environment beyond the agent"):
        actions.make_gate_report(
            baseline=pair.runs[0],
            candidate=make_eval_run(eval_set, base, changed, samples=2),
            by=admin_of(project),
        )


def with_harness(environment: Environment, **changes: Any) -> Environment:
    return save_environment(
        project=environment.project,
        slug=environment.slug,
        builtin=environment.builtin,
        harness=environment.harness | changes,
        verifier=environment.verifier,
        by=environment.created_by,
    )


def test_it_promotes_what_is_better_and_rolls_back(
    pair: Pair, project: Project, base: ModelVersion, channel: Channel
) -> None:
    member = make_member(project)
    report = pair.report()
    assert report.verdict == "promote"
    actions.promote(channel=channel, report=report, by=member, reason="better on the hold-out")
    channel.refresh_from_db()
    assert channel.current == report.candidate.model_version
    actions.rollback(channel=channel, by=member, reason="users complain")
    channel.refresh_from_db()
    assert channel.current == base
    kinds = list(channel.promotions.order_by("pk").values_list("kind", flat=True))
    assert kinds == ["initial", "promote", "rollback"]
    assert AuditEvent.objects.filter(
        action="channel.rollback", detail__reason="users complain"
    ).exists()


def test_a_clock_that_jumped_back_does_not_change_the_order_of_moves(
    pair: Pair, project: Project, base: ModelVersion, channel: Channel
) -> None:
    by, report = admin_of(project), pair.report()
    actions.promote(channel=channel, report=report, by=by, reason="better")
    before = channel.promotions.get(kind="initial").at - timedelta(hours=1)
    channel.promotions.filter(kind="promote").update(at=before)
    channel.refresh_from_db()
    candidate = report.candidate.model_version
    assert channel.promotions.first().to_version == candidate
    assert [move.to_version for move in channel.forward_moves()] == [base, candidate]
    assert [one.version for one in actions.earlier_versions(channel)] == [base]
    actions.rollback(channel=channel, by=by, reason="worse")
    channel.refresh_from_db()
    assert channel.current == base


def test_a_rollback_to_an_archived_version_unarchives_it_and_says_so(
    pair: Pair, project: Project, base: ModelVersion, channel: Channel
) -> None:
    """What takes production back to what worked is not refused for tidiness, and what is live is in
    the lists.
    """
    by, report, client = admin_of(project), pair.report(), Client()
    client.force_login(by)
    actions.promote(channel=channel, report=report, by=by, reason="better")
    objects.archive(managed=KINDS["model"], row=base, by=by)
    page = reverse("promotion:channel", args=[project.slug, channel.name])
    assert "This unarchives it." in client.get(page).content.decode()
    rolled = reverse("promotion:rollback", args=[project.slug, channel.name])
    client.post(rolled, {"to_version": str(base), "reason": "users complain"})
    channel.refresh_from_db()
    base.refresh_from_db()
    assert channel.current == base and base.archived_at is None
    found = [(entry.kind, entry.title, entry.why) for entry in entries_of(channel)[:2]]
    assert sorted(found) == [
        ("rollback", f"{report.candidate.model_version} → {base}", "users complain"),
        ("unarchived", f"Unarchived {base}", "users complain"),
    ]
    (event,) = AuditEvent.objects.filter(action="object.unarchived", target_id=str(base.pk))
    assert f"by moving the channel {channel.name} to it" in sentence(event)
    with pytest.raises(ManagedError, match="It is live in production"):
        objects.archive(managed=KINDS["model"], row=base, by=by)


def test_an_archived_version_is_not_promoted(
    pair: Pair, project: Project, channel: Channel
) -> None:
    by, report = admin_of(project), pair.report()
    candidate = report.candidate.model_version
    objects.archive(managed=KINDS["model"], row=candidate, by=by)
    candidate.refresh_from_db()
    with pytest.raises(actions.PromotionError, match=f"{candidate} is archived. Unarchive it"):
        actions.promote(channel=channel, report=report, by=by, reason="better")
    with pytest.raises(actions.PromotionError, match=f"{candidate} is archived. Unarchive it"):
        actions.set_initial(channel=channel_of(project, "other"), version=candidate, by=by)


def test_a_channel_does_not_move_to_files_that_are_gone(
    project: Project, base: ModelVersion, channel: Channel, data_dir: Path
) -> None:
    """Whoever pulls it would go on with what ran before, without a word."""
    by, report = admin_of(project), report_on(project, base, data_dir)
    adapter = report.candidate.model_version
    weights = data_dir / "artifacts" / adapter.artifact_id / "adapter_model.safetensors"
    whole = weights.read_bytes()
    weights.unlink()
    with pytest.raises(
        actions.PromotionError,
        match=r"lacks adapter_model\.safetensors.* Restore its files from a backup",
    ):
        actions.promote(channel=channel, report=report, by=by, reason="better")
    weights.write_bytes(whole)
    actions.promote(channel=channel, report=report, by=by, reason="better")
    actions.rollback(channel=channel, by=by, reason="complaints")
    weights.write_bytes(b"x" * len(whole))
    with pytest.raises(actions.PromotionError, match="was altered"):
        actions.rollback(channel=channel, by=by, reason="better after all", to_version=str(adapter))
    channel.refresh_from_db()
    assert channel.current == base and channel.promotions.count() == 3


@pytest.mark.proof
def test_a_reason_is_as_long_by_page_as_by_api(
    pair: Pair, project: Project, channel: Channel
) -> None:
    report, client = pair.report(), Client()
    client.force_login(admin_of(project))
    address = f"/p/{project.slug}/models/reports/{report.pk}/promote/"
    said = client.post(address, {"reason": "x" * 2_001}, follow=True).content.decode()
    assert (
        "at most 2000 characters (it has 2001)" in said
        and not channel.promotions.filter(kind="promote").exists()
    )
    client.post(address, {"reason": "x" * 2_000})
    assert len(channel.promotions.get(kind="promote").reason) == 2_000
    back = f"/p/{project.slug}/models/channels/{channel.name}/rollback/"
    said = client.post(back, {"reason": "x" * 5_000}, follow=True).content.decode()
    assert "it has 5000" in said and not channel.promotions.filter(kind="rollback").exists()


def test_a_reason_that_postgres_cannot_store_is_refused(
    pair: Pair, project: Project, base: ModelVersion, channel: Channel
) -> None:
    report, client = pair.report(), Client()
    client.force_login(admin_of(project))
    address = f"/p/{project.slug}/models/reports/{report.pk}/promote/"
    assert client.post(address, {"reason": "so\0 good"}).status_code == 400
    channel.refresh_from_db()
    assert channel.current == base
    assert "Enter a reason" in client.post(address, {"reason": " "}, follow=True).content.decode()
    client.post(address, {"reason": "so good"})
    assert channel.promotions.filter(kind="promote").get().reason == "so good"


def test_overriding_the_gate_needs_an_admin_and_a_reason(
    project: Project, base: ModelVersion, channel: Channel, data_dir: Path
) -> None:
    report = report_on(project, base, data_dir, before=0.5, after=0.5)
    assert report.verdict == "inconclusive"
    with pytest.raises(PermissionDenied):
        actions.promote(channel=channel, report=report, by=make_member(project), reason="I want it")
    with pytest.raises(actions.PromotionError, match="Enter a reason"):
        actions.promote(channel=channel, report=report, by=admin_of(project), reason=" ")
    actions.promote(channel=channel, report=report, by=admin_of(project), reason="a hot fix")
    assert AuditEvent.objects.filter(action="channel.promote", detail__overridden=True).exists()


def test_it_refuses_a_report_on_what_no_longer_runs(
    pair: Pair, project: Project, base: ModelVersion, channel: Channel, data_dir: Path
) -> None:
    first, second = pair.report(), report_on(project, base, data_dir)
    actions.promote(channel=channel, report=first, by=admin_of(project), reason="better")
    with pytest.raises(actions.PromotionError, match="Compare again"):
        actions.promote(channel=channel, report=second, by=admin_of(project), reason="better")


def test_there_is_nothing_before_the_first(project: Project, channel: Channel) -> None:
    with pytest.raises(actions.PromotionError, match="no earlier version to roll back to"):
        actions.rollback(channel=channel, by=admin_of(project))


def test_the_database_refuses_a_promotion_without_a_report(
    base: ModelVersion, channel: Channel
) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        Promotion.objects.create(channel=channel, kind="promote", to_version=base)


@pytest.mark.more
@settings(
    max_examples=amount(5, 15),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(moves=st.lists(st.booleans(), max_size=8))
def test_any_sequence_goes_back_the_way_it_came(
    project: Project, base: ModelVersion, data_dir: Path, moves: list[bool]
) -> None:
    """A model of it: a stack. Promotion pushes, rollback pops and never empties it."""
    with transaction.atomic():
        by = admin_of(project)
        channel = Channel.objects.create(project=project, name=f"c{Channel.objects.count()}")
        actions.set_initial(channel=channel, version=base, by=by)
        stack = [base]
        for forward in moves:
            channel.refresh_from_db()
            if forward:
                version = make_adapter(project, base, data_dir)
                move(locked(channel), version, Promotion.Kind.INITIAL, by, reason="")
                stack.append(version)
            elif len(stack) > 1:
                actions.rollback(channel=channel, by=by)
                stack.pop()
            else:
                with pytest.raises(actions.PromotionError):
                    actions.rollback(channel=channel, by=by)
            channel.refresh_from_db()
            assert channel.current == stack[-1]


def test_production_can_ask_what_is_live(
    project: Project, base: ModelVersion, channel: Channel
) -> None:
    headers = key_headers(project)
    answer = Client().get("/api/v1/channels/production/", **headers)
    assert answer.status_code == 200 and answer.json()["model"] == "base-v1"
    for seen in (
        answer["ETag"],
        f"W/{answer['ETag']}",
        f'"x", {answer["ETag"]}',
    ):  # as a proxy that packs it names it
        again = Client().get("/api/v1/channels/production/", **headers, HTTP_IF_NONE_MATCH=seen)
        assert again.status_code == 304 and again["ETag"] == answer["ETag"] and not again.content
    assert "nothing" in Client().get("/api/v1/channels/nothing/", **headers).json()["detail"]


@pytest.mark.parametrize(
    ("baseline", "candidate", "difference", "shown"),
    [
        (1134.0, 1137.4, 3.4, "+3"),
        (0.25, 0.842, 0.592, "+0.592"),
        (99.9, 100.0, 0.1, "+0"),
        (None, 0.0, 0.0, "+0.000"),
        (None, None, None, "–"),
    ],
)
def test_a_difference_has_the_decimals_of_its_sides(
    baseline: float | None, candidate: float | None, difference: float | None, shown: str
) -> None:
    assert (
        change_of({"baseline": baseline, "candidate": candidate, "difference": difference}) == shown
    )


def test_rates_are_shown_in_percent_and_their_difference_in_points() -> None:
    check = {
        "name": "success",
        "baseline": 0.25,
        "candidate": 0.86,
        "difference": 0.61,
        "low": 0.5,
        "high": 0.7,
    }
    assert (shown_of(check, 0.86), change_of(check), shown_of(check, None)) == (
        "86.0%",
        "+61.0 pp",
        "–",
    )
    assert shown_of(check | {"name": "latency"}, 0.86) == "0.860"


def test_a_report_by_an_older_policy_leads_to_another_comparison(
    pair: Pair, project: Project, channel: Channel
) -> None:
    """It could only be refused, so it has no button to promote."""
    report = pair.report()
    client = Client()
    client.force_login(make_member(project))
    address = f"/p/{project.slug}/models/reports/{report.pk}/"
    assert ">Promote</button>" in client.get(address).content.decode()
    save_policy(
        channel=channel, policy=Policy(min_tasks=41), reason="More tasks", by=admin_of(project)
    )
    page = client.get(address).content.decode()
    assert (
        ">Promote</button>" not in page
        and f"/models/compare/{report.baseline_id}/{report.candidate_id}/" in page
    )


@pytest.mark.proof
def test_the_pages_lead_from_a_report_to_its_moved_tasks_and_name_the_split_of_a_number(
    pair: Pair, project: Project
) -> None:
    report = pair.report()
    client = Client()
    client.force_login(make_member(project))
    page = client.get(f"/p/{project.slug}/models/reports/{report.pk}/").content.decode()
    sample = report.candidate.samples.filter(
        index=0, task__key__in=report.report["improved"]
    ).first()
    assert (
        reverse("evals:compared_task", args=[project.slug, sample.task_id]) in page
    )  # both samples, and a diff
    assert (
        f'{report.candidate.eval_set}</a> <span class="muted small">Hold-out</span>'
        in client.get(f"/p/{project.slug}/models/").content.decode()
    )


def test_the_choice_of_evaluations_begins_with_a_candidate_beside_what_is_live() -> None:
    def run(pk: int, version: int, split: str = "holdout") -> EvalRun:
        return EvalRun(
            pk=UUID(int=pk), model_version_id=version, eval_set_id=UUID(int=9), split=split
        )

    live, other, alone = run(1, 1), run(2, 2), run(3, 1, "train")
    names = [str(live.pk), str(other.pk)]
    assert suggested_pair([alone, other, live], 1) == names
    assert suggested_pair([alone, other, live], 7) == names
    assert suggested_pair([alone, live], 1) == suggested_pair([], None) == ["", ""]
    newer = run(4, 3)
    assert suggested_pair([newer, other, live], 1)[1] == str(newer.pk)
    assert suggested_pair([newer, other, live], 1, str(other.pk)) == names
    assert suggested_pair([alone, live], 1, str(alone.pk)) == ["", str(alone.pk)]


def test_a_viewer_cannot_promote(
    pair: Pair, project: Project, base: ModelVersion, channel: Channel
) -> None:
    report = pair.report()
    client = Client()
    client.force_login(make_member(project, Role.VIEWER))
    address = f"/p/{project.slug}/models/reports/{report.pk}/"
    assert ">Promote</button>" not in client.get(address).content.decode()
    assert "Engineers only" in client.get(f"/p/{project.slug}/models/compare/").content.decode()
    assert client.post(f"{address}promote/").status_code == 403
    channel.refresh_from_db()
    assert channel.current == base


@pytest.mark.proof
def test_a_report_shows_some_changed_tasks_and_leads_to_all(
    pair: Pair, project: Project, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = pair.report()
    client.force_login(admin_of(project))
    url = reverse("promotion:report", args=[project.slug, report.pk])
    shown, moved = client.get(url), len(report.report["improved"]) + len(report.report["regressed"])
    assert shown.context["moved"] == moved > 1
    monkeypatch.setattr("apps.promotion.views.SIDE_BY_SIDE", moved - 1)
    some = client.get(url).content.decode()
    assert (
        f"{moved - 1} of {moved}</span>" in some
        and f"run={report.candidate_id}&amp;change=changed#compared" in some
    )
    monkeypatch.setattr("apps.promotion.views.SIDE_BY_SIDE", moved)
    assert "change=changed#compared" not in client.get(url).content.decode()
