"""Rules that a system prompt states or a person wrote: read once, confirmed, dismissed, edited, and
what that does to the diagnoses.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.core import runner
from apps.core.models import AuditEvent, Project, Role
from apps.failures import classify_job, prompts, reclassify
from apps.failures.actions import rule_decisions as actions
from apps.failures.classify import classify
from apps.failures.models import Classification, Failure, PolicyExample, PolicyRule, SystemPrompt
from apps.failures.rules import conditions
from apps.failures.rules.reading import read
from apps.failures.rules.violations import violations as broken_rules
from apps.failures.rules.written import Invalid, rule_of, written_rule
from apps.trajectories import digest
from apps.trajectories.actions.store import ingest
from tests.factories import key_headers, make_member, make_project, row, tool_message
from tests.shared import copied, once

PENDING = "An order can only be cancelled if the status is pending."
RETURNED = "Gold orders can always be returned."
SURE = "You must obtain explicit user confirmation before you change anything."
CHANGED = "The customer can change colours."
PROMPT = (
    f"You work for a shop. It is 2024-05-15 15:00:00.\n{PENDING}\n{RETURNED}\n{SURE}\n{CHANGED}"
)


def user(words: str) -> dict:
    return {"role": "user", "content": words}


def agent(words: str) -> dict:
    return {"role": "assistant", "content": words}


def call(tool: str, args: Any, reply: str = "Done.") -> list[dict]:
    made = tool_message({"tool": tool, "args": args})
    return [made, {"role": "tool", "tool_call_id": made["tool_calls"][0]["id"], "content": reply}]


YES = user("Yes.")
STATES = ("proposed", "confirmed", "dismissed")


def order(**fields: str) -> list[dict]:
    return call("get_order", {"order": "W123"}, json.dumps({"id": "W123"} | fields))


CANCEL = call("cancel_order", {"order": "W123"}, "ok")
SHIPPED = (user("Cancel W123."), order(status="shipped"), agent("Shall I?"), YES, CANCEL)
REFUSED = agent("Unfortunately I cannot return this order; it cannot be returned.")
NO_COLOUR = agent("I'm unable to change the colour of that.")
BREAKS = {
    PENDING: (SHIPPED, 6),
    RETURNED: ((user("Return W123."), order(level="gold"), REFUSED), 4),
    SURE: (
        (user("Cancel W123."), order(status="pending"), agent("Shall I?"), user("Hm."), CANCEL),
        6,
    ),
    CHANGED: ((user("Change the colour of W123 to red."), NO_COLOUR), 2),
}


def messages(*turns: dict | list, prompt: str = PROMPT) -> list[dict]:
    flat = [item for turn in turns for item in (turn if isinstance(turn, list) else [turn])]
    return [{"role": "system", "content": prompt}, *flat]


def rule(sentence: str) -> conditions.Rule:
    return next(item for item in conditions.rules_of(PROMPT) if item.sentence == sentence)


def given(sentence: str, state: str, status: str) -> dict:
    states = {conditions.key_of(rule(sentence)): state} if state != "proposed" else {}
    return {
        "messages": messages(*BREAKS[sentence][0]),
        "outcome_status": status,
        "rule_states": states,
    }


@pytest.mark.parametrize("sentence", BREAKS)
@pytest.mark.parametrize("status", ["failure", "unknown"])
def test_only_a_confirmed_rule_makes_a_policy_violation(sentence: str, status: str) -> None:
    index = BREAKS[sentence][1]
    found = classify(given(sentence, "confirmed", status))
    assert found and (found.mode, found.blamed_message) == ("policy_violation", index), found
    first = found.evidence[0]
    assert (first.rule, first.confidence, first.quote) == (
        "confirmed_rule_broken",
        "likely",
        sentence,
    )
    assert first.message_index == 0 and sentence in first.text
    for state in ("proposed", "dismissed"):
        other = classify(given(sentence, state, status))
        assert other is None or "policy_violation" not in {item.mode for item in other.evidence}


def test_a_run_that_keeps_to_confirmed_rules_or_succeeded_is_no_violation() -> None:
    states = {conditions.key_of(item): "confirmed" for item in conditions.rules_of(PROMPT)}
    kept = messages(user("Cancel W123."), order(status="pending"), agent("Shall I?"), YES, CANCEL)
    broken = {"messages": messages(*SHIPPED), "rule_states": states}
    assert classify({"messages": kept, "outcome_status": "unknown", "rule_states": states}) is None
    assert classify(broken | {"outcome_status": "success"}) is None
    assert classify(broken | {"outcome_status": "unknown"}) is not None


@pytest.mark.parametrize(
    ("created", "breaks"),
    [("2024-05-14T15:00:00", False), ("2024-05-12T15:00:00", True), ("", True)],
)
def test_a_condition_does_not_hold_while_the_prompt_allows_it_anyway(
    created: str, breaks: bool
) -> None:
    stated = (
        "The current time is 2024-05-15 15:00:00. All orders can be cancelled within 24 hours of"
        f" purchase. Otherwise, {PENDING[:1].lower()}{PENDING[1:]}"
    )
    turns = (
        user("Cancel W123."),
        order(status="shipped", created_at=created),
        agent("Shall I?"),
        YES,
        CANCEL,
    )
    assert bool(list(broken_rules(read({"messages": messages(*turns, prompt=stated)})))) is breaks
    (only,) = conditions.rules_of(stated)
    assert conditions.in_words(conditions.understood(only)).endswith(
        "is “pending” (or within 1 day of being made)."
    )


def test_a_clause_that_states_a_condition_is_no_rule() -> None:
    assert not conditions.rules_of(
        "You should transfer the user to a person if and only if the request cannot be handled by"
        " you."
    )


def test_a_prompt_with_another_date_is_the_same_prompt_and_has_the_same_rules() -> None:
    other = PROMPT.replace("2024-05-15 15:00:00", "2024-06-01 09:30:12")
    assert (
        conditions.digest_of(other)
        == conditions.digest_of(PROMPT)
        != conditions.digest_of(PROMPT.replace("pending", "open"))
    )
    dated = "An order can only be cancelled if the status is pending as of {}."
    one, two = (conditions.rules_of(dated.format(day))[0] for day in ("2024-05-15", "2024-06-01"))
    assert conditions.key_of(one) == conditions.key_of(two) and one != two
    hours = [
        conditions.rules_of(f"Orders can be cancelled. Orders cannot be changed within {n} hours.")
        for n in (24, 48)
    ]
    assert len({conditions.key_of(found[-1]) for found in hours}) == 2


IF = {
    "kind": "if",
    "subject": "an order",
    "verb": "cancelled",
    "field": "status",
    "value": "pending",
}
FORMS = {
    PENDING: IF,
    RETURNED: {"kind": "always", "subject": "Gold orders", "verb": "returned"},
    SURE: {"kind": "confirm"},
    CHANGED: {"kind": "can", "verb": "change", "thing": "colours", "except": ""},
}


@pytest.mark.parametrize("sentence", BREAKS)
def test_a_written_rule_finds_what_the_same_rule_in_a_prompt_finds(sentence: str) -> None:
    written, index = written_rule(sentence, FORMS[sentence]), BREAKS[sentence][1]
    assert (
        written == rule(sentence) and rule_of(sentence, conditions.understood(written)) == written
    )
    run = {
        "messages": messages(*BREAKS[sentence][0], prompt="You work for a shop."),
        "outcome_status": "unknown",
    }
    assert classify(run) is None
    found = classify(
        run | {"written_rules": [written], "rule_states": {conditions.key_of(written): "confirmed"}}
    )
    assert found and (found.mode, found.blamed_message) == ("policy_violation", index)
    first = found.evidence[0]
    assert first.message_index == index and f"The policy rule says “{sentence}”" in first.text
    for states in ({}, {conditions.key_of(written): "dismissed"}):
        other = classify(run | {"written_rules": [written], "rule_states": states})
        assert other is None or "confirmed_rule_broken" not in {
            item.rule for item in other.evidence
        }
    assert list(broken_rules(read(run | {"written_rules": [written]})))


@pytest.mark.parametrize(
    ("form", "sentence", "wrong"),
    [
        ({"kind": "if"}, "A rule.", "subject verb field"),
        ({"kind": "always", "subject": "an order", "verb": "cancelled"}, "A rule.", "subject"),
        ({"kind": "never", "subject": "orders", "verb": "cancelled"}, "A rule.", "subject"),
        (IF | {"verb": "cancel"}, "A rule.", "verb"),
        (IF | {"days": "soon"}, "A rule.", "days"),
        (IF | {"field": "status; drop"}, "A rule.", "field"),
        (IF | {"value": "x" * 81}, "A rule.", "value"),
        ({"kind": "can", "verb": "destroy", "thing": "a"}, "A rule.", "verb thing"),
        ({"kind": "sometimes"}, "A rule.", "kind"),
        (IF, " \0\n", "sentence"),
        (IF, "x" * (conditions.LONGEST_SENTENCE + 1), "sentence"),
    ],
)
def test_a_rule_that_could_find_nothing_is_refused_by_field(
    form: dict, sentence: str, wrong: str
) -> None:
    with pytest.raises(Invalid) as refused:
        written_rule(sentence, form)
    assert set(refused.value.errors) == set(wrong.split())


def test_a_confirmed_rule_counts_beside_a_proposed_one_that_the_same_change_breaks() -> None:
    written = written_rule("Only open orders may be cancelled.", IF | {"value": "open"})
    run = {"messages": messages(*SHIPPED), "outcome_status": "unknown", "written_rules": [written]}
    found = classify(run | {"rule_states": {conditions.key_of(written): "confirmed"}})
    assert (
        found
        and found.evidence[0].rule == "confirmed_rule_broken"
        and "open orders" in found.evidence[0].text
    )


# In a project


def made_project(_: Path) -> Project:
    project = make_project()
    send(
        project, broken("b0"), broken("b1"), sent("plain", messages=[user("Hi."), agent("Hello.")])
    )
    classified(project)
    return project


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from once(request, made_project)


@pytest.fixture
def project(kept: Any, db: None, settings: Any) -> Project:
    return copied(kept, settings)


def sent(name: str, **changes: Any) -> dict:
    return row(name=name, tools=[], **changes) | {"outcome": {"status": "unknown"}}


def broken(name: str, prompt: str = PROMPT) -> dict:
    return sent(name, messages=messages(*SHIPPED, prompt=prompt))


def send(project: Project, *rows: dict) -> None:
    assert not ingest(project=project, rows=list(rows)).rejected
    digest.run()


def classified(project: Project) -> None:
    job = classify_job.start(project=project, by=None)
    runner.run(job)
    job.refresh_from_db()
    assert job.state == "succeeded", job.error


def pending_rule(project: Project) -> PolicyRule:
    return PolicyRule.objects.get(prompt__project=project, sentence=PENDING)


def violations(project: Project) -> set[str]:
    rows = Failure.objects.filter(project=project, mode__slug="policy_violation")
    return set(rows.values_list("trajectory__external_id", flat=True))


def test_rules_are_stored_once_as_proposed_with_runs_that_break_them(project: Project) -> None:
    send(project, broken("later", prompt=PROMPT.replace("2024-05-15", "2024-05-16")))
    classify_job.classify_new(project, for_s=9)
    prompt = SystemPrompt.objects.get(project=project)
    assert prompt.opening.startswith("You work for a shop.") and set(BREAKS) == {
        one.sentence for one in prompt.rules.all()
    }
    assert {one.state for one in prompt.rules.all()} == {"proposed"} and not violations(project)
    found = pending_rule(project)
    assert found.meaning == "“an order” may be cancelled only if “status” is “pending”."
    assert {one.trajectory.external_id for one in found.examples.all()} == {"b0", "b1", "later"}
    assert all(
        "status is shipped" in one.text and one.message_index == 6 for one in found.examples.all()
    )


def test_a_decision_classifies_again_and_undo_takes_it_back(
    project: Project, django_capture_on_commit_callbacks: Any
) -> None:
    by, found = make_member(project, Role.REVIEWER), pending_rule(project)

    def act(action: Any) -> Any:
        with django_capture_on_commit_callbacks(execute=True):
            done = action()
        for job in Classification.objects.filter(project=project, state="queued"):
            runner.run(job)
        return done

    assert act(lambda: actions.decide(project=project, rule=found, state="confirmed", by=by))
    assert violations(project) == {"b0", "b1"}
    evidence = Failure.objects.get(trajectory__external_id="b0").evidence[0]
    assert evidence["quote"] == PENDING and evidence["confidence"] == "likely"
    assert not act(
        lambda: actions.decide(project=project, rule=found, state="confirmed", by=by)
    )  # nothing changes
    assert act(lambda: actions.undo(project=project, by=by)) == found
    assert not violations(project) and actions.undo(project=project, by=by) is None
    found.refresh_from_db()
    assert (found.state, found.decided_by, found.decided_at) == ("proposed", None, None)
    said = AuditEvent.objects.filter(action__startswith="policy_rule.").order_by("id")
    assert [event.action for event in said] == ["policy_rule.confirmed", "policy_rule.proposed"]
    assert said[0].actor == by and said[0].detail["sentence"] == PENDING


def test_a_decision_while_a_pass_goes_on_has_another_pass_follow(project: Project) -> None:
    by, found = make_member(project, Role.REVIEWER), pending_rule(project)
    actions.decide(project=project, rule=found, state="confirmed", by=by)
    assert project in classify_job.due() and classify_job.count(project) == 3
    job = classify_job.start(project=project, by=None)
    steps = classify_job.steps(job)
    next(steps)
    actions.decide(project=project, rule=found, state="dismissed", by=by)
    list(steps)
    job.delete()
    assert project in classify_job.due()
    classified(project)
    assert project not in classify_job.due() and classify_job.count(project) == 0


def test_a_preview_of_changed_rules_knows_the_decisions(project: Project) -> None:
    actions.decide(
        project=project, rule=pending_rule(project), state="confirmed", by=make_member(project)
    )
    job = reclassify.start(project=project, by=make_member(project))
    runner.run(job)
    assert {change.after for change in job.changes.all()} == {"policy_violation"}


def test_prompts_rules_and_examples_are_bounded(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompts, "MOST_PROMPTS", 3)
    monkeypatch.setattr(prompts, "MOST_COUNTED", 2)
    actions.decide(
        project=project, rule=pending_rule(project), state="confirmed", by=make_member(project)
    )
    many = "\n".join(f"Class{n} orders cannot be cancelled." for n in range(90))
    hostile = (
        f"Order \0<script>alert(1)</script> {'x' * 5000} can only be cancelled if the status is"
        " pending."
    )
    texts = [f"Prompt {name}: {many}" for name in "abcd"] + [hostile]
    send(project, broken("b2"), *(broken(f"h{n}", prompt=text) for n, text in enumerate(texts)))
    classified(project)
    assert SystemPrompt.objects.filter(project=project).count() == 3
    assert pending_rule(project).state == "confirmed"  # a prompt with a decision stays
    counts = [prompt.rules.count() for prompt in SystemPrompt.objects.filter(project=project)]
    assert max(counts) <= conditions.MOST_RULES
    assert max(len(one.sentence) for one in PolicyRule.objects.all()) <= conditions.LONGEST_SENTENCE
    assert list(
        pending_rule(project).examples.values_list("trajectory__external_id", flat=True)
    ) == ["b2", "b1"]


def test_the_page_lists_escapes_and_decides_and_viewers_only_read(project: Project) -> None:
    send(project, broken("evil", prompt="<script>alert(1)</script> orders cannot be cancelled."))
    send(project, *(broken(f"more{n}") for n in range(4)))
    classified(project)
    found, url = pending_rule(project), reverse("failures:policy", args=[project.slug])
    decide = reverse("failures:policy_decide", args=[project.slug, found.pk])
    reader, client = Client(), Client()
    reader.force_login(make_member(project, Role.VIEWER))
    client.force_login(make_member(project, Role.REVIEWER))
    page = reader.get(url).content.decode()
    assert PENDING in page and found.meaning in page and "5 rules to review" in page
    assert ">b1</a>" in page and ">b0</a>" not in page
    assert "<b>6 runs</b>, the newest 5:" in page
    assert "<script>alert(1)" not in page and "&lt;script&gt;alert(1)" in page
    assert decide not in page and reader.post(decide, {"state": "confirmed"}).status_code == 403
    page = client.get(url).content.decode()
    assert (
        f'action="{decide}"' in page
        and 'data-key="c"' in page
        and 'data-key="d"' in page
        and "data-row" in page
    )
    answer = client.post(
        decide, {"state": "dismissed"}, headers={"HX-Request": "true"}
    ).content.decode()
    assert '<span id="to-review" hx-swap-oob="true">4 rules to review.</span>' in answer
    assert (
        "<html" not in answer
        and "dismissed" in answer
        and "Confirm <kbd>" in answer
        and "Dismiss <kbd>" not in answer
    )
    listed = client.get(url, {"state": "dismissed"}).content.decode()
    assert PENDING in listed and RETURNED not in listed
    found.examples.all().delete()  # as the next classification does
    listed = client.get(url, {"state": "dismissed"}).content.decode()
    assert "Not checked" in listed and "None found" not in listed
    assert (
        "must be confirmed, dismissed or proposed"
        in client.post(decide, {"state": "x"}, follow=True).content.decode()
    )
    undo = reverse("failures:policy_undo", args=[project.slug])
    assert "Your last decision was undone." in client.post(undo, follow=True).content.decode()
    assert "Nothing to undo." in client.post(undo, follow=True).content.decode()
    other = reverse("failures:policy_decide", args=[make_project().slug, found.pk])
    assert client.post(other, {"state": "confirmed"}).status_code == 404


def test_the_failures_list_links_to_the_rules_until_all_are_decided(
    client: Client, project: Project
) -> None:
    by = make_member(project, Role.REVIEWER)
    client.force_login(by)
    url, link = (
        reverse("failures:list", args=[project.slug]),
        reverse("failures:policy", args=[project.slug]),
    )
    page = client.get(url).content.decode()
    assert (
        "4 policy rules need review." in page
        and f'<a href="{link}">Review policy rules</a>' in page
    )
    first, *rest = PolicyRule.objects.filter(prompt__project=project)
    for rule in rest:
        actions.decide(project=project, rule=rule, state="dismissed", by=by)
    assert "1 policy rule needs review." in client.get(url).content.decode()
    actions.decide(project=project, rule=first, state="confirmed", by=by)
    assert "Review policy rules" not in client.get(url).content.decode()


def test_the_api_lists_and_decides(client: Client, project: Project) -> None:
    headers, url = key_headers(project), reverse("failures_api:policy_rules")
    first = client.get(url, {"limit": 2}, **headers).json()
    rest = client.get(url, {"limit": 2, "offset": first["next"]}, **headers).json()
    listed = [*first["results"], *rest["results"]]
    assert (
        len(listed) == 4
        and rest["next"] is None
        and {one["sentence"] for one in listed} == set(BREAKS)
    )
    found = next(one for one in listed if one["sentence"] == PENDING)
    assert (
        {one["trajectory"] for one in found["examples"]} == {"b0", "b1"}
        and found["runs"] == 2
        and found["state"] == "proposed"
    )
    assert found["understood"] == {
        "kind": "if",
        "subject": "an order",
        "verb": "cancelled",
        "field": "status",
        "value": "pending",
    }
    one = reverse("failures_api:policy_rule", args=[found["id"]])
    send = {"content_type": "application/json", **headers}
    done = client.post(one, {"state": "confirmed"}, **send)
    assert (
        done.status_code == 200
        and done.json()["state"] == "confirmed"
        and done.json()["decided_by"]
    ), done.content
    assert [
        item["id"] for item in client.get(url, {"state": "confirmed"}, **headers).json()["results"]
    ] == [found["id"]]
    assert client.post(one, {"state": "maybe"}, **send).status_code == 400
    assert client.get(url, {"state": "maybe"}, **headers).status_code == 400
    missing = reverse("failures_api:policy_rule", args=[10**9])
    assert client.post(missing, {"state": "confirmed"}, **send).status_code == 404
    other = {"content_type": "application/json", **key_headers(make_project())}
    assert client.post(one, {"state": "dismissed"}, **other).status_code == 404


def test_examples_go_with_their_run(project: Project) -> None:
    project.trajectories.get(external_id="b0").delete()
    assert PolicyExample.objects.filter(rule=pending_rule(project)).count() == 1


# Written by hand


def saved(project: Project, run: Any) -> Any:
    """The result of an action, after the classification that it starts."""
    done = run()
    classified(project)
    return done


ONLY = "Orders are cancelled only while they are pending."


def test_a_rule_for_all_runs_is_found_in_runs_of_any_prompt_and_in_later_ones(
    project: Project,
) -> None:
    by = make_member(project, Role.REVIEWER)
    send(project, broken("unruly", prompt="You work for a shop."))
    written = saved(
        project, lambda: actions.write(project=project, prompt=None, sentence=ONLY, form=IF, by=by)
    )
    assert (written.state, written.decided_by, written.version, written.written) == (
        "confirmed",
        by,
        1,
        True,
    )
    assert violations(project) == {"b0", "b1", "unruly"}
    evidence = Failure.objects.get(trajectory__external_id="unruly").evidence[0]
    assert (evidence["rule"], evidence["message_index"]) == ("confirmed_rule_broken", 6)
    assert (
        "status is shipped" in evidence["text"]
        and f"The policy rule says “{ONLY}”" in evidence["text"]
    )
    send(project, broken("later", prompt="Another shop."))
    classify_job.classify_new(project, for_s=9)
    assert "later" in violations(project) and written.examples.count() == 4
    with pytest.raises(Invalid, match="already exists"):
        actions.write(project=project, prompt=None, sentence=ONLY, form=IF, by=by)
    said = AuditEvent.objects.get(action="policy_rule.written")
    assert said.actor == by and said.detail["sentence"] == ONLY


def test_a_rule_for_one_prompt_leaves_others_alone_and_a_proposal_only_lists(
    project: Project,
) -> None:
    by, prompt = make_member(project, Role.REVIEWER), pending_rule(project).prompt
    send(project, broken("unruly", prompt="You work for a shop."))
    given = {"project": project, "prompt": prompt, "sentence": ONLY, "form": IF, "by": by}
    written = saved(project, lambda: actions.write(state="proposed", **given))
    assert not violations(project) and written.decided_by is None
    assert set(written.examples.values_list("trajectory__external_id", flat=True)) == {"b0", "b1"}
    saved(project, lambda: actions.decide(project=project, rule=written, state="confirmed", by=by))
    assert violations(project) == {"b0", "b1"}


def test_an_edit_is_a_new_version_and_what_it_replaces_is_not_used(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    by, found = make_member(project, Role.REVIEWER), pending_rule(project)
    actions.decide(project=project, rule=found, state="confirmed", by=by)
    form = IF | {"value": "shipped"}
    second = saved(
        project, lambda: actions.edit(project=project, rule=found, sentence=ONLY, form=form, by=by)
    )
    found.refresh_from_db()
    assert (found.state, second.state, second.version, second.replaces) == (
        "replaced",
        "confirmed",
        2,
        found,
    )
    assert not violations(project) and found.examples.count() == 0
    assert list(broken_rules(read({"messages": messages(*SHIPPED)})))
    states = prompts.policy_of(project, [project.trajectories.get(external_id="b0")])
    assert next(iter(states.values()))["rule_states"][found.key] == "dismissed"
    with pytest.raises(actions.Refused, match="in the meantime"):
        actions.edit(project=project, rule=found, sentence=ONLY, form=IF, by=by)
    with pytest.raises(actions.Refused, match="in the meantime"):
        actions.decide(project=project, rule=found, state="confirmed", by=by)
    with pytest.raises(Invalid, match="Nothing has changed"):
        actions.edit(project=project, rule=second, sentence=ONLY, form=form, by=by)
    third = saved(
        project,
        lambda: actions.edit(project=project, rule=second, sentence=PENDING, form=IF, by=by),
    )
    assert third.key == found.key and violations(project) == {
        "b0",
        "b1",
    }  # as it was read in the prompt
    saved(project, lambda: actions.remove(project=project, rule=third, by=by))
    found.refresh_from_db()
    third.refresh_from_db()
    assert (found.state, third.state) == ("proposed", "removed") and not violations(project)
    with pytest.raises(actions.Refused, match="Dismiss it instead"):
        actions.remove(project=project, rule=found, by=by)
    assert actions.undo(project=project, by=by) is None  # a removed rule stays removed
    monkeypatch.setattr(actions, "MOST_WRITTEN", 0)
    with pytest.raises(actions.Refused, match="at most 0"):
        actions.write(project=project, prompt=None, sentence=ONLY, form=IF, by=by)


def test_rules_are_written_edited_and_removed_on_the_page_and_viewers_may_not(
    project: Project,
) -> None:
    found, name = pending_rule(project), "failures:policy"
    url, new = (reverse(f"failures:policy{what}", args=[project.slug]) for what in ("", "_new"))
    edit, reader, client = (
        reverse("failures:policy_edit", args=[project.slug, found.pk]),
        Client(),
        Client(),
    )
    reader.force_login(make_member(project, Role.VIEWER))
    client.force_login(make_member(project, Role.REVIEWER))
    assert (
        new not in reader.get(url).content.decode() and edit not in reader.get(url).content.decode()
    )
    sent = {"sentence": ONLY} | IF
    assert {reader.post(address, sent).status_code for address in (new, edit)} == {403}
    assert new in client.get(url).content.decode() and edit in client.get(url).content.decode()
    fragment = client.get(edit, headers={"HX-Request": "true"}).content.decode()
    assert "<html" not in fragment and PENDING in fragment and 'value="pending"' in fragment
    page = client.post(new, sent | {"verb": "cancel"}).content.decode()
    assert "ends in -ed" in page and ONLY in page and "<html" in page
    page = client.post(
        f"{new}?prompt={found.prompt_id}", sent | {"state": "proposed"}, follow=True
    ).content.decode()
    assert "Rule saved. Runs that break it are listed here" in page and ONLY in page
    page = client.post(new, sent, follow=True).content.decode()
    assert "Rules for all runs" in page and "Checked as: “an order” may be cancelled" in page
    page = client.post(edit, sent | {"sentence": "Edited."}, follow=True).content.decode()
    assert "“Edited.”" in page and f"“{PENDING}”" not in page and "Version 2, by" in page
    edited = PolicyRule.objects.get(sentence="Edited.")
    remove = reverse(f"{name}_remove", args=[project.slug, edited.pk])
    assert reader.post(remove).status_code == 403
    page = client.post(remove, follow=True).content.decode()
    assert "Rule removed." in page and "“Edited.”" not in page and f"“{PENDING}”" in page
    other = make_project()
    client.force_login(make_member(other, Role.REVIEWER))
    for what in ("edit", "remove"):
        assert (
            client.post(reverse(f"{name}_{what}", args=[other.slug, found.pk]), sent).status_code
            == 404
        )
    assert (
        client.get(
            reverse(f"{name}_new", args=[other.slug]), {"prompt": found.prompt_id}
        ).status_code
        == 404
    )


def test_the_api_writes_edits_and_removes(client: Client, project: Project) -> None:
    url, found = reverse("failures_api:policy_rules"), pending_rule(project)
    sending = {"content_type": "application/json", **key_headers(project)}
    made = client.post(url, {"sentence": ONLY, "understood": IF}, **sending)
    assert made.status_code == 201, made.content
    given = made.json()
    assert (given["state"], given["written"], given["version"], given["prompt"]["digest"]) == (
        "confirmed",
        True,
        1,
        "",
    )
    body = {"sentence": ONLY, "understood": IF | {"value": "open"}, "state": "proposed"}
    one = reverse("failures_api:policy_rule", args=[found.pk])
    edited = client.put(one, body, **sending)
    assert edited.status_code == 201, edited.content
    assert (edited.json()["replaces"], edited.json()["version"], edited.json()["state"]) == (
        found.pk,
        2,
        "proposed",
    )
    listed = {item["id"] for item in client.get(url, **sending).json()["results"]}
    assert found.pk not in listed and {given["id"], edited.json()["id"]} <= listed
    assert [
        item["id"] for item in client.get(url, {"state": "replaced"}, **sending).json()["results"]
    ] == [found.pk]
    assert client.put(one, body, **sending).status_code == 400  # replaced meanwhile
    mine = reverse("failures_api:policy_rule", args=[edited.json()["id"]])
    other = {"content_type": "application/json", **key_headers(make_project())}
    assert {
        client.put(mine, body, **other).status_code,
        client.delete(mine, **other).status_code,
    } == {404}
    assert client.delete(mine, **sending).status_code == 204
    assert client.delete(mine, **sending).status_code == 400
    for wrong in (
        {},
        {"sentence": ONLY},
        {"sentence": ONLY, "understood": {}},
        body | {"prompt": "none"},
        body | {"state": "dismissed"},
    ):
        assert client.post(url, wrong, **sending).status_code == 400, wrong
    refused = client.post(url, body | {"understood": IF | {"verb": "cancel"}}, **sending).json()
    assert "understood.verb" in json.dumps(refused), refused
