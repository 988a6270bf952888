"""A channel's policy: versions, the file, who may promote; by page, action and command."""

from __future__ import annotations

import pytest
from django.contrib.messages import get_messages
from django.core.exceptions import PermissionDenied
from django.core.files.uploadedfile import SimpleUploadedFile
from django.http import Http404
from django.test import Client
from django.urls import reverse
from msgspec import structs

from apps.core.models import AuditEvent, Project, Role
from apps.promotion import actions, policies
from apps.promotion.gate.policy import FIELDS, Policy, as_toml, from_toml
from apps.promotion.models import Channel
from tests.factories import admin_of, make_eval_run, make_member, make_user
from tests.promotion.made import Pair, signed_again
from workers.lib.typed import FormError, plain

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("pair_kept")]


def saved(channel: Channel, reason: str = "because", **changes: object) -> None:
    policy = structs.replace(policies.policy_of(channel)[0], **changes)
    policies.save_policy(channel=channel, policy=policy, reason=reason, by=None)


def test_every_field_is_explained() -> None:
    assert set(FIELDS) == {field.name for field in structs.fields(Policy)}


def test_a_policy_survives_its_file() -> None:
    odd = Policy(
        promoters="owner",
        api_keys=True,
        alpha=0.0001,
        max_unsafe_increase=1e-5,
        min_tasks=1_000_000,
    )
    assert from_toml(as_toml(odd)) == odd and from_toml("") == Policy()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("alpha = nan", "“alpha” must be"),
        ("alpha = inf", "“alpha” must be"),
        ("max_unsafe_increase = -0.1", "at least 0"),
        ("alhpa = 0.1", "“alpha”"),
        ("min_tasks = 1", "at least 10"),
        ("min_tasks = true", "a whole number"),
        ("alpha = 2020-01-01", "a number"),
        ("alpha = 0.1\nalpha = 0.2", "overwrite"),
        ("[policy]\nalpha = 0.1", "“policy” is not known"),
        ("promoters = 'viewer'", "engineer, operator, owner"),
        ("sequential = 'yes'", "true or false"),
        ("alpha = " + "[" * 9000, "nested"),
        ("min_tasks = 1" + "0" * 5000, "digits"),
        ("# " + "x" * 70_000, "larger than 64 KB"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(text: str, problem: str) -> None:
    with pytest.raises(FormError, match=problem):
        from_toml(text)


def test_versions_are_kept_with_who_and_why(project: Project, channel: Channel) -> None:
    by = admin_of(project)
    first = policies.save_policy(
        channel=channel, policy=Policy(min_tasks=50), reason="more certainty", by=by
    )
    assert first and policies.policy_of(channel) == (Policy(min_tasks=50), 1)
    assert (
        policies.save_policy(channel=channel, policy=Policy(min_tasks=50), reason="again", by=by)
        is None
    )
    policies.save_policy(channel=channel, policy=Policy(), reason="too strict", by=by)
    assert [
        (row.version, row.values["min_tasks"], row.reason) for row in channel.policies.all()
    ] == [(2, 30, "too strict"), (1, 50, "more certainty")]
    event = AuditEvent.objects.filter(action="channel.policy_changed").order_by("pk")[0]
    assert (
        event.actor == by
        and event.detail["before"]["min_tasks"] == 30
        and event.detail["after"]["min_tasks"] == 50
    )


def test_only_an_owner_changes_a_policy_and_only_with_a_reason(
    project: Project, channel: Channel
) -> None:
    for who, error in ((make_member(project), PermissionDenied), (make_user(), Http404)):
        with pytest.raises(error):
            policies.save_policy(
                channel=channel, policy=Policy(min_tasks=10), reason="easier", by=who
            )
    with pytest.raises(policies.PolicyError, match="Enter a reason"):
        policies.save_policy(
            channel=channel, policy=Policy(min_tasks=10), reason=" ", by=admin_of(project)
        )


def page(project: Project, role: Role, path: str, **given: object) -> tuple[int, str]:
    client = Client()
    client.force_login(admin_of(project) if role == Role.OWNER else make_member(project, role))
    address = f"/p/{project.slug}/models/channels/production/policy/{path}"
    response = client.post(address, given, follow=True) if given else client.get(address)
    return response.status_code, response.content.decode()


def test_who_only_reads_a_policy_sees_values_with_their_units(
    project: Project, channel: Channel
) -> None:
    client = Client()
    client.force_login(make_member(project, Role.VIEWER))
    page = client.get(
        reverse("promotion:policy", args=[project.slug, channel.name])
    ).content.decode()
    assert all(
        f"<dd>{shown}</dd>" in page
        for shown in ("engineer", "no", "–", "30 tasks", "0.01 share of samples")
    )


def test_the_page_saves_a_version_and_shows_what_changed(
    project: Project, channel: Channel
) -> None:
    given = plain(Policy(min_tasks=44)) | {"reason": "<b>why</b>"}
    given = {name: value for name, value in given.items() if value is not False}
    status, text = page(project, Role.OWNER, "save/", **given)
    assert (
        status == 200
        and "version 1" in text
        and "− min_tasks = 30" in text
        and "+ min_tasks = 44" in text
    )
    assert "&lt;b&gt;why" in text and "<b>why" not in text
    status, text = page(project, Role.OWNER, "save/", **given | {"alpha": "0.9"})
    assert (
        status == 400
        and "This must be at most 0.2." in text
        and policies.policy_of(channel)[1] == 1
    )
    status, text = page(project, Role.OWNER, "save/", **given | {"alpha": "nan"})
    assert status == 400 and policies.policy_of(channel)[1] == 1
    status, text = page(project, Role.VIEWER, "")
    assert status == 200 and "Save as a new version" not in text and "44" in text


@pytest.mark.proof
def test_the_page_exports_and_imports_the_file(project: Project, channel: Channel) -> None:
    saved(channel, min_tasks=33)
    status, text = page(project, Role.VIEWER, "file/")
    assert status == 200 and from_toml(text) == Policy(min_tasks=33)
    good = SimpleUploadedFile("p.toml", b"min_tasks = 40\n")
    status, text = page(project, Role.OWNER, "import/", file=good, reason="a stricter file")
    assert status == 200 and policies.policy_of(channel) == (Policy(min_tasks=40), 2)
    for bad in (b"min_tasks = 1\n", b"\xff\xfe", b"alpha = nan"):
        status, text = page(
            project, Role.OWNER, "import/", file=SimpleUploadedFile("p.toml", bad), reason="x"
        )
        assert status == 400 and policies.policy_of(channel)[1] == 2
    assert (
        page(project, Role.ENGINEER, "import/", file=SimpleUploadedFile("p.toml", b""), reason="x")[
            0
        ]
        == 403
    )


@pytest.mark.parametrize("filled", [True, False])
@pytest.mark.parametrize("verdict", ["promote", "inconclusive"])
def test_who_may_promote(
    verdict: str, filled: bool, project: Project, channel: Channel, pair: Pair
) -> None:
    """Roles × the policy's role × the verdict × a channel with and without a model."""
    report, base = pair.report(), channel.current
    for promoters in ("engineer", "owner"):
        saved(channel, promoters=promoters)
        signed_again(report, verdict, policy_version=policies.policy_of(channel)[1])
        for role in Role:
            Channel.objects.filter(pk=channel.pk).update(current=base if filled else None)
            client, moves = Client(), channel.promotions.count()
            client.force_login(
                admin_of(project) if role == Role.OWNER else make_member(project, role)
            )
            address = f"/p/{project.slug}/models/reports/{report.pk}/promote/"
            response = client.post(address, {"reason": "r"})
            may = role == Role.OWNER or (
                role in Role(promoters).upward and verdict == "promote" and filled
            )
            assert (channel.promotions.count() > moves) == may, (promoters, role)
            said = "".join(map(str, get_messages(response.wsgi_request)))
            assert (
                may
                or response.status_code == 403
                or "This needs the role" in said
                or "This requires an owner" in said
            )


def test_a_report_promotes_only_where_and_by_what_it_was_made(
    project: Project, channel: Channel, pair: Pair
) -> None:
    """An easier channel's report does not promote in production, nor does one from before the
    policy was tightened.
    """
    lax, by = policies.channel_of(project, "lax"), admin_of(project)
    saved(lax, min_tasks=10, max_unsafe_increase=1.0)
    Channel.objects.filter(pk=lax.pk).update(current=channel.current)
    lax.refresh_from_db()
    report = pair.report(lax)
    with pytest.raises(actions.PromotionError, match="a channel other than"):
        actions.promote(channel=channel, report=report, by=by, reason="it is better")
    report = pair.report()
    saved(channel, min_tasks=1_000)
    with pytest.raises(actions.PromotionError, match="policy of production has changed"):
        actions.promote(channel=channel, report=report, by=by, reason="it is better")
    assert pair.report().verdict == "inconclusive"


def test_a_wrong_value_in_a_file_is_named_by_its_field() -> None:
    with pytest.raises(FormError) as caught:
        from_toml("alpha = nan")
    assert caught.value.path == "alpha" and "TOML" not in str(caught.value)


def test_a_rollback_needs_a_reason_where_the_policy_asks(
    project: Project, channel: Channel, pair: Pair
) -> None:
    by = admin_of(project)
    actions.promote(channel=channel, report=pair.report(), by=by, reason="better")
    saved(channel, rollback_needs_reason=True)
    with pytest.raises(actions.PromotionError, match="Enter a reason"):
        actions.rollback(channel=channel, by=by)
    client = Client()
    client.force_login(by)
    models, address = (
        reverse("promotion:models", args=[project.slug]),
        reverse("promotion:rollback", args=[project.slug, "production"]),
    )
    assert 'maxlength="2000" required' in client.get(models).content.decode()
    assert "Enter a reason" in client.post(address, {}, follow=True).content.decode()
    client.post(address, {"reason": "complaints"})
    assert channel.promotions.filter(kind="rollback").get().reason == "complaints"


def test_a_weak_prompt_of_the_baseline_promotes_no_model(
    project: Project, channel: Channel, pair: Pair
) -> None:
    from tests.promotion.test_promote import with_harness

    weak = with_harness(pair.environment, system_prompt="Answer wrongly.")
    report = actions.make_gate_report(
        baseline=make_eval_run(pair.eval_set, pair.base, weak, success=0.0, samples=2),
        candidate=pair.runs[1],
        by=make_member(project),
    )
    assert report.verdict == "promote"
    with pytest.raises(PermissionDenied):
        actions.promote(channel=channel, report=report, by=make_member(project), reason="better")
    actions.promote(channel=channel, report=report, by=admin_of(project), reason="an owner knows")
