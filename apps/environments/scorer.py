"""What determines the scores besides the verifier's spec, as far as it can be named."""

from __future__ import annotations

from typing import Any

from apps.core.models import Job
from apps.environments.actions import content_hash
from apps.environments.clients import judge_of, needs_judge
from apps.environments.models import Environment
from apps.environments.remote import UNKNOWN, reported_by
from workers.lib.prompts import AGENT_PART
from workers.lib.verifiers.judges import SYSTEM
from workers.lib.verifiers.scoring import revisions


def runtime_hash(environment: Environment) -> str:
    """Hash of what episodes run in: kind, module, config, tools. Without the verifier, the tasks,
    and the agent's part.
    """
    harness = {name: value for name, value in environment.harness.items() if name not in AGENT_PART}
    return content_hash([environment.kind, environment.builtin, environment.config, harness])


def scorer_of(
    environment: Environment, *, verifier: dict | None = None, ask: bool = False
) -> dict[str, Any]:
    """The environment, the judge (server, model and a hash of our own part of its prompt; None if
    there is none), the revisions of our scoring code, and the version that a remote server reports.
    `verifier`: a spec that replaces the environment's own.

    A remote server is called only with `ask`, which takes seconds if it does not answer; otherwise
    there is no `remote`.
    """
    found = {
        "environment": str(environment),
        "runtime": runtime_hash(environment),
        "judge": _judge(environment, verifier or environment.verifier.spec),
        "scoring": revisions([verifier or environment.verifier.spec, environment.config]),
    }
    return (
        found | {"remote": reported_by(environment) if environment.is_remote else None}
        if ask
        else found
    )


class ScorerChanged(Exception):
    """The scorer differs from that of the first part of a job; the message says what changed and
    what to do.
    """


def record_scorer(
    job: Job, environment: Environment, verifier: dict | None = None, scored: bool = False
) -> None:
    """Stores the scorer in a starting job's spec: a later review must know whose scores they are.

    `scored`: an earlier attempt has already stored scores. Raises ScorerChanged if another scorer
    gave them.
    """
    now = scorer_of(environment, verifier=verifier, ask=True)
    if scored and (told := differences(job.spec.get("scorer", {}), now)):
        raise ScorerChanged(f"{' '.join(told)} Scores of both cannot be mixed: start it again.")
    job.spec["scorer"] = now
    type(job)._default_manager.filter(pk=job.pk).update(spec=job.spec)


def uses_judge(environment: Environment, verifier: dict | None = None) -> bool:
    """Whether a judge model takes part in the scores. `verifier`: a spec that replaces the
    environment's own.
    """
    return needs_judge(
        [verifier or environment.verifier.spec, environment.config, environment.harness]
    )


def _judge(environment: Environment, verifier: dict) -> str | None:
    """The judge, on one line; None if there is none."""
    if not uses_judge(environment, verifier):
        return None
    server = judge_of(environment.project)
    return (
        f"{server.model} at {server.base_url} (prompt {content_hash(SYSTEM)[:8]})"
        if server
        else "none"
    )


def differences(then: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What changed in the scorer, one sentence each; the environments themselves are compared
    elsewhere.

    A version that is unknown (None) then or now has changed as far as anybody knows; one that was
    not asked for is not compared.
    """
    compared = [("judge", then.get("judge"), now.get("judge"))]
    revised = then.get("scoring") or {}, now.get("scoring") or {}
    compared += [
        (f"scoring of “{name}”", *(f"revision {revision.get(name, 1)}" for revision in revised))
        for name in sorted(revised[0].keys() | revised[1].keys())
    ]
    # A server that never reports a version is the same as far as anybody can tell; one that was not
    # asked then is unknown.
    if "remote" in now and (
        now["remote"] is not None or "remote" not in then or then["remote"] is not None
    ):
        compared.append(("remote server's version", then.get("remote"), now["remote"]))
    return [
        f"The {what} was {was or UNKNOWN} when the samples were scored; it is {is_now or UNKNOWN}"
        " now."
        for what, was, is_now in compared
        if was != is_now
    ]
