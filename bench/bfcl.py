"""The `calls` and `no_call` verifiers on BFCL: right answers, wrong ones, the leaderboard's own
checker, and the speed.

`python -m bench.bfcl [--checker-python PYTHON]`; the Python is one with `bfcl-eval` in it, without
it the comparison is left out. The answers are made wrong by the same code as in bench.failures. All
of it goes to var/bench/bfcl.json.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apps.evals.formats.bfcl import read
from apps.evals.formats.rows import TaskRow
from bench.failures import (
    DATA,
    MUTATIONS,
    as_run,
    bfcl_tasks,
    console,
    filled,
    json_schema,
    share,
    table,
    told,
)
from bench.peers import HOME, machine
from workers.lib.verifiers import Rollout, Score, Verifier, build

CATEGORIES = ("simple_python", "multiple", "parallel", "irrelevance")
RIGHT, OTHER, SAMPLE = "right", "other values", 1000
GOAL_AGREEMENT, GOAL_PER_SECOND = 0.99, 5000
GREEDY = (
    "the leaderboard pairs parallel calls greedily: the same calls in the opposite order are right"
    " by its checker"
)


@dataclass(frozen=True)
class Answer:
    """One answer to one task: how it was made (“right” or a mutation), its calls, and the task's
    own rows.
    """

    kind: str
    category: str
    record: dict
    truth: list
    calls: list[tuple[str, str]]
    rollout: Rollout


def records(category: str) -> list[tuple[dict, list]]:
    """(question, right calls) of a category, as the files have them."""
    lines = (DATA / "bfcl" / f"BFCL_v4_{category}.json").read_text().splitlines()
    path = DATA / "bfcl" / f"possible_answer_{category}.json"
    key = {
        item["id"]: item["ground_truth"]
        for item in map(json.loads, path.read_text().splitlines() if path.exists() else ())
    }
    return [(record, key.get(record["id"], [])) for record in map(json.loads, lines)]


def imported(category: str) -> dict[str, TaskRow]:
    """The same tasks as the product's importer makes them."""
    path = DATA / "bfcl" / f"possible_answer_{category}.json"
    questions = (DATA / "bfcl" / f"BFCL_v4_{category}.json").read_text().splitlines()
    key = path.read_text().splitlines() if path.exists() else ()
    return {row.key: row for row in read(questions, key) if isinstance(row, TaskRow)}


def answers(seed: int) -> list[Answer]:
    """Every task answered right, and in every way wrong that it can be."""
    chance = random.Random(seed)
    tasks = {task["id"]: task for task in bfcl_tasks()} | {
        task["id"]: task for task in _without_calls()
    }
    others = {name: schema for task in tasks.values() for name, schema in task["functions"].items()}
    found = []
    for category in CATEGORIES:
        rows = imported(category)
        for record, truth in records(category):
            task, expected = completed(tasks[record["id"]], truth), rows[record["id"]].expected
            for kind, calls, functions in _variants(task, truth, others, chance):
                run = as_run(task | {"functions": functions}, calls, "unknown", known=False)
                if not calls:
                    run["messages"][-1] = {
                        "role": "assistant",
                        "content": "None of my tools can do that.",
                    }
                given = {"id": task["id"], "expected": expected}
                rollout = Rollout(
                    task=given,
                    messages=run["messages"][len(task["question"]) :],
                    tools=run["tools"],
                )
                found.append(Answer(kind, category, record, truth, calls, rollout))
    return found


def _without_calls() -> list[dict]:
    """The tasks of “irrelevance” in the form of `bfcl_tasks`."""
    return [
        {
            "id": record["id"],
            "question": record["question"][0],
            "calls": [],
            "functions": {
                item["name"]: json_schema(item["parameters"]) for item in record["function"]
            },
        }
        for record, _ in records("irrelevance")
    ]


def completed(task: dict, truth: list) -> dict:
    """The task with right calls that leave out nothing the schema requires, where the key has a
    value for it.
    """
    calls = []
    for (tool, args), right in zip(task["calls"], truth, strict=True):
        required = task["functions"][tool].get("required", [])
        given = {
            name: next((v for v in right[tool].get(name, []) if v != ""), None)
            for name in required
            if name not in args
        }
        calls.append(
            (tool, args | {name: value for name, value in given.items() if value is not None})
        )
    return task | {"calls": calls}


