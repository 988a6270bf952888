"""Versions of a project's rubric, the judge's cost, and how often people agree with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import partial
from math import sqrt
from statistics import mean, stdev
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Case, Count, F, Max, Q, Sum, When
from django.db.models.functions import Greatest

from apps.core.actions import audit
from apps.core.diffing import changed_lines
from apps.core.intervals import wilson
from apps.core.models import JobState, Project
from apps.core.outgoing_keys import key_hosts
from apps.failures.actions.diagnose import judged_of
from apps.failures.judge.client import Server, ServerError
from apps.failures.judge.client import key_of as server_key
from apps.failures.judge.prompt import Example, Mode
from apps.failures.judge.strategies import LEAST, MOST, USUAL, WHOLE, Question
from apps.failures.models import (
    FailureState,
    JudgeDay,
    JudgeMeasurement,
    JudgeVerdict,
    OutcomeCheck,
    Rubric,
    RubricExample,
    RubricSearch,
    Signal,
    Source,
)
from apps.failures.rules.findings import UNEXPLAINED
from apps.registry.prices import price_for
from apps.trajectories.models import with_content
from workers.lib.journal import key_of
from workers.lib.outgoing import RefusedAddress, check_url
from workers.lib.prices import Price
from workers.lib.spending import Usage

SERVER = ("base_url", "model", "key_variable")
ASKING = {"strategy": Rubric.Strategy.AUTO.value, "concurrency": 4}  # defaults
FIELDS = ("text", *SERVER, "usd_per_day", *ASKING)
ASKED_WITH = ("text", "base_url", "model", "strategy")  # what its answers depend on
MOST_EXAMPLES = 12
UNPRICED_A_DAY = 1_000  # runs, where the price of the judge's model is unknown
FORECAST_OF, FORECAST_FROM = 1000, 20  # runs
OBSERVED, FEWEST_OBSERVED = 500, 5  # newest verdicts that a forecast rests on
WITHOUT_A_JUDGE = (
    "Without a judge only structural failures are found: broken calls, errors that stand, loops,"
    " cut-off runs, empty answers and bad ratings."
)
DEFAULT_TEXT = """\
The agent failed if its user did not get what was asked for, if it did something that nobody asked \
for, or if it said \
what is not so. It did not fail where it rightly refused, or where the task was impossible and it \
said that.

Choose the mode of the earliest step without which the run would have gone well. If two modes fit, \
choose the one that \
names the cause, not the effect."""


def current(project: Project) -> Rubric | None:
    """The active rubric; None if the judge is off."""
    return project.rubrics.filter(is_on=True).first()


def without(project: Project) -> str:
    """What is not found as long as the judge is off; empty if it is on."""
    return "" if current(project) else WITHOUT_A_JUDGE


def locked(project: Project) -> Project:
    """Inside a transaction: serialises decisions about a project's rubrics and budget."""
    return Project.objects.select_for_update(no_key=True).get(pk=project.pk)


@transaction.atomic
def save_version(
    *,
    project: Project,
    fields: dict[str, Any],
    by: Any,
    examples: Sequence[RubricExample] | None = None,
    search: RubricSearch | None = None,
) -> Rubric | None:
    """A new version of `FIELDS`; None if nothing differs from the newest, whose examples it has if
    none are given.

    It is not in use before a person switches to it, unless it asks the same as the one in use,
    whose verdicts are then its own.
    """
    fields = ASKING | fields
    locked(project)
    last = project.rubrics.first()
    if examples is None:
        examples = list(last.examples.all()) if last else []
    made = Rubric(project=project, created_by=by, search=search, **fields)
    made.version, made.digest = last.version + 1 if last else 1, _digest(made, examples)
    same = last is not None and last.digest == made.digest
    if last and same and all(getattr(last, name) == fields[name] for name in FIELDS):
        return None
    in_use = project.rubrics.filter(is_on=True, digest=made.digest).first()
    made.is_on = bool(in_use) and bool(project.rubrics.filter(is_on=True).update(is_on=False))
    made.save()
    if in_use:  # it would give the same verdicts again
        in_use.verdicts.update(rubric=made)
    RubricExample.objects.bulk_create(
        [
            RubricExample(
                rubric=made,
                trajectory_id=row.trajectory_id,
                shown=row.shown,
                failed=row.failed,
                mode=row.mode,
                step=row.step,
            )
            for row in examples
        ]
    )
    changed = [name for name in FIELDS if last is None or getattr(last, name) != fields[name]]
    if last and not same and not set(changed) & set(ASKED_WITH):
        changed.append("examples")
    audit(
        "rubric.saved",
        project=project,
        by=by,
        target=made,
        version=made.version,
        changed=changed,
        on=made.is_on,
    )
    return made


