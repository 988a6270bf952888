"""BFCL's conversations of several turns, answered right and wrong in kinds: our verdict against the
leaderboard's own checker.

`python -m bench.bfcl_turns --checker-python PYTHON [--tasks 40] [--seed 1] [--differences]`. PYTHON
is one with the package: `python -m venv V && V/bin/pip install --no-deps bfcl-eval==2026.3.23 &&
V/bin/pip install mpmath`. See README.md.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from apps.evals.formats.bfcl import read
from workers.lib.environments import bfcl, load
from workers.lib.errors import SpecError

CATEGORIES = ("base", "miss_func", "miss_param", "long_context")
SPEC = {"kind": "builtin", "name": "bfcl_turns", "harness": {}, "verifier": {"kind": "bfcl_turns"}}
CHECKER = """
import json, sys
from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker
for number, line in enumerate(sys.stdin):
    case = json.loads(line)
    try:
        found = multi_turn_checker(case["turns"], case["truth"], case["entry"], \
case["entry"]["id"].rsplit("_", 1)[0], f"model_{number}")
        print(json.dumps([bool(found["valid"]), found.get("error_type", "")]), flush=True)
    except Exception as error:
        print(json.dumps([None, f"{type(error).__name__}: {error}"[:300]]), flush=True)
"""
Turns = list[list[dict]]


def _some_turn(turns: Turns, chance: random.Random, least: int = 1) -> int | None:
    return chance.choice([n for n, calls in enumerate(turns) if len(calls) >= least] or [None])


def changed(
    turns: Turns, chance: random.Random, change: Callable[[dict], dict | None]
) -> Turns | None:
    places = [(n, at) for n, calls in enumerate(turns) for at in range(len(calls))]
    chance.shuffle(places)
    for n, at in places:
        if (other := change(copy.deepcopy(turns[n][at]))) is not None:
            return [*turns[:n], [*turns[n][:at], other, *turns[n][at + 1 :]], *turns[n + 1 :]]
    return None


def moved(turns: Turns, chance: random.Random, by: int) -> Turns | None:
    """One call in the turn before or after its own."""
    places = [n for n, calls in enumerate(turns) if calls and 0 <= n + by < len(turns)]
    if not places:
        return None
    n = chance.choice(places)
    call, made = turns[n][-1 if by > 0 else 0], [list(calls) for calls in turns]
    made[n].remove(call)
    made[n + by] = [*made[n + by], call] if by < 0 else [call, *made[n + by]]
    return made


def argument(kind: type, other: Callable) -> Callable[[dict], dict | None]:
    def change(call: dict) -> dict | None:
        for values in (call["args"], dict(enumerate(call["positional"]))):
            for name, value in values.items():
                if type(value) is kind:
                    if isinstance(name, int):
                        call["positional"][name] = other(value)
                    else:
                        call["args"][name] = other(value)
                    return call
        return None

    return change


def in_turn(
    turns: Turns, chance: random.Random, change: Callable[[list], list], least: int = 1
) -> Turns | None:
    n = _some_turn(turns, chance, least)
    return None if n is None else [*turns[:n], change(list(turns[n])), *turns[n + 1 :]]


def misnamed(call: dict) -> dict | None:
    name = next(iter(call["args"]), None)
    return None if name is None else call | {"args": {f"{name}_": call["args"][name]}}


KINDS: dict[str, Callable[[Turns, random.Random, list[dict]], Turns | None]] = {
    "right": lambda turns, chance, free: turns,
    "last call of a turn left out": lambda turns, chance, free: in_turn(
        turns, chance, lambda calls: calls[:-1]
    ),
    "first call of a turn left out": lambda turns, chance, free: in_turn(
        turns, chance, lambda calls: calls[1:], 2
    ),
    "a turn without calls": lambda turns, chance, free: in_turn(turns, chance, lambda calls: []),
    "a call twice": lambda turns, chance, free: in_turn(
        turns, chance, lambda calls: [*calls, calls[-1]]
    ),
    "calls of a turn reversed": lambda turns, chance, free: in_turn(
        turns, chance, lambda calls: calls[::-1], 2
    ),
    "a call a turn early": lambda turns, chance, free: moved(turns, chance, -1),
    "a call a turn late": lambda turns, chance, free: moved(turns, chance, 1),
    "a text changed": lambda turns, chance, free: changed(
        turns, chance, argument(str, lambda value: value + "x")
    ),
    "a text in capitals": lambda turns, chance, free: changed(
        turns, chance, argument(str, lambda value: value.swapcase())
    ),
    "a number changed": lambda turns, chance, free: (
        changed(turns, chance, argument(int, lambda value: value + 1))
        or changed(turns, chance, argument(float, lambda value: value + 1))
    ),
    "a whole number as decimal": lambda turns, chance, free: changed(
        turns, chance, argument(int, float)
    ),
    "a list reversed": lambda turns, chance, free: changed(
        turns, chance, argument(list, lambda value: value[::-1])
    ),
    "an argument misnamed": lambda turns, chance, free: changed(turns, chance, misnamed),
    "a needless harmless call": lambda turns, chance, free: in_turn(
        turns, chance, lambda calls: [*free[:1], *calls]
    ),
    "all needless calls": lambda turns, chance, free: in_turn(
        turns, chance, lambda calls: [*calls, *free]
    ),
    "an unknown function too": lambda turns, chance, free: in_turn(
        turns,
        chance,
        lambda calls: [*calls, {"tool": "no_such_tool", "args": {}, "positional": []}],
    ),
    "a wrong call first": lambda turns, chance, free: in_turn(
        turns, chance, lambda calls: [calls[-1] | {"args": {}, "positional": []}, *calls]
    ),
}


def written(call: dict) -> str:
    return f"{call['tool']}({', '.join([*map(repr, call['positional']), *(f'{name}={value!r}' for name, value in call['args'].items())])})"  # noqa: E501


def records(folder: Path) -> dict[str, tuple[list[str], list[str]]]:
    found = {}
    for category in CATEGORIES:
        name = f"BFCL_v4_multi_turn_{category}.json"
        found[category] = tuple(
            (folder / at / name).read_text().splitlines() for at in ("", "possible_answer")
        )
    return found


async def verdict(task: dict, turns: Turns) -> tuple[bool, str]:
    """Ours, of the state and the answers that these calls lead to."""
    episode = load(SPEC).open(task, {"said": [], "made": turns, "stop_reason": "stop"})
    score = await episode.score()
    return score.success, score.mask_reason or " ".join(score.details)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checker-python", required=True)
    parser.add_argument("--tasks", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--differences", action="store_true")
    chosen = parser.parse_args()
    where = subprocess.run(
        [chosen.checker_python, "-c", "import bfcl_eval; print(bfcl_eval.__path__[0])"],
        capture_output=True,
        text=True,
        check=True,
    )
    sys.path.append(str(Path(where.stdout.strip()).parent))
    chance = random.Random(chosen.seed)
    rows = [
        (q, a)
        for questions, answers in records(bfcl.package() / "data").values()
        for q, a in zip(questions, answers, strict=True)
    ]
    checker = subprocess.Popen(
        [chosen.checker_python, "-c", CHECKER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    agreed, total, right, names = Counter[str](), Counter[str](), Counter[str](), list(KINDS)
    assert checker.stdin is not None and checker.stdout is not None
    for question, answer in chance.sample(rows, chosen.tasks):
        [row] = read([question], [answer])
        task = {
            "id": row.key,
            "messages": row.messages,
            "expected": row.expected,
            "metadata": row.metadata,
        }
        free = [
            {"tool": tool["function"]["name"], "args": {}, "positional": []}
            for tool in bfcl.tools_of(tuple(task["metadata"]["bfcl"]["classes"]))
            if not tool["function"]["parameters"].get("required")
        ]
        for kind in names:
            turns = KINDS[kind](copy.deepcopy(task["expected"]["turns"]), chance, free)
            if turns is None:
                continue
            entry = {
                name: json.loads(question)[name]
                for name in ("initial_config", "involved_classes", "id")
            }
            case = {
                "turns": [[[written(call) for call in calls]] for calls in turns],
                "entry": entry,
                "truth": json.loads(answer)["ground_truth"],
            }
            checker.stdin.write(json.dumps(case) + "\n")
            checker.stdin.flush()
            try:
                ours, why = asyncio.run(verdict(task, turns))
            except SpecError as error:
                ours, why = False, str(error)
            theirs, their_why = json.loads(checker.stdout.readline())
            total[kind] += 1
            agreed[kind] += ours == theirs
            right[kind] += bool(theirs)
            if ours != theirs and chosen.differences:
                print(
                    f"{task['id']} {kind}: ours {ours} ({why[:200]}), theirs {theirs} ({their_why})"
                )
    checker.stdin.close()
    checker.wait()
    print("| answers | n | right by the leaderboard | same verdict |\n|---|---|---|---|")
    for kind in names:
        print(f"| {kind} | {total[kind]} | {right[kind]} | {agreed[kind]} |")
    print(f"| all | {total.total()} | {right.total()} | {agreed.total()} |")


if __name__ == "__main__":
    main()
