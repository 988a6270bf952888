"""The definition of a flow as its author writes it, in a form or in YAML: triggers, steps, and
limits. No database.

Steps run one after the other. A step refers to the outputs of earlier ones by name ("step:train").
`if` compares an output of an earlier step ("gate.verdict == promote"); if it is false, the step is
skipped, and so is every step that refers to it.
"""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Iterator
from datetime import UTC, datetime, time, timedelta
from functools import cache, cached_property
from itertools import groupby
from typing import Annotated, Any, ClassVar, Literal
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError
from msgspec import Meta, Struct, field, structs

from apps.core import yaml_text
from apps.core.errors import Rejected
from apps.core.storable import PROBLEM
from apps.core.yaml_text import DEEPEST, YamlError
from workers.lib.errors import SpecError
from workers.lib.storable import is_storable
from workers.lib.typed import AtLeastOne, Count, Seed, Share, Text, convert, unknown

MOST_STEPS = 40
PRODUCTION = "production"
NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
CONDITION = re.compile(r"(\w+)\.(\w+)\s*(==|!=|<=|>=|<|>)\s*(\S.*?)\s*\Z")
TWO = re.compile(
    r"\s(and|or)\s|&&|\|\||[<>=]"
)  # finds a second condition within a condition's value
# all possible values of these outputs
WORDS = {"answer": ("yes", "no"), "verdict": ("promote", "reject", "inconclusive")}
CLOCK = re.compile(r"([01]\d|2[0-3]):[0-5]\d\Z")

Slug = Annotated[str, Meta(min_length=1, max_length=60, pattern=r"^[-a-zA-Z0-9_]+\Z")]
ModelRef = Annotated[str, Meta(pattern=r"^(channel|step|version):\S.*$", max_length=200)]
SetRef = Annotated[str, Meta(pattern=r"^(step|set):\S.*$", max_length=200)]
ClusterId = Annotated[
    str,
    Meta(
        pattern=r"^([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})?\Z",
        description="As its page's address ends",
    ),
]
OptionalModel = Annotated[str, Meta(pattern=r"^((channel|step|version):\S.*)?$", max_length=200)]
# An agent that is called over HTTP, by its name: its newest version plays, in its own harness.
Player = Annotated[str, Meta(max_length=200)]
Method = Literal[
    "sft", "rejection", "best_of_n", "dpo", "kto", "reward_model", "distill", "on_policy", "grpo"
]
OF_SAMPLES = ("rejection", "distill")  # methods that learn only from an evaluation's samples
OF_EXAMPLES = (*OF_SAMPLES, "dpo", "kto", "reward_model")
SplitName = Literal["train", "validation", "holdout", "regression"]
Outputs = tuple[str, ...]


class FlowError(Rejected):
    """A flow that cannot be saved or run. The message is a sentence for the page. `field`: the path
    of the invalid part ("" for the whole flow); None if the flow itself is valid but cannot run
    now.
    """


class _Form(Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True, tag_field="by"):
    pass


class Cron(_Form, tag="cron"):
    """At fixed times in the flow's time zone, written as the five fields of crontab."""

    when: Text


class NewFailures(_Form, tag="new_failures"):
    """When runs since the last run of this flow have this many failures, of one failure mode or
    cluster if you name it.
    """

    at_least: AtLeastOne
    mode: str = ""
    cluster: ClusterId = ""


class FailureRate(_Form, tag="failure_rate"):
    """When the failure rate of the last `days` whole days is above that of the `days` before: the
    lower bound of the 99.7% interval of the difference (Newcombe) is more than `rise`. Checked once
    a day; without a change, at most 4% of flows see a rise within 30 days."""

    days: Annotated[int, Meta(ge=1, le=90)] = 7
    rise: Share = 0.0
    mode: str = ""


class NewVersion(_Form, tag="new_version"):
    """When an agent version or model that is new since the flow was saved reaches `runs` runs in
    production.
    """

    of: Literal["version", "model"] = "version"
    runs: AtLeastOne = 50


