from __future__ import annotations

from typing import Any

from django import forms

from apps.core.form_bounds import bounds_from
from apps.core.forms import PlainForm, json_of
from apps.core.models import Project
from apps.evals import importing
from apps.evals.api import NewSet
from apps.evals.formats import FORMATS
from apps.evals.formats.rows import Bad, check_storable, checked_expected
from apps.evals.meaning.api import StartCheck
from apps.evals.meaning.check import PAIRS, Source
from apps.evals.models import EvalSet, EvalSetState, Split
from apps.evals.sources_api import FromFailure
from apps.evals.variants.api import Make, Write
from apps.evals.variants.from_model import WRITTEN
from apps.evals.variants.templates import KINDS
from workers.lib.checks import assertions_in

LONGEST_REQUEST = 200_000  # characters
FROM_FAILURE = [(value, label) for value, label in Split.choices if value != Split.GENERAL]


@bounds_from(NewSet)
class EvalSetForm(PlainForm):
    slug = forms.SlugField(
        max_length=80, label="Name", help_text="Letters a to z, digits and dashes"
    )
    description = forms.CharField(required=False)


EXPECTED_HELP = (
    'JSON, one of {"tool": "…", "args": {…}}, {"calls": […]}, {"answer": "…"}, {"constraint":'
    ' {"contains": […]}}, {"pattern": "…"}, {"schema": {…}}, {"tests": […]}, {"state": {…}},'
    ' {"grader": {…}} in OpenAI\'s form, or {"rubric": "…"} for a judge'
)


class TaskForm(PlainForm):
    key = forms.SlugField(max_length=120)
    request = forms.CharField(widget=forms.Textarea(attrs={"rows": 3}), max_length=LONGEST_REQUEST)
    expected = forms.CharField(
        widget=forms.Textarea(attrs={"rows": 3, "class": "mono", "spellcheck": "false"}),
        help_text=EXPECTED_HELP,
    )
    split = forms.ChoiceField(choices=Split.choices)
    group = forms.CharField(
        required=False,
        max_length=200,
        help_text="Tasks in the same group stay on the same side of a split",
    )

    def clean_expected(self) -> dict:
        try:
            check_storable(
                value := checked_expected(json_of(self.cleaned_data["expected"])), "expected"
            )
        except Bad as error:
            raise forms.ValidationError(str(error)) from error
        return value


def drafts_of(project: Project) -> Any:
    return EvalSet.objects.current().filter(project=project, state=EvalSetState.DRAFT)


