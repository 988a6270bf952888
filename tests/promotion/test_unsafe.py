"""Outputs with a new kind of unsafe action: listed by the report, reviewed by people, used by the
next comparison.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied
from django.test import Client
from msgspec import structs

from apps.core.models import AuditEvent, Project, Role
from apps.evals.holdout.view_log import record_output_view
from apps.evals.models import EvalRun, HoldoutView, Sample
from apps.promotion import actions, policies
from apps.promotion.conditions import PromotionError
from apps.promotion.models import GateReport, Promotion, UnsafeReview
from apps.promotion.unsafe_outputs import kinds_in, review_outputs
from tests.factories import admin_of, key_headers, make_member, make_project
from tests.promotion.made import Pair

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("pair_kept")]


@pytest.fixture
def runs(pair: Pair) -> tuple[EvalRun, EvalRun]:
    """The candidate is better, and wires money in two of its outputs."""
    before, after = pair.runs
    for sample in after.samples.filter(index=0)[:2]:
        output = f"<b>Wired</b> for {sample.task_key}"
        after.samples.filter(pk=sample.pk).update(
            unsafe=True, details=["unsafe: wire_money"], output=output
        )
    return before, after


@pytest.fixture
def report(runs: tuple[EvalRun, EvalRun], project: Project) -> GateReport:
    return compared(runs, project)


def compared(runs: tuple[EvalRun, EvalRun], project: Project) -> GateReport:
    return actions.make_gate_report(baseline=runs[0], candidate=runs[1], by=admin_of(project))


def listed(report: GateReport) -> list[str]:
    return [row["sample"] for row in report.report["new_kinds"]]


def reviewed(
    report: GateReport,
    by: Any,
    accepted: bool = True,
    samples: list[str] | None = None,
    **given: Any,
) -> Any:
    record_output_view(report.candidate, by=given.get("key") or by)
    given = {
        "reason": "a test account",
        "samples": listed(report) if samples is None else samples,
    } | given
    return review_outputs(report=report, accepted=accepted, by=by, **given)


def promote(report: GateReport, by: Any) -> Any:
    return actions.promote(channel=report.channel, report=report, by=by, reason="better")


def page(project: Project, report: GateReport, by: Any, **posted: Any) -> str:
    client = Client()
    client.force_login(by)
    address = f"/p/{project.slug}/models/reports/{report.pk}/"
    answer = (
        client.post(f"{address}unsafe/", posted, follow=True) if posted else client.get(address)
    )
    return answer.content.decode()


def test_a_report_with_a_new_kind_promotes_only_after_each_output_was_reviewed(
    runs: tuple[EvalRun, EvalRun], report: GateReport, project: Project
) -> None:
    by = make_member(project, Role.ENGINEER)
    assert report.verdict == "inconclusive" and {
        tuple(row["kinds"]) for row in report.report["new_kinds"]
    } == {("wire_money",)}
    with pytest.raises(PermissionDenied, match="requires an owner"):
        promote(report, by)
    reviewed(report, by, samples=listed(report)[:1])
    half = compared(runs, project)
    assert half.verdict == "inconclusive" and half.comparison == report.comparison
    reviewed(half, by, samples=listed(report)[1:])
    done = compared(runs, project)
    assert (
        done.verdict == "promote"
        and "2 flagged outputs were accepted by a person" in done.report["summary"]
    )
    assert isinstance(promote(done, by), Promotion)
    event = AuditEvent.objects.filter(action="gate.outputs_reviewed").latest("pk")
    assert event.actor_id == by.pk and event.detail["decision"] == "not unsafe"
    assert event.detail["reason"] == "a test account"


def test_one_that_a_person_confirms_rejects(
    runs: tuple[EvalRun, EvalRun], report: GateReport, project: Project
) -> None:
    reviewed(report, admin_of(project))
    reviewed(
        report,
        admin_of(project),
        accepted=False,
        samples=listed(report)[:1],
        reason="it did wire it",
    )
    again = compared(runs, project)
    assert (
        again.verdict == "reject"
        and "confirmed by a person" in again.report["checks"][2]["sentence"]
    )


CHANGES = [
    {"output": "other"},
    {"messages": [{"role": "assistant", "content": "x"}]},
    {"details": ["unsafe: wire_money", "x"]},
    {"reward": 0.5},
]


@pytest.mark.more(rows=2)
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: next(iter(change)))
def test_a_review_is_of_the_output_that_was_read(
    change: dict, runs: tuple[EvalRun, EvalRun], report: GateReport, project: Project
) -> None:
    reviewed(report, admin_of(project))
    done = compared(runs, project)
    Sample.objects.filter(pk=listed(report)[0]).update(**change)
    with pytest.raises(PromotionError, match="have changed since this report"):
        promote(done, admin_of(project))
    again = compared(runs, project)
    assert again.verdict == "inconclusive" and sorted(
        row["state"] for row in again.report["new_kinds"]
    ) == [
        "accepted",
        "to review",
    ]


def test_a_review_that_is_taken_back_stops_a_report_that_used_it(
    runs: tuple[EvalRun, EvalRun], report: GateReport, project: Project
) -> None:
    reviewed(report, admin_of(project))
    done = compared(runs, project)
    reviewed(done, admin_of(project), accepted=False, reason="on second thoughts")
    with pytest.raises(PromotionError, match="have changed since this report"):
        promote(done, admin_of(project))


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("what", ["score", "deleted", "mask"])
def test_samples_that_changed_since_the_report_promote_nothing(
    what: str, runs: tuple[EvalRun, EvalRun], report: GateReport, project: Project
) -> None:
    reviewed(report, admin_of(project))
    done, sample = compared(runs, project), runs[0].samples.first()
    if what == "deleted":
        sample.delete()
    else:
        fields = {"score": {"success": True}, "mask": {"masked": True, "reward": None}}[what]
        Sample.objects.filter(pk=sample.pk).update(**fields)
    with pytest.raises(PromotionError, match="have changed since this report"):
        promote(done, admin_of(project))


def test_who_may_review(report: GateReport, project: Project) -> None:
    chosen = listed(report)
    with pytest.raises(PermissionDenied, match="Read the outputs first"):
        review_outputs(
            report=report, samples=chosen, accepted=True, reason="fine", by=admin_of(project)
        )
    with pytest.raises(PermissionDenied):
        reviewed(report, make_member(project, Role.VIEWER))
    strict = structs.replace(policies.policy_of(report.channel)[0], promoters="operator")
    policies.save_policy(channel=report.channel, policy=strict, reason="strict", by=None)
    with pytest.raises(PermissionDenied):
        reviewed(report, make_member(project, Role.ENGINEER))
    assert len(reviewed(report, make_member(project, Role.OPERATOR))) == 2
    with pytest.raises(PromotionError, match="reason"):
        reviewed(report, admin_of(project), reason=" ")
    with pytest.raises(PromotionError, match="at least one"):
        reviewed(report, admin_of(project), samples=[])
    other = report.candidate.samples.exclude(pk__in=chosen).first()
    with pytest.raises(PromotionError, match="does not list 1 of the outputs"):
        reviewed(report, admin_of(project), samples=[chosen[0], str(other.pk)])
    assert UnsafeReview.objects.count() == 2


def test_the_page_lists_them_and_takes_reviews(report: GateReport, project: Project) -> None:
    by = make_member(project, Role.ENGINEER)
    shown = page(project, report, by)
    assert (
        "Unsafe actions to review" in shown and "wire_money" in shown and "&lt;b&gt;Wired" in shown
    )
    assert "<b>Wired" not in shown and HoldoutView.objects.filter(by=by).exists()
    assert 'name="sample"' not in page(project, report, make_member(project, Role.VIEWER))
    text = page(project, report, by, sample=listed(report), decision="accepted", reason="<i>ok</i>")
    assert "2 outputs reviewed: not unsafe" in text and "&lt;i&gt;ok&lt;/i&gt;" in text
    stranger = make_member(make_project(), Role.OWNER)
    client = Client()
    client.force_login(stranger)
    assert (
        client.post(f"/p/{project.slug}/models/reports/{report.pk}/unsafe/", {}).status_code == 404
    )


def test_the_api_lists_them_and_takes_reviews_where_the_policy_allows_keys(
    report: GateReport, project: Project
) -> None:
    address, headers = (
        f"/api/v1/gate-reports/{report.pk}/unsafe-outputs/",
        key_headers(project, True),
    )
    client, body = (
        Client(),
        {"outputs": listed(report), "decision": "accepted", "reason": "read them"},
    )
    post = lambda **given: client.post(  # noqa: E731
        address, json.dumps(body | given), content_type="application/json", **headers
    )
    assert client.get(address, **key_headers(project)).status_code == 403
    assert post().status_code == 403
    allowed = structs.replace(policies.policy_of(report.channel)[0], api_keys=True)
    policies.save_policy(channel=report.channel, policy=allowed, reason="agents", by=None)
    assert "Read the outputs first" in post().json()["detail"]
    rows = client.get(address, **headers).json()["results"]
    assert {row["state"] for row in rows} == {"to review"} and rows[0]["kinds"] == ["wire_money"]
    assert post(decision="maybe").status_code == 400 and post(outputs=["x"]).status_code == 409
    assert {row["state"] for row in post().json()["results"]} == {"accepted"}
    assert UnsafeReview.objects.filter(by_name="API key “test”").count() == 2
    made = client.get(f"/api/v1/gate-reports/{report.pk}/", **headers).json()
    assert made["outputs_to_review"] == 2 and "wire_money" not in json.dumps(made["checks"])


@pytest.mark.parametrize(
    ("details", "tools", "kinds"),
    [
        (["unsafe: delete_account"], ["search", "delete_account"], ("delete_account",)),
        (["outcome: unsafe: pay", "wrong answer", "unsafe: delete"], [], ("delete", "pay")),
        (["sent money to 4711"], ["search", "pay"], ("calls pay, search",)),
        ([], [], ("an answer without calls",)),
        ([{"odd": 1}, None], ["pay"], ("calls pay",)),
        ("text", [], ("an answer without calls",)),
        (["unsafe: " + "x" * 500], [], ("x" * 200,)),
    ],
)
def test_the_kinds_of_an_unsafe_output(
    details: Any, tools: list[str], kinds: tuple[str, ...]
) -> None:
    assert kinds_in(Sample(unsafe=True, details=details, tools=tools)) == kinds
