"""The judge as operations: what it does now, how much of the traffic it reviews, its verdicts."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from django.db.models import QuerySet
from msgspec import Meta, Struct, field, to_builtins

from apps.core import outbox
from apps.core.models import Project, Role
from apps.core.operations import Moment, Page, Paged, Rest, Written, operation
from apps.core.routes import RUNS, Disclosure
from apps.failures.actions.decisions import Refused
from apps.failures.actions.outcomes import IntervalOut, RunNamed, interval
from apps.failures.judge import judging, rubrics, share
from apps.failures.judge.judging import COUNTED
from apps.failures.judge.share import SharesChange
from apps.failures.models import JudgeVerdict
from apps.trajectories.shown import runs_shown
from workers.lib.typed import json_schema

Kind = Literal["failures", "fine", "errors"]


class SharesOut(Struct):
    """What the judge reviews, drawn at random."""

    unflagged: Annotated[float, Meta(description="Of the runs that the rules do not flag")]
    flagged: Annotated[float, Meta(description="Of the runs that they flag")]
    first: Annotated[int, Meta(description="So many of the project's first runs are all reviewed")]


class ForecastOut(Struct):
    """What judging so many `runs` costs: `usd`, from `low` to `high`; null without a price."""

    runs: int
    usd: float | None
    low: float | None
    high: float | None
    rests_on: str


class JudgeOut(Struct):
    """`version` of the rubric is in use; null: the judge is off."""

    version: int | None
    newest: Annotated[int | None, Meta(description="The newest version of the rubric")]
    problem: Annotated[str, Meta(description="What would stop it before its first question")]
    shares: SharesOut
    waiting: Annotated[
        int, Meta(description=f"Runs that it is to review and has not, at most {COUNTED}")
    ]
    waiting_since: Annotated[Moment | None, Meta(description="When the oldest of them arrived")]
    reviewed: Annotated[int, Meta(description="Randomly drawn runs with a verdict")]
    failure_rate: Annotated[
        IntervalOut | None,
        Meta(description="By its verdicts alone; for the true one, see outcomes"),
    ]
    usd_per_day: float | None
    usd_today: Annotated[
        float, Meta(description="UTC; what is under way counts with its highest cost")
    ]
    asked_today: int
    forecast: ForecastOut | None


@operation("judge_read", rest=Rest("GET", "judge/", "judge"), gives=JudgeOut)
def read(*, project: Project) -> JudgeOut:
    """Whether the judge is on, what it reviews, what waits for it, and what it costs."""
    on, newest = rubrics.current(project), project.rubrics.first()
    classifier, reviewed = share.classifier_of(project), share.reviewed(project)
    _, usd, asked = rubrics.spent_by_day(project, 1)[0]
    waiting = judging.waiting(project, on, COUNTED) if on else []
    return JudgeOut(
        version=on and on.version,
        newest=newest and newest.version,
        problem=rubrics.problem(on or newest) if newest else "",
        shares=SharesOut(
            classifier.judge_share, classifier.judge_share_flagged, classifier.judge_first
        ),
        waiting=len(waiting),
        waiting_since=min((row.received_at for row in waiting), default=None),
        reviewed=len(reviewed.scores),
        failure_rate=interval(reviewed.rate),
        usd_per_day=(on or newest).usd_per_day if newest else None,
        usd_today=usd,
        asked_today=asked,
        forecast=rubrics.forecast(on or newest) if newest else None,
    )


@operation(
    "judge_off",
    rest=Rest("POST", "judge/off/", "judge_off"),
    page=Page("judge/off/", "judge_off", then="failures:rubric", done="The judge is off."),
    gives=JudgeOut,
    role=Role.OPERATOR,
)
def switch_off(*, project: Project, by: Any) -> JudgeOut:
    """Switches the judge off. To switch it on, use a version of its rubric."""
    rubrics.switch(project=project, version=None, by=by)
    return read(project=project)


@operation(
    "judge_shares",
    rest=Rest("PATCH", "judge/shares/", "judge_shares"),
    gives=JudgeOut,
    role=Role.OPERATOR,
)
def set_shares(*, project: Project, by: Any, given: SharesChange) -> JudgeOut:
    """Sets what the judge reviews. What is left out stays. If a share is raised, more of the runs
    that are there are reviewed, too.
    """
    share.set_shares(project=project, by=by, given=given)
    return read(project=project)


@operation(
    "judge_run",
    rest=Rest("POST", "judge/run/", "judge_run", 202),
    page=Page(
        "judge/run/",
        "judge_run",
        then="failures:rubric",
        follows=True,
    ),
    gives=JudgeOut,
)
def run(*, project: Project) -> JudgeOut:
    """Has the judge review what waits now, not only within three minutes, and ask again about runs
    that got no answer.

    Raises Refused.
    """
    if rubrics.current(project) is None:
        raise Refused("The judge is off. An operator can switch it on.")
    outbox.post(judging.TASK, project.pk, True, expires_s=150)
    return read(project=project)


# Verdicts


class VerdictOut(Struct):
    """An answer of the judge about a run. `state` is `answered`, `asking`, or `failed`: then
    `error` says why there is none.
    """

    pk: int = field(name="id")
    trajectory: Annotated[
        str | None, Meta(description="Its external id; null: output of a training run")
    ]
    agent: str
    version: str
    rubric: Annotated[int, Meta(description="Version")]
    model: Annotated[str, Meta(description="The judge's")]
    state: Literal["answered", "asking", "failed"]
    error: str
    failed: Annotated[bool | None, Meta(description="Null without an answer")]
    mode: Annotated[str, Meta(description="Slug of the failure mode; empty if it did not fail")]
    blamed_message: int | None
    quote: str
    reason: str
    confidence: Annotated[float | None, Meta(description="As the judge says it: no probability")]
    rule: Annotated[int | None, Meta(description="Id of the policy rule that was broken")]
    probability: Annotated[
        float | None, Meta(description="With which the run was drawn; null: not at random")
    ]
    input_tokens: int
    output_tokens: int
    cost_usd: float
    reserved_usd: Annotated[float, Meta(description="For the question under way, at most")]
    at: Moment


def _content(request: Any, row: JudgeVerdict) -> Any:
    run, is_answered = row.trajectory, not row.error
    return to_builtins(
        VerdictOut(
            pk=row.pk,
            trajectory=run and run.external_id,
            agent=run.agent_name if run else "",
            version=run.agent_version if run else "",
            rubric=row.rubric.version,
            model=row.rubric.model,
            state="answered" if is_answered else "asking" if row.is_asked else "failed",
            error="" if row.is_asked else row.error,
            failed=bool(row.mode) if is_answered else None,
            mode=row.mode,
            blamed_message=row.blamed_message,
            quote=row.quote,
            reason=row.reason,
            confidence=row.confidence,
            rule=row.rule_id,
            probability=row.probability,
            input_tokens=row.input_tokens,
            output_tokens=row.output_tokens,
            cost_usd=row.cost_usd,
            reserved_usd=row.reserved_usd,
            at=row.at,
        )
    )


def _shown(request: Any, rows: list[JudgeVerdict]) -> None:
    key, runs = request.auth, [row.trajectory_id for row in rows if row.trajectory_id]
    runs_shown(key.project, runs, to=key, where="the judge's verdicts by API")


@operation(
    "judge_verdicts",
    rest=Rest("GET", "judge/verdicts/", "judge_verdicts"),
    gives=Paged(Written(json_schema(VerdictOut), _content, _shown), by="at"),
    shows=Disclosure(RUNS),
)
def verdicts(
    *,
    project: Project,
    only: Annotated[Kind, Meta(description="`errors`: runs without a verdict")] | None = None,
    trajectory: RunNamed | None = None,
) -> QuerySet[JudgeVerdict]:
    """The judge's answers, of all runs or about one."""
    rows = JudgeVerdict.objects.filter(rubric__project=project)
    rows = rows.select_related("rubric", "trajectory__failure__mode")
    rows = rows.filter(trajectory=trajectory) if trajectory else rows
    kinds = {
        "failures": rows.filter(error="").exclude(mode=""),
        "fine": rows.filter(error="", mode=""),
        "errors": rows.exclude(error=""),
    }
    return kinds.get(only or "", rows)
