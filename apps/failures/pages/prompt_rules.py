"""The rules that system prompts state or people wrote, by prompt, with runs that break them: people
confirm, dismiss, write and edit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from django import forms
from django.contrib import messages
from django.db.models import Case, Exists, OuterRef, Prefetch, Value, When
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.forms import PlainForm, whole
from apps.core.models import Project, Role
from apps.core.paging import page_of
from apps.core.query import KEY, PAGE_NUMBER
from apps.core.routes import RUNS, shows
from apps.failures.actions import rule_decisions
from apps.failures.actions.decisions import Refused
from apps.failures.models import PolicyRule, SystemPrompt
from apps.failures.prompts import ALL_RUNS, MOST_COUNTED, MOST_EXAMPLES, rules_of, undecided
from apps.failures.rules.conditions import LONGEST_SENTENCE
from apps.failures.rules.written import FORMS, LONGEST, Invalid
from apps.trajectories.shown import runs_shown

SHOWN = 5  # prompts
TITLES = {
    "if": "Something may be done only if a field has a value",
    "never": "Something can never be done to records with a value",
    "always": "Something can always be done to records with a value",
    "confirm": "Every change needs a “yes” from the user",
    "can": "The agent must not refuse to change something",
}


class RuleForm(PlainForm):
    sentence = forms.CharField(
        max_length=LONGEST_SENTENCE,
        label="Rule",
        widget=forms.Textarea({"rows": 2}),
        help_text="In plain words, as it should appear in the evidence",
    )
    kind = forms.ChoiceField(choices=TITLES.items(), label="Kind")
    subject = forms.CharField(
        max_length=LONGEST,
        required=False,
        label="Records",
        help_text=(
            "“an order” means every order; “delivered orders” only those with a field that says"
            " “delivered”"
        ),
    )
    verb = forms.CharField(
        max_length=LONGEST,
        required=False,
        label="Action",
        help_text=(
            "As in the tool's name: “cancelled” matches cancel_order. For what must not be refused:"
            " “change”"
        ),
    )
    field = forms.CharField(
        max_length=LONGEST,
        required=False,
        label="Field",
        help_text="Of the record, such as “status”",
    )
    value = forms.CharField(
        max_length=LONGEST,
        required=False,
        label="Value",
        help_text="Such as “pending”; if empty, any value except “no”",
    )
    days = forms.CharField(
        max_length=LONGEST,
        required=False,
        label="Grace period (days)",
        help_text=(
            "Always allowed this long after the record was made; if empty, there is no grace period"
        ),
    )
    thing = forms.CharField(
        max_length=LONGEST, required=False, label="Thing", help_text="One word, such as “address”"
    )
    except_for = forms.CharField(
        max_length=200,
        required=False,
        label="Except for",
        help_text="Words of what may be refused, separated by spaces",
    )

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        for name, field in self.fields.items():
            kinds = [
                kind
                for kind, names in FORMS.items()
                if (name if name != "except_for" else "except") in names
            ]
            if kinds:
                field.widget.attrs["data-of-form"] = " ".join(kinds)

    @property
    def form_of_rule(self) -> dict[str, str]:
        """As `written_rule` takes it."""
        given = self.cleaned_data
        return {
            name: given[name]
            for name in ("kind", "subject", "verb", "field", "value", "days", "thing")
        } | {"except": given["except_for"]}

    def add_invalid(self, invalid: Invalid) -> None:
        for name, error in invalid.errors.items():
            name = {"except": "except_for"}.get(name, name)
            self.add_error(name if name in self.fields else None, error)


@shows(RUNS)
@project_view(query={"state": list(PolicyRule.DECISIONS), "page": PAGE_NUMBER})
def page(request: HttpRequest, project: Project) -> HttpResponse:
    """All rules, or `?state=` those in one state."""
    rules, state = rules_of(project).current(), request.GET.get("state", "")
    if state in PolicyRule.DECISIONS:
        rules = rules.filter(state=state)
    first = Case(When(digest=ALL_RUNS, then=Value(0)), default=Value(1))
    prompts = project.system_prompts.filter(Exists(rules.order_by().filter(prompt=OuterRef("pk"))))
    prompts = prompts.order_by(first, "-first_seen", "-pk")
    prompts = page_of(request, prompts.prefetch_related(Prefetch("rules", rules)), SHOWN)
    runs = {
        one.trajectory_id
        for prompt in prompts
        for rule in prompt.rules.all()
        for one in rule.newest
    }
    runs_shown(project, runs, to=request.user, where="policy rules")
    context = {
        "page": prompts,
        "state": state,
        "states": [(value.value, value.label) for value in PolicyRule.DECISIONS],
        "waiting": undecided(project),
        "most": MOST_COUNTED,
        "shown": MOST_EXAMPLES,
        "there": PolicyRule.objects.current().filter(prompt__project=project).exists(),
        "may_write": request.membership.may(Role.REVIEWER),
    }
    return render(request, "failures/policy.html", context)


@project_view(Role.REVIEWER, query={"prompt": KEY})
def new(request: HttpRequest, project: Project) -> HttpResponse:
    """The form for a rule of the runs of `?prompt=`, or of all runs; htmx puts it into the page of
    the rules.
    """
    prompt = None
    if (pk := whole(request.GET.get("prompt"))) is not None:
        prompt = get_object_or_404(project.system_prompts.exclude(digest=ALL_RUNS), pk=pk)
    form = RuleForm(request.POST or None, auto_id="new-rule-%s")
    return _save(request, project, form, partial(rule_decisions.write, prompt=prompt), prompt)


@project_view(Role.REVIEWER)
def edit(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    """The form for a new version of a rule; htmx puts it into the rule's row."""
    rule = get_object_or_404(
        PolicyRule.objects.current().select_related("prompt"), prompt__project=project, pk=pk
    )
    now = rule.understood | {
        "sentence": rule.sentence,
        "except_for": rule.understood.get("except", ""),
    }
    form = RuleForm(request.POST or None, initial=now, auto_id=f"rule-{pk}-%s")
    return _save(request, project, form, partial(rule_decisions.edit, rule=rule), rule.prompt, rule)


