from __future__ import annotations

from typing import Any

from django import forms
from django.db.models import Count

from apps.core.form_bounds import bounds_from
from apps.core.forms import PlainForm, json_of, whole
from apps.core.models import JobState, Project
from apps.evals import importing
from apps.evals.api import NewSet
from apps.evals.formats import FORMATS
from apps.evals.formats.rows import Bad, check_storable, checked_expected
from apps.evals.meaning.api import StartCheck
from apps.evals.meaning.check import PAIRS, Source
from apps.evals.models import EvalRun, EvalSet, EvalSetState, Split
from apps.evals.runs_schema import StartRun
from apps.evals.sources_api import FromFailure
from apps.evals.variants.api import Make, Write
from apps.evals.variants.from_model import WRITTEN
from apps.evals.variants.templates import KINDS
from apps.registry import engines
from apps.registry.models import ModelKind, Server
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


@bounds_from(StartRun)
class EvalRunForm(PlainForm):
    """What to evaluate: all choices belong to the project, and the splits are those with tasks."""

    model_version = forms.ModelChoiceField(None)
    environment = forms.ModelChoiceField(None)
    split = forms.ChoiceField(initial=Split.HOLDOUT)
    samples_per_task = forms.IntegerField(initial=8)
    seed = forms.IntegerField(initial=0)
    engine = forms.ChoiceField(
        help_text=(
            "Automatic: served models on their server, adapters on a server that can load them,"
            " everything else in a worker"
        )
    )
    most_tokens = forms.IntegerField(
        required=False,
        label="Max tokens",
        help_text=(
            "Optional, for servers and agents called over HTTP: the evaluation stops before"
            " exceeding it"
        ),
    )
    most_usd = forms.FloatField(
        required=False,
        label="Max cost (USD)",
        help_text="Optional, for agents called over HTTP and servers with known prices",
    )
    tokens_per_call = forms.IntegerField(
        required=False,
        label="Tokens per call",
        help_text="For agents, with Max tokens: assumed for calls that do not report their tokens",
    )
    usd_per_call = forms.FloatField(
        required=False,
        label="Cost per call (USD)",
        help_text="For agents, with Max cost: assumed for calls that do not report their cost",
    )
    timeout_s = forms.IntegerField(
        required=False,
        label="Seconds per sample",
        help_text=(
            f"For agents called over HTTP; {engines.AGENT_TIMEOUT_S} if empty. Samples that take"
            " longer fail"
        ),
    )
    at_once = forms.IntegerField(
        required=False,
        label="Concurrent tasks",
        help_text=f"For agents called over HTTP; {engines.AGENTS_AT_ONCE} if empty",
    )
    stop_against = forms.ModelChoiceField(
        None,
        required=False,
        label="Stop early against",
        empty_label="Evaluate all tasks",
        help_text=(
            "Stops as soon as the gate can decide under the policy of the channel below. Requires a"
            " sequential policy"
        ),
    )
    stop_channel = forms.ChoiceField(required=False, label="Policy of channel")

    def __init__(self, eval_set: EvalSet, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        project, counts = (
            eval_set.project,
            dict(eval_set.tasks.values_list("split").annotate(Count("pk")).order_by()),
        )
        self.fields["split"].choices = [
            (split, f"{split.label} ({counts[split]:,})") for split in Split if split in counts
        ]
        self.fields["model_version"].queryset = versions = (
            project.model_versions.current().evaluated_here()
        )
        self.fields["engine"].choices = engines.choices(project)
        agents = versions.filter(kind=ModelKind.AGENT).exists()
        servers = Server.objects.filter(project=project).exists()
        unused = () if agents else ("timeout_s", "at_once", "tokens_per_call", "usd_per_call")
        unused += () if servers else ("engine",)
        unused += () if servers or agents else ("most_tokens", "most_usd")
        for name in unused:
            del self.fields[name]
        self.fields["environment"].queryset = project.environments.current().select_related(
            "verifier"
        )
        done = EvalRun.objects.filter(
            eval_set=eval_set, split=Split.HOLDOUT, state=JobState.SUCCEEDED
        )
        self.fields["stop_against"].queryset = done
        channels = list(project.channels.current().values_list("name", flat=True))
        self.fields["stop_channel"].choices = [(name, name) for name in channels]
        self.fields["stop_channel"].initial = "production"
        if not done.exists() or not channels:
            del self.fields["stop_against"], self.fields["stop_channel"]
        for name in (
            "model_version",
            "environment",
        ):  # the newest is preselected instead of a row of dashes
            self.fields[name].empty_label = None

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

    def clean_split(self) -> Split:
        return Split(self.cleaned_data["split"])


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
