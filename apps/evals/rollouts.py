"""The addresses of an evaluation's samples: at each, an agent that runs its own loop calls the
environment's tools on the state of that sample (docs/agents.md).

An address is known by its secret part, 256 bits that are derived from the sample and the secret
key, so that asking again gives the same one; only their SHA-256 is stored. It ends when the
sample's answer is there, or its evaluation takes none any more.
"""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from django.db.models import Exists, OuterRef
from django.db.models.functions import Now
from django.utils.crypto import salted_hmac

from apps.core.models import JobState
from apps.environments.clients import load_for
from apps.environments.models import Environment
from apps.environments.protocol.scoring import call, tools_of
from apps.environments.protocol.sessions import brief
from apps.evals.models import Answer, EvalRun, SampleRollout
from workers.lib.harness import tools
from workers.lib.harness.addressed import Address
from workers.lib.harness.tools import Asked, Called, Reply

Place = tuple[str, int]  # a sample: its task's id and its index
PATH = "/rollout/"
ANSWERED = "This rollout has ended: the agent has answered."
OVER = "This rollout has ended: its evaluation takes no more answers."


@dataclass(frozen=True)
class Ran:
    """What was called at a sample's address: how often, and the state after it."""

    calls: int
    state: dict | None


def has_tools(environment: Environment) -> bool:
    """Whether tools of the environment can be called outside of a conversation with it: where an
    episode ends after one message, its calls are the answer. Raises SpecError.
    """
    return load_for(environment).multi_turn


# Addresses


def links(run: EvalRun, places: Iterable[Place], base: str) -> dict[Place, dict[str, str]]:
    """{sample: {mcp, tools}}, below the address `base` of this installation; {} if the environment
    has no tools to call."""
    if not has_tools(run.environment):
        return {}
    root = base.rstrip("/") + PATH
    found = {place: Address.below(root + token) for place, token in _open(run, places).items()}
    return {place: {"mcp": one.mcp, "tools": one.tools} for place, one in found.items()}


def _open(run: EvalRun, places: Iterable[Place]) -> dict[Place, str]:
    """The secret part of each sample's address; one that was open keeps its state."""
    made = {place: _token(run, place) for place in places}
    SampleRollout.objects.bulk_create(
        (
            SampleRollout(run=run, task_id=task, index=index, token_hash=_digest(token))
            for (task, index), token in made.items()
        ),
        update_conflicts=True,
        unique_fields=["run", "task", "index"],
        update_fields=["token_hash"],
    )
    return made


def begin(run: EvalRun, place: Place) -> str:
    """The secret part of the address of a sample that begins now, also if an attempt before, whose
    worker died, began it."""
    task, index = place
    token = _token(run, place)
    fresh = {"token_hash": _digest(token), "state": None, "calls": 0, "ended_at": None}
    SampleRollout.objects.update_or_create(run=run, task_id=task, index=index, defaults=fresh)
    return token


def _token(run: EvalRun, place: Place) -> str:
    attempt = 0 if run.is_answered_elsewhere else run.attempt
    said = f"{run.pk}/{place[0]}/{place[1]}/{attempt}"
    made = salted_hmac("flywheel.rollout", said, algorithm="sha256").digest()
    return urlsafe_b64encode(made).decode().rstrip("=")


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


# What is asked there


def find(token: str) -> SampleRollout | None:
    rows = SampleRollout.objects.select_related("run__environment__project", "task")
    return rows.filter(token_hash=_digest(token)).first()


def answer(
    rollout: SampleRollout, method: str, rest: str, headers: Mapping[str, str], body: bytes
) -> Reply:
    """The answer to a request below its address. Raises SpecError if the environment cannot be
    loaded, Refusal if another of its calls does not end."""
    ended, task = why_ended(rollout), rollout.task.as_spec()
    environment = load_for(rollout.run.environment)
    shown = [] if ended else tools_of(environment, task, rollout.state)
    asked = tools.asked(method, rest, headers, body, shown, ended)
    if isinstance(asked, Reply):
        return asked
    try:
        return asked.answered(_call(rollout, asked))
    except tools.Refused as refusal:
        return asked.refused(refusal.status, refusal.sentence)


def why_ended(rollout: SampleRollout) -> str:
    if rollout.ended_at:
        return ANSWERED
    run = rollout.run
    if run.is_answered_elsewhere:
        return "" if run.takes_answers else OVER
    return "" if run.state == JobState.RUNNING else OVER


def _call(rollout: SampleRollout, asked: Asked) -> Called:
    """Runs it; calls of one rollout run one after the other. Raises Refused, Refusal."""
    with brief():
        row = (
            SampleRollout.objects.select_for_update(of=("self",))
            .select_related("run", "task")
            .get(pk=rollout.pk)
        )
        if ended := why_ended(row):
            raise tools.Refused(410, ended)
        if row.calls >= tools.MOST_CALLS:
            raise tools.Refused(429, tools.TOO_MANY)
        environment = load_for(rollout.run.environment)
        done = call(environment, row.task.as_spec(), row.state, asked.name, asked.args)
        row.state, row.calls = done.state, row.calls + 1
        row.save(update_fields=["state", "calls"])
    return Called(done.observation, not done.ok)


# Its end


def used(run: EvalRun, tasks: Iterable[str]) -> set[Place]:
    """The samples of these tasks at whose address a tool was called."""
    rows = run.rollouts.filter(task__in=list(tasks), calls__gt=0)
    return {(str(task), index) for task, index in rows.values_list("task_id", "index")}


def end_answered(run: EvalRun) -> None:
    """Ends those whose agent has sent its answer; a trace may be of an agent that still works."""
    mine = {"run": OuterRef("run"), "task": OuterRef("task"), "index": OuterRef("index")}
    answers = Answer.objects.filter(**mine, trajectory=None)
    open_ = SampleRollout.objects.filter(run=run, ended_at=None)
    open_.filter(Exists(answers)).update(ended_at=Now())


def take(run: EvalRun, place: Place) -> Ran:
    """Ends one; what ran in it."""
    with brief():
        rows = SampleRollout.objects.select_for_update()
        row = rows.get(run=run, task=place[0], index=place[1])
        SampleRollout.objects.filter(pk=row.pk).update(ended_at=Now())
    return Ran(row.calls, row.state)


def put_back(run: EvalRun, place: Place, state: dict) -> None:
    """The sample goes on, from this state: its agent is asked again. Calls are counted anew."""
    rows = SampleRollout.objects.filter(run=run, task=place[0], index=place[1])
    rows.update(state=state, calls=0, ended_at=None)


def take_all(run: EvalRun) -> dict[Place, Ran]:
    """Ends all; what ran in those that were used."""
    run.rollouts.filter(ended_at=None).update(ended_at=Now())
    used = run.rollouts.filter(calls__gt=0).values_list("task_id", "index", "calls", "state")
    return {(str(task), index): Ran(calls, state) for task, index, calls, state in used}


def forget_states(run: EvalRun) -> None:
    """When the evaluation has ended: the samples say what came of them."""
    run.rollouts.exclude(state=None).update(state=None)
