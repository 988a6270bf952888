"""The fields of GRPO: a preset first, and everything else under “More options”. An empty field uses
the preset's value.
"""

from __future__ import annotations

from typing import Any

from django import forms

from apps.core.yaml_text import YamlError, load_yaml
from workers.lib.presets import PRESETS

CORRECTIONS = (
    ("auto", "When sampler and trainer differ"),
    ("off", "Off"),
    ("tis", "TIS: weights up to 2"),
    ("mis", "MIS: zero outside 0.5 to 2"),
    ("icepop", "IcePop: zero outside 0.5 to 5"),
)
OPTIONAL = (
    "temperature",
    "top_p",
    "clip_low",
    "clip_high",
    "dynamic_sampling",
    "overlong_buffer",
    "updates_per_batch",
    "minibatches",
    "replay_share",
    "micro_batch",
    "sample_batch",
    "correction",
    "advantages",
    "gamma",
    "gae_lambda",
    "critic_learning_rate",
    "kl_target",
)
FLAGS = ("mask_truncated", "curriculum", "gradient_checkpointing")
GRPO_FIELDS = ("preset", *OPTIONAL, *FLAGS)
MORE = (
    *OPTIONAL,
    *FLAGS,
    "load_in_4bit",
    "processes",
    "retry_smaller",
    "more",
)  # in the folded part


class GrpoFields(forms.Form):
    preset = forms.ChoiceField(
        choices=[(name, f"{preset.label}: {preset.about}") for name, preset in PRESETS.items()],
        initial="dapo",
        required=False,
        label="Algorithm",
    )
    temperature = forms.FloatField(required=False, help_text="Of the rollouts; 1 if empty")
    top_p = forms.FloatField(
        required=False,
        label="Top p",
        help_text=(
            "1 if empty. Below 1, samples come from a different distribution than the policy, which"
            " is corrected for"
        ),
    )
    clip_low = forms.FloatField(
        required=False, label="Clip below", help_text="If empty, the algorithm's default"
    )
    clip_high = forms.FloatField(
        required=False, label="Clip above", help_text="If empty, the algorithm's default"
    )
    dynamic_sampling = forms.IntegerField(
        required=False,
        label="Redraws",
        help_text=(
            "Rounds in which groups without reward spread are replaced by other tasks (dynamic"
            " sampling)"
        ),
    )
    overlong_buffer = forms.IntegerField(
        required=False,
        label="Overlong buffer",
        help_text=(
            "Tokens before the length limit over which the reward falls by up to 1. DAPO: a fifth"
            " of the limit"
        ),
    )
    updates_per_batch = forms.IntegerField(
        required=False,
        label="Updates per batch",
        help_text="Passes over a step’s episodes. If empty 1, on policy; 4 for PPO",
    )
    minibatches = forms.IntegerField(
        required=False,
        label="Minibatches",
        help_text="Parts of each pass, with an update after each. 1 if empty",
    )
    replay_share = forms.FloatField(
        required=False,
        label="Replay",
        help_text="Share of a step’s prompts taken from tasks that failed in the last 10 steps",
    )
    micro_batch = forms.IntegerField(
        required=False,
        label="Micro-batch",
        help_text=(
            "Rows or completions computed together; fewer need less memory, with the same update."
            " All if empty"
        ),
    )
    sample_batch = forms.IntegerField(
        required=False,
        label="Concurrent answers",
        help_text=(
            "Answers sampled in parallel; fewer need less memory, with the same results. 64 if"
            " empty"
        ),
    )
    correction = forms.ChoiceField(
        choices=CORRECTIONS, initial="auto", required=False, label="Rollout correction"
    )
    advantages = forms.ChoiceField(
        choices=(
            ("", "The algorithm’s own"),
            ("episode", "Per episode"),
            ("turn", "Per turn"),
            ("gae", "Per token, from a critic (PPO)"),
        ),
        required=False,
        label="Advantages",
        help_text=(
            "Per turn: compares the reward earned from each turn on, in environments that report it"
        ),
    )
    gamma = forms.FloatField(
        required=False, label="Discount γ", help_text="PPO only, per token. 1 if empty"
    )
    gae_lambda = forms.FloatField(
        required=False,
        label="GAE λ",
        help_text=(
            "PPO only: 1 trusts the rewards, with more noise; 0 trusts the critic. 0.95 if empty"
        ),
    )
    critic_learning_rate = forms.FloatField(
        required=False, label="Learning rate of the critic", help_text="PPO only. As above if empty"
    )
    kl_target = forms.FloatField(
        required=False,
        label="KL target",
        help_text=(
            "PPO only: nats per episode that the KL penalty (beta) is adapted to. Fixed if empty"
        ),
    )
    mask_truncated = forms.BooleanField(
        required=False,
        label="Exclude truncated answers",
        help_text="They count in their group, but not in the loss",
    )
    curriculum = forms.BooleanField(
        required=False,
        label="Curriculum",
        help_text="Samples tasks with intermediate success rates more often",
    )
    gradient_checkpointing = forms.BooleanField(
        required=False, label="Gradient checkpointing", help_text="Less memory, slower"
    )
    load_in_4bit = forms.BooleanField(
        required=False,
        label="Load the base in 4 bits",
        help_text="QLoRA: a quarter of the memory for the weights, slower",
    )
    processes = forms.IntegerField(required=False, label="Processes")
    retry_smaller = forms.BooleanField(
        required=False,
        initial=True,
        label="Retry with less memory",
        help_text="Once, if memory runs out: fewer rows at a time, with the same update",
    )
    more = forms.CharField(
        max_length=20_000,
        required=False,
        label="Other settings",
        widget=forms.Textarea(attrs={"rows": 3, "class": "mono"}),
        help_text="One per line, as in a training config: warmup_steps: 5",
    )

    def clean_more(self) -> dict[str, Any]:
        if not (text := self.cleaned_data["more"].strip()):
            return {}
        try:
            found = load_yaml(text)
        except YamlError as error:
            raise forms.ValidationError(str(error)) from error
        if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
            raise forms.ValidationError("Write one setting per line, such as warmup_steps: 5")
        return found


def grpo_settings(data: dict[str, Any]) -> dict[str, Any]:
    """The preset's settings, overridden by what was chosen."""
    chosen = {name: data[name] for name in OPTIONAL if data.get(name) not in (None, "")}
    return (
        PRESETS[data.get("preset") or "dapo"].fields
        | chosen
        | {name: bool(data.get(name)) for name in FLAGS}
    )