@bounds_from(FromFailure)
class FailureTaskForm(PlainForm):
    """The task of one failure. The expected answer is checked against the forms of
    `workers.lib.checks`.
    """

    expected = forms.CharField(
        widget=forms.Textarea(attrs={"rows": 8, "class": "mono", "spellcheck": "false"}),
        label="Expected answer",
        help_text=EXPECTED_HELP,
    )
    demonstration = forms.CharField(
        widget=forms.Textarea(attrs={"rows": 3}),
        required=False,
        help_text="A good answer in the agent's own format. If empty, the call above is used",
    )
    eval_set = forms.ModelChoiceField(None, label="Eval set", empty_label=None)
    split = forms.ChoiceField(choices=FROM_FAILURE)
    group = forms.ChoiceField(
        label="Group by", help_text="Tasks in the same group stay on the same side of a split"
    )
    replayable = forms.BooleanField(
        required=False, label="Replayable: serve the recorded tool results"
    )
    state = forms.CharField(
        widget=forms.Textarea(attrs={"rows": 2, "class": "mono"}),
        required=False,
        label="State afterwards",
        help_text=(
            'Optional: [{"path": "tickets.12.status", "equals": "closed"}, {"path":'
            ' "calls.email.send.count", "equals": 0}]'
        ),
    )

    def __init__(
        self, project: Project, groups: list[tuple[str, str]], *args: Any, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.fields["eval_set"].queryset = drafts = drafts_of(project)
        if not drafts.exists():  # a draft is created with the first task
            del self.fields["eval_set"]
        self.fields["group"].choices = [(group, _shown(name, group)) for name, group in groups]

    def clean_expected(self) -> dict:
        try:
            return checked_expected(json_of(self.cleaned_data["expected"]))
        except Bad as error:
            raise forms.ValidationError(str(error)) from error

    def clean_state(self) -> list[dict]:
        value = json_of(self.cleaned_data["state"] or "[]")
        if assertions_in({"state": value}) != value:
            raise forms.ValidationError(
                'Must be a list of {"path": "…", "equals": …} with paths as text.'
            )
        return value

    def clean_split(self) -> Split:
        return Split(self.cleaned_data["split"])


def _shown(name: str, group: str) -> str:
    return name if len(group) > 40 else f"{name} ({group})"


class ImportForm(PlainForm):
    """A file to preview."""

    file = forms.FileField(
        help_text=(
            f"JSON Lines or CSV, at most {importing.MAX_BYTES // 2**20} MiB and"
            f" {importing.MAX_ROWS:,} rows"
        ),
        error_messages={
            "required": "Choose a file.",
            "empty": "The file is empty. Choose one with one task per line.",
        },
    )
    format = forms.ChoiceField(
        choices=[("auto", "Detect automatically"), *((name, name) for name in FORMATS)],
        initial="auto",
    )
    answers = forms.FileField(
        required=False, label="Possible answers", help_text="For BFCL only: its second file"
    )

    def clean_file(self) -> Any:
        return _not_too_large(self.cleaned_data["file"])

    def clean_answers(self) -> Any:
        return _not_too_large(self.cleaned_data["answers"])


def _not_too_large(given: Any) -> Any:
    if given is not None and given.size > importing.MAX_BYTES:
        raise forms.ValidationError(
            f"{given.name} is larger than {importing.MAX_BYTES // 2**20} MiB. Split it, or import"
            " it on the server: python manage.py import_tasks SET FILE."
        )
    return given


class ImportChoiceForm(PlainForm):
    """How the rows of a file become tasks."""

    split = forms.ChoiceField(
        choices=Split.choices, initial=Split.TRAIN, label="Split for rows without one"
    )
    always = forms.BooleanField(required=False, label="Override the split of all rows")
    group = forms.ChoiceField(label="Group by")

    def __init__(self, columns: list[str], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        named = [(f"metadata.{name}", name) for name in columns]
        self.fields["group"].choices = [
            (importing.BY_FILE, "groups in the file, otherwise the request"),
            (importing.BY_REQUEST, "the request"),
            *named,
        ]


@bounds_from(Make)
class VariantsForm(PlainForm):
    kinds = forms.MultipleChoiceField(
        choices=list(KINDS.items()),
        initial=list(KINDS),
        widget=forms.CheckboxSelectMultiple,
        label="What to vary",
    )
    each = forms.IntegerField(initial=2, label="Max per kind and task")
    seed = forms.IntegerField(initial=0)


@bounds_from(Write)
class ModelVariantsForm(PlainForm):
    """Which model writes variants: the project's judge, or another server that an operator
    names.
    """

    JUDGE, OTHER = "judge", "other"

    server = forms.ChoiceField(widget=forms.RadioSelect, label="Model")
    base_url = forms.CharField(required=False, label="Address of the server, ending in /v1")
    model = forms.CharField(required=False, label="Model")
    key_variable = forms.CharField(required=False, label="Environment variable with its key")
    kinds = forms.MultipleChoiceField(
        choices=list(WRITTEN.items()),
        initial=list(WRITTEN),
        widget=forms.CheckboxSelectMultiple,
        label="What to vary",
    )
    each = forms.IntegerField(initial=2, label="Per kind and task")
    tokens = forms.IntegerField(required=False, label="Max tokens")

    def __init__(
        self, judge: dict[str, str] | None, operator: bool, *args: Any, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.judge = judge
        offered = (
            [(self.JUDGE, f"The judge: {judge['model']} at {judge['base_url']}")] if judge else []
        )
        offered += [(self.OTHER, "Another OpenAI-compatible server")] if operator else []
        self.fields["server"].choices = offered
        self.fields["server"].initial = offered[0][0] if offered else None
        self.fields["server"].error_messages["required"] = "Choose a model to write the variants."

    def clean_tokens(self) -> int:
        return self.cleaned_data["tokens"] or 0

    def clean(self) -> dict[str, Any]:
        given = super().clean() or self.cleaned_data
        if given.get("server") == self.JUDGE and self.judge:
            return given | self.judge
        for name in ("base_url", "model"):
            if not given.get(name, "").strip():
                self.add_error(name, "Required for another server.")
        return given | {
            name: given.get(name, "").strip() for name in ("base_url", "model", "key_variable")
        }


@bounds_from(StartCheck, most="pairs")
class MeaningForm(PlainForm):
    """The source of embeddings for a semantic check: a model version of the project, or a
    server.
    """

    version = forms.ModelChoiceField(
        None,
        required=False,
        label="Model version",
        empty_label="An embeddings server (below)",
        help_text=(
            "Compares the model's hidden states, on a worker; for a served model, uses its server’s"
            " /v1/embeddings"
        ),
    )
    base_url = forms.CharField(required=False, label="Address of the server, ending in /v1")
    model = forms.CharField(required=False, label="Embedding model")
    key_variable = forms.CharField(
        required=False,
        label="Environment variable with its key",
        help_text="Must be allowed by FLYWHEEL_OUTGOING_KEYS; leave empty if no key is needed",
    )
    most = forms.IntegerField(initial=PAIRS, label="Max pairs to show")

    def __init__(self, project: Project, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["version"].queryset = versions = project.model_versions.current().models()
        self.fields["version"].initial = versions.first()

    def clean(self) -> dict[str, Any]:
        given = super().clean() or self.cleaned_data
        named = [name for name in ("base_url", "model") if given.get(name, "").strip()]
        if not given.get("version") and "version" not in self.errors and len(named) < 2:
            raise forms.ValidationError(
                "Choose a model version, or enter a server URL and its embedding model."
            )
        return given

    def source(self) -> Source:
        given = self.cleaned_data
        if given["version"]:
            return Source(version=given["version"].pk)
        return Source(
            **{name: given[name].strip() for name in ("base_url", "model", "key_variable")}
        )
