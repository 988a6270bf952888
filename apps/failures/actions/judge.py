"""The judge's rubric as operations: its versions, its examples, measuring and improving it."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import QuerySet
from django.http import Http404
from msgspec import UNSET, Meta, Struct, UnsetType, field

from apps.core import jobs
from apps.core.gepa import absent
from apps.core.models import JobState, Project, Role
from apps.core.openapi import sent
from apps.core.operations import Moment, Page, Paged, Reference, Rest, choice_of, operation
from apps.core.outgoing_keys import key_hosts
from apps.failures.actions.decisions import Refused
from apps.failures.judge import examples, measure_job, people, rubrics, search_job
from apps.failures.models import JudgeMeasurement, Rubric, RubricSearch
from workers.lib.outgoing import RefusedAddress, check_base_url

Budget = Annotated[
    float, Meta(title="Max cost in $", gt=0, le=1e6, description="It stops before it costs more")
]
STOPPED = (JobState.FAILED, JobState.CANCELLED)


class RubricOut(Struct):
    """A version of the rubric, which never changes. `digest` is of all that the judge is asked
    with.
    """

    version: int
    digest: str
    is_on: bool = field(name="in_use")
    text: str
    base_url: str
    model: str
    strategy: str
    usd_per_day: float
    concurrency: int
    created_at: Moment


class JobOut(Struct):
    pk: UUID = field(name="id")
    name: str
    state: str
    done: int
    total: int
    label: str
    error: str
    spec: dict[str, Any]
    result: dict[str, Any]
    created_at: Moment


class NewRubric(Struct, forbid_unknown_fields=True, kw_only=True):
    """A version of the rubric. What is left out is as in the newest version."""

    text: (
        Annotated[
            str,
            Meta(
                title="Rubric",
                min_length=1,
                max_length=20_000,
                description="Instructions before the failure modes and the run",
            ),
        ]
        | UnsetType
    ) = UNSET
    base_url: (
        Annotated[
            str,
            Meta(
                title="Server URL",
                min_length=1,
                max_length=200,
                description="OpenAI-compatible, ending in /v1",
            ),
        ]
        | UnsetType
    ) = UNSET
    model: Annotated[str, Meta(title="Model", min_length=1, max_length=200)] | UnsetType = UNSET
    key_variable: (
        Annotated[
            str,
            Meta(
                title="Key variable",
                max_length=80,
                description="Environment variable of Flywheel with the API key",
            ),
        ]
        | UnsetType
    ) = UNSET
    usd_per_day: Annotated[float, Meta(title="Max $ per day (UTC)", ge=0, le=1e6)] | UnsetType = (
        UNSET
    )
    strategy: (
        Annotated[
            choice_of(Rubric.Strategy),  # type: ignore[valid-type]
            Meta(title="Method for finding the blamed step"),
        ]
        | UnsetType
    ) = UNSET
    concurrency: Annotated[int, Meta(title="Runs in parallel", ge=1, le=32)] | UnsetType = UNSET


@operation("rubrics_list", rest=Rest("GET", "judge/rubrics/", "rubrics"), gives=list[RubricOut])
def listed(*, project: Project) -> QuerySet[Rubric]:
    """The versions of the judge's rubric, the newest first."""
    return project.rubrics.all()


@operation(
    "rubrics_save",
    rest=Rest("POST", "judge/rubrics/", "rubrics", 201),
    gives={200: RubricOut, 201: RubricOut},
    outcome=lambda saved: (201 if saved[1] else 200, saved[0]),
    role=Role.OPERATOR,
    examples=(
        sent(
            "A server of one's own",
            {"base_url": "http://127.0.0.1:8000/v1", "model": "qwen3-8b", "usd_per_day": 5},
        ),
    ),
)
def save(*, project: Project, by: Any, given: NewRubric) -> tuple[Rubric, bool]:
    """Saves a new version, unless nothing differs from the newest (200). It is not in use before
    someone uses it, unless the judge is on and it asks the same, only with another budget.

    Raises Refused.
    """
    made = rubrics.save_version(project=project, fields=fields_of(project, given), by=by)
    return (made, True) if made else (project.rubrics.latest("version"), False)