# Answers that are nearly right, or right in other words: here only the two verdicts are compared


def loosely(value: Any) -> Any:
    """Texts in capitals, with other spaces and punctuation."""
    return (
        f" {value.upper()} ".replace(",", "").replace(" ", "  ")
        if isinstance(value, str)
        else value
    )


def other_number(value: Any) -> Any:
    """5 as 5.0, 5.0 as 5."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return float(value) if isinstance(value, int) else int(value) if value.is_integer() else value


def as_text(value: Any) -> Any:
    return str(value) if isinstance(value, int | float) else value


def in_lists(value: Any) -> Any:
    """Lists turned round."""
    return value[::-1] if isinstance(value, list) else value


def near(value: Any) -> Any:
    """A text with one letter more, a number one larger, true for false."""
    if isinstance(value, bool):
        return not value
    return (
        f"{value}s"
        if isinstance(value, str)
        else value + 1
        if isinstance(value, int | float)
        else value
    )


NEAR = {
    "loosely": loosely,
    "other number": other_number,
    "as text": as_text,
    "list turned": in_lists,
    "near": near,
    "null": lambda value: None,
    "empty": lambda value: "",
}


def nearly(task: dict, kind: str, chance: random.Random) -> list[tuple[str, str]]:
    """One argument of each call changed, the calls in the opposite order."""
    made = []
    for tool, args in reversed(task["calls"]):
        changed = dict(args)
        if changed:
            name = chance.choice(sorted(changed))
            changed[name] = NEAR[kind](changed[name])
        made.append((tool, json.dumps(changed)))
    return made


def other_values(truth: list, chance: random.Random) -> list[tuple[str, str]]:
    """Of each argument any of its right values; what may be left out is, half of the time."""
    made = []
    for call in truth:
        for tool, arguments in call.items():
            chosen = {name: chance.choice(values) for name, values in arguments.items()}
            made.append(
                (
                    tool,
                    json.dumps(
                        {name: _plain(value) for name, value in chosen.items() if value != ""}
                    ),
                )
            )
    return made


def _plain(value: Any) -> Any:
    """A right value without the choices that are inside of it."""
    if isinstance(value, dict):
        return {name: _plain(items[0]) for name, items in value.items() if items[0] != ""}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _variants(
    task: dict, truth: list, others: dict[str, Any], chance: random.Random
) -> list[tuple[str, list, dict]]:
    """(kind, calls, functions): the right answer, then the wrong ones."""
    right = [(name, json.dumps(args)) for name, args in task["calls"]]
    found = [(RIGHT, right, task["functions"])]
    if not right:
        if task["functions"]:
            name = chance.choice(sorted(task["functions"]))
            found.append(
                (
                    "extra call",
                    [(name, json.dumps(filled(task["functions"][name], chance)))],
                    task["functions"],
                )
            )
        return [*found, ("hallucinated function", [("do_it_all", "{}")], task["functions"])]
    for kind, mutate in MUTATIONS.items():
        changed = task | {"functions": dict(task["functions"])}
        calls = mutate(changed, others, chance)
        if calls is not None:
            found.append((kind, calls, changed["functions"]))
    found += [(kind, nearly(task, kind, chance), task["functions"]) for kind in NEAR]
    return [*found, (OTHER, other_values(truth, chance), task["functions"])]


# Scores


def verifier_of(category: str) -> Verifier:
    return build({"kind": "no_call" if category == "irrelevance" else "calls"})


def scored(given: list[Answer]) -> list[Score]:
    verifiers = {category: verifier_of(category) for category in CATEGORIES}
    return [verifiers[answer.category].score(answer.rollout) for answer in given]


def as_in_the_file(answer: Answer) -> Score:
    """The same score with the right calls as the leaderboard's file has them."""
    rollout = answer.rollout
    task = rollout.task | {"expected": {"ground_truth": answer.truth}}
    return verifier_of(answer.category).score(
        Rollout(task=task, messages=rollout.messages, tools=rollout.tools)
    )


