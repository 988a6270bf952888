"""Loads a package and serves requests, one at a time: in a separate process, or in a run of the
sandbox.

Imports only the standard library and flywheel_sdk. Every answer is {"value"} or {"error": {"kind",
"text", "where"}}. The kinds are: import (the package cannot be loaded), definition (a class, tool
or task is invalid), crash (its code raised), state, score.
"""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import inspect
import io
import itertools
import json
import math
import sys
import traceback
from pathlib import Path
from types import ModuleType

MOST_TASKS = 100_000
TEXT = 200_000  # characters kept of a tool's result


class Fault(Exception):
    """An error in the package: kind, a sentence, and where in its files."""

    def __init__(self, kind: str, text: str, where: str = "") -> None:
        super().__init__(text)
        self.kind, self.text, self.where = kind, text[:2000], where[:4000]


def where_in(folder: str, error: BaseException) -> str:
    """The frames of an error's traceback that are in the package, with paths as its author knows
    them.
    """
    frames = traceback.extract_tb(error.__traceback__)
    found = [frame for frame in frames if frame.filename.startswith(folder)]
    return "\n".join(
        f"{frame.filename[len(folder) + 1 :]}:{frame.lineno} {frame.line or ''}".rstrip()
        for frame in found[-8:]
    )


def crash(folder: str, kind: str, what: str, error: BaseException) -> Fault:
    if isinstance(error, SyntaxError) and str(error.filename or "").startswith(folder):
        return Fault(
            kind,
            f"{error.filename[len(folder) + 1 :]}, line {error.lineno}: {error.msg}",
            (error.text or "").strip(),
        )
    return Fault(kind, f"{what} raised {type(error).__name__}: {error}", where_in(folder, error))


def loaded(folder: str, name: str):
    """The package's one subclass of Environment. Raises Fault."""
    import flywheel_sdk

    path = Path(folder) / "__init__.py"
    if not path.is_file():
        raise Fault("import", "The package has no __init__.py.")
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=[folder])
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (
        BaseException
    ) as error:  # including SystemExit: whatever the code does, the package is at fault
        raise crash(folder, "import", "Importing it", error) from error
    kinds = [
        kind
        for kind in vars(module).values()
        if inspect.isclass(kind)
        and issubclass(kind, flywheel_sdk.Environment)
        and kind is not flywheel_sdk.Environment
    ]
    kinds = [
        kind
        for kind in dict.fromkeys(kinds)
        if not any(other is not kind and issubclass(other, kind) for other in kinds)
    ]
    if len(kinds) != 1:
        names = ", ".join(kind.__name__ for kind in kinds) or "none"
        raise Fault(
            "definition",
            "__init__.py must define or import exactly one subclass of flywheel_sdk.Environment;"
            f" it has: {names}.",
        )
    if kinds[0].verify is flywheel_sdk.Environment.verify:
        raise Fault(
            "definition",
            f"{kinds[0].__name__} has no verifier. Define verify(self, attempt), which returns the"
            " reward.",
        )
    return kinds[0]