def _save(
    request: HttpRequest,
    project: Project,
    form: RuleForm,
    act: Callable[..., PolicyRule],
    prompt: SystemPrompt | None,
    rule: PolicyRule | None = None,
) -> HttpResponse:
    """Shows the form; if it was sent, calls `act` and goes to the rule that it returns, or shows
    the form with what is wrong.
    """
    if request.method == "POST" and form.is_valid():
        sentence, state = (
            form.cleaned_data["sentence"],
            request.POST.get("state") or PolicyRule.State.CONFIRMED,
        )
        try:
            saved = act(
                project=project,
                sentence=sentence,
                form=form.form_of_rule,
                state=state,
                by=request.user,
            )
        except Invalid as invalid:
            form.add_invalid(invalid)
        except Refused as refused:
            form.add_error(None, str(refused))
        else:
            return _saved(request, project, saved)
    name = "_policy_form" if request.htmx else "policy_form"
    first = next((field for field in form.fields if field in form.errors), "sentence")
    form.fields[first].widget.attrs["autofocus"] = True
    prompt = prompt if prompt and prompt.digest != ALL_RUNS else None
    return render(request, f"failures/{name}.html", {"form": form, "prompt": prompt, "rule": rule})


def _saved(request: HttpRequest, project: Project, rule: PolicyRule) -> HttpResponse:
    then = "Runs are classified again; those that break it appear as policy violations."
    if rule.state == PolicyRule.State.PROPOSED:
        then = (
            "Runs that break it are listed here after they are classified again. Confirm it to make"
            " them policy violations."
        )
    messages.success(request, f"Rule saved. {then}")
    return _at(project, rule)


def _at(project: Project, rule: PolicyRule | None) -> HttpResponse:
    return redirect(
        f"{reverse('failures:policy', args=[project.slug])}{f'#rule-{rule.pk}' if rule else ''}"
    )


@require_POST
@project_view(Role.REVIEWER)
def remove(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    rule = get_object_or_404(PolicyRule, prompt__project=project, pk=pk)
    try:
        rule_decisions.remove(project=project, rule=rule, by=request.user)
    except Refused as refused:
        messages.error(request, str(refused))
    else:
        messages.success(request, "Rule removed. Runs are classified again.")
    return _at(project, None)


@require_POST
@project_view(Role.REVIEWER)
def decide(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    """Answers htmx with the rule's new state and the number left to review alone, so that the row
    stays selected.
    """
    rule, error = get_object_or_404(PolicyRule, prompt__project=project, pk=pk), ""
    try:
        rule_decisions.decide(
            project=project, rule=rule, state=request.POST.get("state", ""), by=request.user
        )
    except Refused as refused:
        error = str(refused)
    if request.htmx:
        rule = get_object_or_404(rules_of(project), pk=pk)
        context = {
            "rule": rule,
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