class Call(_Form, tag="webhook"):
    """When another system sends a POST to the flow's address with its secret. You get both after
    saving.
    """


Trigger = Cron | NewFailures | FailureRate | NewVersion | Call
TRIGGERS: dict[str, type[Struct]] = {
    str(one.__struct_config__.tag): one
    for one in (Cron, NewFailures, FailureRate, NewVersion, Call)
}


class Step(Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True, tag_field="do"):
    """`name`: how later steps refer to it; defaults to its kind if there is only one of that
    kind.
    """

    outputs: ClassVar[Outputs] = ()
    label: ClassVar[str] = ""

    name: str = ""
    condition: str = field(name="if", default="")

    @property
    def kind(self) -> str:
        return str(type(self).__struct_config__.tag)

    @property
    def key(self) -> str:
        return self.name or self.kind

    def named(self) -> Iterator[tuple[str, str, str]]:
        """Yield (field, earlier step that it refers to, output that it needs)."""
        for each in structs.fields(self):
            value = getattr(self, each.name)
            if isinstance(value, str) and value.startswith("step:"):
                yield each.encode_name, value.removeprefix("step:"), NEEDED[each.name]
        for each, needed in self.plainly():
            if each:
                yield needed, each, NEEDED[needed]

    def plainly(self) -> list[tuple[str, str]]:
        """(earlier step, field) for fields that can only refer to a step."""
        return []


class Classify(Step, tag="classify"):
    """Classifies new and changed trajectories right away. Without this step, they are classified
    within a minute.
    """

    label: ClassVar[str] = "Classify new trajectories"
    outputs: ClassVar[Outputs] = ("looked", "found")


class Cluster(Step, tag="cluster"):
    """Groups similar failures."""

    label: ClassVar[str] = "Cluster failures"
    outputs: ClassVar[Outputs] = ("clusters", "failures")


class CollectTasks(Step, tag="collect_tasks"):
    """Adds a task to the set's draft for every trajectory of the last `days` with a known correct
    answer: corrected failures and, with `successes`, runs that succeeded. Trajectories that are
    held out, or close to one, are left out.
    """

    label: ClassVar[str] = "Collect tasks"
    outputs: ClassVar[Outputs] = ("made", "duplicates", "without_expected", "left_out", "tasks")

    into: Slug
    days: Annotated[int, Meta(ge=1, le=366)] = 30
    mode: str = ""
    successes: bool = False
    at_most: Annotated[int, Meta(ge=1, le=5000)] = 500


class FreezeSet(Step, tag="freeze_set"):
    """Splits the draft of a set by groups and freezes it. Without a draft, later steps use the
    newest frozen version.
    """

    label: ClassVar[str] = "Freeze the eval set"
    outputs: ClassVar[Outputs] = ("eval_set", "tasks", "train", "validation", "holdout")

    set: Slug
    holdout: AtLeastOne = 60
    validation: Count = 0
    seed: Seed = 0


class Evaluate(Step, tag="evaluate"):
    """Runs a model version on a split of a frozen set."""

    label: ClassVar[str] = "Evaluate"
    outputs: ClassVar[Outputs] = ("run", "success", "reward", "tasks", "masked", "usd")

    set: SetRef
    environment: Slug
    model: ModelRef = f"channel:{PRODUCTION}"
    split: SplitName = "holdout"
    samples: Annotated[int, Meta(ge=1, le=64)] = 4
    seed: Seed = 0
    most_usd: Annotated[float, Meta(gt=0, le=1e6)] | None = None
    played_by: Player = ""


class Learnability(Evaluate, tag="learnability"):
    """Evaluates the training tasks and counts the informative ones: some samples right, some
    wrong.
    """

    label: ClassVar[str] = "Measure learnability"
    outputs: ClassVar[Outputs] = (*Evaluate.outputs, "learnable", "share")

    split: Literal["train"] = "train"
    samples: Annotated[int, Meta(ge=2, le=64)] = 4


