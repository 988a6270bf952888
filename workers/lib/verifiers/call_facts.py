"""What any rollout shows about its calls, whichever verifier scored it. Light and pure."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from workers.lib.json_schema import JsonSchema
from workers.lib.messages import calls_of
from workers.lib.verifiers.types import Rollout, Score


def add_call_facts(score: Score, rollout: Rollout) -> None:
    """Sets what the verifier left open: `valid`, whether every call can be read, names a tool of
    the task and fits its definition; and `executed`, whether every call that ran worked. An agent
    that said nothing shows neither, nor whether it chooses the right tool.
    """
    if not any(message.get("role") == "assistant" for message in rollout.messages):
        score.valid = score.tool_ok = score.args_score = score.executed = None
        return
    if score.valid is None:
        score.valid = _well_formed(rollout)
    if score.executed is None and rollout.calls:
        score.executed = all(call.ok for call in rollout.calls)


def _well_formed(rollout: Rollout) -> bool | None:
    """None without a call: there is nothing that could be well formed."""
    calls = [call for message in rollout.messages for call in calls_of(message)]
    if not calls:
        return None
    schemas = {
        tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in rollout.tools
    }
    return all(
        not call.problem
        and call.args is not None
        and call.tool in schemas
        and _fits(schemas[call.tool], call.args)
        for call in calls
    )


def _fits(schema: dict, args: dict) -> bool:
    return not _checker(json.dumps(schema, sort_keys=True)).problem(args)


@lru_cache(512)
def _checker(schema: str) -> Any:
    return JsonSchema(json.loads(schema), tolerant=True)
