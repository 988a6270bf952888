"""Sources of a project's judged answers: corrections and feedback in production, reward reviews,
evaluations of training tasks.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db.models import Q

from apps.core.models import JobState, Project
from apps.evals.canonical import canonical_hash
from apps.evals.holdout import leaks
from apps.evals.holdout.groups import held_out_runs, runs_of_groups
from apps.evals.models import (
    Continuation,
    EvalRun,
    EvalSet,
    Sample,
    Split,
    StepSearch,
    Task,
)
from apps.evals.source_runs import prompt_at, steps_of
from apps.failures.models import FailureState
from apps.registry.models import ModelVersion
from apps.reviews.labels import labels_of
from apps.reviews.models import ReviewItem, RewardReview
from apps.training.judged import Example, Judged, Shape, examples_of
from apps.training.models import SHAPES, SOURCES, Method, Source
from apps.trajectories.exports import HELD_OUT, LeftOut, corrected_turn, correction
from apps.trajectories.models import (
    Feedback,
    HourlyCount,
    Outcome,
    Trajectory,
    TrajectoryKey,
    in_chunks,
)
from workers.lib.messages import answer_text

MOST_RUNS = 2_000  # newest production runs that are read
MOST_SAMPLES = 20_000
CHECKED_AT_ONCE = 500
SEVERAL_TURNS = "an answer with several turns"
NO_STEP = "no agent step to correct"
OTHER_AGENT = "from runs of another agent than this set's tasks"
NO_AGENT = (
    "from runs of an agent, and none of this set's tasks comes from a run, so its agent is unknown:"
    " make tasks from its runs"
)
RETRIEVAL_FAILURE = "retrieval_failure"
DECISIVE = {"state": JobState.SUCCEEDED, "result__verdict__is_sure": True}  # of a step search
MEASURES = "from a validation, regression or general task of this set"


@dataclass
class Found:
    """`by_source` counts the examples."""

    examples: list[Example] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    @property
    def by_source(self) -> dict[str, int]:
        return dict(Counter(example.source for example in self.examples))

    @property
    def good(self) -> int:
        return sum(bool(example.data.get("good")) for example in self.examples)

    @property
    def bad(self) -> int:
        return sum(example.data.get("good") is False for example in self.examples)


def find_examples(
    *, eval_set: EvalSet, shape: Shape, sources: Collection[str], evaluation: EvalRun | None = None
) -> Found:
    """The examples from these sources, without anything that is held out, contains held-out
    content, or is used to measure runs on this set. `evaluation`: one of the set's training tasks.
    """
    found = Found()
    answers: list[Judged] = []
    runs = [source for source in OF_RUN if source in sources]
    if runs:
        answers += _of_production(eval_set, runs, found.left_out)
    if Source.REVIEWS in sources:
        answers += _of_reviews(eval_set, found.left_out)
    if Source.EVALUATION in sources and evaluation is not None:
        answers += _of_evaluation(eval_set, evaluation, found.left_out)
    extremes = frozenset({Source.EVALUATION}) if shape == "pairs" else frozenset[str]()
    found.examples, left_out = examples_of(answers, shape, extremes=extremes)
    found.left_out += left_out
    _leave_out_held(eval_set.project, found)
    return found


def usual_examples(method: str, eval_set: EvalSet, evaluation: EvalRun | None) -> Found:
    """From all sources that a method learns from; from an evaluation's samples if one is named."""
    sources = [source for source in SOURCES[method] if source != Source.EVALUATION or evaluation]
    return find_examples(
        eval_set=eval_set, shape=SHAPES[method].value, sources=sources, evaluation=evaluation
    )


def evaluations_of(project: Project) -> Any:
    """Evaluations whose answers may train: finished, and of training tasks."""
    rows = EvalRun.objects.current().filter(
        project=project, split=Split.TRAIN, state=JobState.SUCCEEDED
    )
    return rows.select_related("eval_set", "model_version").order_by("-created_at")


