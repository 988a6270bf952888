"""What a verifier gave, component by component, each with its reason. Pure.

A verifier says its reasons in words, the first fault first, and names the component where it is
made of several: “part: words” of a composed one, “not held: name” of a constraint. The calls
verifiers name the fault (“wrong tool: …”), which is about one component too. What names none is
said of the whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

ABOUT = {
    "tools": ("wrong tool", "hallucinated function", "extra call", "missing call"),
    "arguments": (
        "wrong value",
        "wrong type",
        "missing argument",
        "missing required argument",
        "unknown argument",
        "argument not asked for",
    ),
    "unsafe": ("unsafe",),
    "turn": ("turns over budget",),
    "token": ("tokens over budget",),
    "error": ("tool errors",),
    "recovered": ("recovered errors",),
}
"""Component → what its reasons begin with. See workers/lib/verifiers/calls.py and trajectories.py.
"""
HELD = "not held: "
STOPPED = "stopped by "


@dataclass
class Component:
    name: str
    value: float
    reasons: list[str] = field(default_factory=list)


def explained(
    values: Mapping[str, float], details: Sequence[str]
) -> tuple[list[Component], list[str]]:
    """The components in order, each with its reasons, and the reasons that belong to no particular
    one.
    """
    found = {name: Component(name, value) for name, value in values.items()}
    rest = []
    for line in map(str, details):
        name, words = _about(line, found)
        if name:
            found[name].reasons.append(words)
        else:
            rest.append(line)
    if len(found) == 1 and rest:  # there is only one thing that they can be about
        next(iter(found.values())).reasons += rest
        rest = []
    return list(found.values()), rest


def _about(line: str, names: Mapping[str, Component], prefix: str = "") -> tuple[str, str]:
    """(component, the reason); ("", …) where it names none. Of a part, its own component of that
    kind comes first.
    """
    if line.startswith(HELD) and prefix + line.removeprefix(HELD) in names:
        return prefix + line.removeprefix(HELD), line
    head, _, words = line.partition(": ")
    if (
        words
        and not prefix
        and head in names
        and not any(head in kinds for kinds in ABOUT.values())
    ):
        inner, said = _about(words, names, f"{head}.")
        return (inner, said) if inner else (head, words)
    for name, kinds in ABOUT.items():
        if head in kinds:
            return (
                next((known for known in (prefix + name, prefix + "exact") if known in names), ""),
                line,
            )
    return (
        (f"{prefix}stopped", line)
        if line.startswith(STOPPED) and f"{prefix}stopped" in names
        else ("", line)
    )
