"""What a step search will do, checked before it starts."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from apps.evals.actions import EvalSetError
from apps.evals.capability.environment import prompt_in
from apps.evals.replays.episode import Replayable, replayable
from apps.evals.replays.forecast import Forecast, forecast
from apps.evals.replays.schema import NewSearch
from apps.registry import engines
from apps.registry.actions import ModelError
from workers.lib.verifiers.expectations import problem_of

IN_PROCESS_USD = (
    "A cost limit applies to servers; these continuations are generated in this installation. Use"
    " Max tokens."
)


class Prepared(Struct):
    """`prompt`: the parts of a prompt version that replace the environment's harness."""

    run: Replayable
    engine: dict[str, Any]
    prompt: dict[str, Any]
    forecast: Forecast


def prepared(given: NewSearch) -> Prepared:
    """Raises EvalSetError."""
    run, environment, version = (
        replayable(given.failure, given.task),
        given.environment,
        given.model_version,
    )
    if archived := next((row for row in (environment, version) if row.archived_at), None):
        raise EvalSetError(f"{archived} is archived. Choose another.")
    if problem := problem_of(environment.verifier.spec, run.task["expected"]):
        raise EvalSetError(f"{environment} cannot score this run by {run.named}: {problem}.")
    try:
        engine = _limited(engines.choose(version, given.engine), given)
    except ModelError as error:
        raise EvalSetError(str(error)) from error
    expected = forecast(run, environment, version, engine, each=given.each, every=given.every)
    return Prepared(run, engine, prompt_in(environment, version), expected)


def _limited(engine: dict[str, Any], given: NewSearch) -> dict[str, Any]:
    """Raises ModelError. Tokens generated in this installation are limited by the program."""
    if engine["kind"] != "transformers":
        return engines.with_limits(
            engine, most_tokens=given.most_tokens or 0, most_usd=given.most_usd or 0.0
        )
    if given.most_usd:
        raise ModelError(IN_PROCESS_USD)
    return engine
