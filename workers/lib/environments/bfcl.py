"""BFCL's multi-turn conversations (base, miss_func, miss_param, long_context): the user asks turn
by turn, tools keep state, and after each turn state and answers are compared with those of the
expected calls. Light: no torch.

The tools are the Python classes and documents of the package `bfcl-eval`, which must be installed
in Flywheel's Python (`pip install --no-deps bfcl-eval`). They run in the sandbox: each call replays
the episode's calls from the task's initial state.
"""

from __future__ import annotations

import asyncio
import json
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from workers.lib.environments import EnvironmentFailed
from workers.lib.environments.episodes import ToolEnvironment, ToolEpisode
from workers.lib.errors import SpecError
from workers.lib.sandbox import CodeError, Limits, SandboxError, shared
from workers.lib.specs.environment import Environment as EnvironmentSpec
from workers.lib.verifiers import Clients, Execution, Score, masked

OWN = "bfcl_turns"
STEPS_PER_TURN = 20  # as on the leaderboard; a longer turn ends the conversation
MORE_TOOLS = "There are more tools now. Please try again with them."
LIMITS = Limits(seconds=20.0, memory=1 << 30, output=4 << 20)
CODE = "eval_checker/multi_turn_eval/func_source_code"
DOCS = "data/multi_turn_func_doc"
MODULES = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TwitterAPI": "posting_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "VehicleControlAPI": "vehicle_control",
}
STATELESS = ("MathAPI",)
TYPES = {"dict": "object", "float": "number", "tuple": "array"}

PROGRAM = """
import copy, inspect, json, math, sys, types

try:
    import mpmath
except ImportError:  # the sandbox has no packages; the tools take a logarithm with it, which both \
sides do alike
    sys.modules["mpmath"] = types.ModuleType("mpmath")
    sys.modules["mpmath"].mp, sys.modules["mpmath"].log = types.SimpleNamespace(dps=15), math.log

def start(modules, task):
    for name, source in modules if modules[0][0] not in sys.modules else ():
        module = sys.modules[name] = types.ModuleType(name)
        exec(compile(source, name, "exec"), module.__dict__)
    made = {}
    for kind, module in task["classes"]:
        made[kind] = getattr(sys.modules[module], kind)()
        if kind not in task["stateless"]:
            config = copy.deepcopy(task["config"].get(kind, {}))
            made[kind]._load_scenario(config, long_context=task["long_context"])
    return made

def done(made, calls):
    methods = {}
    for one in made.values():
        methods |= {name: method for name, method in inspect.getmembers(one, inspect.ismethod) if \
name[0] != "_"}
    answers = []
    for call in calls:
        try:
            found = methods[call["tool"]](*call.get("positional", []), **call["args"])
            if isinstance(found, dict):
                try:
                    found = json.dumps(found)
                except Exception:
                    found = str(found)
            answers.append(found if isinstance(found, str) else str(found))
        except Exception as error:
            answers.append(f"Error during execution: {error}")
    return answers

def play(modules, task, turns):
    made = start(modules, task)
    return [done(made, calls) for calls in turns][-1][-1]

def public(one):
    return {name: value for name, value in vars(one).items() if name[0] != "_"}

def judge(modules, task, turns, wanted):
    mine, right, heard = start(modules, task), start(modules, task), []
    for number, (calls, truth) in enumerate(zip(turns, wanted)):
        heard += done(mine, calls)
        expected = done(right, truth)
        if not truth:
            continue
        if not calls:
            return [number, "no call in this turn"]
        for kind in right:
            ours, theirs = public(mine[kind]), public(right[kind])
            if wrong := [name for name in theirs if ours[name] != theirs[name]]:
                return [number, f"the state of {kind} differs: {', '.join(wrong)}"]
        left = list(heard)
        for answer in expected:
            if answer not in left:
                return [number, "an answer that was to be found out is missing: " + answer[:200]]
            left.remove(answer)
    return [len(turns), ""]
"""


@lru_cache(maxsize=1)
def package() -> Path:
    """The folder of the installed package. Raises SpecError."""
    found = find_spec("bfcl_eval")
    if found is None or not found.origin:
        raise SpecError(
            "This environment needs BFCL's own tools: pip install --no-deps bfcl-eval, where the"
            " workers run."
        )
    return Path(found.origin).parent


@lru_cache(maxsize=16)
def modules_of(kinds: tuple[str, ...]) -> list[list[str]]:
    """[module, source] of classes, in an order in which they can be loaded. Raises SpecError."""
    if strange := [kind for kind in kinds if kind not in MODULES]:
        raise SpecError(
            f"The task needs the tools {', '.join(strange)[:200]}, which are not among"
            f" {', '.join(MODULES)}."
        )
    prefix = f"bfcl_eval.{CODE.replace('/', '.')}"
    files = ["long_context", *dict.fromkeys(MODULES[kind] for kind in kinds)]
    return [[f"{prefix}.{name}", (package() / CODE / f"{name}.py").read_text()] for name in files]


