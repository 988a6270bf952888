"""What happens to a project's data: redaction rules with their test box, and how long trajectories
are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from itertools import islice
from typing import Any
from uuid import UUID

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.forms import PlainForm
from apps.core.models import Project, Role
from apps.core.routes import RUNS, shows
from apps.trajectories import held
from apps.trajectories.actions import redaction
from apps.trajectories.api import as_json
from apps.trajectories.models import Retention, Trajectory
from apps.trajectories.redaction import (
    BUILTINS,
    ID,
    MAX_NAME,
    MAX_PATTERN,
    MAX_REPLACEMENT,
    Hit,
    Redactor,
    Rule,
    RuleError,
    presidio,
    strings,
)
from apps.trajectories.retention import LONGEST, set_retention
from apps.trajectories.shown import runs_shown

MAX_TEXT, MAX_SHOWN = 200_000, 50


class RuleForm(PlainForm):
    name = forms.CharField(max_length=MAX_NAME)
    pattern = forms.CharField(max_length=MAX_PATTERN, strip=False)
    replacement = forms.CharField(max_length=MAX_REPLACEMENT, required=False)


class TestForm(PlainForm):
    """`pattern` is tried before it is a rule; `trajectory` is a client's id or ours."""

    text = forms.CharField(max_length=MAX_TEXT, required=False, strip=False)
    trajectory = forms.CharField(max_length=200, required=False)
    pattern = forms.CharField(max_length=MAX_PATTERN, required=False, strip=False)
    all = forms.BooleanField(required=False)


@dataclass
class Switch:
    kind: str
    title: str
    example: str
    on: bool
    token: bool


@dataclass
class Shown:
    """One text in pieces: (plain text, the hit after it or None)."""

    pieces: list[tuple[str, Hit | None]]


@project_view()
def page(request: HttpRequest, project: Project) -> HttpResponse:
    return _page(request, project, RuleForm())


def _page(
    request: HttpRequest, project: Project, form: RuleForm, status: int = 200
) -> HttpResponse:
    own = redaction.own_rules(project).select_related("by")
    context = {
        "switches": _switches(project),
        "rules": own,
        "form": form,
        "presidio": _presidio(project),
        "version": redaction.version_of(project),
        "operator": request.membership.may(Role.OPERATOR),
        "text": request.POST.get("text", ""),
        "retention": Retention.objects.filter(project=project).first(),
    }
    return render(request, "trajectories/redaction.html", context, status=status)


def _switches(project: Project) -> list[Switch]:
    rows = {
        row.kind: row
        for row in project.redaction_rules.filter(kind__in=redaction.SWITCHES, enabled=True)
    }
    return [
        Switch(
            kind,
            item.title,
            item.example,
            kind in rows,
            kind in rows and ID in rows[kind].replacement,
        )
        for kind, item in BUILTINS.items()
    ]