class Review(Step, tag="review"):
    """Waits for a passed reward review, which unlocks training with this environment on this
    set.
    """

    label: ClassVar[str] = "Reward review"
    outputs: ClassVar[Outputs] = ("verifier",)

    set: SetRef
    environment: Slug


class Train(Step, tag="train"):
    """Trains an adapter on the training tasks of a frozen set. `config`: the run's settings;
    `learnable`: train only on the tasks that this step found informative. `samples_of`: the
    evaluation of the training tasks whose samples are learned from, in addition to corrections,
    feedback and reviews where the method supports them; `teacher`: the teacher of on-policy
    distillation, or the model that samples in rejection sampling in the run.
    """

    label: ClassVar[str] = "Train"
    outputs: ClassVar[Outputs] = ("run", "model", "seconds", "alarms")

    method: Method
    set: SetRef
    environment: Slug
    config: dict[str, Any]
    model: ModelRef = f"channel:{PRODUCTION}"
    seed: Seed = 0
    learnable: str = ""
    samples_of: str = ""
    teacher: OptionalModel = ""
    played_by: Player = ""

    def plainly(self) -> list[tuple[str, str]]:
        return [(self.learnable, "learnable"), (self.samples_of, "samples_of")]


class Gate(Step, tag="gate"):
    """Measures what the comparison needs (latency, regression and general tasks), then runs the
    gate of a channel.
    """

    label: ClassVar[str] = "Gate"
    outputs: ClassVar[Outputs] = ("report", "verdict", "model")

    baseline: Text
    candidate: Text
    channel: Slug = "staging"

    def plainly(self) -> list[tuple[str, str]]:
        return [(self.baseline, "baseline"), (self.candidate, "candidate")]


class Promote(Step, tag="promote"):
    """Moves the gate's channel to the candidate if the verdict is “promote”. Never production: that
    needs a person.
    """

    label: ClassVar[str] = "Promote"
    outputs: ClassVar[Outputs] = ("model", "channel")

    report: Text = "gate"

    def plainly(self) -> list[tuple[str, str]]:
        return [(self.report, "report")]


class ExportParquet(Step, tag="export_parquet"):
    """Writes the days of runs, steps and scores that have changed to the artifact store, as
    Parquet.
    """

    label: ClassVar[str] = "Export as Parquet"
    outputs: ClassVar[Outputs] = ("written", "rows")


class Ask(Step, tag="ask"):
    """Waits for a person to answer yes or no. A later `if` can use `answer`; without one, no ends
    the flow.
    """

    label: ClassVar[str] = "Ask a person"
    outputs: ClassVar[Outputs] = ("answer", "by")

    question: Annotated[str, Meta(min_length=1, max_length=500)]


NEEDED = {
    "model": "model",
    "set": "eval_set",
    "learnable": "learnable",
    "baseline": "run",
    "candidate": "run",
    "report": "report",
    "samples_of": "run",
    "teacher": "model",
}
AnyStep = (
    Classify
    | Cluster
    | CollectTasks
    | FreezeSet
    | Evaluate
    | Learnability
    | Review
    | Train
    | Gate
    | Promote
    | ExportParquet
    | Ask
)
STEPS: dict[str, type[Step]] = {
    str(one.__struct_config__.tag): one
    for one in (
        Classify,
        Cluster,
        CollectTasks,
        FreezeSet,
        Learnability,
        Evaluate,
        Review,
        Train,
        Gate,
        Promote,
        ExportParquet,
        Ask,
    )
}


class Quiet(Struct, forbid_unknown_fields=True, kw_only=True):
    """No step starts between these times of day, in the flow's time zone. May span midnight."""

    start: str = field(name="from")
    end: str = field(name="until")


