"""From an empty project to a first measured model: what is done, and what comes next."""

from __future__ import annotations

from dataclasses import dataclass

from apps.core.models import JobState, Project, Role
from apps.evals.models import EvalRun, EvalSetState, Split
from apps.failures.judge import rubrics
from apps.failures.models import Failure, FailureState
from apps.failures.unconfirmed import unconfirmed
from apps.trajectories.models import HourlyCount, Outcome


@dataclass(frozen=True)
class Item:
    """One step: what to do, why, the page (URL name and query) to do it on, and the role that it
    takes.
    """

    title: str
    why: str
    page: str
    done: bool
    role: Role = Role.ENGINEER
    query: str = ""


def checklist(project: Project) -> list[Item]:
    """Empty once a model has been evaluated: from then on the overview shows the next steps."""
    evaluated = EvalRun.objects.filter(project=project, state=JobState.SUCCEEDED).exists()
    if evaluated:
        return []
    counts = HourlyCount.objects.filter(project=project, trajectories__gt=0)
    failures = Failure.objects.filter(project=project)
    sets, judge, waiting = project.eval_sets, rubrics.current(project), unconfirmed(project)
    was_read = project.reply_forms.exclude(read_at=None).exists() or project.system_prompts.exists()
    return [
        Item(
            "Create an API key",
            "Agents use it to send their runs; the scope “ingest” is enough.",
            "core:keys",
            project.api_keys.live().exists(),
            Role.OPERATOR,
        ),
        Item(
            "Send the first trajectory",
            "Over REST or OpenTelemetry, or from a file; the page shows what arrived.",
            "trajectories:first",
            project.trajectories.exists(),
            Role.VIEWER,
        ),
        Item(
            "Report outcomes",
            "With the run, or later as feedback.",
            "trajectories:first",
            counts.exclude(outcome_status=Outcome.UNKNOWN).exists(),
            Role.VIEWER,
        ),
        Item(
            "Switch on a judge",
            f"A language model reads runs and says what failed. {rubrics.WITHOUT_A_JUDGE}",
            "failures:rubric",
            judge is not None,
            Role.OPERATOR,
        ),
        Item(
            f"Confirm {waiting or 'the rules and tool replies that the judge read'}",
            "A verdict knows only what was confirmed before it: confirm first, then set the judge's"
            " share of traffic.",
            waiting.page,
            judge is not None and was_read and not waiting,
            Role.REVIEWER,
            "?state=proposed" if waiting else "",
        ),
        Item(
            "Triage failures",
            "Rules sort them into failure modes within a minute; you confirm or correct.",
            "failures:triage",
            failures.exclude(state=FailureState.OPEN).exists(),
            Role.REVIEWER,
        ),
        Item(
            "Freeze an eval set with a hold-out",
            "Create tasks from failures (e in triage), hold some out, freeze the set. A set that"
            " holds nothing out cannot test a model.",
            "evals:list",
            sets.filter(state=EvalSetState.FROZEN, tasks__split=Split.HOLDOUT).exists(),
        ),
        Item(
            "Create an environment",
            "It prompts the model and scores its answers.",
            "environments:new",
            project.environments.exists(),
        ),
        Item(
            "Register a model",
            "A folder, a server's model, or your agent's address.",
            "registry:register",
            project.model_versions.exists(),
        ),
        Item(
            "Evaluate the baseline", "Measure before you change anything.", "evals:list", evaluated
        ),
    ]
