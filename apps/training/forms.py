from __future__ import annotations

from typing import Any

from django import forms
from django.conf import settings
from django.core.validators import MaxValueValidator

from apps.core.form_bounds import bounds_from
from apps.core.forms import PlainForm
from apps.core.models import Project
from apps.evals.models import EvalSetState
from apps.failures.judge import rubrics
from apps.registry.harness import playable
from apps.registry.models import ModelKind, ModelVersion
from apps.registry.rollout_servers import offered
from apps.training.actions import no_turn_rewards
from apps.training.alarms_field import AlarmsField
from apps.training.config_yaml import MOST_SEEDS, Head
from apps.training.grpo_form import GRPO_FIELDS, MORE, GrpoFields, grpo_settings
from apps.training.models import SHAPES, SOURCES, Method, Source
from apps.training.sources import Found, evaluations_of, find_examples, why_not_learned
from apps.training.start_adapter import SHAPE, whole_settings
from apps.training.teachers import TAUGHT
from workers.lib.specs.grpo import GrpoConfig
from workers.lib.specs.methods import CONFIGS
from workers.lib.specs.rows import PreferenceConfig
from workers.lib.typed import FormError

ALL_LINEAR = "all-linear"


HELD = ("validation_share", "eval_every")
TEACHER = ("teacher", "teacher_on", "teacher_tokens", "teacher_usd")
OF_METHOD = {
    Method.SFT: ("learning_rate", "batch_size", "eval_every", "lora_dropout", "load_in_4bit"),
    Method.REJECTION: (
        "samples_of",
        "learning_rate",
        "batch_size",
        *HELD,
        "lora_dropout",
        "load_in_4bit",
    ),
    Method.DISTILL: (
        "samples_of",
        "learning_rate",
        "batch_size",
        *HELD,
        "lora_dropout",
        "load_in_4bit",
    ),
    Method.DPO: (
        "sources",
        "samples_of",
        "preference_rate",
        "batch_size",
        "preference_beta",
        "dpo_loss",
        "label_smoothing",
        *HELD,
        "load_in_4bit",
    ),
    Method.KTO: (
        "sources",
        "samples_of",
        "preference_rate",
        "batch_size",
        "preference_beta",
        *HELD,
        "load_in_4bit",
    ),
    Method.REWARD: (
        "sources",
        "samples_of",
        "learning_rate",
        "batch_size",
        *HELD,
        "center_rewards",
        "show_tools",
    ),
    Method.BEST_OF_N: (
        *TEACHER,
        "samples",
        "keep",
        "learning_rate",
        "batch_size",
        "eval_every",
        "lora_dropout",
        "temperature",
        "top_p",
    ),
    Method.ON_POLICY: (
        *TEACHER,
        "learning_rate",
        "prompts_per_step",
        "generations",
        "eval_every",
        "micro_batch",
        "gradient_checkpointing",
        "load_in_4bit",
    ),
    Method.GRPO: (
        "learning_rate",
        "prompts_per_step",
        "generations",
        "beta",
        "agent",
        "sample_on",
        "one_step_ahead",
        *GRPO_FIELDS,
        "load_in_4bit",
    ),
}
EXAMPLES = ("sources", "samples_of")
DPO_LOSSES = (
    ("sigmoid", "Sigmoid (DPO)"),
    ("ipo", "IPO: does not over-optimise easy pairs"),
    ("robust", "Robust: tolerates some mislabelled pairs"),
    ("hinge", "Hinge (SLiC)"),
    ("apo_zero", "APO zero: raises the likelihood of chosen answers"),
)
WATCHED = ("alarms", "judge_outputs")
LORA = ("lora_rank", "lora_alpha", "target_modules", "lora_dropout", "use_rslora", "use_dora")