def why_not_learned(method: str, parent: ModelVersion | None, evaluation: EvalRun) -> str:
    """A sentence if the method cannot learn from this model's samples (a teacher must be another
    model, rejection sampling uses the model's own), otherwise "".
    """
    if parent is None or method not in (Method.DISTILL, Method.REJECTION):
        return ""
    own = evaluation.model_version.model in (parent, *parent.ancestors())
    if method == Method.DISTILL and own:
        return (
            f"These samples are from {evaluation.model_version} itself. Choose an evaluation of the"
            " teacher, or use rejection sampling."
        )
    if (
        method == Method.REJECTION
        and evaluation.model_version.model.base_version() != parent.base_version()
    ):
        return (
            f"These samples are from {evaluation.model_version}, a different model. Choose"
            f" distillation, or an evaluation of {parent}."
        )
    return ""


def leak_row(example: Example, task: Task | None) -> dict[str, Any]:
    """In the format in which training texts are compared with the hold-outs."""
    messages = task.messages if task else example.data["messages"]
    if "chosen" in example.data:
        return {
            "prompt": messages,
            "chosen": example.data["chosen"],
            "rejected": example.data["rejected"],
        }
    return {"prompt": messages, "completion": example.data["answer"]}


def groups_of(examples: Sequence[Any]) -> list[str]:
    """The group of each example (a row), so that nothing held back is related to what trains: the
    group of its task, or of a task with the same request, or else the request itself.
    """
    of_request = {one.task.canonical_hash: one.task.group for one in examples if one.task}
    asked = [
        one.task.canonical_hash if one.task else canonical_hash(one.data["messages"])
        for one in examples
    ]
    return [
        one.task.group if one.task else of_request.get(request, request)
        for one, request in zip(examples, asked, strict=True)
    ]


def _leave_out_held(project: Project, found: Found) -> None:
    tasks = Task.objects.in_bulk({example.task for example in found.examples if example.task})
    kept: list[Example] = []
    for start in range(0, len(found.examples), CHECKED_AT_ONCE):
        part = found.examples[start : start + CHECKED_AT_ONCE]
        forbidden = leaks.forbidden(
            project, [leak_row(one, tasks[one.task] if one.task else None) for one in part]
        )
        kept += [one for index, one in enumerate(part) if index not in forbidden]
    if less := len(found.examples) - len(kept):
        found.left_out[HELD_OUT] += less
    found.examples = kept


# Production


def agents_of(eval_set: EvalSet) -> set[str] | None:
    """The agents whose runs a set's tasks come from: what other agents did is no example for it.
    None if the project has only one. Empty if no task comes from a run that is still stored, so
    that its agent is unknown.
    """
    runs = eval_set.tasks.filter(trajectory__isnull=False).order_by()
    if own := set(runs.values_list("trajectory__agent_name", flat=True).distinct()):
        return own
    counted = HourlyCount.objects.filter(project=eval_set.project_id).order_by()
    return None if len(set(counted.values_list("agent_name", flat=True).distinct())) <= 1 else set()


def words_of_people(eval_set: EvalSet) -> dict[str, Any]:
    """Counts for the advisor, from the rows alone: corrected runs of the set's agents (up to a
    cap), and their ratings up and down, without runs that a held-out task was made from; and how
    many of these agents' failures are retrieval failures.
    """
    project, agents = eval_set.project, agents_of(eval_set)
    held = (
        Task.objects.holdout()
        .filter(project=project, trajectory__isnull=False)
        .values("trajectory__external_id")
    )
    said = (
        Feedback.objects.filter(project=project).exclude(external_id__in=held).order_by("-given_at")
    )
    corrected = Q(interventions__contains=[{"kind": "edit"}]) | Q(
        interventions__contains=[{"kind": "takeover"}]
    )
    kinds = (corrected, Q(outcome__status=Outcome.SUCCESS), Q(outcome__status=Outcome.FAILURE))
    pairs, up, down = (_runs_of_agents(project, said.filter(kind), agents) for kind in kinds)
    failures = project.failures.standing().exclude(mode=None)
    if agents is not None:
        failures = failures.filter(trajectory__agent_name__in=agents)
    missing = failures.filter(mode__slug=RETRIEVAL_FAILURE).count()
    return {
        "preference_pairs": pairs,
        "thumbs": (up, down),
        "fact_failures": (missing, failures.count()),
    }


