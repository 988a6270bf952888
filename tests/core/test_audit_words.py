"""Every action that the code audits has a sentence, and sentences read well."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from apps.automation.models import ENDED_STATES
from apps.core.accounts.signals import ACTIONS
from apps.core.actions import audit
from apps.core.actor import ACTOR, COMMAND_LINE
from apps.core.auditing.words import FIELD, OF_JOBS, WORDS, pieces, sentence
from apps.core.kinds import job_models
from apps.core.models import AuditEvent, Project
from apps.evals.models import HoldoutView
from apps.failures.actions.reply_decisions import AUDITED
from apps.failures.models import PolicyRule
from apps.promotion.models import Promotion
from tests.test_architecture import kinds

ROOT = Path(__file__).resolve().parent.parent.parent
JOBS = [model._meta.model_name for model in job_models()]
# What an action that is no plain text may be: {file: {the expression: actions}}.
COMPUTED: dict[str, dict[str, list[str]]] = {
    "automation/actions.py": {"what": ["flow.taken_over", "flow.saved"]},
    "automation/engine.py": {"f'flow.{state}'": [f"flow.{state}" for state in ENDED_STATES]},
    "core/actions.py": {"action": []},  # of `audit` itself
    "core/accounts/signals.py": {"action": [action for _, action in ACTIONS]},
    "core/attempts.py": {"action": []},  # those of `note`
    "core/jobs.py": {
        "f'{job._meta.model_name}.submitted'": [f"{job}.submitted" for job in JOBS],
        "f'{job._meta.model_name}.cancel_requested'": [f"{job}.cancel_requested" for job in JOBS],
        "f'{job._meta.model_name}.{action}'": [
            f"{job}.{what}" for job in JOBS for what in ("resumed", "resubmitted", "applied")
        ],
    },
    "environments/actions.py": {
        "f'{model._meta.model_name}.created'": ["environment.created", "verifier.created"]
    },
    "failures/actions/reply_decisions.py": {
        "f'reply_forms.{AUDITED[state]}'": [f"reply_forms.{word}" for word in AUDITED.values()]
    },
    "failures/actions/rule_decisions.py": {
        "f'policy_rule.{state}'": [f"policy_rule.{state}" for state in PolicyRule.DECISIONS]
    },
    "evals/holdout/view_log.py": {
        "f'holdout.{row.kind}'": [f"holdout.{kind}" for kind in HoldoutView.Kind]
    },
    "evals/variants/batches.py": {"what": []},  # those of `_note`
    "failures/actions/bulk.py": {"f'failures.{kind}'": ["failures.decided", "failures.assigned"]},
    "failures/actions/decisions.py": {
        "f'failure.{kind}'": [
            f"failure.{kind}" for kind in ("decided", "split", "assigned", "marked", "checked")
        ]
    },
    "promotion/moves.py": {"f'channel.{kind}'": [f"channel.{kind}" for kind in Promotion.Kind]},
    "teamwork/proposals.py": {
        "f'{rule.audited}_{what}'": [
            f"{rule}_{what}"
            for rule in ("channel.policy", "review.policy")
            for what in ("proposed", "withdrawn")
        ]
    },
    "trajectories/actions/arrivals.py": {"f'{kind}.retried'": ["arrival.retried", "trace.retried"]},
    "trajectories/actions/bulk.py": {
        "f'trajectories.{change.kind}'": [
            f"trajectories.{kind}" for kind in ("tag", "untag", "outcome")
        ]
    },
    "trajectories/actions/redaction.py": {"action": ["redaction.enabled", "redaction.disabled"]},
    "webhooks/actions.py": {"f'webhook.{what}'": []},  # those of `_audit`
}
AUDITS = ("audit", "_audit", "note", "_note", "AuditEvent", "AuditEvent.objects.create")


def audited(path: Path) -> Iterator[str]:
    """The actions that a module audits. Raises AssertionError for one that it computes and
    `COMPUTED` does not know.
    """
    place, text = path.relative_to(ROOT / "apps").as_posix(), path.read_text()
    calls = kinds(ast.parse(text))[ast.Call] if any(f"{name}(" in text for name in AUDITS) else ()
    for node in calls:
        if ast.unparse(node.func) not in AUDITS:
            continue
        named = [keyword.value for keyword in node.keywords if keyword.arg == "action"]
        first = named[0] if named else node.args[0] if node.args else None
        for given in (first.body, first.orelse) if isinstance(first, ast.IfExp) else (first,):
            if isinstance(given, ast.Constant) and isinstance(given.value, str):
                if place == "webhooks/actions.py":
                    yield f"webhook.{given.value}"
                elif "." in given.value:
                    yield given.value
            elif given is not None and not (
                isinstance(given, ast.Name) and given.id in ("job", "run", "row")
            ):
                found = COMPUTED.get(place, {}).get(ast.unparse(given))
                assert found is not None, (
                    f"{path}:{node.lineno}: say in COMPUTED what {ast.unparse(given)} may be"
                )
                yield from found


def test_every_audited_action_has_a_sentence() -> None:
    found = {action for path in sorted((ROOT / "apps").rglob("*.py")) for action in audited(path)}
    assert len(found) > 100 and not found - WORDS.keys(), (
        "Give these a sentence, in `says` of their operation or in audit_words.py:"
        f" {sorted(found - WORDS.keys())}"
    )
    of_jobs = {f"{job}.{what}" for job in JOBS for what in OF_JOBS}
    assert not (unused := WORDS.keys() - found - of_jobs), unused


@pytest.mark.parametrize(
    ("action", "detail", "said"),
    [
        (
            "channel.promote",
            {
                "version": "grpo-v3",
                "channel": "production",
                "reason": "better",
                "overridden": False,
                "report_id": "x",
            },
            "ann promoted grpo-v3 to production with a gate report: “better”",
        ),
        (
            "channel.promote",
            {
                "version": "grpo-v3",
                "channel": "production",
                "reason": "why not",
                "overridden": True,
            },
            "ann promoted grpo-v3 to production with a gate report, overriding the gate: “why not”",
        ),
        ("retention.set", {"days": 30, "before": None}, "ann set retention to 30 days"),
        (
            "retention.set",
            {"days": None, "before": 30},
            "ann set retention to unlimited; it was 30 days",
        ),
        ("review.answered", {"agrees": False, "reason": ""}, "ann disagreed with a score"),
        ("trajectories.deleted", {"n": 12345}, "ann deleted 12,345 trajectories"),
        ("trajectories.deleted", {"n": 1}, "ann deleted 1 trajectory"),
        (
            "failures.classified",
            {"looked": 1, "found": 0},
            "ann classified 1 run and found 0 failures",
        ),
        (
            "failure.undone",
            {"n": 2, "kept": 1},
            "ann undid the triage of 2 failures; 1 changed in the meantime and stayed as it is",
        ),
        ("holdout.membership", {"n": 1}, "ann saw which tasks are held out: 1 task"),
        (
            "api_key.created",
            {"name": "k", "scopes": ["read"]},
            "ann created the API key k with the scope read",
        ),
        (
            "api_key.created",
            {"name": "k", "scopes": ["read", "manage"]},
            "ann created the API key k with the scopes read, manage",
        ),
        (
            "serverprobe.submitted",
            {"name": "Health check of production"},
            "ann started “Health check of production”",
        ),
        (
            "outcome_model.made",
            {"number": 2, "decisions": 260, "learned": True},
            "ann trained the failure estimate (version 2) on 260 reviewed runs",
        ),
        (
            "outcome_model.made",
            {"number": 1, "decisions": 1, "learned": False},
            "ann trained the failure estimate (version 1) on 1 reviewed run",
        ),
        ("evalrun.submitted", {"name": "{n} [of] it"}, "ann started the evaluation {n} [of] it"),
        ("unheard.of_thing", {}, "ann did unheard: of thing"),
        (
            "failure.decided",
            {"after": {"mode": "bad_planning"}},
            "ann triaged a failure as bad_planning",
        ),
        ("failure.decided", {"after": "nonsense"}, "ann triaged a failure"),
    ],
)
def test_an_event_is_a_sentence(action: str, detail: dict, said: str) -> None:
    assert sentence(AuditEvent(actor_label="ann", action=action, detail=detail)) == said


def test_what_is_counted_has_a_singular_and_a_plural() -> None:
    counted = [
        field[2].split("|")[1:]
        for words in WORDS.values()
        for field in FIELD.finditer(words)
        if "|" in field[2]
    ]
    assert counted and all(len(forms) >= 2 for forms in counted)


def test_without_a_user_flywheel_or_the_command_line_acted(project: Project) -> None:
    assert audit("project.archived", project=project, by=None).actor_label == "Flywheel"
    token = ACTOR.set(COMMAND_LINE)
    assert audit("project.archived", project=project, by=None).actor_label == "command line"
    ACTOR.reset(token)


@pytest.mark.parametrize("action", sorted(WORDS))
def test_no_sentence_breaks_without_its_details(action: str) -> None:
    event = AuditEvent(
        actor_label="ann", action=action, detail={}, target_type="evals.evalset", target_id="1"
    )
    assert pieces(event, "project") and not set("{}[]") & set(sentence(event))
