"""Answers of the judge that cannot be stored, or that nobody waits for any more: each costs its own
question only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from apps.failures.actions import rule_decisions, signals
from apps.failures.actions.rule_decisions import RuleError, WrittenRule
from apps.failures.actions.signals import NewSignal
from apps.failures.judge import prompt_reading, rubrics
from apps.failures.judge.asking import Answered
from apps.failures.models import SystemPrompt
from apps.failures.rules import policy
from apps.failures.rules.policy import CheckError, check_of
from apps.failures.signals import asking
from apps.failures.signals.question import Said
from apps.failures.tasks import try_signal
from apps.trajectories.models import Score
from apps.trajectories.redaction import RuleError as RedactionError
from tests.factories import key_headers, make_project
from tests.failures.judge_server import JudgeServer, Reply, running
from tests.failures.test_judge import make_rubric
from tests.failures.test_policy_rules import NEVER, OPEN, send, sent
from tests.failures.test_signals import frustrated, made, runs
from workers.lib.prices import Price
from workers.lib.spending import NOTHING


@pytest.fixture
def judge(settings: Any) -> Iterator[JudgeServer]:
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = True
    with running() as server:
        server.answer = frustrated
        yield server


def check(const: str) -> str:
    """A check about that value, as JSON."""
    arguments = {"properties": {"order": {"const": "CONST"}}}
    given = {"when": NEVER["when"] | {"arguments": arguments}, "must": "never"}
    return json.dumps(given).replace('"CONST"', const)


UNSTORABLE = ["1e999", "-1e999", '"\\u0000"', '"\\ud800"']


@pytest.mark.parametrize("const", UNSTORABLE)
def test_a_check_that_cannot_be_stored_is_no_check(const: str) -> None:
    with pytest.raises(CheckError, match=r"cannot be stored|finite"):
        check_of(json.loads(check(const)))


def test_an_unknown_tool_is_compared_with_a_bounded_number_of_tools(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[int] = []
    monkeypatch.setattr(
        policy, "get_close_matches", lambda tool, tools, *_: compared.append(len(tools)) or []
    )
    with pytest.raises(CheckError, match="No recent run has a tool"):
        check_of(NEVER, {f"tool_{number}": None for number in range(5_000)})
    assert compared == [policy.MOST_ALIKE]


def test_a_check_that_is_nested_too_deeply_is_no_check() -> None:
    nested: dict[str, Any] = {}
    for _ in range(2_000):
        nested = {"not": nested}
    with pytest.raises(CheckError, match="nested"):
        check_of({"when": NEVER["when"] | {"arguments": nested}, "must": "never"})


@pytest.mark.django_db
@pytest.mark.parametrize("const", ["1e999", '"\\u0000"'])
def test_a_rule_is_kept_without_a_check_that_cannot_be_stored(
    judge: JudgeServer, const: str
) -> None:
    project = make_project()
    send(project, sent("b0"), sent("b1"))
    make_rubric(project, judge, price=Price(1.0))
    text = f'{{"rules": [{{"rule": "R", "quote": "{OPEN}", "check": {check(const)}}}]}}'
    judge.answer = lambda body: Reply(text)
    report = prompt_reading.look(project, now=True, sleep=lambda seconds: None)
    assert (report.proposed, report.errors) == (1, 0)
    rule = project.policy_rules.get()
    assert rule.check_spec is None and rule.problem
    assert not SystemPrompt.objects.filter(error=SystemPrompt.WAITING).exists()


@pytest.mark.django_db
def test_the_api_takes_no_number_that_cannot_be_stored(client: Any) -> None:
    project = make_project()
    send(project, sent("b0"))
    body = f'{{"sentence": "R", "check": {check("1e999")}}}'
    headers = key_headers(project)
    url = "/api/v1/policy-rules/"
    answer = client.post(url, body, content_type="application/json", **headers)
    assert answer.status_code == 400 and "finite number" in answer.content.decode()


@pytest.mark.django_db
def test_an_answer_that_cannot_be_stored_is_an_error_of_its_question(
    judge: JudgeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = make_project()
    make_rubric(project, judge, price=Price(1.0))
    runs(project, 2)
    store = asking.receive

    def refuse(*, project: Any, sent: Any) -> None:
        if sent[0].value:
            raise RedactionError("It is broken.")
        store(project=project, sent=sent)

    monkeypatch.setattr(asking, "receive", refuse)
    signal = made(project)
    report = try_signal(signal.pk, 1)
    assert report and (report["asked"], report["errors"]) == (2, 1)
    assert rubrics.account_of(project).usd == pytest.approx(0.002)
    errors = sorted(signal.answers.values_list("error", flat=True))
    assert errors == ["", "The answer could not be stored: It is broken."]


@pytest.mark.django_db
def test_an_answer_to_a_question_that_was_changed_is_no_score(judge: JudgeServer) -> None:
    project = make_project()
    make_rubric(project, judge, price=Price(1.0))
    runs(project, 1)
    signal = made(project)
    entry = asking._Entry(signal, project.trajectories.get(), None)
    entry.reserve(0.1)
    other = NewSignal(name="mood", question="Which mood?", kind="number")
    signals.edit(signal=signal, by=None, given=other)
    entry.settle(Answered(Said(True), "", [], NOTHING), -0.05)
    assert not Score.objects.filter(project=project).exists()
    assert signal.answers.get().cost_usd == pytest.approx(0.05)


@pytest.mark.django_db
def test_editing_confirms_no_more_rules_than_a_project_may_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    project = make_project()
    monkeypatch.setattr(rule_decisions, "MOST_CONFIRMED", 1)
    write, edit = rule_decisions.write, rule_decisions.edit
    first = write(project=project, by=None, given=WrittenRule(sentence="One"))
    proposal = WrittenRule(sentence="Two", state="proposed")
    second = write(project=project, by=None, given=proposal)
    with pytest.raises(RuleError, match="at most 1 confirmed"):
        edit(rule=second, by=None, given=WrittenRule(sentence="Three"))
    assert edit(rule=first, by=None, given=WrittenRule(sentence="Four")).version == 2


@pytest.mark.django_db
def test_no_row_has_a_number_of_5_000_digits(client: Any) -> None:
    headers = key_headers(make_project())
    address = f"/api/v1/step-searches/?failure={'9' * 5_000}"
    assert client.get(address, **headers).status_code == 404