def _runs_of_agents(project: Project, said: Any, agents: set[str] | None) -> int:
    """How many runs of these agents were spoken of; runs that have not arrived are nobody's."""
    names = set(said.values_list("external_id", flat=True)[:MOST_RUNS])
    if agents is None:
        return len(names)
    keys = TrajectoryKey.objects.filter(project=project, external_id__in=names).values_list(
        "trajectory_id", flat=True
    )
    return project.trajectories.filter(pk__in=list(keys), agent_name__in=agents).count()


def _of_production(
    eval_set: EvalSet, sources: list[str], left_out: Counter[str]
) -> Iterator[Judged]:
    measures = eval_set.tasks.exclude(split__in=(Split.TRAIN, Split.HOLDOUT))
    requests, agents = set(measures.values_list("canonical_hash", flat=True)), agents_of(eval_set)
    for chunk in in_chunks(_runs_with_a_word(eval_set.project)):
        held, measured = held_out_runs(eval_set.project, chunk), runs_of_groups(measures, chunk)
        replayed = _replayed(chunk) if Source.REPLAYS in sources else {}
        for run in chunk:
            if agents is not None and run.agent_name not in agents:
                left_out[OTHER_AGENT if agents else NO_AGENT] += 1
                continue
            if run.pk in held or run.pk in measured:
                left_out[HELD_OUT if run.pk in held else MEASURES] += 1
                continue
            for source in sources:
                for answer in OF_RUN[source](run, left_out, replayed.get(run.pk, ())):
                    if answer.request in requests:  # a run of another group with the same request
                        left_out[MEASURES] += 1
                    else:
                        yield answer


def _runs_with_a_word(project: Project) -> Any:
    """Runs with feedback, failed runs (which may have arrived with a correction), and those whose
    decisive step is known; without dismissed failures.
    """
    said = (
        Feedback.objects.filter(project=project)
        .order_by("-given_at")
        .values_list("external_id", flat=True)
    )
    keys = TrajectoryKey.objects.filter(project=project, external_id__in=list(said[:MOST_RUNS]))
    failed = (
        project.trajectories.filter(outcome_status=Outcome.FAILURE)
        .order_by("-pk")
        .values_list("pk", flat=True)
    )
    searched = StepSearch.objects.filter(project=project, **DECISIVE).order_by("-created_at")
    replayed = searched.values_list("failure__trajectory_id", flat=True)[:MOST_RUNS]
    wanted = {*keys.values_list("trajectory_id", flat=True), *failed[:MOST_RUNS], *replayed}
    return (
        project.trajectories.filter(pk__in=wanted)
        .exclude(failure__state=FailureState.DISMISSED)
        .order_by("pk")
    )


def _replayed(chunk: Sequence[Trajectory]) -> dict[Any, list[Continuation]]:
    """{run: continuations from its decisive step that succeeded}."""
    of_run: defaultdict[Any, list[Continuation]] = defaultdict(list)
    searches = StepSearch.objects.filter(
        failure__trajectory__in=[run.pk for run in chunk], **DECISIVE
    )
    for search in searches.select_related("failure"):
        rows = search.continuations.filter(
            step=search.result["verdict"]["step"], success=True, masked=False
        )
        of_run[search.failure.trajectory_id] += rows
    return of_run


def _replays(
    run: Trajectory, left_out: Counter[str], replayed: Collection[Continuation]
) -> Iterator[Judged]:
    """What continuations that succeeded did at the decisive step, and what the agent did there."""
    for step in dict.fromkeys(one.step for one in replayed):
        yield _of_run(run, Source.REPLAYS, step, answer_text(run.messages[step]), good=False)
    for one in replayed:
        right = answer_text(one.messages[0]) if one.messages else ""
        yield _of_run(run, Source.REPLAYS, one.step, right, good=True)


def _corrections(run: Trajectory, left_out: Counter[str], _: Any) -> Iterator[Judged]:
    """The last correction of each step, paired with what the agent did there."""
    last: dict[int, Any] = {}
    for item in run.interventions:
        if item.get("kind") in ("edit", "takeover") and item.get("after"):
            last[corrected_turn(run.messages, item.get("message_index"))] = item["after"]
    steps = set(steps_of(run.messages)) if last else set()
    for at, after in last.items():
        if at not in steps:
            left_out[NO_STEP] += 1
            continue
        try:
            right = answer_text(correction(after)[0])
        except LeftOut as reason:
            left_out[str(reason)] += 1
            continue
        yield _of_run(run, Source.CORRECTIONS, at, answer_text(run.messages[at]), good=False)
        yield _of_run(run, Source.CORRECTIONS, at, right, good=True)


