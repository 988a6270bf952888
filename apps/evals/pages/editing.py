"""Editing tasks: one on its own page, or many at once (move, tag, confirm, remove)."""

from __future__ import annotations

import json
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.form_bounds import bounds_from
from apps.core.forms import PlainForm, json_of
from apps.core.http import uuid_of
from apps.core.models import Project, Role
from apps.core.routes import SIDES, shows
from apps.evals import editing
from apps.evals.editing_api import Edit
from apps.evals.formats.rows import Bad, check_storable, checked_expected, checked_messages
from apps.evals.forms import EXPECTED_HELP, LONGEST_REQUEST
from apps.evals.holdout.view_log import record_refusal
from apps.evals.models import EvalSet, Task
from apps.evals.pages.attempt import attempt
from apps.evals.pages.tasks import may_see_task

JSON_BOX = {"class": "mono", "spellcheck": "false"}


def plain_request(asked: list[dict]) -> str | None:
    """The text of a task that is a single user message; None otherwise."""
    only = asked[0] if len(asked) == 1 else {}
    return (
        only["content"]
        if only.keys() == {"role", "content"}
        and only["role"] == "user"
        and isinstance(only["content"], str)
        else None
    )


@bounds_from(Edit)
class TaskEditForm(PlainForm):
    """The fields of a task that a person may change. A request that is one text is edited as text,
    otherwise as JSON.
    """

    request = forms.CharField(widget=forms.Textarea(attrs={"rows": 5}), max_length=LONGEST_REQUEST)
    expected = forms.CharField(
        widget=forms.Textarea(attrs=JSON_BOX | {"rows": 8}),
        label="Expected",
        help_text=EXPECTED_HELP,
    )
    demonstration = forms.CharField(
        widget=forms.Textarea(attrs={"rows": 3}),
        required=False,
        help_text="A good answer, as the agent would write it",
    )
    tags = forms.CharField(required=False, max_length=1000, help_text="Separated by commas")
    seen = forms.CharField(widget=forms.HiddenInput)

    def __init__(self, task: Task, *args: Any, **kwargs: Any) -> None:
        said = plain_request(task.messages)
        initial = {
            "request": (
                json.dumps(task.messages, indent=2, ensure_ascii=False) if said is None else said
            ),
            "expected": json.dumps(task.expected, indent=2, ensure_ascii=False),
            "demonstration": task.demonstration,
            "tags": ", ".join(editing.tags_of(task.metadata)),
            "seen": editing.fingerprint(task),
        }
        super().__init__(*args, initial=initial, **kwargs)
        self.is_plain = said is not None
        if not self.is_plain:
            self.fields["request"].label = "Messages"
            self.fields["request"].help_text = "OpenAI chat messages, up to the agent's next turn"
            self.fields["request"].widget = forms.Textarea(attrs=JSON_BOX | {"rows": 16})

    def clean_request(self) -> list[dict]:
        given = self.cleaned_data["request"]
        found = [{"role": "user", "content": given}] if self.is_plain else json_of(given)
        return self._checked(checked_messages, found, "messages")

    def clean_expected(self) -> dict:
        return self._checked(checked_expected, json_of(self.cleaned_data["expected"]), "expected")

    def _checked(self, check: Any, value: Any, name: str) -> Any:
        try:
            check_storable(found := check(value, name), name)
        except Bad as error:
            raise forms.ValidationError(str(error)) from error
        return found

    def clean_tags(self) -> list[str]:
        return [part for part in self.cleaned_data["tags"].split(",") if part.strip()]


@shows("a held-out task, once the person has opened it")
@project_view(Role.ENGINEER)
def edit(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    """Held-out tasks only for people who have opened them. A task of a frozen set is edited in the
    set's draft, which is created if needed."""
    task = get_object_or_404(
        Task.objects.select_related("project", "eval_set"), project=project, pk=pk
    )
    if not may_see_task(request, task):
        return redirect("evals:task", project.slug, pk)
    form = TaskEditForm(task, request.POST or None)
    if request.method == "POST" and form.is_valid():
        data = form.cleaned_data
        try:
            made = editing.edit_task(
                task=task,
                seen=data["seen"],
                messages=data["request"],
                expected=data["expected"],
                demonstration=data["demonstration"],
                tags=data["tags"],
                by=request.user,
            )
        except editing.actions.EvalSetError as error:
            record_refusal(project, error, by=request.user)
            form.add_error(None, str(error))
        else:
            messages.success(request, f"Saved in {made.eval_set}.")
            return redirect("evals:task", project.slug, made.pk)
    return render(
        request,
        "evals/task_edit.html",
        {"task": task, "form": form},
        status=400 if form.errors else 200,
    )


@shows(SIDES)
@require_POST
@project_view(Role.ENGINEER)
def change_tasks(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    """The selected tasks of a draft: `what` is one of editing.WHAT, `value` a split or a tag."""
    eval_set = get_object_or_404(EvalSet, project=project, pk=pk)
    chosen = [
        found for given in request.POST.get("ids", "").split(",") if (found := uuid_of(given))
    ]
    what = request.POST.get("what", "")
    value = request.POST.get("split" if what == editing.MOVE else "tag", "")

    def change() -> None:
        count = editing.change_tasks(
            eval_set=eval_set, tasks=chosen, what=what, value=value, by=request.user
        )
        messages.success(request, f"{count:,} task{'' if count == 1 else 's'} changed.")

    return attempt(request, eval_set, change)
