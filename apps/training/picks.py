"""The form of a run that can select its tasks by an evaluation of the training tasks."""

from __future__ import annotations

from typing import Any

from django import forms
from django.http import QueryDict

from apps.core.forms import whole
from apps.core.models import JobState, Project
from apps.evals.learnability.run import RunLearnability
from apps.evals.models import EvalRun, EvalSetState, Split
from apps.registry.rollout_servers import choose_servers
from apps.training import teachers
from apps.training.budget.asked import Asked
from apps.training.forms import TrainingForm
from apps.training.models import SHAPES, SOURCES, Method, Source
from apps.training.start_adapter import whole_settings

OFFERED = 10  # newest evaluations offered; each is read to count its informative tasks


class PickForm(TrainingForm):
    """Offers all training tasks, or the informative ones according to one of their evaluations."""

    picked_by = forms.ModelChoiceField(
        None,
        required=False,
        label="Tasks",
        empty_label="All training tasks",
        help_text="SFT learns from tasks with a demonstration",
    )
    per_group = forms.IntegerField(
        min_value=1,
        required=False,
        label="Max tasks per group",
        help_text="When an evaluation picks the tasks",
    )
    field_order = ("method", "parent", "eval_set", "picked_by", "per_group")

    def __init__(
        self,
        project: Project,
        data: QueryDict | None = None,
        asked: QueryDict | None = None,
        advised: dict[str, Any] | None = None,
    ) -> None:
        """`asked`: the page's query, in which a link may set fields, an evaluation and the cap.
        `advised`: defaults where the link says nothing.
        """
        given = data if data is not None else asked or QueryDict()
        named = given.get("picked_by", "")
        self.labels = offers(project, whole(given.get("per_group"), 1), named)
        named_fields = {
            name: given[name]
            for name in ("method", "parent", "eval_set", "environment", "samples_of")
            if given.get(name)
        }
        initial = (advised or {}) | named_fields | _initial(project, given, self.labels)
        super().__init__(project, data, initial=initial)
        if not self.labels and (data is None or not named):
            del self.fields["picked_by"], self.fields["per_group"]
            return
        field = self.fields["picked_by"]
        field.queryset = EvalRun.objects.filter(pk__in=list(self.labels))
        field.label_from_instance = lambda run: self.labels[str(run.pk)]

    def choice(self, name: str) -> Any:
        """The row that a field of the form shows, also while other fields are wrong: its value, or
        the first one offered.
        """
        field, value = self.fields[name], self[name].value()
        try:
            row = field.clean(getattr(value, "pk", value)) if value else None
        except forms.ValidationError:
            return None
        return row or field.queryset.first()

    def example_sources(self) -> list[str]:
        """The chosen sources of the method's examples; an evaluation only if one is named."""
        known = SOURCES.get(self["method"].value(), [])
        chosen = (
            known
            if len(known) == 1
            else [source for source in known if source in (self["sources"].value() or ())]
        )
        return [
            source
            for source in chosen
            if source != Source.EVALUATION or len(known) == 1 or self["samples_of"].value()
        ]

    def clean(self) -> dict[str, Any]:
        data = super().clean() or self.cleaned_data
        run, eval_set = data.get("picked_by"), data.get("eval_set")
        if run and eval_set and run.eval_set_id != eval_set.pk:
            self.add_error("picked_by", f"It evaluated {run.eval_set}, not {eval_set}.")
        return data

    def chosen_by(self) -> dict[str, Any]:
        """The evaluation that chose the tasks, or the one whose samples are examples."""
        data = self.cleaned_data
        if data["method"] not in SHAPES:
            return {"picked_by": data.get("picked_by")}
        return (
            {"samples_of": data.get("samples_of")} if Source.EVALUATION in data["sources"] else {}
        )

    def selection(self) -> dict[str, Any]:
        """The arguments of `freeze_dataset` for this choice; {} if all tasks train."""
        if shape := SHAPES.get(self.cleaned_data["method"]):
            return {
                "shape": shape,
                "examples": self.found().examples,
            }  # chosen by their source, not by learnability
        run = self.cleaned_data.get("picked_by")
        if run is None:
            return {}
        return {
            "picked_by": run,
            "keys": RunLearnability(run).pick(self.cleaned_data.get("per_group")).chosen,
        }

    def asked(self) -> Asked:
        """The run to be estimated; nothing is frozen for it. Raises ModelError for servers that it
        cannot sample on.
        """
        data, examples = self.cleaned_data, ()
        tasks = list(data["eval_set"].tasks.trainable())
        if data["method"] in SHAPES:
            examples = tuple(self.found().examples)
        elif run := data.get("picked_by"):
            chosen = {str(pk) for pk in RunLearnability(run).pick(data.get("per_group")).chosen}
            tasks = [task for task in tasks if str(task.pk) in chosen]
        sampling = self.sampling()
        config = whole_settings(data["method"], self.config(), data["parent"])
        rollouts: dict[str, Any] = {}
        taught = teachers.chosen(
            data["method"],
            data["parent"],
            sampling.get("teacher"),
            sampling.get("teacher_on", ""),
            config,
        )
        if "sample_on" in sampling:
            rollouts = choose_servers(
                data["parent"],
                list(sampling["sample_on"]),
                config["lora_rank"],
                sampling["steps_ahead"],
                config["top_p"],
            )
        return Asked(
            project=data["eval_set"].project,
            method=data["method"],
            parent=data["parent"],
            environment=data["environment"],
            eval_set=data["eval_set"],
            config=config,
            tasks=tasks,
            examples=examples,
            rollouts=rollouts,
            runs=data.get("seeds") or 1,
            teacher=sampling.get("teacher"),
            teacher_engine=taught.get("teacher_engine"),
        )


def offers(project: Project, per_group: int | None = None, named: str = "") -> dict[str, str]:
    """{evaluation: label of the choice}, newest first: finished, of the train split of a frozen
    set, with at least one informative task.

    `named` is offered however old it is.
    """
    runs = (
        EvalRun.objects.current()
        .filter(
            project=project,
            split=Split.TRAIN,
            state=JobState.SUCCEEDED,
            eval_set__state=EvalSetState.FROZEN,
        )
        .select_related("eval_set")
    )
    newest = list(runs.order_by("-created_at")[:OFFERED])
    known = {str(run.pk) for run in newest}
    if named and named not in known and (old := _found(runs, named)):
        newest.append(old)
    return {str(run.pk): label for run in newest if (label := _label(run, per_group))}


def _found(runs: Any, named: str) -> EvalRun | None:
    try:
        return runs.filter(pk=forms.UUIDField().clean(named)).first()
    except forms.ValidationError:
        return None


def _label(run: EvalRun, per_group: int | None) -> str:
    made = RunLearnability(run).pick(per_group)
    total = len(made.chosen) + len(made.left_out)
    return (
        f"The {len(made.chosen)} of {total} in {run.eval_set} that are informative according to"
        f" “{run.name}”"
        if made.chosen
        else ""
    )


def _initial(project: Project, given: QueryDict, labels: dict[str, str]) -> dict[str, Any]:
    """The evaluation that a link names, its set and the cap. Since informative tasks are meant for
    RL, the method is GRPO.
    """
    if given.get("picked_by", "") not in labels:
        return {}
    run = EvalRun.objects.only("eval_set").get(project=project, pk=given["picked_by"])
    return {
        "method": Method.GRPO,
        "picked_by": run.pk,
        "eval_set": run.eval_set_id,
        "per_group": whole(given.get("per_group"), 1),
    }