def _feedback(run: Trajectory, left_out: Counter[str], _: Any) -> Iterator[Judged]:
    """The last thumbs up or down on the run, for the step it names, or else for the agent's last
    step.
    """
    steps = steps_of(run.messages)
    thumb = next(
        (found for said in reversed(run.feedback) if (found := _thumb(said)) is not None), None
    )
    if thumb is None:
        return
    good, index = thumb
    before = [step for step in steps if index is None or step <= index]
    if not before:
        left_out[NO_STEP] += 1
        return
    yield _of_run(
        run, Source.FEEDBACK, before[-1], answer_text(run.messages[before[-1]]), good=good
    )


def _thumb(said: Feedback) -> tuple[bool, int | None] | None:
    """(whether it is up, the message it refers to); None if it is neither up nor down."""
    kinds = {item.get("kind"): item.get("message_index") for item in said.interventions}
    index = next((at for at in kinds.values() if isinstance(at, int)), None)
    if (status := said.outcome.get("status")) in (Outcome.SUCCESS, Outcome.FAILURE):
        return status == Outcome.SUCCESS, index
    if kinds.keys() & {"edit", "takeover", "reject", "abort"}:
        return False, index
    if "approve" in kinds:
        return True, index
    reward = said.outcome.get("reward")
    return None if reward is None else (reward > 0, index)


def _of_run(run: Trajectory, source: str, at: int, answer: str, *, good: bool) -> Judged:
    messages = prompt_at(run.messages, at)
    return Judged(
        source,
        canonical_hash(messages),
        answer,
        good,
        trajectory=run.pk,
        messages=messages,
        tools=run.tools,
    )


OF_RUN: dict[str, Callable[..., Iterator[Judged]]] = {
    Source.CORRECTIONS: _corrections,
    Source.FEEDBACK: _feedback,
    Source.REPLAYS: _replays,
}


# People's verdicts on samples, and evaluations


def _of_reviews(eval_set: EvalSet, left_out: Counter[str]) -> Iterator[Judged]:
    """Samples of the set's training tasks as people judged them; if all were wrong, the task's
    demonstration is right.
    """
    tasks = eval_set.tasks.trainable().in_bulk()
    reviews = list(RewardReview.objects.filter(project=eval_set.project))
    said = labels_of(review.pk for review in reviews)
    verdicts = {
        label.item: word
        for review in reviews
        for label in said[review.pk]
        if (word := label.person(review.policy["reviewers_per_sample"])) is not None
    }
    items = ReviewItem.objects.filter(
        pk__in=verdicts, sample__task__in=tasks, sample__run__split=Split.TRAIN
    )
    groups: defaultdict[Any, list[Judged]] = defaultdict(list)
    for item in items.select_related("sample").order_by("pk"):
        if one := _of_sample(item.sample, tasks, Source.REVIEWS, verdicts[item.pk], left_out):
            groups[item.sample.task_id].append(one)
    for pk, group in groups.items():
        yield from group
        task = tasks[pk]
        if task.demonstration and not any(one.good for one in group):
            yield Judged(Source.REVIEWS, task.canonical_hash, task.demonstration, True, task=pk)


def _of_evaluation(
    eval_set: EvalSet, evaluation: EvalRun, left_out: Counter[str]
) -> Iterator[Judged]:
    tasks = eval_set.tasks.trainable().in_bulk()
    if evaluation.split != Split.TRAIN or evaluation.project_id != eval_set.project_id:
        return
    samples = evaluation.samples.filter(task__in=tasks, masked=False).order_by("task_key", "index")
    for sample in samples.defer("messages", "details", "components")[:MOST_SAMPLES]:
        if one := _of_sample(sample, tasks, Source.EVALUATION, sample.success, left_out):
            yield one


def _of_sample(
    sample: Sample, tasks: dict, source: str, good: bool, left_out: Counter[str]
) -> Judged | None:
    if sample.turns > 1:
        left_out[SEVERAL_TURNS] += 1
        return None
    task = tasks[sample.task_id]
    return Judged(
        source, task.canonical_hash, sample.output, good, sample.reward or 0.0, task=task.pk
    )
