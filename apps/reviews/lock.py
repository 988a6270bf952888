"""The lock that every training run asks: a pure decision over facts, which `evidence` reads. No
Django.

What is unlocked is a triple: this verifier, in this environment, for tasks like those whose scores
people have judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from apps.core.errors import Rejected
from apps.reviews.agreement import Agreement, Verdict
from apps.reviews.drift import Drift

NAMED = 3  # people


class ReviewError(Rejected):
    """Something that may not be done to a review; the message is a sentence for the page."""


class TrainingLocked(ReviewError):
    """The verifier may not train yet; the message says why and what opens the lock."""


@dataclass(frozen=True)
class Reason:
    """An unmet condition, and what to do about it: one sentence each."""

    what: str
    todo: str

    def __str__(self) -> str:
        return self.what


@dataclass(frozen=True)
class ProbeFacts:
    """The newest finished probes: how many findings keep the lock closed, their names, and what
    changed in the scorer since.
    """

    failed: int
    names: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class OverrideFacts:
    """The newest override that holds here: whose it was, and in words."""

    by: int | None
    words: str


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The facts for the decision. `environment`: what it is requested for, "" for any that uses the
    verifier.

    `judged`: samples that anybody has judged; `judged_by_others`: those judged by somebody who
    neither wrote the verifier nor starts the run. `starts`: a run is to start now; `starter`: who
    starts it, None if unknown. `drift`: None if no tasks are given. `others`: who could start it
    instead. `departed`: a sentence if the rules of a project of one person do not apply yet,
    because somebody left recently.
    """

    policy: Mapping[str, Any]
    environment: str = ""
    verdict: Verdict | None = None
    review_reasons: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    probe: ProbeFacts | None = None
    drift: Drift | None = None
    author: int | None = None
    starter: int | None = None
    starts: bool = False
    judged: int = 0
    judged_by_others: int = 0
    others: list[str] = field(default_factory=list)
    departed: str = ""
    override: OverrideFacts | None = None


@dataclass(frozen=True)
class Lock:
    """The decision. `reasons` are the unmet conditions; those of `people` are about who starts,
    which no override outweighs.
    """

    locked: bool
    why: str
    reasons: list[Reason] = field(default_factory=list)
    agreement: Agreement | None = None
    override: Any = None
    review: Any = None
    probe: Any = None

    @property
    def state(self) -> str:
        return (
            "locked"
            if self.locked
            else "override"
            if self.override and self.reasons
            else "unlocked"
        )

    @property
    def todo(self) -> list[str]:
        """What opens it, in order, each once."""
        return list(dict.fromkeys(reason.todo for reason in self.reasons))


def decide(facts: Facts, **rows: Any) -> Lock:
    """Whether training may start. `rows` (override, review, probe) are handed on to whoever shows
    the lock.
    """
    unmet = [*_of_review(facts), *_of_probes(facts), *_of_tasks(facts)]
    people = _of_people(facts)
    agreement = facts.verdict.agreement if facts.verdict else None
    found = {"reasons": [*unmet, *people], "agreement": agreement} | rows
    if not found["reasons"]:
        assert agreement is not None
        return Lock(
            False, f"Passed its review: κ {agreement.kappa:.2f} on {agreement.n} samples.", **found
        )
    if facts.override and not people:
        return Lock(False, facts.override.words, **found)
    told = people if facts.override else found["reasons"]
    return Lock(True, " ".join(map(str, told)), **found)


def _of_review(facts: Facts) -> list[Reason]:
    here = f" in {facts.environment}" if facts.environment else ""
    again = f"Evaluate a model{here} and open a review of its scores."
    if facts.verdict is None:
        if facts.elsewhere:
            told = (
                f"Only its scores in {', '.join(facts.elsewhere)} have been reviewed, none{here}."
            )
            return [Reason(told, again)]
        return [
            Reason(
                "Its scores have not been reviewed yet.",
                "Open a review of its scores and judge the samples.",
            )
        ]
    found = [Reason(what, "Finish the review, or open a new one.") for what in facts.review_reasons]
    found += [
        Reason(what, "Judge its samples under Reward review, or open a larger review.")
        for what in facts.verdict.reasons
    ]
    return found + [Reason(what, again) for what in facts.changed]


def _of_probes(facts: Facts) -> list[Reason]:
    todo = f"Run the hack probes{' in ' + facts.environment if facts.environment else ''}."
    probe = facts.probe
    if not facts.policy["probes_must_pass"]:
        return []
    if probe is None:
        return [Reason("The hack probes have not been run on this verifier.", todo)]
    found = [Reason(what, todo) for what in probe.changed]
    if probe.failed:
        names = (
            f": {', '.join(name.replace('_', ' ') for name in probe.names)}" if probe.names else ""
        )
        told = f"Its probes found {probe.failed} hole{'s' if probe.failed > 1 else ''}{names}."
        found.append(Reason(told, "Change the verifier and probe it again."))
    return found


def _of_tasks(facts: Facts) -> list[Reason]:
    most = facts.policy["max_unreviewed_share"]
    if facts.drift is None or facts.verdict is None or facts.drift.share <= most:
        return []
    told = f"{facts.drift}. At most {most:.0%} is allowed."
    return [
        Reason(
            told,
            "Evaluate a model on such tasks and open a review of those scores, or train on other"
            " tasks.",
        )
    ]


def _of_people(facts: Facts) -> list[Reason]:
    """Four eyes. Who starts the run must be known: an account that was deleted may have been
    anybody's.
    """
    if not facts.policy["four_eyes"] or (facts.starter is None and not facts.starts):
        return []
    if facts.starter is None:
        unknown = "The policy requires four eyes, and it is unknown who starts this training."
        return [Reason(unknown, "Have an engineer start it again.")]
    other = _somebody_else(facts)
    if facts.override:
        if facts.override.by is None:
            told = "Whoever overrode the lock has no account any more, so it may be whoever starts."
            return [Reason(told, "Have an owner override the lock again, or finish the review.")]
        if facts.override.by == facts.starter:
            return [Reason("Whoever overrides the lock cannot also start the training.", other)]
        return []
    found = []
    if facts.author == facts.starter:
        found.append(Reason("Whoever wrote the verifier cannot start its training.", other))
    if facts.judged and 2 * facts.judged_by_others < facts.judged:
        told = (
            f"Only {facts.judged_by_others} of {facts.judged} samples were judged by someone who"
            " neither wrote the verifier nor starts the training; at least half must be."
        )
        found.append(Reason(told, f"Have someone else review the samples. {other}"))
    return found


def _somebody_else(facts: Facts) -> str:
    """Who can start the run instead, by name: asking somebody who is not there leads nowhere."""
    if facts.others:
        return (
            f"Ask {' or '.join(facts.others[:NAMED])} to start it, or an owner to change the review"
            " policy."
        )
    invite = (
        "No other engineer is in this project: an owner can add one under Settings → Members or"
        " change the review policy."
    )
    return f"{invite} {facts.departed}".strip()
