"""Example flows. Names of sets and environments are placeholders that the page fills in with the
project's own.
"""

from __future__ import annotations

from dataclasses import dataclass

from apps.core.models import Project
from apps.evals.models import EvalSet, EvalSetState, Split

NIGHTLY = """\
# Every night: how good is what production runs, on tasks that it never trained on? Regression \
tasks may be evaluated
# without limit; each evaluation of the hold-out takes some of what it can still show.
starts:
- by: cron
  when: "0 2 * * *"
timezone: UTC
steps:
- do: evaluate
  set: set:{eval_set}
  environment: {environment}
  split: {split}
  model: channel:production
  samples: 4
"""

WEEKLY = """\
# Once a week, or when failures have piled up: collect tasks, train, compare, and ask before \
anything leaves staging.
starts:
- by: cron
  when: "0 20 * * 5"
- by: new_failures
  at_least: 200
timezone: UTC
budget:
  hours_a_run: 24
steps:
- do: classify
- do: cluster
- do: collect_tasks
  into: {eval_set}
  days: 30
- do: freeze_set
  set: {eval_set}
  holdout: 60
- do: review
  set: step:freeze_set
  environment: {environment}
- do: evaluate
  name: baseline
  set: step:freeze_set
  environment: {environment}
  model: channel:staging
- do: train
  method: sft
  set: step:freeze_set
  environment: {environment}
  model: channel:staging
  config:
    steps: 60
    learning_rate: 0.0003
    batch_size: 8
  if: baseline.success < 0.98
- do: evaluate
  name: candidate
  set: step:freeze_set
  environment: {environment}
  model: step:train
- do: gate
  baseline: baseline
  candidate: candidate
  channel: staging
- do: promote
  if: gate.verdict == promote
- do: ask
  question: The candidate is better and runs in staging. Have you looked at it, and promoted it to \
production?
"""

WATCH = """\
# Looks at once at what has become worse: a failure rate that rose, or a version that is new.
starts:
- by: failure_rate
  days: 7
- by: new_version
  of: version
  runs: 100
steps:
- do: classify
- do: cluster
- do: evaluate
  set: set:{eval_set}
  environment: {environment}
  split: {split}
  samples: 4
- do: ask
  question: Something has changed in production. Look at the clusters and at this evaluation.
"""


NO_SET = (
    "No frozen eval set has held-out or regression tasks yet. Split and freeze one, then choose it"
    " as the step’s set."
)
NO_ENVIRONMENT = "This project has no environment yet. Create one, then choose it in the steps."


@dataclass(frozen=True)
class Example:
    slug: str
    name: str
    about: str
    text: str

    @property
    def collects(self) -> bool:
        """Whether it fills and freezes the set, which then need not exist."""
        return "do: collect_tasks" in self.text


EXAMPLES = (
    Example(
        "nightly",
        "Nightly evaluation",
        "Evaluates the production model every night, on regression tasks if there are any.",
        NIGHTLY,
    ),
    Example(
        "weekly",
        "Weekly improvement",
        "Turns failures into tasks, trains, compares, promotes to staging, then asks you.",
        WEEKLY,
    ),
    Example(
        "watch",
        "Regression watch",
        "Evaluates as soon as the failure rate rises or a new version goes live.",
        WATCH,
    ),
)


@dataclass(frozen=True)
class Filled:
    """A template with the project's own names; `missing` says what the project does not have yet
    and the flow needs.
    """

    text: str
    missing: list[str]


def filled(example: Example, project: Project) -> Filled:
    """With the eval set and environment that its steps can use now, if the project has them."""
    eval_set = _usable_set(example, project)
    environment = _environment_of(project, eval_set)
    may_be_repeated = eval_set and eval_set.tasks.filter(split=Split.REGRESSION).exists()
    names = {
        "{split}": Split.REGRESSION if may_be_repeated else Split.HOLDOUT,
        "{eval_set}": eval_set.slug if eval_set else "my-set",
        "{environment}": environment or "my-environment",
    }
    text = example.text
    for placeholder, name in names.items():
        text = text.replace(placeholder, name)
    missing = {
        NO_SET: eval_set is None and not example.collects,
        NO_ENVIRONMENT: environment is None,
    }
    return Filled(text, [sentence for sentence, is_missing in missing.items() if is_missing])


def _usable_set(example: Example, project: Project) -> EvalSet | None:
    """The newest set whose frozen version can be evaluated: it has a hold-out, or else regression
    tasks. If the flow collects tasks and freezes them itself, a draft will do.
    """
    rows = EvalSet.objects.current().filter(project=project).order_by("-created_at")
    frozen = rows.filter(state=EvalSetState.FROZEN)
    newest_versions = frozen.order_by("slug", "-version").distinct("slug").values("pk")
    for candidates in (
        frozen.filter(pk__in=newest_versions, tasks__split=Split.HOLDOUT),
        frozen.filter(pk__in=newest_versions, tasks__split=Split.REGRESSION),
        rows.filter(state=EvalSetState.DRAFT) if example.collects else rows.none(),
    ):
        if eval_set := candidates.first():
            return eval_set
    return None


def _environment_of(project: Project, eval_set: EvalSet | None) -> str | None:
    """The environment that the set was last evaluated in, else the newest."""
    current = project.environments.current()
    used = current.filter(eval_runs__eval_set__slug=eval_set.slug) if eval_set else current.none()
    for rows in (used.order_by("-eval_runs__created_at"), current.order_by("-pk")):
        if slug := rows.values_list("slug", flat=True).first():
            return slug
    return None


def example_of(slug: str) -> Example | None:
    return next((one for one in EXAMPLES if one.slug == slug), None)
