"""The rules that the judge read in system prompts or people wrote, with recent runs that break
them: people confirm, dismiss, write and edit.
"""

from __future__ import annotations

import json
from typing import Any

from django import forms
from django.contrib import messages
from django.db.models import Exists, OuterRef, Prefetch
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.following import ASKED, asked_at
from apps.core.forms import PlainForm
from apps.core.models import Project, Role
from apps.core.paging import page_of
from apps.core.query import PAGE_NUMBER
from apps.core.routes import RUNS, shows
from apps.failures.actions import rule_decisions
from apps.failures.actions.rule_decisions import RuleError, WrittenRule
from apps.failures.judge import rubrics
from apps.failures.judge.prompt_rules import LONGEST_SENTENCE
from apps.failures.models import PolicyRule, SystemPrompt
from apps.failures.prompts import MOST_EXAMPLES, rules_of, undecided
from apps.failures.rules.policy import MUST, NEEDS_OTHER
from apps.failures.rules.statements import LONGEST_QUOTE, RECENT
from apps.failures.unconfirmed import unconfirmed
from apps.trajectories.shown import runs_shown
from workers.lib.typed import FormError, convert

SHOWN = 5  # prompts
NO_CHECK = "The judge decides (no check)"


class RuleForm(PlainForm):
    """A rule and its check, part by part; conditions on values are JSON Schemas."""

    sentence = forms.CharField(
        max_length=LONGEST_SENTENCE,
        label="Rule",
        widget=forms.Textarea({"rows": 2}),
        help_text="In plain words, as the evidence and the judge should state it",
    )
    quote = forms.CharField(
        max_length=LONGEST_QUOTE,
        required=False,
        label="Words of the prompt",
        help_text="It applies to runs whose system prompt states this; empty: to all runs",
    )
    must = forms.ChoiceField(
        required=False,
        label="Check",
        choices=[("", NO_CHECK), *((name, f"… {words} …") for name, words in MUST.items())],
    )
    tools = forms.CharField(
        required=False,
        label="Tools",
        help_text="A call of one of these is checked: close_ticket, archive_ticket (* for any)",
    )
    arguments = forms.CharField(
        required=False,
        label="Only with arguments",
        widget=forms.Textarea({"rows": 2, "spellcheck": "false"}),
        help_text='JSON Schema: {"properties": {"amount": {"exclusiveMinimum": 500}}}',
    )
    other_tools = forms.CharField(required=False, label="Other tools", help_text="get_ticket")
    other_arguments = forms.CharField(
        required=False,
        label="Their arguments",
        widget=forms.Textarea({"rows": 2, "spellcheck": "false"}),
        help_text="JSON Schema",
    )
    same = forms.CharField(
        required=False,
        label="Same values",
        help_text="ticket_id; or id=ticket_id, if the other call names it otherwise",
    )
    reply_shows = forms.CharField(
        required=False,
        label="Reply contains",
        help_text="Arguments of the first call whose values the other call's reply must contain",
    )
    reply = forms.CharField(
        required=False,
        label="Reply matches",
        widget=forms.Textarea({"rows": 2, "spellcheck": "false"}),
        help_text=(
            'JSON Schema: {"properties": {"status": {"const": "pending"}}, "required": ["status"]}'
        ),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in ("tools", "arguments"):
            self.fields[name].widget.attrs["data-of-form"] = "call"
        for name in ("other_tools", "other_arguments", "same", "reply_shows", "reply"):
            self.fields[name].widget.attrs["data-of-form"] = "other"

    @classmethod
    def initial_of(cls, rule: PolicyRule) -> dict[str, str]:
        check = rule.check_spec or {}
        when, other = check.get("when", {}), check.get("other", {})
        same = other.get("same", {}).items()
        return {
            "sentence": rule.sentence,
            "must": check.get("must", ""),
            "tools": ", ".join(when.get("tools", ())),
            "arguments": _json(when.get("arguments")),
            "other_tools": ", ".join(other.get("tools", ())),
            "other_arguments": _json(other.get("arguments")),
            "same": ", ".join(one if one == two else f"{one}={two}" for one, two in same),
            "reply_shows": ", ".join(other.get("shows", ())),
            "reply": _json(other.get("reply")),
        }

    def clean(self) -> dict[str, Any]:
        data = self.cleaned_data
        schemas = {name: self._schema(name) for name in ("arguments", "other_arguments", "reply")}
        when = {"tools": _names(data.get("tools")), "arguments": schemas["arguments"]}
        other = {
            "tools": _names(data.get("other_tools")),
            "arguments": schemas["other_arguments"],
            "same": {
                theirs.strip(): (mine or theirs).strip()
                for item in _names(data.get("same"))
                for theirs, _, mine in [item.partition("=")]
            },
            "shows": _names(data.get("reply_shows")),
            "reply": schemas["reply"],
        }
        must = data.get("must")
        check = {
            "when": when,
            "must": must,
            "other": other if must in NEEDS_OTHER else None,
        }
        given = {"sentence": data.get("sentence", ""), "quote": data.get("quote") or ""}
        if not self.errors:
            try:
                whole = given | ({"check": check} if must else {})
                data["rule"] = convert(
                    whole | {"state": self.data.get("state") or "confirmed"}, WrittenRule
                )
            except FormError as error:
                self.refuse(str(error), error.path)
        return data

    def _schema(self, name: str) -> Any:
        if not (text := self.cleaned_data.get(name)):
            return None
        try:
            given = json.loads(text)
        except (ValueError, RecursionError) as error:
            self.add_error(name, f"This is not JSON: {error}")
            return None
        if not isinstance(given, dict):
            self.add_error(name, "Write a JSON object.")
            return None
        return given

    def refuse(self, sentence: str, where: str) -> None:
        """Shows what is wrong beside the field that holds it."""
        _, _, part = where.partition("check.")
        of_other = "other_" if part.startswith("other.") else ""
        last = part.rpartition(".")[2].partition("[")[0]
        name = {"shows": "reply_shows"}.get(last, last if last in self.fields else of_other + last)
        name = name if not (of_other and last in ("tools", "arguments")) else of_other + last
        self.add_error(name if name in self.fields else (where or "must"), sentence)


def _names(text: str | None) -> list[str]:
    return [name for part in (text or "").split(",") if (name := part.strip())]


def _json(value: Any) -> str:
    return "" if value is None else json.dumps(value, ensure_ascii=False)


@shows(RUNS)
@project_view(query={"state": list(PolicyRule.DECISIONS), "page": PAGE_NUMBER} | ASKED)
def page(request: HttpRequest, project: Project) -> HttpResponse:
    """All rules, or `?state=` those in one state: the written ones, then by prompt."""
    rules, state = rules_of(project).current(), request.GET.get("state", "")
    if state in PolicyRule.DECISIONS:
        rules = rules.filter(state=state)
    shown = Exists(rules.order_by().filter(prompt=OuterRef("pk")))
    prompts = project.system_prompts.all() if not state else project.system_prompts.filter(shown)
    prompts = page_of(request, prompts.prefetch_related(Prefetch("rules", rules)), SHOWN)
    first = prompts.number == 1
    written = list(rules.filter(prompt=None)) if first else []
    groups = [written, *(prompt.rules.all() for prompt in prompts)]
    runs = {one.trajectory_id for group in groups for rule in group for one in rule.newest}
    runs_shown(project, runs, to=request.user, where="policy rules")
    context = {
        "page": prompts,
        "written": written,
        "state": state,
        "states": [(value.value, value.label) for value in PolicyRule.DECISIONS],
        "waiting": undecided(project),
        "unconfirmed": unconfirmed(project),
        "shown": MOST_EXAMPLES,
        "recent": RECENT,
        "there": project.policy_rules.current().exists() or project.system_prompts.exists(),
        "may_write": request.membership.may(Role.REVIEWER),
        "judge": rubrics.current(project),
        "is_looking": _is_looking(request, project),
    }
    return render(request, "failures/policy.html", context)


def _is_looking(request: HttpRequest, project: Project) -> bool:
    """Whether the look that this page asked for is not done: it ends with the trial of all
    checks.
    """
    if not (asked := asked_at(request)):
        return False
    rules = project.policy_rules.current().exclude(state=PolicyRule.State.DISMISSED)
    if rules.exists():
        return not rules.filter(tried_at__gte=asked).exists()
    read = project.system_prompts.filter(at__gte=asked).exclude(error=SystemPrompt.WAITING)
    return not read.exists()


@project_view(Role.REVIEWER)
def new(request: HttpRequest, project: Project) -> HttpResponse:
    """The form for a rule; htmx puts it into the page of the rules."""
    form = RuleForm(request.POST or None, auto_id="new-rule-%s")
    return _save(request, project, form)


@project_view(Role.REVIEWER)
def edit(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    """The form for a new version of a rule; htmx puts it into the rule's row. If somebody else has
    saved one in the meantime, what was written is shown beside that.
    """
    rule = _newest_version(get_object_or_404(PolicyRule, project=project, pk=pk))
    form = RuleForm(
        request.POST or None, initial=RuleForm.initial_of(rule), auto_id=f"rule-{rule.pk}-%s"
    )
    del form.fields["quote"]
    if rule.pk != pk and form.is_bound:
        form.add_error(
            None,
            f"{rule.decided_by or 'Somebody'} has saved version {rule.version} in the meantime:"
            f" “{rule.sentence}” Save again to replace it with yours.",
        )
    return _save(request, project, form, rule)


def _newest_version(rule: PolicyRule) -> PolicyRule:
    """Raises Http404 if it was removed."""
    rows = PolicyRule.objects.filter(project=rule.project)
    while newer := rows.filter(replaces=rule).first():
        rule = newer
    return get_object_or_404(rows.current(), pk=rule.pk)


def _save(
    request: HttpRequest, project: Project, form: RuleForm, rule: PolicyRule | None = None
) -> HttpResponse:
    """Shows the form, with what is wrong; if it was sent and valid, goes to the rule."""
    if request.method == "POST" and form.is_valid():
        given, by = form.cleaned_data["rule"], request.user
        try:
            saved = (
                rule_decisions.edit(rule=rule, by=by, given=given)
                if rule
                else rule_decisions.write(project=project, by=by, given=given)
            )
        except RuleError as refused:
            where = getattr(refused.__cause__, "field", "") or refused.field or ""
            form.refuse(str(refused), where)
        else:
            messages.success(request, "Rule saved. It is being tried on recent runs.")
            return _at(project, saved)
    name = "_policy_form" if request.htmx else "policy_form"
    first = next((field for field in form.fields if field in form.errors), "sentence")
    form.fields[first].widget.attrs["autofocus"] = True
    return render(request, f"failures/{name}.html", {"form": form, "rule": rule})


def _at(project: Project, rule: PolicyRule | None) -> HttpResponse:
    return redirect(
        f"{reverse('failures:policy', args=[project.slug])}{f'#rule-{rule.pk}' if rule else ''}"
    )


@require_POST
@project_view(Role.REVIEWER)
def decide(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    """Answers htmx with the rule's new state and the number left to review alone: the page
    moves on to the next row.
    """
    rule, error = get_object_or_404(PolicyRule, project=project, pk=pk), ""
    state = request.POST.get("state", "")
    try:
        if state not in PolicyRule.DECISIONS:
            raise RuleError("The state must be confirmed, dismissed or proposed.")
        rule_decisions.decide(rule=rule, state=state, by=request.user)
    except RuleError as refused:
        error = str(refused)
    if request.htmx:
        context = {
            "rule": get_object_or_404(rules_of(project), pk=pk),
            "error": error,
            "may_write": True,
            "waiting": undecided(project),
            "swap": True,
        }
        return render(request, "failures/_policy_decided.html", context)
    if error:
        messages.error(request, error)
    return _at(project, rule)


@require_POST
@project_view(Role.REVIEWER)
def undo(request: HttpRequest, project: Project) -> HttpResponse:
    rule = rule_decisions.undo(project=project, by=request.user)
    messages.info(request, "Your last decision was undone." if rule else "Nothing to undo.")
    return _at(project, rule)