class ParentSelect(forms.Select):
    """Marks adapters, whose settings a run keeps: the page hides those of a new one."""

    def create_option(self, name: str, value: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        option = super().create_option(name, value, *args, **kwargs)
        if getattr(value, "instance", None) and value.instance.kind == ModelKind.ADAPTER:
            option["attrs"]["data-adapter"] = True
        return option


class ParentField(forms.ModelChoiceField):
    def label_from_instance(self, version: ModelVersion) -> str:
        template = version.chat_template
        return (
            str(version) if template is None or template.carries_tools else f"{version} (no tools)"
        )


@bounds_from(
    *CONFIGS.values(),
    seed=(Head, "seed"),
    preference_rate=(PreferenceConfig, "learning_rate"),
    preference_beta=(PreferenceConfig, "beta"),
    beta=(GrpoConfig, "beta"),
)
class TrainingForm(GrpoFields, PlainForm):
    """The settings of a new run. All choices belong to the project. Fields of other methods are
    hidden and not validated.
    """

    method = forms.ChoiceField(choices=Method.choices)
    parent = ParentField(None, label="Start from", widget=ParentSelect)
    eval_set = forms.ModelChoiceField(None, label="Training data")
    environment = forms.ModelChoiceField(None)
    sources = forms.MultipleChoiceField(
        choices=Source.choices,
        initial=Source.values,
        label="Learn from",
        widget=forms.CheckboxSelectMultiple,
        error_messages={"required": "Choose at least one source."},
    )
    samples_of = forms.ModelChoiceField(
        None,
        required=False,
        label="Evaluation",
        help_text=(
            "On the training tasks of this set, with several samples per task; for distillation, by"
            " the teacher"
        ),
    )
    teacher = ParentField(
        None,
        required=False,
        label="Teacher",
        empty_label="None",
        help_text=(
            "On-policy distillation: a model with the same tokenizer, here or on a vLLM server."
            " Rejection sampling: any model, sampled in place of the starting model"
        ),
    )
    teacher_on = forms.ChoiceField(
        required=False,
        label="Teacher runs on",
        help_text="Automatic: served models on their server, others in this run’s process",
    )
    teacher_tokens = forms.IntegerField(
        required=False,
        label="Max teacher tokens",
        help_text=(
            "Optional, for a teacher on a server: the most that it may read and write in this run"
        ),
    )
    teacher_usd = forms.FloatField(
        required=False,
        label="Max teacher cost (USD)",
        help_text="Optional, for a teacher on a server with known prices",
    )
    samples = forms.IntegerField(
        initial=8,
        label="Samples per task",
        help_text="Drawn from the starting model before training",
    )
    keep = forms.ChoiceField(
        choices=(
            ("best", "The best sample of each task that passes"),
            ("all", "All distinct samples that pass"),
        ),
        initial="best",
        required=False,
        label="Learn from",
    )
    steps = forms.IntegerField(initial=16, help_text="Optimizer steps")
    learning_rate = forms.FloatField(initial=3e-4, help_text="LoRA: usually 1e-5 to 5e-4")
    preference_rate = forms.FloatField(
        initial=5e-5,
        label="Learning rate",
        help_text="Usually 1e-6 to 1e-4, less than SFT’s",
    )
    batch_size = forms.IntegerField(initial=8, help_text="Rows per step")
    prompts_per_step = forms.IntegerField(initial=4, help_text="Groups per step")
    generations = forms.IntegerField(
        initial=8, help_text="Completions per prompt, which are compared; PPO needs only 1"
    )
    preference_beta = forms.FloatField(
        initial=0.1,
        label="Beta",
        help_text=(
            "Strength of the penalty for moving away from the starting model; usually 0.01 to 0.5"
        ),
    )
    dpo_loss = forms.ChoiceField(choices=DPO_LOSSES, initial="sigmoid", label="Loss")
    label_smoothing = forms.FloatField(
        initial=0.1,
        required=False,
        label="Mislabelled pairs",
        help_text="For the robust loss: the assumed share of mislabelled pairs, below 0.5",
    )
    validation_share = forms.FloatField(
        initial=0.2,
        required=False,
        label="Kept aside",
        help_text=(
            "Share of the examples used for validation instead of training; groups of tasks stay"
            " whole"
        ),
    )
    eval_every = forms.IntegerField(
        required=False,
        label="Validate every",
        help_text="Steps between validations; if empty, four times per run; 0: never",
    )
    center_rewards = forms.FloatField(
        initial=0.01,
        required=False,
        label="Centre",
        help_text="Keeps scores around 0: weight of their squared sum; usually 0.01",
    )
    show_tools = forms.BooleanField(
        required=False,
        label="Include tools",
        help_text="Includes tool definitions in each conversation; slower",
    )
    beta = forms.FloatField(initial=0.0, help_text="Weight of the KL penalty to the starting model")
    sample_on = forms.MultipleChoiceField(
        required=False,
        label="Sample on",
        widget=forms.CheckboxSelectMultiple,
        help_text=(
            "vLLM or SGLang servers with this base and LoRA slots; without one, the trainer samples"
            " itself"
        ),
    )
    agent = forms.ModelChoiceField(
        queryset=ModelVersion.objects.none(),
        required=False,
        label="Played by",
        empty_label="The built-in loop",
        help_text=(
            "An agent that is called over HTTP: it runs unchanged, and finds the model in training"
            " at an address of each rollout"
        ),
    )
    one_step_ahead = forms.BooleanField(
        required=False,
        label="Sample one step ahead",
        help_text="Servers sample the next batch during the update, with the previous weights",
    )
    seed = forms.IntegerField(
        initial=0,
    )
    seeds = forms.IntegerField(
        min_value=1,
        max_value=MOST_SEEDS,
        initial=1,
        required=False,
        label="Runs",
        help_text=(
            "If more than 1: uses this seed and the following ones, and compares the runs with"
            " intervals"
        ),
    )
    lora_rank = forms.IntegerField(
        initial=16,
        label="Rank",
        help_text="1 to 512. Higher ranks can learn more and need more memory; usually 8 to 64",
    )
    lora_alpha = forms.IntegerField(
        label="Alpha",
        help_text="1 to 4096: updates are scaled by alpha ÷ rank. Twice the rank if empty",
    )
    target_modules = forms.CharField(
        max_length=1000,
        initial=ALL_LINEAR,
        label="Target modules",
        help_text="all-linear, or names of layers: q_proj, v_proj",
    )
    lora_dropout = forms.FloatField(
        initial=0.0, label="Dropout", help_text="0 to 0.9; 0.05 to 0.1 where data is scarce"
    )

    alarms = AlarmsField()
    judge_outputs = forms.IntegerField(
        required=False,
        label="Judged outputs",
        help_text=(
            "Outputs per checkpoint that the LLM judge reads, within its daily budget, to compare"
            " it with the verifier (alarm judge_gap). None if empty"
        ),
    )
    use_rslora = forms.BooleanField(
        required=False,
        initial=False,
        label="rsLoRA",
        help_text="Scales by alpha ÷ √rank, so high ranks learn as fast as low ones",
    )
    use_dora = forms.BooleanField(
        required=False,
        initial=False,
        label="DoRA",
        help_text=(
            "Learns magnitude and direction separately: slower, often better. Not supported by vLLM"
        ),
    )

    def __init__(self, project: Project, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["parent"].queryset = (
            project.model_versions.current().trainable().select_related("parent")
        )
        self.fields["teacher"].queryset = (
            project.model_versions.current().models().select_related("parent", "server")
        )
        self.fields["eval_set"].queryset = project.eval_sets.current().filter(
            state=EvalSetState.FROZEN
        )
        self.fields["environment"].queryset = project.environments.current().select_related(
            "verifier"
        )
        self.fields["samples_of"].queryset = evaluations_of(project)
        every = [
            (name, f"Server {name}") for name in project.servers.values_list("name", flat=True)
        ]
        self.fields["teacher_on"].choices = [("", "Automatic"), *every]
        if not every:
            del self.fields["teacher_on"], self.fields["teacher_tokens"], self.fields["teacher_usd"]
        if rubrics.current(project) is None:
            del self.fields["judge_outputs"]
        self.fields["agent"].queryset = playable(project.model_versions)
        if not self.fields["agent"].queryset.exists():
            del self.fields["agent"]
        servers = [(server.name, server.name) for server in offered(project)]
        self.fields["sample_on"].choices = servers
        if not servers:  # offered only if some server could serve the run's adapters
            del self.fields["sample_on"], self.fields["one_step_ahead"]
        if not any(row.has_turn_rewards for row in self.fields["environment"].queryset):
            del self.fields["advantages"]
        if not settings.FLYWHEEL_LOAD_IN_4BIT:
            del self.fields["load_in_4bit"]
        if (most := settings.FLYWHEEL_TRAINING_PROCESSES) > 1:
            limit_processes(self.fields["processes"], most)
        else:
            del self.fields["processes"]
        for name, field in self.fields.items():
            methods = [method for method, names in OF_METHOD.items() if name in names]
            if methods and name not in LORA:
                field.widget.attrs["data-methods"] = " ".join(methods)
        for name in (
            "parent",
            "eval_set",
            "environment",
        ):  # preselect the newest instead of an empty choice
            self.fields[name].empty_label = None
        for name in LORA:  # empty means the default
            self.fields[name].required = False

    def parts(self) -> list[tuple[str, str, list[forms.BoundField]]]:
        """(title, text below it, fields) in the order of the page."""
        of_method = {name for names in OF_METHOD.values() for name in names}
        rest = [
            name
            for name in self.fields
            if name not in of_method and name not in (*LORA, *MORE, *WATCHED)
        ]
        common = ("steps", "seed", "seeds")
        named = [("", "", [*(name for name in rest if name not in common), *EXAMPLES])]
        named.append(
            (
                "Settings",
                "",
                [
                    *common,
                    *(
                        name
                        for name in self.fields
                        if name in of_method - {*LORA, *MORE, *EXAMPLES}
                    ),
                ],
            )
        )
        help_text = (
            "For a new adapter. A run that starts from an adapter keeps its rank, alpha and layers."
        )
        named.append(("LoRA adapter", help_text, list(LORA)))
        named.append(("More options", "", [name for name in MORE if name in self.fields]))
        named.append(
            (
                "Alarms",
                "What pauses or stops the run. Empty fields use the default.",
                [name for name in WATCHED if name in self.fields],
            )
        )
        return [(title, about, [self[name] for name in names]) for title, about, names in named]

    @property
    def folded(self) -> set[str]:
        """Titles of the parts that are collapsed: the advanced ones, unless one of their fields has
        an error.
        """
        wrong = {
            title for title, _, fields in self.parts() if any(field.errors for field in fields)
        }
        return {"LoRA adapter", "More options", "Alarms"} - wrong

    def clean_target_modules(self) -> str | list[str]:
        names = self.cleaned_data["target_modules"].replace(",", " ").split()
        return ALL_LINEAR if not names or ALL_LINEAR in names else list(dict.fromkeys(names))

    def clean(self) -> dict[str, Any]:
        data = super().clean() or self.cleaned_data
        for name in LORA:
            if data.get(name) in (None, ""):
                data[name] = self.fields[name].initial
        for method, names in OF_METHOD.items():
            if method != data.get("method"):
                for name in names:
                    if name not in OF_METHOD.get(data.get("method"), ()):
                        self.errors.pop(name, None)
        if data.get("method") in SHAPES:
            self._clean_sources(data)
        if (
            data.get("method") == Method.GRPO
            and data.get("one_step_ahead")
            and not data.get("sample_on")
        ):
            self.add_error("one_step_ahead", "Choose a server to sample on first.")
        if data.get("method") == Method.GRPO and (chosen := data.get("environment")):
            asked = {"advantages": data.get("advantages")} | (data.get("more") or {})
            if why := no_turn_rewards(asked, chosen):
                self.add_error("advantages" if "advantages" in self.fields else "more", why)
        if not self.errors:
            self._check_config(data)
        return data

    def _clean_sources(self, data: dict[str, Any]) -> None:
        """Drop sources that the method does not learn from, and check that an evaluation belongs to
        the set.
        """
        known = SOURCES[data["method"]]
        chosen = (
            known
            if len(known) == 1
            else [source for source in known if source in data.get("sources", ())]
        )
        run, eval_set = data.get("samples_of"), data.get("eval_set")
        if not chosen and "sources" not in self.errors:
            self.add_error("sources", "Choose at least one source that this method learns from.")
        elif chosen == [Source.EVALUATION] and run is None:
            self.add_error(
                "samples_of", "Choose an evaluation, or evaluate the train split of this set first."
            )
        elif run and eval_set and Source.EVALUATION in chosen and run.eval_set_id != eval_set.pk:
            self.add_error("samples_of", f"It evaluated {run.eval_set}, not {eval_set}.")
        elif run and (sentence := why_not_learned(data["method"], data.get("parent"), run)):
            self.add_error("samples_of", sentence)
        data["sources"] = chosen

    def found(self) -> Found:
        """The examples from the chosen sources."""
        data = self.cleaned_data
        return find_examples(
            eval_set=data["eval_set"],
            shape=SHAPES[data["method"]].value,
            sources=data["sources"],
            evaluation=data.get("samples_of"),
        )

    def sampling(self) -> dict[str, Any]:
        """Arguments of `prepared_run`: where GRPO samples, and which teacher is used."""
        data = self.cleaned_data
        if data["method"] in TAUGHT:
            return {"teacher": data.get("teacher"), "teacher_on": data.get("teacher_on") or ""}
        if data["method"] != Method.GRPO:
            return {}
        played = {"agent": data["agent"]} if data.get("agent") else {}
        if not data.get("sample_on"):
            return played
        ahead = int(data["one_step_ahead"])
        return played | {"sample_on": data["sample_on"], "steps_ahead": ahead}

    def _check_config(self, data: dict[str, Any]) -> None:
        """Validate the settings as a whole; errors are added to the field they are about."""
        try:
            whole_settings(data["method"], self.config(), data["parent"])
        except FormError as error:
            field = (
                error.path
                if error.path in self.fields
                else "alarms"
                if error.path.startswith("alarms")
                else "more"
            )
            self.add_error(field, str(error))

    def config(self) -> dict:
        data = self.cleaned_data
        common = {
            "steps": data["steps"],
            "learning_rate": data[
                "preference_rate" if data["method"] in (Method.DPO, Method.KTO) else "learning_rate"
            ],
            **self._of_adapter(data),
            "save_every": max(1, data["steps"] // 5),
            "alarms": data["alarms"],
            "judge_outputs": (
                (data.get("judge_outputs") or 0) if data["method"] != Method.REWARD else 0
            ),
            "retry_smaller": bool(data.get("retry_smaller")),
            "processes": data.get("processes") or 1,
        }
        if "load_in_4bit" in OF_METHOD[data["method"]]:
            common["load_in_4bit"] = bool(data.get("load_in_4bit"))
        if data["method"] in TAUGHT:
            common |= {name: data.get(name) or 0 for name in ("teacher_tokens", "teacher_usd")}
        if data["method"] == Method.ON_POLICY:
            return common | self._on_policy(data) | data["more"]
        if data["method"] != Method.GRPO:
            return common | self._of_rows(data) | data["more"]
        return (
            common
            | {
                "prompts_per_step": data["prompts_per_step"],
                "generations": data["generations"],
                "beta": data["beta"],
                "eval_every": common[
                    "save_every"
                ],  # so that every checkpoint has a validation result
                "eval_samples": 2,
                "max_new_tokens": _longest(data),
            }
            | grpo_settings(data)
            | data["more"]
        )

    def _of_adapter(self, data: dict[str, Any]) -> dict[str, Any]:
        """The shape of a new adapter, or what was changed in the fields where a run continues one:
        they are hidden then.
        """
        if data["parent"].kind == ModelKind.ADAPTER:
            return {name: data[name] for name in SHAPE if data[name] != self.fields[name].initial}
        shape = {name: data[name] for name in SHAPE}
        return shape | {"lora_alpha": data["lora_alpha"] or 2 * data["lora_rank"]}

    def _of_rows(self, data: dict[str, Any]) -> dict[str, Any]:
        """The settings of methods that TRL trains."""
        method, every = data["method"], data.get("eval_every")
        found = {
            "batch_size": data["batch_size"],
            "warmup_steps": min(2, data["steps"] - 1),
            "eval_every": max(1, data["steps"] // 4) if every is None else every,
        }
        if method in SHAPES:
            found["validation_share"] = data.get("validation_share") or 0.0
        if method in (Method.DPO, Method.KTO):
            found["beta"] = data["preference_beta"]
        if "lora_dropout" in OF_METHOD[method]:
            found["lora_dropout"] = data["lora_dropout"]
        if method == Method.DPO:
            smoothing = data.get("label_smoothing") or 0.0
            found |= {
                "loss_type": data["dpo_loss"],
                "label_smoothing": smoothing if data["dpo_loss"] == "robust" else 0.0,
            }
        if method == Method.BEST_OF_N:
            found |= {
                "samples": data["samples"],
                "keep": data.get("keep") or "best",
                "temperature": data.get("temperature") or 1.0,
                "top_p": data.get("top_p") or 1.0,
                "max_new_tokens": _longest(data),
            }
        if method == Method.REWARD:
            found |= {
                "center_rewards": data.get("center_rewards") or 0.0,
                "show_tools": data["show_tools"],
            }
        return found

    def _on_policy(self, data: dict[str, Any]) -> dict[str, Any]:
        every = data.get("eval_every")
        return {
            "prompts_per_step": data["prompts_per_step"],
            "generations": data["generations"],
            "eval_every": max(1, data["steps"] // 4) if every is None else every,
            "micro_batch": data.get("micro_batch") or 0,
            "gradient_checkpointing": data["gradient_checkpointing"],
            "max_new_tokens": _longest(data),
        }


def limit_processes(field: forms.IntegerField, most: int) -> None:
    """Limit the field to the number of processes that the operator allows."""
    field.validators.append(MaxValueValidator(most))
    field.widget.attrs["max"] = most
    field.help_text = (
        f"Up to {most} share each step, one for each GPU; the update stays the same. 1 if empty"
    )


def _longest(data: dict[str, Any]) -> int:
    """The token limit of an answer in the environment."""
    return data["environment"].harness.get("max_new_tokens", 64)
