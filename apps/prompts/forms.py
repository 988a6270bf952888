"""The forms of the prompt editor and of the playground: fields as a person types them, and what
they mean.
"""

from __future__ import annotations

import json
from typing import Any

from django import forms
from django.db.models import QuerySet

from apps.core.form_bounds import bounds_from
from apps.core.forms import PlainForm, json_of
from apps.core.models import Project
from apps.evals.formats.rows import Bad, checked_expected
from apps.evals.models import EvalSetState, Split, Task
from apps.prompts.api import StartPlayground
from apps.prompts.playground import MOST_CASES, MOST_SIDES, MOST_TOKENS, PlaygroundError, Side
from apps.registry.schema import NewPrompt
from workers.lib.messages import read_json
from workers.lib.prompts import Prompt, checked_prompt
from workers.lib.typed import FormError

CODE = {"rows": 6, "class": "mono", "spellcheck": "false"}
KEEPS = "If empty, the environment's is used"
SHOWN = [
    ("", "Same as the environment"),
    ("yes", "Send definitions"),
    ("no", "Send none: the system prompt describes them"),
]


class JsonList(forms.CharField):
    """JSON text → a list; None if nothing is typed, which is not the same as []."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            required=False, max_length=400_000, widget=forms.Textarea(attrs=CODE), **options
        )

    def clean(self, value: Any) -> list | None:
        text = super().clean(value)
        if not text.strip():
            return None
        found = json_of(text)
        if not isinstance(found, list):
            raise forms.ValidationError("Enter a list: […].")
        return found


@bounds_from(Prompt, notes=(NewPrompt, "notes"))
class PromptForm(PlainForm):
    """Every field may stay empty; what is left out stays as the environment has it."""

    name = forms.SlugField(max_length=80, help_text="Reusing a name creates its next version")
    system_prompt = forms.CharField(
        required=False,
        strip=False,
        widget=forms.Textarea(attrs={"rows": 12}),
        help_text=KEEPS,
    )
    no_system_prompt = forms.BooleanField(required=False, label="Send no system prompt at all")
    examples = JsonList(
        label="Few-shot messages",
        help_text='A JSON list: [{"role": "user", "content": "…"}, …], or [] for none. ' + KEEPS,
    )
    tools = JsonList(
        label="Tool descriptions",
        help_text=(
            "OpenAI tool definitions shown to the model instead of the environment's. Only"
            " descriptions may differ"
        ),
    )
    show_tools = forms.ChoiceField(choices=SHOWN, required=False, label="Tool definitions")
    temperature = forms.FloatField(
        required=False,
    )
    top_p = forms.FloatField(required=False, label="Top p")
    max_new_tokens = forms.IntegerField(required=False, label="Max new tokens")
    notes = forms.CharField(
        required=False,
        widget=forms.Textarea(attrs={"rows": 2}),
        help_text="What changed, and why",
    )

    def numbers(self) -> list[forms.BoundField]:
        return [self[name] for name in ("temperature", "top_p", "max_new_tokens")]

    def others(self) -> list[forms.BoundField]:
        return [
            field for field in self if field.name not in ("temperature", "top_p", "max_new_tokens")
        ]

    def clean(self) -> dict[str, Any]:
        """Adds `prompt`, if each field is valid."""
        given = super().clean() or self.cleaned_data
        if given.get("no_system_prompt") and given.get("system_prompt"):
            self.add_error("no_system_prompt", "Clear the system prompt above, or untick this.")
        if self.errors:
            return given
        try:
            given["prompt"] = checked_prompt(prompt_in(given))
        except FormError as error:
            field = error.path.partition(".")[0].partition("[")[0]
            self.add_error(field if field in self.fields else None, str(error))
        return given


def prompt_in(given: dict[str, Any]) -> dict[str, Any]:
    """The prompt that cleaned fields mean."""
    found = {
        name: given.get(name)
        for name in ("examples", "tools", "temperature", "top_p", "max_new_tokens")
    }
    text = given.get("system_prompt", "").replace("\r\n", "\n")
    found["system_prompt"] = text or ("" if given.get("no_system_prompt") else None)
    found["show_tools"] = {"yes": True, "no": False}.get(given.get("show_tools", ""))
    return {name: value for name, value in found.items() if value is not None}


def initial_of(prompt: dict[str, Any]) -> dict[str, Any]:
    """The fields that mean a prompt."""
    lists = {
        name: json.dumps(prompt[name], ensure_ascii=False, indent=1)
        for name in ("examples", "tools")
        if name in prompt
    }
    shown = {True: "yes", False: "no"}.get(prompt.get("show_tools"), "")
    return (
        prompt
        | lists
        | {
            "show_tools": shown,
            "no_system_prompt": prompt.get("system_prompt") == "",
        }
    )


class ExpectedField(forms.CharField):
    """JSON text → the expected answer in the format of tasks; {} if empty."""

    def __init__(self, **options: Any) -> None:
        code = forms.Textarea(attrs=CODE | {"rows": 3})
        super().__init__(max_length=60_000, label="Expected answer", widget=code, **options)

    def clean(self, value: Any) -> dict[str, Any]:
        text = super().clean(value).strip()
        try:
            return checked_expected(json_of(text)) if text else {}
        except (Bad, ValueError) as error:
            raise forms.ValidationError(str(error)) from error


@bounds_from(StartPlayground)
class PlaygroundForm(PlainForm):
    """Which versions to ask, and how answers are scored. The request is given separately: a step of
    a run, or tasks of a set.
    """

    environment = forms.ModelChoiceField(
        None,
        empty_label=None,
        help_text="Scores the answers, and supplies what a prompt leaves out",
    )
    samples_per_task = forms.IntegerField(initial=1, label="Answers per request")
    most_tokens = forms.IntegerField(
        initial=MOST_TOKENS,
        label="Max tokens",
        help_text="Per version; for models on a server",
    )
    most_usd = forms.FloatField(
        required=False,
        label="Max cost (USD)",
        help_text="Per version; for servers whose prices are known",
    )
    expected = ExpectedField(
        required=False,
        help_text=(
            '{"tool": "…", "args": {…}}, {"answer": "…"}… Without one, verifiers that compare give'
            " no score"
        ),
    )

    def __init__(
        self, project: Project, tasks: QuerySet[Task] | None, *args: Any, **kwargs: Any
    ) -> None:
        """`tasks` to choose from; None if a step of a run is replayed."""
        super().__init__(*args, **kwargs)
        self.fields["environment"].queryset = (
            project.environments.current().order_by("-pk").select_related("verifier")
        )
        versions = project.model_versions.current().run_here()
        for number in range(MOST_SIDES):
            title = f"Version {number + 1}"
            self.fields[f"version_{number}"] = forms.ModelChoiceField(
                versions,
                required=number == 0,
                label=title,
                empty_label=None if number == 0 else "None",
            )
            self.fields[f"system_prompt_{number}"] = forms.CharField(
                required=False,
                max_length=200_000,
                strip=False,
                label=f"System prompt of {title.lower()}",
                widget=forms.Textarea(attrs={"rows": 4, "placeholder": "Unchanged"}),
            )
            self.fields[f"changes_{number}"] = forms.CharField(
                required=False, max_length=500_000, widget=forms.HiddenInput()
            )
        if tasks is not None:
            del self.fields["expected"]
            self.fields["tasks"] = forms.ModelMultipleChoiceField(
                tasks, error_messages={"required": f"Choose one to {MOST_CASES} tasks."}
            )

    def common(self) -> list[forms.BoundField]:
        return [self[name] for name in self.fields if name in COMMON]

    def sides(self) -> list[tuple[forms.BoundField, forms.BoundField, forms.BoundField]]:
        """(version, system prompt, other changes) of each."""
        names = ("version", "system_prompt", "changes")
        return [tuple(self[f"{name}_{number}"] for name in names) for number in range(MOST_SIDES)]  # type: ignore[misc]

    def clean(self) -> dict[str, Any]:
        given = super().clean() or self.cleaned_data
        if len(given.get("tasks", ())) > MOST_CASES:
            self.add_error("tasks", f"Choose at most {MOST_CASES} tasks.")
        return given

    def chosen(self) -> list[Side]:
        """The versions as they were filled in. Raises PlaygroundError."""
        given, found = self.cleaned_data, []
        for number in range(MOST_SIDES):
            if version := given.get(f"version_{number}"):
                found.append(Side(version, self._changes(number)))
        return found

    def _changes(self, number: int) -> dict[str, Any]:
        text = self.cleaned_data.get(f"system_prompt_{number}", "").replace("\r\n", "\n")
        try:
            found = read_json(self.cleaned_data.get(f"changes_{number}") or "{}")
            if not isinstance(found, dict):
                raise TypeError("they must be a JSON object")
            changes = found | ({"system_prompt": text} if text else {})
        except (ValueError, TypeError) as error:
            raise PlaygroundError(
                f"The changes of version {number + 1} are not a prompt: {error}"
            ) from error
        return changes


COMMON = ("environment", "samples_per_task", "most_tokens", "most_usd", "expected")


class KeepTaskForm(PlainForm):
    """The replayed step as a task of a draft."""

    eval_set = forms.ModelChoiceField(None, label="Eval set", empty_label=None)
    split = forms.ChoiceField(choices=[(one, one.label) for one in (Split.TRAIN, Split.VALIDATION)])
    expected = ExpectedField(
        help_text='{"tool": "…", "args": {…}}, {"calls": […]} or {"answer": "…"}'
    )

    def __init__(self, project: Project, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["eval_set"].queryset = project.eval_sets.current().filter(
            state=EvalSetState.DRAFT
        )