@lru_cache(maxsize=16)
def tools_of(kinds: tuple[str, ...]) -> list[dict]:
    """The functions of the classes as chat completion tools."""
    found = []
    for kind in kinds:
        for line in (package() / DOCS / f"{MODULES[kind]}.json").read_text().splitlines():
            function = json.loads(line)
            found.append(
                {
                    "name": function["name"],
                    "description": function["description"],
                    "parameters": _schema(function["parameters"]),
                }
            )
    return [{"type": "function", "function": function} for function in found]


def _schema(value: Any) -> Any:
    if isinstance(value, list):
        return [_schema(item) for item in value]
    if not isinstance(value, dict):
        return value
    made = {name: _schema(item) for name, item in value.items()}
    return (
        made | {"type": TYPES.get(made["type"], made["type"])}
        if isinstance(made.get("type"), str)
        else made
    )


class BfclTurns(ToolEnvironment):
    """Has its own verifier (kind “bfcl_turns”): 1 if every turn is right, else 0."""

    def __init__(self, spec: EnvironmentSpec, *, clients: Clients | None = None) -> None:
        """Raises SpecError if the package is not installed."""
        super().__init__(spec)
        kind = spec.verifier.get("kind", OWN)
        if kind != OWN:
            raise SpecError(
                f"“environment.verifier.kind” must be {OWN}: what is right shows only in the state"
                " of BFCL's tools."
            )
        package()

    def open(self, task: dict, state: dict | None = None) -> TurnsEpisode:
        return TurnsEpisode(self, task, state)


class TurnsEpisode(ToolEpisode):
    """`made` are the calls of each turn that were executed."""

    def __init__(self, environment: BfclTurns, task: dict, state: dict | None) -> None:
        self.bfcl: dict = task["metadata"]["bfcl"]
        self.kinds = tuple(self.bfcl["classes"])
        super().__init__(environment, task, state)
        self.max_turns = environment.harness.max_turns or STEPS_PER_TURN * (
            1 + len(self.bfcl["turns"])
        )
        self.made: list[list[dict]] = (state or {}).get("made") or [[]]
        self.steps: int = (state or {}).get("steps", 0)
        self.tools = self._tools()

    def world(self) -> dict:
        return {"made": json.loads(json.dumps(self.made)), "steps": self.steps}

    def _tools(self) -> list[dict]:
        """Without tools that the task excludes or only adds in a later turn."""
        later = [
            names
            for turn, names in self.bfcl.get("later_tools", {}).items()
            if int(turn) >= len(self.made)
        ]
        hidden = {name for names in later for name in names} | set(self.bfcl.get("excluded", []))
        return [tool for tool in tools_of(self.kinds) if tool["function"]["name"] not in hidden]

    async def step(self, message: dict) -> None:
        self.steps += 1
        await super().step(message)
        if not self.done and self.steps >= STEPS_PER_TURN:
            self.stop_reason = "turns"

    async def run(self, tool: str, args: dict) -> Execution:
        if tool not in [known["function"]["name"] for known in self.tools]:
            return self.refusal(tool, args, f"There is no tool {tool[:80]}.")
        call = {"tool": tool, "args": args}
        try:
            answer = await self._ask("play", [*self.made[:-1], [*self.made[-1], call]])
        except CodeError as error:
            return self.refusal(tool, args, f"The tool could not carry this out ({error.reason}).")
        self.made[-1].append(call)
        return Execution(True, False, str(answer), name=tool, args=args)

    async def _ask(self, function: str, *arguments: Any) -> Any:
        """Raises CodeError, and EnvironmentFailed if the sandbox does not work."""
        task = {
            "classes": [
                [kind, f"bfcl_eval.{CODE.replace('/', '.')}.{MODULES[kind]}"] for kind in self.kinds
            ],
            "stateless": STATELESS,
            "config": self.bfcl["config"],
            "long_context": bool(self.bfcl.get("long_context")),
        }
        given = [modules_of(self.kinds), task, *arguments]
        try:
            return await asyncio.to_thread(shared().call, PROGRAM, function, given, limits=LIMITS)
        except SandboxError as error:
            raise EnvironmentFailed(str(error)) from error

    async def replied(self, text: str) -> None:
        """The agent calls nothing more: continue with the user's next turn, if there is one."""
        if len(self.made) > len(self.bfcl["turns"]):
            self.stop_reason = "stop"
            return
        said = self.bfcl["turns"][len(self.made) - 1]
        self.made.append([])
        self.steps, self.tools = 0, self._tools()
        self.said += [dict(message) for message in said] or [
            {"role": "user", "content": MORE_TOOLS}
        ]

    async def score(self) -> Score:
        wanted = self.task["expected"]["turns"]
        turns = self.made + [[] for _ in range(len(wanted) - len(self.made))]
        try:
            right, why = await self._ask("judge", turns, wanted)
        except (CodeError, EnvironmentFailed) as error:
            return masked(f"The turns could not be compared: {error}")
        success = right == len(wanted) == len(self.made) and self.stop_reason == "stop"
        details = (
            []
            if success
            else [
                f"turn {right + 1}: {why}" if why else "the conversation ended before its last turn"
            ]
        )
        return Score(
            reward=float(success),
            components={"right": float(success), "turns": right / len(wanted)},
            success=success,
            messages=self.said,
            details=details,
        )
