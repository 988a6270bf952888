"""A workplace with mail, calendar, projects, customers and analytics; scored by the final state of
its tables.

Rows and tools are those of NeMo Gym's Workplace Assistant; the company is invented, or given as
tables. Light: no torch.
"""

from __future__ import annotations

import copy
import json
from functools import lru_cache

from workers.lib.environments import gold_calls
from workers.lib.environments.episodes import StateEpisode, ToolEnvironment, tool_names, verifier_of
from workers.lib.environments.workplace_assistant.handlers import HANDLERS
from workers.lib.environments.workplace_assistant.office import Office, OfficeError
from workers.lib.environments.workplace_assistant.tables import (
    MAX_TURNS,
    NOW,
    Tables,
    given_tables,
    invented,
)
from workers.lib.environments.workplace_assistant.tools import LOOKUPS as LOOKUPS
from workers.lib.environments.workplace_assistant.tools import TOOLS, coerced
from workers.lib.errors import SpecError
from workers.lib.specs.environment import Environment as EnvironmentSpec
from workers.lib.verifiers import Clients, Execution, Rollout, Score

OWN = "tables"


class WorkplaceAssistant(ToolEnvironment):
    """`config` may contain `tables` (lists of rows) and `now` ("YYYY-MM-DD HH:MM:SS") to replace
    the made-up company, and `tools`, the names of those available, instead of all 27.

    Has its own verifier (kind “tables”: 1 if all five tables are as the expected calls leave them,
    else 0) unless the spec names another.
    """

    max_turns = MAX_TURNS

    def __init__(
        self, spec: EnvironmentSpec, *, clients: Clients | None = None, tables: Tables | None = None
    ) -> None:
        super().__init__(spec)
        config = spec.config
        self.now = config.get("now", NOW)
        self.verifier = verifier_of(spec, clients, OWN)
        self.tools = chosen_tools(config["tools"]) if "tools" in config else TOOLS
        try:
            self.tables = tables or (
                given_tables(config["tables"]) if "tables" in config else invented()
            )
        except (ValueError, TypeError, AttributeError) as error:
            raise SpecError(f"“environment.config.tables”: {error}") from error

    def open(self, task: dict, state: dict | None = None) -> WorkplaceEpisode:
        return WorkplaceEpisode(self, task, state)

    def office(self, changes: dict | None = None) -> Office:
        return Office(self.tables, self.now, copy.deepcopy(changes))

    def expected_state(self, task: dict) -> dict:
        """The tables after the expected calls. Raises ValueError for a call that the office
        rejects.
        """
        office = self.office()
        for call in gold_calls(task):
            try:
                HANDLERS[call["tool"]](office, **coerced(call["tool"], call["args"]))
            except (KeyError, OfficeError) as error:
                raise ValueError(
                    f"The expected call of {call['tool']} cannot be run: {error}"
                ) from error
        return office.end_state()


class WorkplaceEpisode(StateEpisode):
    """One conversation over its own tables."""

    def __init__(self, environment: WorkplaceAssistant, task: dict, state: dict | None) -> None:
        super().__init__(environment, task, state)
        self.environment, self.verifier = environment, environment.verifier
        self.office = environment.office((state or {}).get("changes"))

    def world(self) -> dict:
        return {"changes": copy.deepcopy(self.office.changes)}

    async def run(self, tool: str, args: dict) -> Execution:
        if tool not in HANDLERS or tool not in tool_names(self.tools):
            return self.refusal(tool, args, f"There is no tool {tool[:80]}.")
        try:
            answer = HANDLERS[tool](self.office, **coerced(tool, args))
        except (OfficeError, ValueError) as error:
            return self.refusal(tool, args, str(error)[:500])
        return Execution(True, False, _text(answer), name=tool, args=args)

    def refusal(self, tool: str, args: dict, why: str, *, unsafe: bool = False) -> Execution:
        return Execution(False, unsafe, _text(f"Error: {why}"), name=tool, args=args, error=why)

    def states(self) -> tuple[dict, dict]:
        return self.office.end_state(), self.environment.expected_state(self.task)

    def compared(self, rollout: Rollout) -> Score:
        """1 if no table differs from its state after the expected calls, else 0."""
        state, expected = rollout.state or {}, rollout.expected_state or {}
        wrong = [table for table in expected if state.get(table) != expected[table]]
        right = not wrong
        return Score(
            reward=float(right),
            components={f"table/{table}": float(table not in wrong) for table in expected},
            success=right,
            messages=rollout.messages,
            details=[f"The table {table} is not as it should be." for table in wrong],
        )


def chosen_tools(names: object) -> list[dict]:
    """Raises SpecError."""
    if not isinstance(names, list) or not names or set(map(str, names)) - HANDLERS.keys():
        raise SpecError(
            f"“environment.config.tools” must be names of tools: {', '.join(HANDLERS)}."
        )
    return [tool for tool in TOOLS if tool["function"]["name"] in names]


def _text(answer: object) -> str:
    return json.dumps({"output": answer}, ensure_ascii=False, separators=(",", ":"))


@lru_cache(maxsize=1)
def own_tasks() -> tuple[dict, ...]:
    """The built-in tasks for the made-up company, with the correct calls."""
    from workers.lib.environments.workplace_assistant.tasks import make_tasks

    return tuple(make_tasks())