def score_report(given: list[Answer], scores: list[Score]) -> dict[str, Any]:
    kinds = [RIGHT, *MUTATIONS]
    pairs = list(zip(given, scores, strict=True))
    full = {
        category: {
            kind: share(
                sum(
                    score.reward == 1.0
                    for answer, score in pairs
                    if (answer.category, answer.kind) == (category, kind)
                ),
                sum((answer.category, answer.kind) == (category, kind) for answer in given),
            )
            for kind in kinds
        }
        for category in CATEGORIES
    }
    odd = [
        {
            "id": answer.record["id"],
            "kind": answer.kind,
            "calls": answer.calls,
            "details": score.details,
        }
        for answer, score in pairs
        if answer.kind in kinds and (score.reward == 1.0) != (answer.kind == RIGHT)
    ]
    other = [
        answer.record["id"]
        for answer, score in pairs
        if as_in_the_file(answer).success != score.success
    ]
    faults = Counter(
        (answer.kind, text.split(":")[0])
        for answer, score in pairs
        if answer.kind in kinds
        for text in score.details[:1]
    )
    return {
        "full_reward": full,
        "odd": odd,
        "differs_by_form_of_the_key": other,
        "masked": sum(s.masked for s in scores),
        "first_fault": {
            f"{kind} → {fault}": count for (kind, fault), count in sorted(faults.items())
        },
    }