def fields_of(project: Project, given: NewRubric) -> dict[str, Any]:
    """All settings of the rubric that is sent. Raises Refused."""
    newest = project.rubrics.first() or Rubric(text=rubrics.DEFAULT_TEXT, **rubrics.ASKING)
    known = {name: getattr(newest, name) for name in rubrics.FIELDS}
    changes = {name: getattr(given, name) for name in rubrics.FIELDS}
    fields = known | {name: each for name, each in changes.items() if each is not UNSET}
    fields["text"] = fields["text"].replace("\r\n", "\n")
    for name in ("text", "base_url", "model", "key_variable"):
        fields[name] = fields[name].strip()
        if not fields[name] and name != "key_variable":
            raise Refused("This field is required.", name)
    try:
        allowed = settings.FLYWHEEL_ALLOW_PRIVATE_URLS
        fields["base_url"] = str(check_base_url(fields["base_url"], allow_private=allowed))
    except RefusedAddress as error:
        raise Refused(str(error), "base_url") from error
    if (name := fields["key_variable"]) and name not in (known := key_hosts()):
        allowed = ", ".join(known) or "none"
        raise Refused(
            f"Only these variables are allowed (FLYWHEEL_OUTGOING_KEYS): {allowed}.", "key_variable"
        )
    return fields


@operation(
    "rubrics_use",
    rest=Rest("POST", "judge/rubrics/<int:version>/use/", "rubric_use"),
    page=Page(
        "judge/rubrics/<int:version>/use/",
        "rubric_use",
        then="failures:rubric",
        done="Version {target.version} is in use.",
    ),
    gives=RubricOut,
    role=Role.OPERATOR,
)
def use(*, rubric: Rubric, by: Any) -> Rubric:
    """Judges with this version from now on. Another one can be used again at once."""
    return rubrics.switch(project=rubric.project, version=rubric.version, by=by) or rubric


def _choices(project: Project) -> list[tuple[str, str]]:
    last = project.rubrics.first()
    runs = [row.decision.run for row in examples.offered(project)]
    kept = last.examples.values_list("trajectory_id", flat=True) if last else []
    return [(str(run), str(run)) for run in dict.fromkeys([*kept, *runs])]


@operation(
    "rubrics_set_examples",
    rest=Rest("POST", "judge/rubrics/examples/", "rubric_examples", 201),
    gives=RubricOut,
    role=Role.OPERATOR,
)
def set_examples(
    *,
    project: Project,
    by: Any,
    runs: Annotated[
        list[Annotated[str, Meta(max_length=40, extra={"choices": _choices})]],
        Meta(title="Runs", max_length=rubrics.MOST_EXAMPLES, description="Ids of runs"),
    ] = [],  # noqa: B006
    automatic: Annotated[
        int,
        Meta(
            title="Add automatically",
            ge=0,
            le=rubrics.MOST_EXAMPLES,
            description="This many of the newest disagreements, failed and fine runs in turns",
        ),
    ] = 0,
) -> Rubric:
    """Saves a version of the newest rubric that shows the judge these runs, with what people
    decided on them. Decisions that are held back cannot be examples. The version is not in use yet.

    Raises Refused.
    """
    try:
        chosen = [UUID(run) for run in runs]
    except ValueError as error:
        raise Refused("An id of a run is invalid.", "runs") from error
    room = rubrics.MOST_EXAMPLES - len(chosen)
    chosen += examples.automatic(project, min(automatic, room)) if automatic else []
    saved = examples.save(project=project, runs=chosen, by=by)
    if saved is None:
        raise Refused("The newest version has exactly these examples.")
    return saved


def find_rubric(project: Project, version: int) -> Rubric:
    rubric = project.rubrics.filter(version=version).first()
    if rubric is None:
        raise Http404("This project has no rubric of this version.")
    return rubric


RubricVersion = Annotated[
    Rubric,
    Reference(find_rubric, rows=lambda project: project.rubrics.all(), sent=int),
    Meta(title="Version"),
]


@operation(
    "judge_measurements_list",
    rest=Rest("GET", "judge/measurements/", "judge_measurements"),
    gives=Paged(JobOut),
)
def measurements(*, project: Project) -> QuerySet[JudgeMeasurement]:
    """Measurements of the judge on people's decisions, the newest first."""
    return JudgeMeasurement.objects.filter(project=project)