def _digest(rubric: Rubric, examples: Iterable[RubricExample]) -> str:
    shown = [
        (str(row.trajectory_id), row.shown, row.failed, row.mode, row.step) for row in examples
    ]
    asked = {name: getattr(rubric, name) for name in ASKED_WITH}
    return key_of("rubric", asked, sorted(shown))


def examples_of(rubric: Rubric) -> list[Example]:
    """As the judge's prompt shows them; none of a rubric that is not saved."""
    rows = rubric.examples.all() if rubric.pk else []
    return [Example(row.shown, row.failed, row.mode, row.step) for row in rows]


def strategy_of(rubric: Rubric) -> str:
    """How it looks for the blamed step: as a person chose, else as measured, else in one
    question.
    """
    if rubric.strategy != Rubric.Strategy.AUTO:
        return rubric.strategy
    measured = JudgeMeasurement.objects.filter(
        project=rubric.project,
        kind=JudgeMeasurement.Kind.STRATEGIES,
        state=JobState.SUCCEEDED,
        rubric__base_url=rubric.base_url,
        rubric__model=rubric.model,
    ).first()
    return (measured and measured.result.get("better")) or WHOLE


@transaction.atomic
def switch(*, project: Project, version: int | None, by: Any) -> Rubric | None:
    """Activates that version, or none. Raises Rubric.DoesNotExist."""
    locked(project)
    chosen = project.rubrics.get(version=version) if version is not None else None
    project.rubrics.filter(is_on=True).update(is_on=False)
    if chosen:
        chosen.is_on = True
        chosen.save(update_fields=["is_on"])
    audit(
        "rubric.switched",
        project=project,
        by=by,
        target=chosen,
        version=version,
        on=chosen is not None,
    )
    return chosen


def server_of(rubric: Rubric, **changes: Any) -> Server:
    """The server of a rubric, by the rules of this installation."""
    price = price_for(rubric.project, rubric.model, rubric.base_url)
    return Server(
        base_url=rubric.base_url,
        model=rubric.model,
        key_variable=rubric.key_variable,
        price=price or Price(),
        is_priced=price is not None,
        allow_private=settings.FLYWHEEL_ALLOW_PRIVATE_URLS,
        key_hosts=key_hosts(),
        **changes,
    )


@dataclass(frozen=True)
class Forecast:
    """What judging so many runs costs: about `usd`, from `low` to `high`, all None without a
    price. `rests_on` says what that is known from.
    """

    runs: int
    usd: float | None
    low: float | None
    high: float | None
    rests_on: str

    @classmethod
    def per_run(cls, usd: float, low: float, high: float, rests_on: str) -> Forecast:
        return cls(FORECAST_OF, *(FORECAST_OF * each for each in (usd, low, high)), rests_on)


def forecast(rubric: Rubric) -> Forecast | None:
    """By what this model's verdicts in the project have cost; before there are enough, by the
    newest runs as they would be sent. None if there is no run yet.
    """
    server = server_of(rubric)
    if not server.is_priced:
        any_run = rubric.project.trajectories.exists()
        return Forecast(FORECAST_OF, None, None, None, "") if any_run else None
    return _observed(rubric, server) or _expected(rubric, server)


def _observed(rubric: Rubric, server: Server) -> Forecast | None:
    """From the mean cost of the verdicts so far, at today's price, with its 95% interval."""
    same = {f"rubric__{name}": getattr(rubric, name) for name in ("project", "base_url", "model")}
    rows = JudgeVerdict.objects.filter(error="", input_tokens__gt=0, **same).order_by("-at")
    tokens = rows.values_list("input_tokens", "output_tokens")[:OBSERVED]
    costs = [server.cost(Usage(*each)) for each in tokens]
    if len(costs) < FEWEST_OBSERVED:
        return None
    usd, off = mean(costs), 1.96 * stdev(costs) / sqrt(len(costs))
    rests_on = f"the mean of the newest {len(costs):,} verdicts"
    return Forecast.per_run(usd, max(0.0, usd - off), usd + off, rests_on)


def _expected(rubric: Rubric, server: Server) -> Forecast | None:
    """From the newest runs as they would be sent, with usual, low and high counts of tokens."""
    rows = with_content(list(rubric.project.trajectories.order_by("-pk")[:FORECAST_FROM]))
    if not rows:
        return None
    question = asked_with(rubric)
    asked = [question(run=run) for run in judged_of(rubric.project, rows).values()]
    costs = (
        mean(server.cost(each.usage(counts)) for each in asked) for counts in (USUAL, LEAST, MOST)
    )
    plural = "run" if len(rows) == 1 else f"{len(rows)} runs"
    return Forecast.per_run(*costs, f"your newest {plural} as they are sent, at {USUAL}")


def asked_with(
    rubric: Rubric, strategy: str = "", examples: Sequence[Example] | None = None
) -> Callable[..., Question]:
    """Makes the question about a `run`, with all that the rubric says now."""
    return partial(
        Question.of,
        strategy or strategy_of(rubric),
        rubric.text,
        modes_of(rubric.project),
        examples=examples_of(rubric) if examples is None else examples,
    )


