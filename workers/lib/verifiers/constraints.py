"""Constraints on a text's form that can be checked by rules, after IFEval (Zhou et al. 2023).
Light.

A constraint is {"type", …arguments}: in the spec's `constraints`, in the task's
`expected.constraints`, in the data set's format (`metadata.instruction_id_list` and `kwargs`), or
in Flywheel's own (`expected.constraint`, {name: value}).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from workers.lib.checks import CONSTRAINTS
from workers.lib.messages import without_reasoning
from workers.lib.patterns import LONGEST
from workers.lib.verifiers.base import Guarded, Options, SpecError, Unscorable, options
from workers.lib.verifiers.ifeval import TYPES, loosened
from workers.lib.verifiers.types import Clients, Rollout, Score

RELATIONS = ("at least", "at most", "exactly", "less than", "more than")
LONGEST_PHRASE, MOST_PHRASES, MOST_CONSTRAINTS = 200, 100, 100
PHRASES = (
    "keyword",
    "keywords",
    "forbidden_words",
    "section_spliter",
    "postscript_marker",
)  # types that search the whole text
EMPTY_FAILS = "empty answer"


def checked(item: Any, where: str) -> dict:
    """A constraint with a known type and valid arguments. Raises SpecError."""
    if not isinstance(item, dict) or not isinstance(item.get("type"), str):
        raise SpecError(f"“{where}” must be {{“type”: …}} with the type's arguments.")
    kind = item["type"].rsplit(":", 1)[-1]  # IFEval writes “punctuation:no_comma”
    if kind not in TYPES:
        raise SpecError(
            f"“{where}.type”: there is no constraint “{kind}”. There are {', '.join(TYPES)}."
        )
    for name, wanted in TYPES[kind][1].items():
        value = item.get(name)
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise SpecError(f"“{where}.{name}” is missing or of the wrong type for “{kind}”.")
        if isinstance(value, list) and not all(isinstance(part, str) and part for part in value):
            raise SpecError(f"“{where}.{name}” must be a list of texts.")
    for name in PHRASES:
        phrases = item[name] if isinstance(item.get(name), list) else [item.get(name) or ""]
        if len(phrases) > MOST_PHRASES or any(
            len(str(phrase)) > LONGEST_PHRASE for phrase in phrases
        ):
            raise SpecError(
                f"“{where}.{name}” may have {MOST_PHRASES} texts of {LONGEST_PHRASE} characters."
            )
    for name in ("relation", "let_relation", "capital_relation"):
        if item.get(name) not in (None, *RELATIONS):
            raise SpecError(f"“{where}.{name}” must be one of {', '.join(RELATIONS)}.")
    return item | {"type": kind}


class ConstraintsOptions(Options):
    constraints: list[dict] | None = None
    partial: bool = False
    loose: bool = False


class Constraints(Guarded):
    """1 if all constraints hold, else 0; with `partial` the share that hold. An empty answer
    satisfies none.
    """

    def __init__(self, chosen: ConstraintsOptions, path: str) -> None:
        given = chosen.constraints
        self.items = (
            None
            if given is None
            else [checked(x, f"{path}.constraints[{at}]") for at, x in enumerate(given)]
        )
        self.partial, self.loose = chosen.partial, chosen.loose

    def judge(self, rollout: Rollout) -> Score:
        text = without_reasoning(rollout.output)[:LONGEST]
        checks = list(self.checks(rollout))
        if not checks:
            raise Unscorable(
                "There is no constraint to check, neither in the verifier nor in the task."
            )
        readings = list(loosened(text)) if self.loose else [text]
        held = {
            name: any(item.strip() and check(item) for item in readings) for name, check in checks
        }
        part = sum(held.values()) / len(held)
        success = part == 1.0
        details = [f"not held: {name}" for name, fine in held.items() if not fine]
        return Score(
            reward=part if self.partial else float(success),
            components={name: float(v) for name, v in held.items()},
            success=success,
            details=details if text.strip() else [EMPTY_FAILS],
        )

    def checks(self, rollout: Rollout) -> Iterator[tuple[str, Callable[[str], bool]]]:
        """(name, check) for each constraint; names of equal types are numbered."""
        seen: dict[str, int] = {}
        items = self.items if self.items is not None else of_task(rollout)
        for item in items:
            kind = item["type"]
            seen[kind] = seen.get(kind, 0) + 1
            name = kind if seen[kind] == 1 else f"{kind}.{seen[kind]}"
            yield name, (lambda text, item=item, check=TYPES[kind][0]: check(text, item))
        if self.items is None:
            yield from own_checks(rollout.expected.get("constraint"))


def own_checks(given: Any) -> Iterator[tuple[str, Callable[[str], bool]]]:
    for name, value in (given if isinstance(given, dict) else {}).items():
        if name not in CONSTRAINTS:
            raise Unscorable(
                f"There is no constraint “{name}”. There are {', '.join(CONSTRAINTS)}."
            )
        yield name, (lambda text, value=value, check=CONSTRAINTS[name]: check(text, value))


def of_task(rollout: Rollout) -> list[dict]:
    """The task's constraints. Raises Unscorable for an unknown one."""
    given = rollout.expected.get("constraints")
    metadata = rollout.task.get("metadata") or {}
    if given is None and isinstance(metadata.get("instruction_id_list"), list):
        arguments = metadata.get("kwargs") or [{}] * len(metadata["instruction_id_list"])
        pairs = zip(metadata["instruction_id_list"], arguments, strict=False)
        given = [
            {k: v for k, v in (extra or {}).items() if v is not None} | {"type": kind}
            for kind, extra in pairs
        ]
    try:
        return [checked(item, f"expected.constraints[{at}]") for at, item in enumerate(given or [])]
    except SpecError as error:
        raise Unscorable(str(error)) from error


def from_spec(spec: dict, clients: Clients, path: str) -> Constraints:
    return Constraints(options(spec, path, ConstraintsOptions), path)
