from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django import forms

from apps.core.form_bounds import bounds_from
from apps.core.forms import PlainForm
from apps.core.models import JobState
from apps.environments.models import Verifier
from apps.evals.models import EvalRun, EvalSet, Split
from apps.registry.models import Server
from apps.reviews import rescoring
from apps.reviews.actions import SIZE
from apps.reviews.models import Rescore
from apps.reviews.probe_api import Cheat
from apps.reviews.sampling import LARGEST, SMALLEST

RUNS = 100


class RunField(forms.ModelMultipleChoiceField):
    def label_from_instance(self, run: EvalRun) -> str:
        return (
            f"{run.model_version} on {run.eval_set}, {run.get_split_display().lower()} ·"
            f" {run.created_at:%Y-%m-%d %H:%M}"
        )


class OpenForm(PlainForm):
    """A review of one verifier version: of finished evaluations that it scored."""

    runs = RunField(None, widget=forms.CheckboxSelectMultiple, label="Evaluations")
    size = forms.IntegerField(
        min_value=SMALLEST,
        max_value=LARGEST,
        initial=SIZE,
        label="Samples",
        help_text=f"{SMALLEST} to {LARGEST}",
    )
    seed = forms.IntegerField(
        min_value=0, max_value=2**31 - 1, initial=0, help_text="Each seed draws different samples"
    )

    def __init__(
        self, verifier: Verifier, *args: Any, chosen: Sequence[str] = (), **kwargs: Any
    ) -> None:
        earlier = verifier.reviews.count()
        super().__init__(*args, initial={"runs": chosen, "seed": earlier}, **kwargs)
        finished = EvalRun.objects.current().filter(
            project=verifier.project_id, state=JobState.SUCCEEDED
        )
        runs = finished.filter(pk__in=[*scored_by(verifier), *rescored_by(verifier)])
        self.fields["runs"].queryset = runs.select_related("model_version", "eval_set").order_by(
            "-created_at"
        )
        self.has_runs = runs.exists()


def scored_by(verifier: Verifier) -> Any:
    """Evaluations that this very content scored."""
    runs = EvalRun.objects.filter(
        project=verifier.project_id, environment__verifier__hash=verifier.hash
    )
    return runs.values_list("pk", flat=True)


def rescored_by(verifier: Verifier) -> Any:
    """Evaluations whose samples it scored later."""
    jobs = Rescore.objects.filter(
        project=verifier.project_id, candidate_hash=verifier.hash, state=JobState.SUCCEEDED
    )
    return (
        EvalRun.objects.filter(samples__rescores__in=jobs).distinct().values_list("pk", flat=True)
    )


def scorable(verifier: Verifier) -> list[EvalRun]:
    """Finished evaluations by other versions of the verifier, whose samples it has not scored yet;
    the newest first.
    """
    runs = EvalRun.objects.filter(
        project=verifier.project_id,
        state=JobState.SUCCEEDED,
        environment__verifier__name=verifier.name,
    ).exclude(pk__in=[*scored_by(verifier), *rescored_by(verifier)])
    return list(
        runs.select_related("model_version", "eval_set", "environment__verifier").order_by(
            "-created_at"
        )[:RUNS]
    )


@bounds_from(Cheat, cheat_tokens="tokens", cheat_model="model")
class ProbeForm(PlainForm):
    """Where a verifier is probed, and with whose tasks: hold-outs are left alone, so sets of
    nothing else are not offered.
    """

    environment = forms.ModelChoiceField(None, label="Environment", empty_label=None)
    eval_set = forms.ModelChoiceField(None, label="Tasks from", empty_label=None)

    cheat_server = forms.ModelChoiceField(
        None,
        required=False,
        label="Model that tries to cheat",
        empty_label="None",
        help_text=(
            "Optional: a server whose model is instructed to earn reward without doing the task"
        ),
    )
    cheat_model = forms.CharField(required=False, label="Model on that server")
    cheat_tokens = forms.IntegerField(
        required=False,
        initial=rescoring.CHEAT_TOKENS,
        label="Max tokens",
    )

    def __init__(self, verifier: Verifier, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["cheat_server"].queryset = Server.objects.filter(project=verifier.project_id)
        probed = [split for split in Split if split != Split.HOLDOUT]
        sets = EvalSet.objects.filter(
            project=verifier.project_id, tasks__split__in=probed
        ).distinct()
        self.fields["environment"].queryset = verifier.environments.all()
        self.fields["eval_set"].queryset = sets.order_by("-created_at")
        self.has_sets = sets.exists()

    def clean(self) -> dict[str, Any]:
        """With `cheat` in place of its three fields."""
        data = super().clean() or {}
        server, model = data.pop("cheat_server", None), (data.pop("cheat_model", "") or "").strip()
        tokens = data.pop("cheat_tokens", None) or rescoring.CHEAT_TOKENS
        if server is None and model:
            self.add_error(
                "cheat_server", "Choose the server that has the model, or leave its name empty."
            )
        if server is not None and not model:
            self.add_error(
                "cheat_model", "Enter the name of the cheating model as listed by its server."
            )
        data["cheat"] = (
            rescoring.CheatingModel(server, model, tokens) if server is not None and model else None
        )
        return data


def _share(label: str, help_text: str, lowest: int = 0) -> forms.FloatField:
    widget = forms.NumberInput(attrs={"step": "0.01"})
    return forms.FloatField(
        min_value=lowest, max_value=1, label=label, help_text=help_text, widget=widget
    )


class PolicyForm(PlainForm):
    min_samples = forms.IntegerField(min_value=1, max_value=LARGEST, label="Min judged samples")
    min_kappa = _share(
        "Min κ and α",
        "Lower end of the 95% intervals of κ (people and verifier) and of α (reviewers among"
        " themselves)",
        lowest=-1,
    )
    min_accuracy = _share(
        "Min accuracy",
        "Share of samples on which the verifier is right: lower end of Wilson's 95% interval",
    )
    max_false_positive_rate = _share(
        "Max false-positive rate",
        "Share of human-judged failures that the verifier passes: upper end of Wilson's 95%"
        " interval",
    )
    reviewers_per_sample = forms.IntegerField(
        min_value=1,
        max_value=9,
        label="Reviewers per sample",
        help_text="Open reviews keep the number they were opened with",
    )
    max_unreviewed_share = _share(
        "Max share of unreviewed tasks",
        "Training tasks that differ from those judged in tools, origin, failure mode or wording",
    )
    four_eyes = forms.BooleanField(
        required=False,
        label=(
            "Four eyes: the author of a verifier, whoever overrode its lock, and its only reviewer"
            " cannot start its training"
        ),
    )
    probes_must_pass = forms.BooleanField(required=False, label="Hack probes must pass")
    reason = forms.CharField(max_length=500, label="Reason for the change")