class Driver:
    """One package."""

    def __init__(self, folder: str, name: str) -> None:
        """Raises Fault."""
        import flywheel_sdk

        self.sdk, self.folder = flywheel_sdk, folder
        self.kind = loaded(folder, name)
        try:
            self.methods = flywheel_sdk.tools_of(self.kind)
            self.tools = [
                flywheel_sdk.schema_of(name, method) for name, method in self.methods.items()
            ]
            json.dumps(self.tools, allow_nan=False)
        except flywheel_sdk.DefinitionError as error:
            raise Fault("definition", str(error)) from error
        except Exception as error:
            raise crash(folder, "definition", "Reading its tools", error) from error

    def describe(self) -> dict:
        """Everything that is known without a task."""
        limits = {}
        for name, least, most in (
            ("max_turns", 1, 200),
            ("tool_seconds", 0.1, 600),
            ("verify_seconds", 0.1, 600),
        ):
            value = getattr(self.kind, name)
            if (
                isinstance(value, bool)
                or not isinstance(value, int | float)
                or not least <= value <= most
            ):
                raise Fault(
                    "definition",
                    f"{self.kind.__name__}.{name} must be a number from {least:g} to {most:g}, not"
                    f" {value!r}.",
                )
            limits[name] = value
        prompt = self.kind.system_prompt
        if not isinstance(prompt, str):
            raise Fault(
                "definition",
                f"{self.kind.__name__}.system_prompt must be text, not {type(prompt).__name__}.",
            )
        about = inspect.getdoc(self.kind) if self.kind.__doc__ else ""
        return {
            "title": self.kind.__name__,
            "description": about or "",
            "tools": self.tools,
            "system_prompt": prompt,
        } | limits

    def tasks(self, start: int = 0, most: int = 500_000) -> dict:
        """{"tasks", "next"}: tasks from `start` on with about `most` bytes of JSON; `next` is None
        at the end.
        """
        made, size = [], 0
        given = self._do("tasks()", lambda: self.kind().tasks())
        if given is None:
            raise Fault("definition", "tasks() returned None. Return a list of tasks.")
        # A generator may be endless.
        rows = self._do("tasks()", lambda: list(itertools.islice(given, MOST_TASKS + 1)))
        if len(rows) > MOST_TASKS:
            raise Fault(
                "definition", f"tasks() gives more than {MOST_TASKS:,} tasks. Return fewer."
            )
        for at, row in enumerate(rows[start:], start):
            if size >= most:
                return {"tasks": made, "next": at}
            text = self._json(row, "definition", f"Task {at + 1}")
            size += len(text)
            made.append(json.loads(text))
        return {"tasks": made, "next": None}

    def start(self, task: dict) -> dict:
        """The initial state of a task."""
        return self._state(self._do("start()", lambda: self.kind().start(task)))

    def call(self, tool: str, args: dict, state: dict) -> dict:
        """{"text", "error", "state", "finished"}; if the tool rejects the call, `error` is set,
        which the agent sees.
        """
        instance = self._do(f"{self.kind.__name__}()", self.kind)
        instance.state = state
        text, refused = "", ""
        try:
            found = self._do(
                f"The tool {tool}",
                lambda: self._called(instance, tool, args),
                (self.sdk.ToolError,),
            )
            text = found
            if not isinstance(found, str):
                text = self._json(found, "crash", f"What the tool {tool} returned", self.sdk.plain)
        except self.sdk.ToolError as error:
            refused = str(error) or "The tool refused the call."
        finished = bool(getattr(instance, "is_finished", False))
        return {
            "text": text[:TEXT],
            "error": refused[:TEXT],
            "state": self._state(instance.state),
            "finished": finished,
        }

    def _called(self, instance, tool: str, args: dict):
        method = self.methods[tool]
        return method(instance, **self.sdk.arguments_of(method, args))

    def verify(self, attempt: dict) -> dict:
        """{"reward", "success", "unsafe", "components", "details"}."""
        calls = [self.sdk.Call(**call) for call in attempt.pop("calls")]
        made = self.sdk.Attempt(**attempt, calls=calls)
        return scored(self._do("verify()", lambda: self.kind().verify(made)))

    def _do(self, what: str, act, passed: tuple = ()):
        """The result of the package's code, awaited if it is asynchronous. Raises Fault, and lets
        errors of the kinds `passed` through.
        """
        try:
            found = act()
            if inspect.iscoroutine(found):
                import asyncio

                found = asyncio.run(found)
            return found
        except passed:
            raise
        except BaseException as error:
            fault = crash(self.folder, "crash", what, error)
            if isinstance(error, AttributeError) and isinstance(error.obj, self.sdk.Environment):
                fault.text += ". Between calls only self.state is kept."
            raise fault from error

    def _state(self, state) -> dict:
        if not isinstance(state, dict):
            raise Fault(
                "state",
                f"The state must be a dict, not {type(state).__name__}. start() returns it; tools"
                " change self.state.",
            )
        if (key := key_not_text(state)) is not None:
            raise Fault(
                "state",
                f"The state has the key {key!r:.80}, which JSON would turn into text. Use"
                f" {str(key)[:80]!r}, for example.",
            )
        return json.loads(self._json(state, "state", "The state"))

    def _json(self, value, kind: str, what: str, default=None) -> str:
        try:
            text = json.dumps(value, allow_nan=False, ensure_ascii=False, default=default)
            text.encode()
            return text
        except (TypeError, ValueError, RecursionError) as error:
            raise Fault(
                kind,
                f"{what} is not JSON: {error}. Use dict, list, str, finite numbers, bool and None.",
            ) from error


