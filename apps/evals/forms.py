from __future__ import annotations

import json
from typing import Any

from django import forms

from apps.core.models import Project
from apps.evals.models import Split


class EvalSetForm(forms.Form):
    slug = forms.SlugField(max_length=80, label="Name", help_text="Letters, digits, dashes")
    description = forms.CharField(required=False)


class TaskForm(forms.Form):
    key = forms.SlugField(max_length=120)
    request = forms.CharField(widget=forms.Textarea, max_length=20_000)
    expected = forms.CharField(widget=forms.Textarea, help_text='{"tool": "…", "args": {…}}')
    split = forms.ChoiceField(choices=Split.choices)
    group = forms.CharField(required=False, max_length=200, help_text="Tasks of one group stay on one side of a split")

    def clean_expected(self) -> dict:
        try:
            value = json.loads(self.cleaned_data["expected"])
        except ValueError as error:
            raise forms.ValidationError(f"Not JSON: {error}") from error
        if (
            not isinstance(value, dict)
            or not isinstance(value.get("tool"), str)
            or not isinstance(value.get("args"), dict)
        ):
            raise forms.ValidationError('An object with "tool" (text) and "args" (object) is needed.')
        return {"tool": value["tool"], "args": value["args"]}


class SplitForm(forms.Form):
    holdout_size = forms.IntegerField(min_value=1, initial=60)
    validation_size = forms.IntegerField(min_value=0, initial=0)
    seed = forms.IntegerField(initial=0)


class EvalRunForm(forms.Form):
    """What to evaluate, in one project: everything offered is the project's own."""

    model_version = forms.ModelChoiceField(None)
    environment = forms.ModelChoiceField(None)
    split = forms.ChoiceField(choices=Split.choices, initial=Split.HOLDOUT)
    samples_per_task = forms.IntegerField(min_value=1, max_value=64, initial=8)
    seed = forms.IntegerField(initial=0)

    def __init__(self, project: Project, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["model_version"].queryset = project.model_versions.all()
        self.fields["environment"].queryset = project.environments.select_related("verifier")
        for name in ("model_version", "environment"):  # the newest is chosen, not a row of dashes
            self.fields[name].empty_label = None

    def clean_split(self) -> Split:
        return Split(self.cleaned_data["split"])