@operation(
    "judge_measurements_read",
    rest=Rest("GET", "judge/measurements/<uuid:pk>/", "judge_measurement"),
    gives=JobOut,
)
def measurement(*, measurement: JudgeMeasurement) -> JudgeMeasurement:
    """A measurement. `result.variants` has shares with 95% intervals, and differences from the
    first variant, paired by run, that hold together.
    """
    return measurement


def shown_measurement(project: Project, request: Any) -> dict[str, Any]:
    """What measuring would be about and cost, before it starts."""
    kind = request.POST.get("kind") or request.GET.get("kind") or "rubrics"
    versions = list(project.rubrics.all()[:50])
    named = {str(row.version): row for row in versions}
    current = rubrics.current(project) or (versions[1] if len(versions) > 1 else None)
    newest = next((row for row in versions if row != current), versions[0] if versions else None)
    rubric = named.get(request.GET.get("rubric", ""), newest)
    against = named.get(request.GET.get("against", ""), current)
    if rubric is None or (kind == "rubrics" and against in (None, rubric)):
        return {"kind": kind, "rubric": rubric, "against": against, "decided": []}
    variants = measure_job.variants_of(kind, rubric, against)
    decided = measure_job.runs_for(kind, [rubric for rubric, _ in variants])
    return {
        "kind": kind,
        "rubric": rubric,
        "against": against,
        "decided": decided,
        "lacking": measure_job.lacking(kind, decided),
        "usd": measure_job.forecast(variants, decided),
        "earlier": measure_job.earlier(project, kind),
    }


@operation(
    "judge_measurements_start",
    rest=Rest("POST", "judge/measurements/", "judge_measurements", 201),
    page=Page(
        "judge/measurements/new/",
        "judge_measurement_new",
        template="failures/judge_measurement_new.html",
        context=shown_measurement,
    ),
    gives=JobOut,
)
def measure(
    *,
    project: Project,
    by: Any,
    rubric: RubricVersion,
    kind: Annotated[choice_of(JudgeMeasurement.Kind), Meta(title="Compare")] = "rubrics",  # type: ignore[valid-type]
    against: RubricVersion | None = None,
    max_usd: Budget = 1.0,
) -> JudgeMeasurement:
    """Asks variants of the judge about the same runs, on which people decided, without their
    decisions: `rubrics` compares a version with `against` (default: the one in use) on decisions
    that are held back; `strategies` compares the methods for finding the blamed step on confirmed
    steps. What is spent counts towards the judge's daily budget, too.

    Raises Refused.
    """
    against = against or rubrics.current(project)
    if kind == JudgeMeasurement.Kind.RUBRICS and (against is None or against == rubric):
        raise Refused("Choose another version to compare it with.", "against")
    variants = measure_job.variants_of(kind, rubric, against)
    decided = measure_job.runs_for(kind, [used for used, _ in variants])
    if lacking := measure_job.lacking(kind, decided):
        raise Refused(lacking)
    job = JudgeMeasurement(
        project=project,
        name=measure_job.name_of(kind, variants),
        kind=kind,
        rubric=rubric,
        total=len(variants) * len(decided),
        spec=measure_job.spec_of(kind, variants, decided, max_usd),
    )
    return _submitted(job, by, "A measurement of the judge is running. Wait for it, or cancel it.")


def _submitted(job: Any, by: Any, busy: str) -> Any:
    try:
        with transaction.atomic():
            return jobs.submit(job, by=by)
    except IntegrityError as error:
        raise Refused(busy) from error


@operation(
    "judge_measurements_cancel",
    rest=Rest("POST", "judge/measurements/<uuid:pk>/cancel/", "judge_measurement_cancel"),
    page=Page("judge/measurements/<uuid:pk>/cancel/", "judge_measurement_cancel"),
    gives=JobOut,
)
def cancel_measurement(*, measurement: JudgeMeasurement, by: Any) -> None:
    """Stops a measurement; answers so far are kept, and not paid for again."""
    jobs.stop(measurement, by=by)