class PresidioForm(PlainForm):
    on = forms.BooleanField(required=False)
    token = forms.BooleanField(required=False)
    entities = forms.MultipleChoiceField(
        choices=presidio.ENTITIES.items(),
        required=False,
        widget=forms.CheckboxSelectMultiple,
        label="Look for",
    )
    language = forms.ChoiceField(
        choices=presidio.LANGUAGES.items(),
        help_text="Of the model; texts in other languages are read with it, too",
    )
    score = forms.FloatField(
        min_value=0.01,
        max_value=1,
        label="Minimum score",
        widget=forms.NumberInput({"step": "0.05"}),
        help_text=(
            "0.01 to 1. What a model finds has the score 0.85; patterns without context have less"
        ),
    )
    model = forms.ChoiceField(
        required=False, help_text="Patterns alone find no people and places, but need no model"
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        there = [(name, f"{name} ({language})") for name, language in presidio.models().items()]
        chosen = self.initial.get("model", "")
        gone = (
            [(chosen, f"{chosen} (not on this machine)")]
            if chosen and chosen not in (presidio.PATTERNS, *dict(there))
            else []
        )
        first = [
            ("", "Largest installed model of the language"),
            (presidio.PATTERNS, "No model: patterns only"),
        ]
        self.fields["model"].choices = [*first, *there, *gone]

    @property
    def settings(self) -> presidio.Settings:
        given = self.cleaned_data
        return presidio.Settings(
            tuple(given["entities"]), given["language"], given["score"], given["model"]
        )


def _presidio(project: Project) -> dict[str, Any]:
    """What the page shows: the form, whether it is on, and why it cannot be used on this
    machine.
    """
    row = project.redaction_rules.filter(kind=redaction.PRESIDIO).first()
    settings, problem = presidio.Settings(), ""
    try:
        settings = presidio.settings_of(row.pattern if row else "")
        presidio.check(settings)
    except RuleError as error:
        problem = str(error)
    is_on = bool(row and row.enabled)
    now = {name: getattr(settings, name) for name in ("language", "score", "model")} | {
        "entities": list(settings.entities)
    }
    form = PresidioForm(
        initial=now | {"on": is_on, "token": bool(row and ID in row.replacement)},
        auto_id="presidio-%s",
    )
    return {"form": form, "on": is_on, "problem": problem, "waiting": held.waiting_of(project)}


def action(view: Callable[..., str]) -> Callable[..., HttpResponse]:
    """A form of the page: `view` does what it asks and returns the sentence that the page shows, or
    raises RuleError.
    """

    @require_POST
    @project_view(Role.OPERATOR)
    @wraps(view)
    def wrapper(request: HttpRequest, project: Project, **kwargs: Any) -> HttpResponse:
        try:
            if said := view(request, project, **kwargs):
                messages.success(request, said)
        except RuleError as error:
            messages.error(request, str(error))
        return redirect("trajectories:redaction", project.slug)

    return wrapper


@action
def save_presidio(request: HttpRequest, project: Project) -> str:
    form = PresidioForm(request.POST)
    if not form.is_valid():
        raise RuleError(
            " ".join(
                f"{form[name].label}: {error}"
                for name, errors in form.errors.items()
                for error in errors
            )
        )
    given = form.cleaned_data
    redaction.save_presidio(
        project=project,
        on=given["on"],
        token=given["token"],
        settings=form.settings,
        by=request.user,
    )
    return "Saved. It applies to new trajectories within 5 seconds."


@action
def decide_held(request: HttpRequest, project: Project) -> str:
    """What was set aside before storage is tried again, or discarded: `do`."""
    if request.POST.get("do") == "discard":
        return f"{held.discard(project=project, by=request.user)} discarded."
    return f"{held.retry(project=project, by=request.user)} will be tried again within seconds."


class RetentionForm(PlainForm):
    days = forms.IntegerField(min_value=1, max_value=LONGEST, required=False)


@action
def retention(request: HttpRequest, project: Project) -> str:
    form = RetentionForm(request.POST)
    if not form.is_valid():
        raise RuleError(" ".join(error for errors in form.errors.values() for error in errors))
    days = form.cleaned_data["days"]
    set_retention(project=project, days=days, by=request.user)
    if days:
        return f"Trajectories are kept for {days} days; older ones are deleted within the hour."
    return "All trajectories are kept."


@action
def switch(request: HttpRequest, project: Project) -> str:
    chosen = {kind: kind in request.POST.getlist("token") for kind in request.POST.getlist("on")}
    redaction.save_builtins(project=project, chosen=chosen, by=request.user)
    return "Saved. It applies to new trajectories within 5 seconds."


@require_POST
@project_view(Role.OPERATOR)
def add(request: HttpRequest, project: Project) -> HttpResponse:
    form = RuleForm(request.POST)
    if form.is_valid():
        try:
            rule = redaction.add(project=project, by=request.user, **form.cleaned_data)
        except RuleError as error:
            form.add_error(None, str(error))
        else:
            messages.success(
                request,
                f"The rule “{rule}” is on and applies to new trajectories within 5 seconds.",
            )
            return redirect("trajectories:redaction", project.slug)
    return _page(request, project, form)


@action
def edit(request: HttpRequest, project: Project, pk: int) -> str:
    """Changes a rule's text, or what `do` says: on, off, up, down."""
    rule, do = get_object_or_404(redaction.own_rules(project), pk=pk), request.POST.get("do", "")
    if do in ("on", "off"):
        redaction.set_enabled(rule=rule, enabled=do == "on", by=request.user)
    elif do in ("up", "down"):
        redaction.move(rule=rule, up=do == "up", by=request.user)
    else:
        form = RuleForm(request.POST)
        if not form.is_valid():
            raise RuleError("A rule needs a name and a pattern.")
        redaction.edit(rule=rule, by=request.user, **form.cleaned_data)
    return ""


@action
def delete(request: HttpRequest, project: Project, pk: int) -> str:
    rule = get_object_or_404(redaction.own_rules(project), pk=pk)
    redaction.delete(rule=rule, by=request.user)
    return f"Rule “{rule}” deleted."


@shows(RUNS)
@project_view()
def test(request: HttpRequest, project: Project) -> HttpResponse:
    """What would be replaced in a text or in a stored trajectory. Nothing of it is kept."""
    form = TestForm(request.POST or None)
    context: dict = {"asked": form.is_bound}
    if form.is_bound and not form.is_valid():
        context["error"] = " ".join(error for errors in form.errors.values() for error in errors)
    elif form.is_bound:
        try:
            context |= _tried(request, project, **form.cleaned_data)
        except RuleError as error:
            context["error"] = str(error)
    return render(request, "trajectories/_redaction_test.html", context)


def _tried(
    request: HttpRequest, project: Project, *, text: str, trajectory: str, pattern: str, all: bool
) -> dict:
    """Raises RuleError for a pattern that cannot be used and for a trajectory that is not there."""
    rules = list(redaction.rules_of(project))
    if all:
        on = {rule.kind for rule in rules}
        rules += [Rule(kind, kind) for kind in BUILTINS if kind not in on]
    if pattern:
        rules = [Rule("this pattern", "regex", pattern), *rules]
    redactor = Redactor(rules, key=redaction.secret_of(project))
    texts = [text]
    if trajectory:
        row = _trajectory(project, trajectory)
        runs_shown(project, [row.pk], to=request.user, where="test of redaction")
        texts = strings(as_json(row))
    hits = ((one, redactor.hits(one)) for one in texts)
    found = list(
        islice(((one, some) for one, some in hits if some or not trajectory), MAX_SHOWN + 1)
    )
    return {
        "shown": [Shown(_pieces(one, some)) for one, some in found[:MAX_SHOWN]],
        "more": len(found) > MAX_SHOWN,
        "strings": len(texts) if trajectory else 0,
        "count": sum(len(some) for _, some in found[:MAX_SHOWN]),
        "rules": len(rules),
    }


def _trajectory(project: Project, name: str) -> Trajectory:
    row = project.trajectories.filter(external_id=name).first()
    if row is None:
        try:
            row = project.trajectories.filter(pk=UUID(name)).first()
        except ValueError:
            row = None
    if row is None:
        raise RuleError(f"There is no trajectory “{name}” in {project}.")
    return row


def _pieces(text: str, hits: list[Hit]) -> list[tuple[str, Hit | None]]:
    places = [0, *(hit.end for hit in hits)]
    pieces: list[tuple[str, Hit | None]] = [
        (text[place : hit.start], hit) for place, hit in zip(places, hits, strict=False)
    ]
    return [*pieces, (text[places[-1] :], None)]
