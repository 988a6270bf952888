from __future__ import annotations

from typing import Any

from django import forms

from apps.core.form_bounds import bounds_from
from apps.core.forms import PlainForm
from apps.core.models import Project
from apps.evals.models import EvalSetState
from apps.registry import engines
from apps.registry.models import ModelKind, Server
from apps.training.prompt_search.api import StartSearch

MOST_CALLS = 300


@bounds_from(StartSearch)
class SearchForm(PlainForm):
    """A search's settings; all choices belong to the project."""

    version = forms.ModelChoiceField(
        None, label="Improve the prompt of", help_text="A model, or a prompt version of one"
    )
    eval_set = forms.ModelChoiceField(
        None,
        label="Tasks",
        help_text="Training tasks inspire proposals, validation tasks select the best",
    )
    environment = forms.ModelChoiceField(
        None,
        help_text=(
            "Its verifier scores the answers. Its prompt is the starting point for models"
            " without one"
        ),
    )
    engine = forms.ChoiceField(label="Engine", required=False)
    server = forms.ModelChoiceField(
        None, label="Proposals by", help_text="The server of the model that writes prompts"
    )
    model = forms.CharField(
        label="Model on that server",
        help_text="A large model writes better prompts than the agent's own",
    )
    most_calls = forms.IntegerField(label="Max agent calls", initial=MOST_CALLS)
    most_usd = forms.FloatField(
        label="Max cost (USD)",
        required=False,
        help_text="Agent and proposals together; no limit if empty",
    )
    most_tokens = forms.IntegerField(
        label="Max tokens", required=False, help_text="No limit if empty"
    )
    most_proposals = forms.IntegerField(label="Max proposals", initial=20)
    samples_per_task = forms.IntegerField(initial=1)
    minibatch = forms.IntegerField(label="Training tasks per proposal", initial=3)
    score = forms.ChoiceField(
        choices=[("success", "Success"), ("reward", "Reward")], label="Score by"
    )
    seed = forms.IntegerField(initial=0)

    def __init__(self, project: Project, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["version"].queryset = project.model_versions.current().run_here()
        self.fields["eval_set"].queryset = project.eval_sets.current().filter(
            state=EvalSetState.FROZEN
        )
        self.fields["environment"].queryset = project.environments.current().select_related(
            "verifier"
        )
        self.fields["server"].queryset = servers = Server.objects.filter(project=project)
        self.fields["engine"].choices = engines.choices(project)
        for name in ("version", "eval_set", "environment", "server"):
            self.fields[name].empty_label = None
        served = project.model_versions.filter(
            kind=ModelKind.ENDPOINT, server__in=servers[:1]
        ).first()
        self.fields["model"].initial = served.served_as if served else ""

    def wanted(self) -> dict[str, Any]:
        """The arguments of `submit_search`."""
        data = self.cleaned_data
        names = ("version", "eval_set", "environment", "server", "model", "seed")
        config = ("most_calls", "most_proposals", "samples_per_task", "minibatch", "score")
        limits = {name: data[name] for name in ("most_usd", "most_tokens") if data[name]}
        return {name: data[name] for name in names} | {
            "engine": data["engine"] or engines.AUTO,
            "config": {name: data[name] for name in config} | limits,
        }