@operation(
    "judge_measurements_resume",
    rest=Rest("POST", "judge/measurements/<uuid:pk>/resume/", "judge_measurement_resume"),
    page=Page("judge/measurements/<uuid:pk>/resume/", "judge_measurement_resume"),
    gives=JobOut,
)
def resume_measurement(*, measurement: JudgeMeasurement, by: Any) -> None:
    """Goes on with a measurement that failed or was cancelled, without asking again what has been
    answered.

    Raises Refused.
    """
    _resume(measurement, by)


def _resume(job: Any, by: Any) -> None:
    stopped = type(job).objects.filter(state__in=STOPPED)
    try:
        with transaction.atomic():
            resumed = jobs.restart(job, among=stopped, by=by, action="resumed")
    except IntegrityError as error:
        raise Refused("Another one is running. Wait for it, or cancel it.") from error
    if not resumed:
        raise Refused("Only one that failed or was cancelled can be resumed.")


@operation(
    "rubric_searches_list",
    rest=Rest("GET", "judge/searches/", "rubric_searches"),
    gives=Paged(JobOut),
)
def searches(*, project: Project) -> QuerySet[RubricSearch]:
    """Searches for a better rubric, the newest first."""
    return RubricSearch.objects.filter(project=project)


@operation(
    "rubric_searches_read",
    rest=Rest("GET", "judge/searches/<uuid:pk>/", "rubric_search"),
    gives=JobOut,
)
def search(*, search: RubricSearch) -> RubricSearch:
    """A search, with its candidates."""
    return search


def shown_search(project: Project) -> dict[str, Any]:
    """What a search would be about and cost, before it starts."""
    decided = people.decisions(project)
    rubric = rubrics.current(project) or project.rubrics.first()
    counts = people.Counts.of(decided)
    return {
        "rubric": rubric,
        "counts": counts,
        "lacking": counts.lacking(),
        "absent": absent(),
        "forecast": search_job.forecast(rubric, decided) if rubric else None,
    }


@operation(
    "rubric_searches_start",
    rest=Rest("POST", "judge/searches/", "rubric_searches", 201),
    page=Page(
        "judge/searches/new/",
        "rubric_search_new",
        template="failures/rubric_search_new.html",
        context=shown_search,
    ),
    gives=JobOut,
)
def improve(
    *,
    project: Project,
    by: Any,
    most_proposals: Annotated[
        int, Meta(title="Proposals", ge=1, le=100, description="Rewritten rubrics that are tried")
    ] = search_job.PROPOSALS,
    max_usd: Budget = 2.0,
    seed: Annotated[int, Meta(title="Seed", ge=0, le=2**31 - 1)] = 0,
) -> RubricSearch:
    """Searches for a better text of the rubric in use (or the newest) with GEPA: the judge's own
    model rewrites it after its disagreements with people, on decisions for learning. A better one
    becomes a new version that is not in use.

    Raises Refused.
    """
    rubric = rubrics.current(project) or project.rubrics.first()
    if rubric is None:
        raise Refused("Save a rubric with a server first.")
    job = search_job.made(rubric, most_proposals=most_proposals, max_usd=max_usd, seed=seed)
    return _submitted(job, by, "A search is running. Wait for it, or cancel it.")


@operation(
    "rubric_searches_cancel",
    rest=Rest("POST", "judge/searches/<uuid:pk>/cancel/", "rubric_search_cancel"),
    page=Page("judge/searches/<uuid:pk>/cancel/", "rubric_search_cancel"),
    gives=JobOut,
)
def cancel_search(*, search: RubricSearch, by: Any) -> None:
    """Stops a search; answers so far are kept, and not paid for again."""
    jobs.stop(search, by=by)


@operation(
    "rubric_searches_resume",
    rest=Rest("POST", "judge/searches/<uuid:pk>/resume/", "rubric_search_resume"),
    page=Page("judge/searches/<uuid:pk>/resume/", "rubric_search_resume"),
    gives=JobOut,
)
def resume_search(*, search: RubricSearch, by: Any) -> None:
    """Goes on with a search that failed or was cancelled, without asking again what has been
    answered.

    Raises Refused.
    """
    _resume(search, by)
