from __future__ import annotations

from typing import Any

from django import forms
from django.db.models import Count, QuerySet

from apps.core.form_bounds import bounds_from
from apps.core.forms import PlainForm, json_of, whole
from apps.core.models import JobState, Project
from apps.core.operations.forms import OperationForm
from apps.evals import importing
from apps.evals.api import NewSet
from apps.evals.baseline import baseline_of, like
from apps.evals.formats import FORMATS
from apps.evals.formats.rows import Bad, check_storable, checked_expected
from apps.evals.holdout.view_log import view_count
from apps.evals.meaning.api import StartCheck
from apps.evals.meaning.check import PAIRS, Source
from apps.evals.models import EvalSet, EvalSetState, Split
from apps.evals.notes import Pace
from apps.evals.pace import pace_before
from apps.evals.sources_api import FromFailure
from apps.evals.variants.api import Make, Write
from apps.evals.variants.from_model import WRITTEN
from apps.evals.variants.templates import KINDS
from apps.registry import engines
from apps.registry.models import ModelKind, ModelVersion, Server
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
    ' {"contains": […]}}, {"pattern": "…"}, {"schema": {…}}, {"tests": […]}, {"state": {…}}, or'
    ' {"rubric": "…"} for a judge'
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


class EvaluationForm(OperationForm):
    """What to evaluate: the splits are those with tasks, and what this project does not have is not
    asked for.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.eval_set = eval_set = self.rows["eval_set"]
        project, fields = eval_set.project, self.fields
        counts = dict(eval_set.tasks.values_list("split").annotate(Count("pk")).order_by())
        fields["split"].choices = [
            (split, f"{split.label} ({counts[split]:,})") for split in Split if split in counts
        ]
        fields["model_version"].required, fields["model_version"].empty_label = True, None
        fields["engine"].widget = forms.Select(choices=engines.choices(project))
        done = fields["stop_against"].queryset.filter(
            eval_set=eval_set, split=Split.HOLDOUT, state=JobState.SUCCEEDED
        )
        fields["stop_against"].queryset = done
        channels = list(project.channels.current().values_list("name", flat=True))
        fields["stop_channel"].widget = forms.Select(choices=[(name, name) for name in channels])
        versions = fields["model_version"].queryset
        agents = versions.filter(kind=ModelKind.AGENT).exists()
        servers = Server.objects.filter(project=project).exists()
        unused = () if agents else ("timeout_s", "at_once", "tokens_per_call", "usd_per_call")
        unused += () if servers else ("engine",)
        unused += () if servers or agents else ("most_tokens", "most_usd")
        unused += () if channels and done.exists() else ("stop_against", "stop_channel")
        for name in unused:
            del fields[name]
        self.version = self._of_address(versions)
        split = self.initial.get("split", "")
        self.baseline = baseline_of(self.version, eval_set, split) if self.version else None
        if self.baseline:
            self.initial |= like(self.baseline)

    def _of_address(self, versions: QuerySet[ModelVersion]) -> ModelVersion | None:
        key = whole(str(self.initial.get("model_version", "")))
        return versions.filter(pk=key).first() if key else None

    NUMBERS = ("samples_per_task", "seed")
    MORE = (
        "engine",
        "most_tokens",
        "most_usd",
        "tokens_per_call",
        "usd_per_call",
        "timeout_s",
        "at_once",
        "stop_against",
        "stop_channel",
    )

    @property
    def main(self) -> list[forms.BoundField]:
        return [field for field in self if field.name not in (*self.NUMBERS, *self.MORE)]

    @property
    def numbers(self) -> list[forms.BoundField]:
        return [self[name] for name in self.NUMBERS]

    @property
    def more(self) -> list[forms.BoundField]:
        """The fields that most evaluations leave unchanged; the page folds them away."""
        return [self[name] for name in self.MORE if name in self.fields]

    @property
    def more_open(self) -> bool:
        return any(field.errors for field in self.more) or bool(self.non_field_errors())

    def chosen(self, name: str) -> Any:
        """The row that a field of rows has selected; the first of its choices if none is."""
        rows, value = self.fields[name].queryset, self[name].value()
        key = whole(str(getattr(value, "pk", value)))
        return (rows.filter(pk=key) if key else rows).first()

    def missing(self) -> list[str]:
        """The fields that have nothing to choose from."""
        return [
            name
            for name in ("model_version", "environment")
            if not self.fields[name].queryset.exists()
        ]

    @property
    def looks(self) -> int:
        return view_count(self.eval_set)

    @property
    def parent(self) -> ModelVersion | None:
        """Of the chosen version, if there is nothing to compare with."""
        return self.version.parent if self.version and not self.baseline else None

    @property
    def pace(self) -> Pace | None:
        """What is known about the choice, which the page asks for again after each change."""
        chosen = self.chosen("model_version"), self.chosen("environment")
        sent = self.data or self.initial
        seconds = whole(sent.get("timeout_s"), 1, engines.LONGEST_AGENT_S) or 0
        return pace_before(*chosen, sent.get("engine", ""), seconds)


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