class Budget(Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """What the jobs of one run, and of all runs of the flow since midnight, may take: hours that
    they compute, and USD that is known.
    """

    hours_a_run: Annotated[float, Meta(gt=0, le=10_000)] | None = None
    hours_a_day: Annotated[float, Meta(gt=0, le=10_000)] | None = None
    usd_a_run: Annotated[float, Meta(gt=0, le=1e6)] | None = None
    usd_a_day: Annotated[float, Meta(gt=0, le=1e6)] | None = None


class FlowSpec(Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True, dict=True):
    steps: Annotated[list[AnyStep], Meta(min_length=1, max_length=MOST_STEPS)]
    starts: Annotated[list[Trigger], Meta(max_length=10)] = field(default_factory=list)
    timezone: str = "UTC"
    quiet: Annotated[list[Quiet], Meta(max_length=5)] = field(default_factory=list)
    budget: Budget = field(default_factory=Budget)
    retries: Annotated[int, Meta(ge=0, le=5)] = 1

    @cached_property
    def zone(self) -> ZoneInfo:
        return ZoneInfo(self.timezone)

    @property
    def crons(self) -> list[Cron]:
        return [one for one in self.starts if isinstance(one, Cron)]

    @property
    def watched(self) -> list[Trigger]:
        """Triggers that are evaluated on stored data, as opposed to schedules and webhooks."""
        return [one for one in self.starts if not isinstance(one, Cron | Call)]

    @property
    def channels(self) -> set[str]:
        """The names of the channels that its steps refer to."""
        named = [getattr(step, each.name) for step in self.steps for each in structs.fields(step)]
        models = {
            value.removeprefix("channel:")
            for value in named
            if isinstance(value, str) and value.startswith("channel:")
        }
        return models | {step.channel for step in self.steps if isinstance(step, Gate)}

    def times(self, after: datetime) -> Iterator[datetime]:
        """When its schedules start it from then on (UTC), in order and without end; empty if it has
        no schedule.
        """
        ahead = heapq.merge(*(self._times(one.when, after) for one in self.crons))
        return (at for at, _ in groupby(ahead))

    def _times(self, when: str, after: datetime) -> Iterator[datetime]:
        """In UTC, because in the hour that occurs twice when clocks go back, local times would sort
        a time of the first pass after one of the second.
        """
        coming = (at.astimezone(UTC) for at in CronSim(when, after.astimezone(self.zone)))
        return (at for at in coming if at > after)

    def quiet_at(self, at: datetime) -> Quiet | None:
        return self.quiet_by(at.astimezone(self.zone).strftime("%H:%M"))

    def quiet_by(self, clock: str) -> Quiet | None:
        """The quiet hours at a time of day in the flow's time zone; None if there are none."""
        for one in self.quiet:
            inside = (
                one.start <= clock < one.end
                if one.start < one.end
                else clock >= one.start or clock < one.end
            )
            if inside:
                return one
        return None

    def after_quiet(self, at: datetime) -> datetime:
        """The first minute from then on at which steps may begin. It is within a day, since quiet
        hours never cover a whole day.
        """
        minutes = (at + timedelta(minutes=n) for n in range(24 * 60))
        return next(
            (minute for minute in minutes if not self.quiet_at(minute)), at + timedelta(days=1)
        )

    def midnight(self, at: datetime) -> datetime:
        """The beginning of that day in the flow's time zone."""
        return datetime.combine(at.astimezone(self.zone).date(), time.min, self.zone).astimezone(
            UTC
        )


def read_yaml(text: str) -> FlowSpec:
    """Raises FlowError with the line or the path of the field, and how to fix it."""
    return read(load_yaml(text))


def load_yaml(text: str) -> dict[str, Any]:
    """Parse one object, without duplicate keys or aliases. Raises FlowError with the line."""
    try:
        value = yaml_text.load_yaml(text)
    except YamlError as error:
        raise FlowError(str(error), "") from error
    if not isinstance(value, dict):
        raise FlowError(
            "A flow is an object with `steps`, and `starts` if it should start automatically.", ""
        )
    return value


def write_yaml(value: dict[str, Any]) -> str:
    """YAML for a plain spec, even one that is no longer valid."""
    value = {name: part for name, part in value.items() if part != {}}
    return yaml_text.write_yaml(value)


def read(value: Any) -> FlowSpec:
    """Raises FlowError."""
    _check_storable(value)
    try:
        spec = convert(value, FlowSpec)
    except SpecError as error:
        raise FlowError(str(error), getattr(error, "path", "")) from error
    _check_times(spec)
    _check_steps(spec)
    return spec


def _check_storable(value: Any, path: str = "", depth: int = 0) -> None:
    """Check that it is JSON that the database and YAML can represent."""
    if isinstance(value, dict | list):
        if depth == DEEPEST:
            raise FlowError(f"“{path[:100]}” is more than {DEEPEST} levels deep.", path)
        for name, part in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(value, dict):
                _check_storable(name, f"{path}[…]")
                if not isinstance(name, str):
                    raise FlowError(
                        f"“{path}”: the name {name} must be a string. Write it in quotes.", path
                    )
            inner = f"[{name}]" if isinstance(value, list) else f".{name}" if path else name
            _check_storable(part, f"{path}{inner}", depth + 1)
    elif isinstance(value, str):
        if not is_storable(value):
            raise FlowError(f"“{path}” {PROBLEM}.", path)
    elif isinstance(value, int | float):
        if not math.isfinite(value) if isinstance(value, float) else abs(value) >= 2**63:
            raise FlowError(f"“{path}” must be a finite number of at most 18 digits.", path)
    elif value is not None:
        raise FlowError(
            f"“{path}” must be a string, a number, true or false, a list, or an object.", path
        )


@cache
def zones() -> frozenset[str]:
    return frozenset(available_timezones())


def _check_times(spec: FlowSpec) -> None:
    if spec.timezone not in zones():
        raise FlowError(
            f"“timezone”: there is no time zone “{spec.timezone}”. Write one like Europe/Berlin.",
            "timezone",
        )
    for at, cron in enumerate(spec.starts):
        if isinstance(cron, Cron):
            try:
                if len(cron.when.split()) != 5:  # six fields would include seconds
                    raise CronSimError("Wrong number of fields")
                if next(CronSim(cron.when, datetime.now(spec.zone)), None) is None:
                    raise CronSimError("It never comes")
            except CronSimError as error:
                sentence = (
                    f"“{cron.when}” is not a time: {error}. Five fields, as “0 3 * * 1” for Mondays"
                    " at 3:00."
                )
                raise FlowError(sentence, f"starts[{at}].when") from error
    for at, quiet in enumerate(spec.quiet):
        for name, value in (("from", quiet.start), ("until", quiet.end)):
            if not CLOCK.match(value):
                raise FlowError(
                    f"“{value}” is not a time of day. Write it as “22:00”, in quotes.",
                    f"quiet[{at}].{name}",
                )
        if quiet.start == quiet.end:
            raise FlowError("Quiet hours cannot start and end at the same time.", f"quiet[{at}]")
    if spec.quiet and all(spec.quiet_by(one.end) for one in spec.quiet):
        raise FlowError(
            "The quiet hours cover the whole day, so no step could ever start.", "quiet"
        )


def _check_steps(spec: FlowSpec) -> None:
    """Check that names are unique, and that references point to earlier steps with the required
    output.
    """
    earlier: dict[str, Step] = {}
    for at, step in enumerate(spec.steps):
        path = f"steps[{at}]"
        if step.name and not NAME.fullmatch(step.name):
            raise FlowError(
                f"“{step.name}” is not a valid step name: use lowercase letters, digits and _,"
                " starting with a letter.",
                f"{path}.name",
            )
        if step.key in earlier:
            raise FlowError(
                f"Two steps are called “{step.key}”. Give one of them a different `name`.",
                f"{path}.name",
            )
        for name, other, needed in step.named():
            _require(earlier, other, needed, f"{path}.{name}")
            if needed == "model" and getattr(earlier[other], "method", "") == "reward_model":
                raise FlowError(
                    f"The step “{other}” produces a reward model, which scores answers but does not"
                    " generate them.",
                    f"{path}.{name}",
                )
        if isinstance(step, Train):
            _check_train(step, earlier, path)
        if step.condition:
            found = condition_of(step, path)
            _require(earlier, found[0], found[1], f"{path}.if")
        if isinstance(step, Gate) and step.channel == PRODUCTION:
            sentence = (
                "Flows can only promote to channels below production. People promote to production,"
                " using the gate report."
            )
            raise FlowError(sentence, f"{path}.channel")
        earlier[step.key] = step


def _check_train(step: Train, earlier: dict[str, Step], path: str) -> None:
    """Check that a method is given what it learns from, and nothing else."""
    if step.samples_of and step.method not in OF_EXAMPLES:
        raise FlowError(
            f"{step.method} does not use evaluation samples; leave it out.", f"{path}.samples_of"
        )
    if step.method in OF_SAMPLES and not step.samples_of:
        sentence = (
            f"{step.method} uses samples from an evaluation of the training tasks. Name the step"
            " that runs it."
        )
        raise FlowError(sentence, f"{path}.samples_of")
    if step.samples_of and getattr(earlier[step.samples_of], "split", "") != "train":
        sentence = (
            f"The step “{step.samples_of}” must evaluate the training tasks (`split: train`) to be"
            " learned from."
        )
        raise FlowError(sentence, f"{path}.samples_of")
    if step.learnable and step.method in OF_EXAMPLES:
        raise FlowError(
            f"{step.method} uses examples, which are not picked by task.", f"{path}.learnable"
        )
    if step.method == "on_policy" and not step.teacher:
        raise FlowError("on_policy needs a teacher, with the same tokenizer.", f"{path}.teacher")
    if step.teacher and step.method not in ("on_policy", "best_of_n"):
        raise FlowError(f"{step.method} does not use a teacher.", f"{path}.teacher")


def condition_of(step: Step, path: str = "") -> tuple[str, str, str, str]:
    """(step, output, operator, value). Raises FlowError."""
    found = CONDITION.match(step.condition)
    if not found:
        sentence = (
            f"“{step.condition}” is not a valid condition. Write a step, its output and a value:"
            " “gate.verdict == promote”."
        )
        raise FlowError(sentence, f"{path}.if")
    output, operator, value = found[2], found[3], found[4].strip("'\"")
    if TWO.search(value):
        raise FlowError(
            f"“{step.condition}”: Only one comparison per step. Put the second one on an earlier"
            " step.",
            f"{path}.if",
        )
    if operator not in ("==", "!=") and _number(value) is None:
        raise FlowError(
            f"“{step.condition}”: “{value}” is not a number, as {operator} needs.", f"{path}.if"
        )
    if value not in WORDS.get(output, (value,)):
        *others, last = WORDS[output]
        raise FlowError(
            f"“{step.condition}”: {output} is {', '.join(others)} or {last}.", f"{path}.if"
        )
    return found[1], output, operator, value


def _require(earlier: dict[str, Step], name: str, output: str, path: str) -> None:
    if name not in earlier:
        raise FlowError(
            f"“{path}”: the step “{name}” {unknown(name, list(earlier))}. Only earlier steps.", path
        )
    if output not in earlier[name].outputs:
        known = earlier[name].outputs
        raise FlowError(
            f"“{path}”: the step “{name}” has no output “{output}”. It has {', '.join(known)}.",
            path,
        )


def holds(condition: tuple[str, str, str, str], outputs: dict[str, dict[str, Any]]) -> bool:
    """Whether a condition is true for the outputs of earlier steps. Numbers are compared as
    numbers, everything else as text.
    """
    step, name, operator, wanted = condition
    value = outputs[step].get(name)
    if isinstance(value, bool):
        value = "true" if value else "false"
    left, right = (
        (float(value), _number(wanted)) if isinstance(value, int | float) else (str(value), wanted)
    )
    if right is None or (operator not in ("==", "!=") and isinstance(left, str)):
        return operator == "!="
    return {
        "==": left == right,
        "!=": left != right,
        "<": left < right,
        "<=": left <= right,
        ">": left > right,
        ">=": left >= right,
    }[operator]


def _number(text: str) -> float | None:
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        return None