def agreement_report(
    given: list[Answer], scores: list[Score], python: str, seed: int
) -> dict[str, Any]:
    """Ours against the leaderboard's, on all answers and on a sample of 1,000 in which half are
    right.
    """
    version, verdicts = leaderboard(given, python)
    same = [
        score.success == verdict["valid"] for score, verdict in zip(scores, verdicts, strict=True)
    ]
    differ = [
        {
            "id": answer.record["id"],
            "kind": answer.kind,
            "ours": score.success,
            "theirs": verdict["valid"],
            "because": because(verdict),
            "their_reason": verdict["why"],
            "our_reason": score.details,
            "calls": answer.calls,
        }
        for answer, score, verdict in zip(given, scores, verdicts, strict=True)
        if score.success != verdict["valid"]
    ]
    chance = random.Random(seed)
    right = [at for at, answer in enumerate(given) if answer.kind == RIGHT]
    wrong = [at for at, answer in enumerate(given) if answer.kind in MUTATIONS]
    chosen = chance.sample(right, SAMPLE // 2) + chance.sample(wrong, SAMPLE // 2)
    return {
        "bfcl-eval": version,
        "sample": share(sum(same[at] for at in chosen), len(chosen)),
        "all": share(sum(same), len(same)),
        "each": {
            kind: share(
                sum(same[at] for at, a in enumerate(given) if a.kind == kind),
                sum(a.kind == kind for a in given),
            )
            for kind in dict.fromkeys(answer.kind for answer in given)
        },
        "right_by_theirs": Counter(
            a.kind for a, verdict in zip(given, verdicts, strict=True) if verdict["valid"]
        ),
        "differ": differ,
    }


def because(verdict: dict) -> str:
    """Why the leaderboard may differ; what has no known reason fails the bench."""
    return GREEDY if verdict["right_turned_round"] else "unexplained"


def leaderboard(given: list[Answer], python: str) -> tuple[str, list[dict]]:
    """Its version, and {"valid", "why"} of each answer. Raises CalledProcessError."""
    rows = [
        {
            "category": answer.category,
            "functions": answer.record["function"],
            "ground_truth": answer.truth,
            "calls": answer.calls,
        }
        for answer in given
    ]
    program = Path(__file__).with_name("bfcl_leaderboard.py")
    body = "\n".join(map(json.dumps, rows))
    done = subprocess.run(
        [python, "-P", program], input=body, capture_output=True, text=True, check=True, cwd=HOME
    )
    head, *lines = done.stdout.splitlines()
    return json.loads(head)["bfcl-eval"], [json.loads(line) for line in lines]


def per_second(given: list[Answer], repeats: int) -> dict[str, int]:
    """Scores a second of one core, the median of the passes, of the whole mixture and of single
    calls by the guide's reward.
    """
    single = [
        answer.rollout for answer in given if answer.category in ("simple_python", "multiple")
    ]
    single = [rollout for rollout in single if "tool" in rollout.task["expected"]]
    of_guide = [
        Rollout(task=_first(rollout.task), messages=rollout.messages, tools=rollout.tools)
        for rollout in single
    ]
    calls, guide = build({"kind": "calls"}), build({"kind": "tool_call"})
    mixture = [answer.rollout for answer in given if answer.category != "irrelevance"]
    none = [answer.rollout for answer in given if answer.category == "irrelevance"]
    return {
        "calls": _speed(calls, mixture, repeats),
        "no_call": _speed(build({"kind": "no_call"}), none, repeats),
        "tool_call, arguments checked by schema": _speed(guide, of_guide, repeats),
    }


def _first(task: dict) -> dict:
    return task | {"expected": {"tool": task["expected"]["tool"], "args": task["expected"]["args"]}}


def _speed(verifier: Verifier, rollouts: list[Rollout], repeats: int) -> int:
    speeds = []
    for _ in range(repeats):
        at = time.process_time()
        for rollout in rollouts:
            verifier.score(rollout)
        speeds.append(len(rollouts) / (time.process_time() - at))
    return round(sorted(speeds)[len(speeds) // 2])


# The report


def show(report: dict[str, Any]) -> None:
    full = report["scores"]["full_reward"]
    lines = (
        [category, *(told(full[category][kind]) for kind in (RIGHT, *MUTATIONS))]
        for category in CATEGORIES
    )
    table("answers with the full reward", ["", RIGHT, *MUTATIONS], lines)
    for item in report["scores"]["odd"]:
        console.print("not as it should be:", item)
    table(
        "the first fault named",
        ["made wrong → named", "n"],
        report["scores"]["first_fault"].items(),
    )
    console.print(
        "other verdict with the key as in the file:"
        f" {len(report['scores']['differs_by_form_of_the_key'])}"
    )
    if agreement := report.get("agreement"):
        console.print(
            f"bfcl-eval {agreement['bfcl-eval']}: sample {told(agreement['sample'])}, all"
            f" {told(agreement['all'])}"
        )
        rows = (
            [kind, told(row), agreement["right_by_theirs"][kind]]
            for kind, row in agreement["each"].items()
        )
        table("the same verdict", ["answer", "agree", "right by the leaderboard"], rows)
        for item in agreement["differ"]:
            console.print("differ:", item)
    table("speed, one core", ["", "scores/s"], report["speed"].items())


def holds(report: dict[str, Any]) -> bool:
    """Whether every goal is met."""
    scores, agreement = report["scores"], report.get("agreement")
    fine = (
        not scores["odd"]
        and not scores["masked"]
        and min(report["speed"].values()) >= GOAL_PER_SECOND
    )
    if agreement is None:
        return fine
    explained = all(item["because"] != "unexplained" for item in agreement["differ"])
    return fine and explained and agreement["sample"]["share"] >= GOAL_AGREEMENT


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5, help="passes for the speed")
    parser.add_argument("--checker-python", help="a Python with bfcl-eval in it")
    chosen = parser.parse_args()
    if not (DATA / "bfcl").exists():
        raise SystemExit(f"the sample data are not in {DATA.name}")
    HOME.mkdir(parents=True, exist_ok=True)
    given = answers(chosen.seed)
    scores = scored(given)
    report = {"machine": machine(), "answers": len(given), "scores": score_report(given, scores)}
    if chosen.checker_python:
        report["agreement"] = agreement_report(given, scores, chosen.checker_python, chosen.seed)
    report["speed"] = per_second(given, chosen.repeats)
    (HOME / "bfcl.json").write_text(json.dumps(report, indent=1))
    show(report)
    return 0 if holds(report) else 1


if __name__ == "__main__":
    sys.exit(main())
