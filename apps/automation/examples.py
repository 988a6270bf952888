"""Example flows. Names of sets and environments are placeholders that the page fills in with the project's own."""

from __future__ import annotations

from dataclasses import dataclass

from apps.core.models import Project

NIGHTLY = """\
# Every night: how good is what production runs, on tasks that it never trained on?
starts:
- by: cron
  when: "0 2 * * *"
timezone: UTC
steps:
- do: evaluate
  set: set:{eval_set}
  environment: {environment}
  model: channel:production
  samples: 4
"""

WEEKLY = """\
# Once a week, or when failures have piled up: collect tasks, train, compare, and ask before anything leaves staging.
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
  question: The candidate is better and runs in staging. Have you looked at it, and promoted it to production?
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
  samples: 4
- do: ask
  question: Something has changed in production. Look at the clusters and at this evaluation.
"""


@dataclass(frozen=True)
class Example:
    slug: str
    name: str
    about: str
    text: str


EXAMPLES = (
    Example("nightly", "Nightly evaluation", "Evaluates the production model on the hold-out every night.", NIGHTLY),
    Example(
        "weekly",
        "Weekly improvement",
        "Turns failures into tasks, trains, compares, promotes to staging, then asks you.",
        WEEKLY,
    ),
    Example(
        "watch", "Regression watch", "Evaluates as soon as the failure rate rises or a new version goes live.", WATCH
    ),
)


def filled(example: Example, project: Project) -> str:
    """With the newest eval set and environment of the project, if it has them."""
    eval_set = project.eval_sets.order_by("-pk").values_list("slug", flat=True).first()
    environment = project.environments.current().order_by("-pk").values_list("slug", flat=True).first()
    return example.text.replace("{eval_set}", eval_set or "my-set").replace(
        "{environment}", environment or "my-environment"
    )


def example_of(slug: str) -> Example | None:
    return next((one for one in EXAMPLES if one.slug == slug), None)
