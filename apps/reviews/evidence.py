"""The facts that the lock decides by, read from the database; and the questions that everybody asks
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Q

from apps.environments.models import Environment, Verifier
from apps.environments.scorer import differences, runtime_hash, scorer_of
from apps.evals.canonical import digest_of
from apps.evals.models import Task
from apps.registry.models import ModelVersion
from apps.reviews import drift
from apps.reviews.agreement import Verdict
from apps.reviews.agreement import decide as judge
from apps.reviews.labels import Label, labels_of
from apps.reviews.lock import Facts, Lock, OverrideFacts, ProbeFacts, TrainingLocked, decide
from apps.reviews.models import LockOverride, ProbeRun, RewardReview
from apps.reviews.people import Company, companies_of
from apps.reviews.policy import in_force, policies_of
from apps.reviews.rescoring import PROBED_TASKS
from apps.reviews.reservations import needed_of

NAMED = 6  # probes that the lock names, the worst first


@dataclass(frozen=True)
class Question:
    """May `verifier` train: anywhere (no environment), or in one; `scorer`: the current scorer, if
    known; `agent`: whose outputs are scored, if it is one that is not ours.
    """

    verifier: Verifier
    environment: Environment | None = None
    scorer: dict[str, Any] | None = None
    agent: ModelVersion | None = None

    @property
    def where(self) -> str:
        played = f" with {self.agent}" if self.agent else ""
        return f"{self.environment}{played}" if self.environment else ""


def lock_states(verifiers: Iterable[Verifier]) -> dict[int, Lock]:
    """{verifier's pk: its lock, whatever the environment and the tasks}, in as many queries for any
    number of them.
    """
    rows = list(verifiers)
    return dict(
        zip([row.pk for row in rows], _answers([Question(row) for row in rows]), strict=True)
    )


def lock_state(verifier: Verifier) -> Lock:
    return lock_states([verifier])[verifier.pk]


def environment_locks(environments: Iterable[Environment], by: Any = None) -> dict[int, Lock]:
    """{environment's pk: the lock of training in it, whatever the tasks}. `by`: who would start
    it.
    """
    rows = list(environments)
    asked = [Question(row.verifier, row, scorer_of(row)) for row in rows]
    return dict(zip([row.pk for row in rows], _answers(asked, starter=_pk(by)), strict=True))


def lock_of(
    *,
    environment: Environment,
    tasks: Sequence[Task] | None = None,
    by: Any = None,
    scorer: dict[str, Any] | None = None,
    agent: ModelVersion | None = None,
) -> Lock:
    """The lock for training in an environment on these tasks; `scorer`: who scores, if just
    determined; `agent`: who plays, if it is not the built-in loop.
    """
    question = Question(environment.verifier, environment, scorer or scorer_of(environment), agent)
    return _answers([question], starter=_pk(by), tasks=tasks)[0]


def require_unlocked(
    *,
    environment: Environment,
    tasks: Sequence[Task],
    by: Any,
    scorer: dict[str, Any] | None = None,
    agent: ModelVersion | None = None,
) -> Lock:
    """Raises TrainingLocked if nobody, or not this person, may train on these tasks in this
    environment. `by`: who starts the run; None if that is unknown. `agent` as in `lock_of`."""
    question = Question(environment.verifier, environment, scorer or scorer_of(environment), agent)
    lock = _answers([question], starter=_pk(by), starts=True, tasks=tasks)[0]
    if lock.locked:
        raise TrainingLocked(
            f"Training with {environment.verifier} in {question.where} is locked. {lock.why}"
            f" {' '.join(lock.todo)} Alternatively, an owner can override the lock with a reason."
        )
    return lock


def verdict(review: RewardReview, labels: list[Label], policy: dict[str, Any]) -> Verdict:
    """The policy on a review's labels."""
    needed = policy["reviewers_per_sample"]
    settled = [label.settled(needed) for label in labels]
    return judge(
        policy, settled, [[answer.success for answer in label.answers] for label in labels]
    )


def of_people(review: RewardReview, labels: list[Label], policy: dict[str, Any]) -> list[str]:
    """What of the review itself is unfinished: too few reviewers, disagreements without a
    ruling.
    """
    asked, needed = needed_of(review), policy["reviewers_per_sample"]
    if asked < needed:
        return [
            f"The policy requires {needed} people per sample; this review was opened with {asked}."
            " Open a new one."
        ]
    if waiting := sum(label.differs(needed) for label in labels):
        return [
            f"{waiting} sample{'s wait' if waiting > 1 else ' waits'} for a ruling: the reviewers"
            " differ."
        ]
    return []


def _pk(by: Any) -> int | None:
    return getattr(by, "pk", None)


def _answers(
    asked: list[Question],
    *,
    starter: int | None = None,
    starts: bool = False,
    tasks: Sequence[Task] | None = None,
) -> list[Lock]:
    verifiers = [one.verifier for one in asked]
    projects = {row.project_id for row in verifiers}
    companies, set_policies = companies_of(projects), policies_of(projects)
    policies = {pk: in_force(set_policies[pk], companies[pk]) for pk in projects}
    reviews = _reviews(verifiers)
    newest = [next(iter(_there(reviews.get(one.verifier.pk, []), one)), None) for one in asked]
    labels = labels_of({review.pk for review in newest if review})
    probes, overrides, found = _probes(verifiers), _overrides(verifiers), []
    for one, review in zip(asked, newest, strict=True):
        policy, every = policies[one.verifier.project_id], reviews.get(one.verifier.pk, [])
        mine = _labels_there(review, labels[review.pk], one) if review else []
        probe, override = _probe_for(one, probes), _override_for(one, overrides)
        facts = Facts(
            policy=policy,
            environment=one.where,
            verdict=verdict(review, mine, policy) if review else None,
            review_reasons=of_people(review, mine, policy) if review else [],
            elsewhere=sorted(
                {run["environment"] for other in every for run in other.scope["runs"].values()}
            ),
            changed=_changed(review, one) if review else [],
            probe=probe and _probe_facts(probe, one, len(tasks or ())),
            drift=_drift(every, one, tasks, policy) if tasks is not None else None,
            author=one.verifier.created_by_id,
            starter=starter,
            starts=starts,
            **_eyes(mine, {one.verifier.created_by_id, starter}),
            **_people(companies[one.verifier.project_id], starter),
            override=override
            and OverrideFacts(
                override.by_id,
                f"Overridden by {override.by or 'somebody who has left'}: {override.reason}",
            ),
        )
        found.append(decide(facts, review=review, probe=probe, override=override))
    return found


# Reviews


def _reviews(verifiers: list[Verifier]) -> dict[int, list[RewardReview]]:
    """{verifier: its reviews, the newest first}."""
    found: dict[int, list[RewardReview]] = {}
    for row in RewardReview.objects.filter(verifier__in=verifiers).order_by("-created_at", "-pk"):
        found.setdefault(row.verifier_id, []).append(row)
    return found


def _there(reviews: list[RewardReview], one: Question) -> list[RewardReview]:
    """Those with samples of the given environment."""
    return [review for review in reviews if _runs_there(review, one)]


def _runs_there(review: RewardReview, one: Question) -> dict[str, dict[str, Any]]:
    """{evaluation: its scorer} of those in the given environment, by the given agent; all without
    one.
    """
    runs = review.scope["runs"]
    if one.agent is not None:
        runs = {pk: then for pk, then in runs.items() if then.get("agent") == one.agent.digest}
    if one.environment is None:
        return runs
    here = runtime_hash(one.environment)
    return {pk: scorer for pk, scorer in runs.items() if scorer["runtime"] == here}


def _labels_there(review: RewardReview, labels: list[Label], one: Question) -> list[Label]:
    runs = _runs_there(review, one)
    return [label for label in labels if label.run in runs]


def _changed(review: RewardReview, one: Question) -> list[str]:
    """What of the scorer is not as it was when the samples were scored, in words."""
    if one.scorer is None:
        return []
    told = [
        text
        for scorer in _runs_there(review, one).values()
        for text in differences(scorer, one.scorer)
    ]
    return list(dict.fromkeys(told))


def _eyes(labels: list[Label], involved: set[int | None]) -> dict[str, int]:
    answers = [{answer.by for answer in label.answers} for label in labels if label.answers]
    return {"judged": len(answers), "judged_by_others": sum(bool(by - involved) for by in answers)}


def _people(company: Company, starter: int | None) -> dict[str, Any]:
    departed = ""
    if company.lone and company.left:
        departed = (
            f"{company.left.name} left on {company.left.at:%-d %B %Y}; the rules for a project of"
            f" one person apply from {company.left.counts_until:%-d %B %Y}."
        )
    return {
        "others": [name for pk, name in company.starters.items() if pk != starter],
        "departed": departed,
    }


# Probes and overrides


def _probes(verifiers: list[Verifier]) -> list[ProbeRun]:
    """All that ended with a report on these contents, the newest first: a verifier of another name
    may have the same.
    """
    same = Q(
        project__in={row.project_id for row in verifiers},
        verifier__hash__in={row.hash for row in verifiers},
    )
    rows = ProbeRun.objects.filter(same, failed__isnull=False).select_related(
        "verifier", "environment"
    )
    return list(
        rows.order_by("-created_at").defer("result")
    )  # reports are large; only those with findings are read


def _probe_for(one: Question, probes: list[ProbeRun]) -> ProbeRun | None:
    here = runtime_hash(one.environment) if one.environment else None
    for probe in probes:
        same = (probe.project_id, probe.verifier.hash) == (
            one.verifier.project_id,
            one.verifier.hash,
        )
        if same and here in (None, runtime_hash(probe.environment)):
            return probe
    return None


def _probe_facts(probe: ProbeRun, one: Question, training: int) -> ProbeFacts:
    report = probe.result.get("failed", []) if probe.failed else []
    worst = sorted(report, key=lambda found: found.get("severity") != "high")
    names = list(dict.fromkeys(found["probe"] for found in worst))[:NAMED]
    then = probe.spec.get("scorer")
    changed = differences(then or {}, one.scorer) if one.scorer else []
    told = ["The probes were run with different settings. " + text for text in changed]
    wanted, tried = min(PROBED_TASKS, training), len(probe.spec.get("tasks", ()))
    if tried < wanted:
        told.append(
            f"The probes tried {tried} task{'' if tried == 1 else 's'}; for this training they must"
            f" try {wanted}."
        )
    return ProbeFacts(probe.failed or 0, names, told)


def _overrides(verifiers: list[Verifier]) -> list[LockOverride]:
    return list(
        LockOverride.objects.filter(verifier__in=verifiers).select_related("by").order_by("-at")
    )


def _override_for(one: Question, overrides: list[LockOverride]) -> LockOverride | None:
    """The verifier's newest override; with an environment, among those given for its current
    scorer.
    """
    return next(
        (row for row in overrides if row.verifier_id == one.verifier.pk and _covers(row, one)), None
    )


def _covers(override: LockOverride, one: Question) -> bool:
    if one.environment is None or one.scorer is None:
        return True
    here = runtime_hash(one.environment)
    return any(
        then["runtime"] == here
        and then["judge"] == one.scorer["judge"]
        and (then.get("scoring") or {}) == (one.scorer.get("scoring") or {})
        for then in override.scope
    )


# Tasks


def traits_of(tasks: Iterable[Task]) -> list[drift.Traits]:
    rows = list(tasks)
    modes = dict(
        Task.objects.filter(pk__in=[row.pk for row in rows]).values_list(
            "pk", "trajectory__failure__mode__slug"
        )
    )
    return [
        drift.traits(
            key=digest_of([row.canonical_hash, row.expected]),
            request=row.canonical_hash,
            group=row.group,
            origin=row.get_origin_display(),
            bucket=modes.get(row.pk) or "",
            messages=row.messages,
            expected=row.expected,
            demonstration=row.demonstration,
        )
        for row in rows
    ]


def _drift(
    reviews: list[RewardReview], one: Question, tasks: Sequence[Task], policy: dict[str, Any]
) -> drift.Drift | None:
    """Against the tasks that people have judged here: in the newest review, and in each earlier one
    that passes as well.
    """
    there = _there(reviews, one)
    labels = labels_of(review.pk for review in there)
    judged: set[str] = set()
    for number, review in enumerate(there):
        mine = _labels_there(review, labels[review.pk], one)
        if number == 0 or (verdict(review, mine, policy).passed and not _changed(review, one)):
            needed = policy["reviewers_per_sample"]
            judged |= {
                label.task
                for label in mine
                if label.is_complete(needed) or label.ruling is not None
            }
    return drift.drift_of(traits_of(tasks), traits_of(Task.objects.filter(pk__in=judged)))
