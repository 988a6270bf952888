"""Rules of agents: people confirm, dismiss, write, edit and remove them. A change of what is
checked has the project's runs classified again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone
from msgspec import Meta, Struct, field

from apps.core import outbox
from apps.core.actions import audit
from apps.core.errors import Rejected
from apps.core.locks import ProjectLock, acquire_in
from apps.core.models import Project, Role
from apps.core.openapi import sent
from apps.core.operations import Moment, Page, Paged, Rest, Written, choice_of, operation
from apps.core.operations.rest import filled
from apps.core.routes import RUNS, Disclosure
from apps.failures.classify_job import classify_again
from apps.failures.judge.prompt_reading import TASK, known_tools, recent_runs
from apps.failures.judge.prompt_rules import LONGEST_SENTENCE
from apps.failures.models import PolicyRule, SystemPrompt
from apps.failures.prompts import rules_of
from apps.failures.rules.findings import cut
from apps.failures.rules.policy import Check, CheckError, check_of
from apps.failures.rules.statements import LONGEST_QUOTE, RECENT, located
from apps.trajectories.shown import runs_shown
from workers.lib.typed import json_schema, plain

State = PolicyRule.State
CHANGED = "This rule was edited or removed in the meantime. Reload the page."
MOST_WRITTEN, MOST_CONFIRMED = 100, 200  # current rules per project
EXAMPLE = {
    "sentence": "An order may only be cancelled while it is pending.",
    "check": {
        "when": {"tools": ["cancel_order"]},
        "must": "only_after",
        "other": {
            "tools": ["get_order"],
            "same": {"order_id": "order_id"},
            "reply": {"properties": {"status": {"const": "pending"}}, "required": ["status"]},
        },
    },
}


class RuleError(Rejected):
    """What cannot be done with a rule, as a sentence."""


class WrittenRule(Struct, forbid_unknown_fields=True, kw_only=True):
    """A rule as a person writes it."""

    sentence: Annotated[
        str,
        Meta(
            title="Rule",
            min_length=1,
            max_length=LONGEST_SENTENCE,
            description="In plain words, as the evidence and the judge should state it",
        ),
    ]
    check: Annotated[
        Check | None,
        Meta(description="Decides it from calls and values; without one, the judge is told it"),
    ] = None
    quote: Annotated[
        str,
        Meta(
            title="Words of the prompt",
            max_length=LONGEST_QUOTE,
            description="It applies to runs whose system prompt states this; empty: to all",
        ),
    ] = ""
    state: Annotated[Literal["confirmed", "proposed"], Meta(title="State")] = "confirmed"


class ExampleOut(Struct):
    run: str = field(name="trajectory")
    message_index: int
    text: str


class RuleOut(Struct):
    pk: int = field(name="id")
    sentence: str
    quote: str
    check_spec: dict[str, Any] | None = field(name="check")
    meaning: str
    state: choice_of(State)  # type: ignore[valid-type]
    problem: str
    prompt_digest: str | None = field(name="prompt")
    written: bool
    writer: str | None = field(name="written_by")
    version: int
    replaces_id: int | None = field(name="replaces")
    decider: str | None = field(name="decided_by")
    decided_at: Moment | None
    tried: int | None
    tried_at: Moment | None
    runs: int
    judged: int
    newest: list[ExampleOut] = field(name="examples")


def _load(request: Any, rules: Sequence[PolicyRule]) -> None:
    if runs := [one.trajectory_id for rule in rules for one in rule.newest]:
        runs_shown(rules[0].project, runs, to=request.auth, where="policy rules by API")


RULE = Written(json_schema(RuleOut), lambda _, rule: filled(RuleOut, rule), _load)
SHOWS_RUNS = Disclosure(RUNS)


class PromptOut(Struct, kw_only=True):
    digest: str
    opening: str
    length: int
    first_seen: Moment
    read_at: Moment | None
    read_by: Annotated[str, Meta(description="The judge's model")]
    state: choice_of(SystemPrompt.State)  # type: ignore[valid-type]
    problem: Annotated[str, Meta(description="Why it could not be read; empty unless `failed`")] = (
        field(name="error")
    )
    dropped: Annotated[int, Meta(description="Rules whose quote does not occur in the prompt")]
    cost_usd: Annotated[float, Meta(description="Of all questions that were answered or lost")]
    reserved_usd: Annotated[float, Meta(description="For the question under way, at most")]


@operation(
    "policy_rules_list",
    rest=Rest("GET", "policy-rules/", "policy_rules"),
    gives=Paged(RULE),
    shows=SHOWS_RUNS,
)
def listed(
    *,
    project: Project,
    state: choice_of(State) | None = None,  # type: ignore[valid-type]
) -> QuerySet[PolicyRule]:
    """The rules that the judge read in system prompts, or that people wrote. Replaced versions and
    removed rules are listed only with their `state`.
    """
    rows = rules_of(project)
    return rows.filter(state=state) if state else rows.current()


@operation(
    "policy_rules_read",
    rest=Rest("GET", "policy-rules/<int:pk>/", "policy_rule"),
    gives=RULE,
    shows=SHOWS_RUNS,
)
def one(*, rule: PolicyRule) -> PolicyRule:
    """A rule. `tried` is the number of recent runs to which it applies, `runs` how many of them
    break its check, `judged` in how many the judge saw it broken.
    """
    return rules_of(rule.project).get(pk=rule.pk)


@operation(
    "policy_prompts_list",
    rest=Rest("GET", "policy-rules/prompts/", "policy_prompts"),
    gives=list[PromptOut],
)
def prompts(*, project: Project) -> QuerySet[SystemPrompt]:
    """The system prompts that the judge has read, or is asked to read."""
    return project.system_prompts.all()


@operation(
    "policy_rules_look",
    rest=Rest("POST", "policy-rules/look/", "policy_look"),
    page=Page(
        "policy/look/",
        "policy_look",
        then="failures:policy",
        follows=True,
    ),
    role=Role.REVIEWER,
    says={"policy_rules.looked": "had recent system prompts read for rules"},
)
def look(*, project: Project, by: Any) -> None:
    """Has the judge read the system prompts of recent runs that it has not read, and tries all
    checks on them again. Prompts that several runs share are read without being asked.
    """
    outbox.post(TASK, project.pk, True, expires_s=600)
    audit("policy_rules.looked", project=project, by=by)


@operation(
    "policy_rules_write",
    rest=Rest("POST", "policy-rules/", "policy_rules", 201),
    gives=RULE,
    role=Role.REVIEWER,
    shows=SHOWS_RUNS,
    examples=(sent("An order may only be cancelled while it is pending", EXAMPLE),),
    says={"policy_rule.written": "wrote the policy rule “{sentence}”"},
)
@transaction.atomic
def write(*, project: Project, by: Any, given: WrittenRule) -> PolicyRule:
    """Adds a rule that a person wrote.

    Raises RuleError.
    """
    check, parts = _checked(project, given.check), _parts(project, given.quote)
    acquire_in(project.pk, ProjectLock.POLICY)
    rows = project.policy_rules.current()
    if rows.filter(written=True).count() >= MOST_WRITTEN:
        raise RuleError(
            f"A project can have at most {MOST_WRITTEN} rules written by hand. Remove one first."
        )
    _refuse_same(rows, given, check, parts)
    _refuse_more(project, given.state)
    fields = {"quote": " ".join(given.quote.split()), "parts": parts}
    rule = _created(project, given, check, by, **fields)
    audit("policy_rule.written", project=project, by=by, target=rule, sentence=cut(rule.sentence))
    return _changed(rule, by)


@operation(
    "policy_rules_edit",
    rest=Rest("PUT", "policy-rules/<int:pk>/", "policy_rule", 201),
    gives=RULE,
    role=Role.REVIEWER,
    shows=SHOWS_RUNS,
    says={"policy_rule.edited": "edited a policy rule: version {version} is “{sentence}”"},
)
@transaction.atomic
def edit(*, rule: PolicyRule, by: Any, given: WrittenRule) -> PolicyRule:
    """Replaces a rule with a new version. It applies to the same runs; `quote` is ignored.

    Raises RuleError.
    """
    project, check = rule.project, _checked(rule.project, given.check)
    acquire_in(project.pk, ProjectLock.POLICY)
    if _line(given.sentence) == rule.sentence and check == rule.check_spec:
        raise RuleError("Nothing has changed.", "sentence")
    _refuse_same(project.policy_rules.current().exclude(pk=rule.pk), given, check, rule.parts)
    if rule.state != State.CONFIRMED:
        _refuse_more(project, given.state)
    _retire(rule, State.REPLACED, by)
    same = {name: getattr(rule, name) for name in ("prompt", "quote", "parts")}
    new = _created(project, given, check, by, **same, version=rule.version + 1, replaces=rule)
    audit(
        "policy_rule.edited",
        project=project,
        by=by,
        target=new,
        sentence=cut(new.sentence),
        version=new.version,
    )
    return _changed(new, by)


@operation(
    "policy_rules_decide",
    rest=Rest("POST", "policy-rules/<int:pk>/", "policy_rule"),
    gives=RULE,
    role=Role.REVIEWER,
    shows=SHOWS_RUNS,
    says={
        "policy_rule.confirmed": "confirmed the policy rule “{sentence}”",
        "policy_rule.dismissed": "dismissed the policy rule “{sentence}”",
        "policy_rule.proposed": "undid the decision on the policy rule “{sentence}”",
    },
)
@transaction.atomic
def decide(
    *,
    rule: PolicyRule,
    by: Any,
    state: Annotated[Literal["proposed", "confirmed", "dismissed"], Meta(title="State")],
) -> PolicyRule:
    """Confirms or dismisses a rule, or undoes that.

    Raises RuleError.
    """
    acquire_in(rule.project_id, ProjectLock.POLICY)
    _refuse_more(rule.project, state)
    row = rule.project.policy_rules.current().filter(pk=rule.pk)
    if row.exclude(state=state).update(state=state, **_decided(state, by)):
        text = cut(rule.sentence)
        audit(f"policy_rule.{state}", project=rule.project, by=by, target=rule, sentence=text)
        return _changed(rule, by)
    if not row.exists():
        raise RuleError(CHANGED)
    return one(rule=rule)


@operation(
    "policy_rules_remove",
    rest=Rest("DELETE", "policy-rules/<int:pk>/", "policy_rule"),
    page=Page(
        "policy/<int:pk>/remove/", "policy_remove", then="failures:policy", done="Rule removed."
    ),
    role=Role.REVIEWER,
    says={"policy_rule.removed": "removed the policy rule “{sentence}”"},
)
@transaction.atomic
def remove(*, rule: PolicyRule, by: Any) -> None:
    """Removes a rule that a person wrote.

    Raises RuleError.
    """
    acquire_in(rule.project_id, ProjectLock.POLICY)
    if rule.prompt_id:
        raise RuleError("This rule was read in a system prompt. Dismiss it instead.")
    _retire(rule, State.REMOVED, by)
    text = cut(rule.sentence)
    audit("policy_rule.removed", project=rule.project, by=by, target=rule, sentence=text)
    _changed(rule, by)


@transaction.atomic
def undo(*, project: Project, by: Any) -> PolicyRule | None:
    """Turns the rule that the person decided on last back into a proposal. Returns it, or None if
    there is none.
    """
    rows = project.policy_rules.select_for_update(of=("self",)).current().filter(decided_by=by)
    rule = rows.order_by("-decided_at", "-pk").first()
    return decide(rule=rule, by=by, state="proposed") if rule else None


def _refuse_same(
    rows: QuerySet[PolicyRule], given: WrittenRule, check: dict[str, Any] | None, parts: list[str]
) -> None:
    """Raises RuleError if one of them says the same of the same runs."""
    same = rows.filter(sentence=_line(given.sentence), parts=parts)
    # In a filter None is JSON's null, not the column's.
    same = same.filter(check_spec__isnull=True) if check is None else same.filter(check_spec=check)
    if same.exists():
        raise RuleError("This rule already exists.", "sentence")


def _refuse_more(project: Project, state: str) -> None:
    """Raises RuleError."""
    confirmed = project.policy_rules.filter(state=State.CONFIRMED)
    if state == State.CONFIRMED and confirmed.count() >= MOST_CONFIRMED:
        raise RuleError(f"A project can have at most {MOST_CONFIRMED} confirmed rules.")


def _line(sentence: str) -> str:
    return " ".join("".join(filter(str.isprintable, " ".join(sentence.split()))).split())


def _checked(project: Project, check: Check | None) -> dict[str, Any] | None:
    """Against the tools of recent runs. Raises RuleError."""
    if check is None:
        return None
    try:
        return plain(check_of(plain(check), known_tools(recent_runs(project))))
    except CheckError as error:
        raise RuleError(str(error), "check") from error


def _parts(project: Project, quote: str) -> list[str]:
    """Of the newest prompt that states this. Raises RuleError."""
    if not quote.strip():
        return []
    systems = dict.fromkeys(seen.run.system for seen in recent_runs(project))
    found = next(filter(None, (located(system, quote) for system in systems)), ())
    if not found:
        raise RuleError(
            f"None of the newest {RECENT} runs has these words in its system prompt.", "quote"
        )
    return list(found)


def _created(
    project: Project, given: WrittenRule, check: dict[str, Any] | None, by: Any, **fields: Any
) -> PolicyRule:
    if not (sentence := _line(given.sentence)):
        raise RuleError("Write the rule in words.", "sentence")
    return project.policy_rules.create(
        sentence=sentence,
        check_spec=check,
        state=given.state,
        written=True,
        written_by=by,
        **_decided(given.state, by),
        **fields,
    )


def _retire(rule: PolicyRule, state: str, by: Any) -> None:
    """Raises RuleError if somebody was quicker."""
    row = PolicyRule.objects.current().filter(pk=rule.pk)
    if not row.update(state=state, **_decided(state, by)):
        raise RuleError(CHANGED)


def _decided(state: str, by: Any) -> Mapping[str, Any]:
    return (
        {"decided_by": None, "decided_at": None}
        if state == State.PROPOSED
        else {"decided_by": by, "decided_at": timezone.now()}
    )


def _changed(rule: PolicyRule, by: Any) -> PolicyRule:
    """Queues a pass over all runs if the rule, or what it replaces, has a check; and its trial."""
    project = rule.project
    if rule.check_spec or (rule.replaces and rule.replaces.check_spec):
        classify_again(project, by)
    if rule.tried is None:
        transaction.on_commit(partial(outbox.post, TASK, project.pk, expires_s=600))
    return one(rule=rule)