def key_not_text(value, depth: int = 0):
    """The first dict key in a value that is not a string; None if all are. Values nested deeper
    than 100 levels are left to json.dumps, which rejects them.
    """
    if depth > 100:
        return None
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                return key
    inner = (
        value.values()
        if isinstance(value, dict)
        else value
        if isinstance(value, list | tuple)
        else ()
    )
    return next((key for one in inner if (key := key_not_text(one, depth + 1)) is not None), None)


def is_number(value) -> bool:
    try:
        return isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:
        return False


def scalar(value):
    """Numbers of NumPy and torch as Python numbers."""
    return value.item() if hasattr(value, "item") and not isinstance(value, int | float) else value


def scored(found) -> dict:
    """The return value of verify in its normal form. Raises Fault."""
    given = dict(found) if isinstance(found, dict) else {"reward": found}
    if unknown := [
        str(name)
        for name in given
        if name not in ("reward", "success", "unsafe", "components", "details")
    ]:
        raise Fault(
            "score",
            f"verify() returned {', '.join(unknown)}; known are reward, success, unsafe, components"
            " and details.",
        )
    reward = scalar(given.get("reward"))
    if not is_number(reward):
        raise Fault(
            "score", f"verify() returned {reward!r:.80} as the reward, not a finite number."
        )
    components = given.get("components") or {}
    if isinstance(components, dict):
        components = {name: scalar(value) for name, value in components.items()}
    if not isinstance(components, dict) or not all(
        is_number(value) for value in components.values()
    ):
        raise Fault("score", "verify() returned components that are not finite numbers by name.")
    details = given.get("details") or []
    return {
        "reward": float(reward),
        "success": bool(given.get("success", reward >= 1)),
        "unsafe": bool(given.get("unsafe", False)),
        "components": {str(name)[:80]: float(value) for name, value in components.items()},
        "details": [
            str(one)[:500] for one in (details if isinstance(details, list) else [details])
        ][:50],
    }


def answered(make, op: str, payload: dict) -> dict:
    """The answer to one request; `make` returns the driver. What the code prints is counted, but
    never sent.
    """
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            value = getattr(make(), op)(**payload)
        answer = {"value": value}
    except Fault as fault:
        answer = {"error": {"kind": fault.kind, "text": fault.text, "where": fault.where}}
    except MemoryError:
        answer = {"error": {"kind": "crash", "text": "It ran out of memory.", "where": ""}}
    except Exception as error:  # objects that the package returned contain code too
        text = f"{op}() gave something that raised {type(error).__name__} when it was read: {error}"
        answer = {"error": {"kind": "crash", "text": text[:2000], "where": ""}}
    return answer | {"printed": len(printed.getvalue())}


def apart(sdk: str, files: dict, name: str, op: str, payload: dict) -> dict:
    """Answer one request in a run of the sandbox, whose scratch folder is the working directory."""
    module = sys.modules["flywheel_sdk"] = ModuleType("flywheel_sdk")
    exec(compile(sdk, "flywheel_sdk.py", "exec"), module.__dict__)
    home = Path.cwd() / name
    for path, content in files.items():
        target = home / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(base64.b64decode(content))
    return answered(lambda: Driver(str(home), name), op, payload)
