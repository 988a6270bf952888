"""The page of the redaction rules: who may change them, what is stored, what the test box shows."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.core.models import AuditEvent, Project, Role
from apps.trajectories.actions import redaction
from apps.trajectories.models import RedactionRule
from apps.trajectories.redaction import RuleError, presidio
from tests.factories import admin_of, make_member, make_project, make_trajectory

pytestmark = pytest.mark.django_db


def client_of(user: Any) -> Client:
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def admin(project: Project) -> Client:
    return client_of(admin_of(project))


@pytest.fixture
def rule(project: Project) -> RedactionRule:
    return redaction.add(
        project=project, name="customer", pattern=r"CUST-\d+", by=admin_of(project)
    )


def url(project: Project, name: str = "", *args: Any) -> str:
    return reverse(f"trajectories:redaction{name}", args=[project.slug, *args])


def test_a_viewer_reads_and_tries(project: Project, rule: RedactionRule) -> None:
    viewer = client_of(make_member(project, Role.VIEWER))
    shown = viewer.get(url(project)).content.decode()
    assert "CUST-" in shown and "Only an operator" in shown and "Add rule" not in shown
    assert "[CUSTOMER]" in viewer.post(url(project, "_test"), {"text": "CUST-1"}).content.decode()


def test_a_rule_of_another_project_is_not_there(admin: Client, project: Project) -> None:
    other = make_project()
    theirs = redaction.add(project=other, name="theirs", pattern="x", by=admin_of(other))
    assert admin.post(url(project, "_delete", theirs.pk)).status_code == 404
    assert admin.post(url(project, "_edit", theirs.pk), {"do": "off"}).status_code == 404


def test_a_new_project_begins_with_keys_passwords_and_cards_taken_out(client: Client) -> None:
    made = make_project()
    assert {rule.kind: rule.replacement for rule in redaction.rules_of(made)} == {
        "api_key": "[API_KEY]",
        "password": "[PASSWORD]",
        "card": "[CARD]",
    }
    redaction.save_builtins(project=made, chosen={}, by=admin_of(made))
    assert redaction.rules_of(made) == []


def test_switches_turn_built_in_rules_on_and_off(project: Project, admin: Client) -> None:
    admin.post(url(project, "_switch"), {"on": ["email", "phone"], "token": ["phone", "card"]})
    replacements = {rule.kind: rule.replacement for rule in redaction.rules_of(project)}
    assert replacements == {"email": "[EMAIL]", "phone": "[PHONE_{id}]"}
    admin.post(url(project, "_switch"), {"on": ["phone"]})
    assert [(rule.kind, rule.replacement) for rule in redaction.rules_of(project)] == [
        ("phone", "[PHONE]")
    ]
    events = AuditEvent.objects.filter(project=project, action="redaction.switched")
    assert [event.detail["on"] for event in events.order_by("pk")] == ["email, phone", "phone"]
    admin.post(url(project, "_switch"), {"on": ["phone"]})
    assert events.count() == 2, "nothing changed, nothing is written"


def test_presidio_cannot_be_switched_on_where_it_is_not_installed(
    project: Project, admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presidio, "is_installed", lambda: False)
    given = {"on": "on", "entities": ["PERSON"], "language": "en", "score": "0.5"}
    shown = admin.post(url(project, "_presidio"), given, follow=True).content.decode()
    assert (
        "Presidio is not installed" in shown
        and not project.redaction_rules.filter(kind="presidio").exists()
    )
    assert (
        "Unknown rule kind"
        in admin.post(url(project, "_switch"), {"on": ["x"]}, follow=True).content.decode()
    )


def test_own_rules_are_added_changed_moved_and_deleted(project: Project, admin: Client) -> None:
    admin.post(
        url(project, "_add"), {"name": "host", "pattern": r"\w+\.internal", "replacement": "[HOST]"}
    )
    admin.post(url(project, "_add"), {"name": "customer", "pattern": r"CUST-\d+"})
    host, customer = redaction.own_rules(project)
    admin.post(url(project, "_edit", customer.pk), {"do": "up"})
    assert [row.name for row in redaction.own_rules(project)] == ["customer", "host"]
    admin.post(
        url(project, "_edit", host.pk), {"name": "host", "pattern": "db-[0-9]", "replacement": ""}
    )
    admin.post(url(project, "_edit", customer.pk), {"do": "off"})
    assert [
        (rule.name, rule.pattern) for rule in redaction.rules_of(project) if rule.kind == "regex"
    ] == [("host", "db-[0-9]")]
    admin.post(url(project, "_delete", host.pk))
    assert [row.name for row in redaction.own_rules(project)] == ["customer"]
    said = set(
        AuditEvent.objects.filter(project=project, action__startswith="redaction").values_list(
            "action", flat=True
        )
    )
    assert said == {
        f"redaction.{word}" for word in ("added", "moved", "changed", "disabled", "deleted")
    }


@pytest.mark.more(rows=2)
@pytest.mark.parametrize(
    ("name", "pattern", "said"),
    [
        ("new", "(", "does not compile"),
        ("new", "a*", "matches empty text"),
        ("customer", "x", "already"),
        ("email", "x", "built-in"),
        ("", "x", "required"),
    ],
)
def test_it_refuses_a_rule_and_keeps_what_was_typed(
    project: Project, admin: Client, rule: RedactionRule, name: str, pattern: str, said: str
) -> None:
    shown = admin.post(url(project, "_add"), {"name": name, "pattern": pattern}).content.decode()
    assert said in shown and f'value="{pattern}"' in shown
    assert redaction.own_rules(project).count() == 1
    if name != "customer":
        changed = {"name": name, "pattern": pattern}
        assert (
            "note error"
            in admin.post(url(project, "_edit", rule.pk), changed, follow=True).content.decode()
        )
    rule.refresh_from_db()
    assert rule.pattern == r"CUST-\d+"


def test_the_test_box_shows_hits_and_escapes_what_it_shows(
    project: Project, admin: Client, rule: RedactionRule
) -> None:
    asked = {"text": "<script>alert(1)</script> CUST-12 <b>", "pattern": "<b>"}
    shown = admin.post(url(project, "_test"), asked).content.decode()
    assert "<script>" not in shown and "&lt;script&gt;" in shown and "2 matches" in shown
    assert ">CUST-12</del>" in shown and "[CUSTOMER]" in shown and "[THIS_PATTERN]" in shown
    assert (
        "joe@x.org</del>"
        not in admin.post(url(project, "_test"), {"text": "joe@x.org"}).content.decode()
    )
    both = admin.post(
        url(project, "_test"), {"text": "CUST-12 joe@x.org", "all": "on"}
    ).content.decode()
    assert (
        "joe@x.org</del>" in both and "CUST-12</del>" in both
    )  # those that are off as well as their own
    assert (
        "does not compile"
        in admin.post(url(project, "_test"), {"text": "a", "pattern": "("}).content.decode()
    )
    assert "at most" in admin.post(url(project, "_test"), {"text": "a" * 200_001}).content.decode()
    assert admin.get(url(project, "_test")).status_code == 200


def test_the_test_box_takes_a_stored_trajectory(project: Project, admin: Client) -> None:
    stored = make_trajectory(project, request="Mail joe@x.org, please.")
    for name in (stored.external_id, str(stored.pk)):
        shown = admin.post(
            url(project, "_test"), {"trajectory": name, "all": "on"}
        ).content.decode()
        assert "joe@x.org</del>" in shown and "Mail " in shown and "not shown" in shown
    theirs = make_trajectory(make_project())
    for name in (str(theirs.pk), "nothing"):
        shown = admin.post(url(project, "_test"), {"trajectory": name}).content.decode()
        assert "There is no trajectory" in shown


def test_the_redactor_follows_the_rules_within_its_time(
    project: Project, monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any
) -> None:
    now = [1000.0]
    monkeypatch.setattr(redaction.time, "monotonic", lambda: now[0])
    row = {"tags": ["joe@x.org"]}
    assert redaction.redactor_of(project).redact(row)[0] is row
    redaction.save_builtins(project=project, chosen={"email": False}, by=admin_of(project))
    assert redaction.redactor_of(project).redact(row)[0] is row, "another process does not know yet"
    now[0] += redaction.FRESH_FOR + 0.1
    assert redaction.redactor_of(project).redact(row)[0] == {"tags": ["[EMAIL]"]}
    with django_capture_on_commit_callbacks(execute=True):
        redaction.save_builtins(project=project, chosen={"email": True}, by=admin_of(project))
    token = redaction.redactor_of(project).redact(row)[0]["tags"][0]
    assert token.startswith("[EMAIL_"), "the process that changed it knows at once"
    other = make_project()
    redaction.save_builtins(project=other, chosen={"email": True}, by=admin_of(other))
    assert redaction.redactor_of(other).redact(row)[0]["tags"][0] != token


def test_a_stored_rule_that_cannot_be_used_here_stops_the_receiver(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presidio, "is_installed", lambda: False)
    project.redaction_rules.create(name="presidio", kind="presidio")
    with pytest.raises(RuleError, match="not installed"):
        redaction.redactor_of(project)