def modes_of(project: Project) -> list[Mode]:
    """Those that say what went wrong."""
    return [
        Mode(mode.slug, mode.name, mode.definition, mode.examples)
        for mode in project.failure_modes.exclude(slug=UNEXPLAINED)
    ]


def problem(rubric: Rubric) -> str:
    """What would stop the judge before its first question, as a sentence; empty if nothing does."""
    server = server_of(rubric)
    try:
        server_key(server, check_url(server.base_url, allow_private=server.allow_private).host)
    except (ServerError, RefusedAddress) as error:
        return str(error)
    return ""


def today() -> date:
    return datetime.now(UTC).date()


def account_of(project: Project, day: date | None = None) -> JudgeDay:
    """Of today, if no day is given. All that the judge was asked; what is under way counts with
    its highest cost.
    """
    return JudgeDay.objects.get_or_create(project=project, day=day or today())[0]


def book(account: JudgeDay, usd: float, *, asked: int = 0) -> None:
    rows = JudgeDay.objects.filter(pk=account.pk)
    rows.update(asked=F("asked") + asked, usd=Greatest(0.0, F("usd") + usd))


def no_price(rubric: Rubric) -> str:
    """Why no more is asked today without a price."""
    return (
        f"The price of {rubric.model} is unknown, so the budget cannot be kept:"
        f" {UNPRICED_A_DAY:,} runs a day are judged until a price is set (Models → Prices; 0"
        " for a model of your own)."
    )


def of_signal(signal: Signal) -> float:
    """USD for all answers of a signal."""
    return signal.answers.aggregate(usd=Sum("cost_usd"))["usd"] or 0.0


def spent_by_day(project: Project, days: int = 30) -> list[tuple[date, float, int]]:
    """(day, USD, times asked) of the last days, including days without any."""
    last = [today() - timedelta(days=back) for back in range(days - 1, -1, -1)]
    rows = JudgeDay.objects.filter(project=project, day__gte=last[0])
    found = {row.day: (row.usd, row.asked) for row in rows}
    return [(day, *found.get(day, (0.0, 0))) for day in last]


@dataclass(frozen=True)
class Agreement:
    """A version's verdicts and cost, and how many of people's decisions on the same runs agree."""

    verdicts: int
    errors: int
    usd: float
    decided: int
    agreed: int
    last: datetime | None

    @property
    def interval(self) -> tuple[float, float]:
        return wilson(self.agreed, self.decided)

    @property
    def rate(self) -> float | None:
        return self.agreed / self.decided if self.decided else None


def agreements(project: Project) -> dict[int, Agreement]:
    """By rubric. A person agrees by confirming the judge's mode, or by dismissing if it saw no
    failure; where nobody did either, by answering a check, which names no mode.
    """
    ours, whole = "trajectory__failure__", Q(error="")
    triaged = Q(**{f"{ours}project": project, f"{ours}source": Source.PERSON}) & Q(
        **{f"{ours}state__in": (FailureState.CONFIRMED, FailureState.DISMISSED)}
    )
    confirmed = Q(**{f"{ours}state": FailureState.CONFIRMED, "mode": F(f"{ours}mode__slug")})
    dismissed = Q(**{f"{ours}state": FailureState.DISMISSED}, mode="")
    failed, fine = (
        Q(trajectory__outcome_check__answer=answer)
        for answer in (OutcomeCheck.Answer.FAILED, OutcomeCheck.Answer.FINE)
    )
    agreed = When(triaged, then=Case(When(confirmed | dismissed, then=1), default=0))
    same = Case(agreed, When(failed & ~Q(mode=""), then=1), When(fine & Q(mode=""), then=1))
    rows = (
        JudgeVerdict.objects.filter(rubric__project=project)
        .values("rubric_id")
        .order_by("rubric_id")
    )
    counted = rows.alias(same=same).annotate(
        verdicts=Count("pk", filter=whole),
        errors=Count("pk", filter=~whole),
        usd=Sum("cost_usd"),
        decided=Count("pk", filter=whole & (triaged | failed | fine)),
        agreed=Count("pk", filter=whole & Q(same=1)),
        last=Max("at"),
    )
    return {row.pop("rubric_id"): Agreement(**row) for row in counted}


def difference(before: Rubric, after: Rubric) -> list[tuple[str, str]]:
    """(kind, line) as in `changed_lines`, the settings first."""
    return list(changed_lines(_lines(before), _lines(after)))


def _lines(rubric: Rubric) -> list[str]:
    rubric_lines = [f"{name}: {getattr(rubric, name)}" for name in FIELDS if name != "text"]
    return [*rubric_lines, "", *rubric.text.splitlines()]
