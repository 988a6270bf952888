from __future__ import annotations

from typing import Any

from django import forms

from apps.core.forms import PlainForm
from apps.core.models import Project
from apps.evals.models import EvalSetState
from apps.training.models import Method


class TrainingForm(PlainForm):
    """A run's settings; what is offered is the project's own."""

    method = forms.ChoiceField(choices=Method.choices)
    parent = forms.ModelChoiceField(None, label="Start from")
    eval_set = forms.ModelChoiceField(None, label="Training data")
    environment = forms.ModelChoiceField(None)
    steps = forms.IntegerField(min_value=1, max_value=100_000, initial=16)
    learning_rate = forms.FloatField(min_value=1e-8, max_value=1.0, initial=3e-4)
    batch_size = forms.IntegerField(min_value=1, max_value=1024, initial=8, help_text="SFT: rows per step")
    prompts_per_step = forms.IntegerField(min_value=1, max_value=1024, initial=4, help_text="GRPO: groups per step")
    generations = forms.IntegerField(min_value=2, max_value=128, initial=8, help_text="GRPO: completions per prompt")
    beta = forms.FloatField(min_value=0, initial=0.0, help_text="GRPO: weight of the KL penalty to the starting model")
    stop_on_hacking = forms.BooleanField(
        required=False,
        initial=True,
        help_text="GRPO: end the run when the reward rises while the best-paid outputs get worse",
    )
    seed = forms.IntegerField(initial=0)

    def __init__(self, project: Project, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["parent"].queryset = project.model_versions.models()
        self.fields["eval_set"].queryset = project.eval_sets.filter(state=EvalSetState.FROZEN)
        self.fields["environment"].queryset = project.environments.select_related("verifier")
        for name in ("parent", "eval_set", "environment"):  # the newest is chosen, not a row of dashes
            self.fields[name].empty_label = None

    def config(self) -> dict:
        data = self.cleaned_data
        common = {
            "steps": data["steps"],
            "learning_rate": data["learning_rate"],
            "lora_rank": 16,
            "lora_alpha": 32,
            "save_every": max(1, data["steps"] // 5),
        }
        if data["method"] == Method.SFT:
            return common | {"batch_size": data["batch_size"], "warmup_steps": min(2, data["steps"] - 1)}
        return common | {
            "prompts_per_step": data["prompts_per_step"],
            "generations": data["generations"],
            "beta": data["beta"],
            "loss_type": "dapo",
            "eval_every": max(1, data["steps"] // 4),
            "eval_samples": 2,
            "stop_on_hacking": data["stop_on_hacking"],
            "max_new_tokens": data["environment"].harness.get("max_new_tokens", 64),
        }
