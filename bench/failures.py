"""The rules of failure classification against known answers, and their speed. `python -m
bench.failures`

Reads the sample data that lie beside the project (tau-bench, BFCL) and the hand-made labels in
bench/data. Prints tables; all of it goes to var/bench/failures.json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from apps.core.intervals import wilson
from apps.failures.classify import Diagnosis, classify
from apps.trajectories.importers.tau_bench import rows
from bench.peers import HOME, machine

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT.parent / "shared" / "data"
LABELS = ROOT / "bench" / "data" / "tau_hand_labels.json"
HAND_CHECKED = 40
AIRLINE_WRITES = {
    "book_reservation",
    "cancel_reservation",
    "send_certificate",
    "update_reservation_baggages",
    "update_reservation_flights",
    "update_reservation_passengers",
}
GOAL_RIGHT, GOAL_PER_SECOND = 0.95, 2000
MODES = {
    "wrong tool": "wrong_tool_choice",
    "missing argument": "wrong_arguments",
    "wrong value": "wrong_arguments",
    "hallucinated function": "hallucinated_api",
    "broken JSON": "format_error",
    "extra call": "bad_planning",
}
JSON_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": None}
console = Console(width=150)


def tau_inputs() -> list[dict]:
    """The file's runs as the importer stores them and the classifier gets them."""
    records = [
        item
        for path in sorted((DATA / "tau_bench").glob("*.json"))
        for item in json.loads(path.read_text())
    ]
    return [given(row) for _, row in rows(enumerate(records), "tau-bench")]


def given(row: dict) -> dict:
    return {
        "id": row["id"],
        "messages": row["messages"],
        "tools": row.get("tools") or [],
        "outcome_status": row["outcome"]["status"],
        "outcome_reason": row["outcome"]["reason"],
        "interventions": [],
        "metadata": row["metadata"],
    }


# tau-bench: counts, the step by another way, the sample read by hand


def first_wrong_write(run: dict, tries: bool) -> int | None:
    """The message of the first change that is not, letter for letter, among the true ones; `tries`:
    also one that failed.

    Shares nothing with the rules: the tools that change something are listed by hand, and nothing
    is aligned. None where no change is wrong: then something is missing, and the truth names no
    step.
    """
    true = [[item["name"], item["kwargs"]] for item in run["metadata"]["info"]["task"]["actions"]]
    for index, message in enumerate(run["messages"]):
        for call in message.get("tool_calls") or []:
            action = [call["function"]["name"], json.loads(call["function"]["arguments"])]
            failed = run["messages"][index + 1]["content"].startswith("Error")
            if action[0] not in AIRLINE_WRITES or (failed and not tries):
                continue
            if action not in true:
                return index
            if not failed:
                true.remove(action)
    return None


def tau_report(runs: list[dict]) -> dict[str, Any]:
    failed = [run for run in runs if run["outcome_status"] == "failure"]
    found = {run["id"]: classify(run) for run in runs}
    unknown = [
        classify(run | {"metadata": {}, "outcome_status": "unknown"})
        for run in runs
        if run not in failed
    ]
    return {
        "runs": len(runs),
        "failed": len(failed),
        "successes_blamed": sum(found[run["id"]] is not None for run in runs if run not in failed),
        "successes_blamed_as_unknown": sum(item is not None for item in unknown),
        "modes": Counter(found[run["id"]].mode for run in failed),
        "deciding_rules": Counter(found[run["id"]].evidence[0].rule for run in failed),
        "step_that_worked": step_share(failed, found, tries=False),
        "step_that_was_tried": step_share(failed, found, tries=True),
    }


def step_share(failed: list[dict], found: dict[str, Diagnosis], tries: bool) -> dict[str, Any]:
    """How often the blamed step is the one derived from the true calls, where one is."""
    steps = [(first_wrong_write(run, tries), found[run["id"]].blamed_message) for run in failed]
    derived = [(true, blamed) for true, blamed in steps if true is not None]
    return share(sum(true == blamed for true, blamed in derived), len(derived))


def share(right: int, n: int) -> dict[str, Any]:
    low, high = wilson(right, n)
    return {
        "right": right,
        "n": n,
        "share": round(right / n, 3) if n else None,
        "interval": [round(low, 3), round(high, 3)],
    }


def chosen(runs: list[dict]) -> list[str]:
    """The failed runs to read by hand: the first by SHA-256 of their id."""
    names = (run["id"] for run in runs if run["outcome_status"] == "failure")
    return sorted(names, key=lambda name: hashlib.sha256(name.encode()).hexdigest())[:HAND_CHECKED]


def hand_report(runs: list[dict]) -> dict[str, Any]:
    """Agreement with a person's labels. Raises SystemExit where these are not of the sample that is
    chosen.
    """
    labels = {label["id"]: label for label in json.loads(LABELS.read_text())}
    if set(labels) != set(chosen(runs)):
        raise SystemExit(
            f"{LABELS.name} does not have the labels of the {HAND_CHECKED} chosen runs"
        )
    pairs = [(labels[run["id"]], classify(run)) for run in runs if run["id"] in labels]
    modes = sorted({label["mode"] for label, _ in pairs} | {found.mode for _, found in pairs})
    return {
        "mode": share(sum(label["mode"] == found.mode for label, found in pairs), len(pairs)),
        "step": share(
            sum(label["blamed"] == found.blamed_message for label, found in pairs), len(pairs)
        ),
        "modes": {mode: of_mode(mode, pairs) for mode in modes},
        "confusion": confusion((label["mode"], found.mode) for label, found in pairs),
        "differ": [
            {"id": label["id"], "person": label["mode"], "rules": found.mode, "why": label["why"]}
            for label, found in pairs
            if label["mode"] != found.mode
        ],
    }


def of_mode(mode: str, pairs: list[tuple[dict, Diagnosis]]) -> dict[str, Any]:
    both = sum(label["mode"] == found.mode == mode for label, found in pairs)
    return {
        "precision": share(both, sum(found.mode == mode for _, found in pairs)),
        "recall": share(both, sum(label["mode"] == mode for label, _ in pairs)),
    }


def confusion(pairs: Iterable[tuple[str, str]]) -> dict[str, dict[str, int]]:
    table: dict[str, Counter] = {}
    for true, said in pairs:
        table.setdefault(true, Counter())[said] += 1
    return {true: dict(said) for true, said in sorted(table.items())}


# BFCL: right answers made wrong on purpose


def bfcl_tasks() -> list[dict]:
    """{id, question, functions (names to JSON schemas), calls [(name, args)]} of every task with an
    answer.
    """
    return [task for name in ("simple_python", "multiple", "parallel") for task in _tasks(name)]


def _tasks(name: str) -> list[dict]:
    lines = (DATA / "bfcl" / f"possible_answer_{name}.json").read_text().splitlines()
    answers = {item["id"]: item["ground_truth"] for item in map(json.loads, lines)}
    tasks = map(json.loads, (DATA / "bfcl" / f"BFCL_v4_{name}.json").read_text().splitlines())
    return [_task(task, answers[task["id"]]) for task in tasks]


def _task(task: dict, answer: list[dict]) -> dict:
    return {
        "id": task["id"],
        "question": task["question"][0],
        "functions": {item["name"]: json_schema(item["parameters"]) for item in task["function"]},
        "calls": [(name, _picked(options)) for call in answer for name, options in call.items()],
    }


def json_schema(schema: Any) -> Any:
    """BFCL's types under JSON Schema's names."""
    if isinstance(schema, list):
        return [json_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {
        key: json_schema(value)
        for key, value in schema.items()
        if key not in ("optional", "default")
    }
    if isinstance(kind := schema.get("type"), str):
        made["type"] = JSON_TYPES.get(kind, kind)
        if made["type"] is None:
            del made["type"]
    return made


def _picked(options: dict[str, list]) -> dict:
    """Of each argument the first of the answers that are allowed; "" says that it may be left
    out.
    """
    return {
        name: _value(values[0]) for name, values in options.items() if values and values[0] != ""
    }


def _value(value: Any) -> Any:
    if isinstance(value, dict):
        return _picked(value)
    return [_value(item) for item in value] if isinstance(value, list) else value


def filled(schema: dict, chance: random.Random) -> Any:
    """A value that the schema allows."""
    if schema.get("enum"):
        return chance.choice(schema["enum"])
    kind = schema.get("type")
    if kind == "object":
        properties = schema.get("properties", {})
        return {
            name: filled(properties.get(name, {}), chance) for name in schema.get("required", [])
        }
    if kind == "array":
        return [filled(schema.get("items", {}), chance)]
    made = {
        "integer": chance.randrange(2, 90),
        "number": chance.randrange(2, 90) / 2,
        "boolean": chance.random() < 0.5,
    }
    return made.get(kind, chance.choice(("north", "blue", "Monday", "standard")))


def wrong_tool(task: dict, others: dict[str, Any], chance: random.Random) -> list[tuple[str, str]]:
    """One call goes to another tool that is there: half of the time with good arguments, else with
    those of the right one.
    """
    at = chance.randrange(len(task["calls"]))
    names = [name for name in task["functions"] if name not in {name for name, _ in task["calls"]}]
    name = chance.choice(names) if names else chance.choice(sorted(others))
    task["functions"].setdefault(name, others.get(name))
    args = (
        filled(task["functions"][name], chance) if chance.random() < 0.5 else task["calls"][at][1]
    )
    return with_call(task, at, (name, json.dumps(args)))


def missing_argument(
    task: dict, others: dict[str, Any], chance: random.Random
) -> list[tuple[str, str]] | None:
    places = [
        (at, name)
        for at, (tool, args) in enumerate(task["calls"])
        for name in task["functions"][tool].get("required", [])
        if name in args
    ]
    if not places:
        return None
    at, name = chance.choice(places)
    tool, args = task["calls"][at]
    return with_call(
        task, at, (tool, json.dumps({key: value for key, value in args.items() if key != name}))
    )


def wrong_value(
    task: dict, others: dict[str, Any], chance: random.Random
) -> list[tuple[str, str]] | None:
    places = [
        (at, name)
        for at, (_, args) in enumerate(task["calls"])
        for name, value in args.items()
        if isinstance(value, int | float | str) and not isinstance(value, bool)
    ]
    if not places:
        return None
    at, name = chance.choice(places)
    tool, args = task["calls"][at]
    value = args[name]
    return with_call(
        task,
        at,
        (
            tool,
            json.dumps(args | {name: f"{value} Street" if isinstance(value, str) else value + 7}),
        ),
    )


def hallucinated(
    task: dict, others: dict[str, Any], chance: random.Random
) -> list[tuple[str, str]]:
    at = chance.randrange(len(task["calls"]))
    tool, args = task["calls"][at]
    name = chance.choice(
        (f"{tool}_v2", f"auto_{tool}", tool.replace("_", "").replace(".", "_") + "Ex", "do_it_all")
    )
    return with_call(task, at, (name, json.dumps(args)))


def broken_json(task: dict, others: dict[str, Any], chance: random.Random) -> list[tuple[str, str]]:
    at = chance.randrange(len(task["calls"]))
    tool, args = task["calls"][at]
    text = json.dumps(args)
    breaks = (
        text[:-1],
        text[: len(text) // 2 + 1].rstrip("}"),
        text + "}",
        f"```json\n{text}\n```",
        f"({text})",
        "args: " + text,
    )
    return with_call(task, at, (tool, chance.choice(breaks)))


def extra_call(task: dict, others: dict[str, Any], chance: random.Random) -> list[tuple[str, str]]:
    """One call more, of a tool that is there, with arguments that its schema allows, at any
    place.
    """
    name = chance.choice(sorted(task["functions"]))
    calls = with_call(task, -1, None)
    calls.insert(
        chance.randrange(len(calls) + 1),
        (name, json.dumps(filled(task["functions"][name], chance))),
    )
    return calls


def with_call(task: dict, at: int, call: tuple[str, str] | None) -> list[tuple[str, str]]:
    return [
        call if place == at else (name, json.dumps(args))
        for place, (name, args) in enumerate(task["calls"])
    ]


MUTATIONS: dict[str, Callable] = {
    "wrong tool": wrong_tool,
    "missing argument": missing_argument,
    "wrong value": wrong_value,
    "hallucinated function": hallucinated,
    "broken JSON": broken_json,
    "extra call": extra_call,
}


def as_run(task: dict, calls: list[tuple[str, str]], status: str, known: bool) -> dict:
    """A run of one answer; `known`: the right calls are in its metadata."""
    made = [
        {"id": f"call_{at}", "type": "function", "function": {"name": name, "arguments": text}}
        for at, (name, text) in enumerate(calls)
    ]
    return {
        "messages": [*task["question"], {"role": "assistant", "content": None, "tool_calls": made}],
        "tools": [
            {"type": "function", "function": {"name": name, "parameters": schema}}
            for name, schema in task["functions"].items()
        ],
        "outcome_status": status,
        "metadata": (
            {"expected": [{"tool": name, "args": args} for name, args in task["calls"]]}
            if known
            else {}
        ),
    }


def bfcl_report(seed: int) -> dict[str, Any]:
    """Every mutation of every task, with the right calls known and, as a failure, without."""
    tasks, chance = bfcl_tasks(), random.Random(seed)
    others = {name: schema for task in tasks for name, schema in task["functions"].items()}
    known, blind, right = [], [], []
    for task in tasks:
        for status in ("unknown", "success"):
            found = classify(as_run(task, with_call(task, -1, None), status, known=True))
            right.append("none" if found is None else found.evidence[0].text)
        for name, mutate in MUTATIONS.items():
            changed = task | {"functions": dict(task["functions"])}
            calls = mutate(changed, others, chance)
            if calls is not None:
                found = classify(as_run(changed, calls, "failure", known=True))
                known.append((name, found.mode if found else "none"))
                blind.append((name, mode_of(as_run(changed, calls, "unknown", known=False))))
    return {
        "tasks": len(tasks),
        "right_answers_blamed": sum(text != "none" for text in right),
        "right_answers": len(right),
        "examples_blamed": [text for text in right if text != "none"][:5],
        "right": share(sum(said == MODES[name] for name, said in known), len(known)),
        "each": {
            name: share(
                sum(said == MODES[name] for one, said in known if one == name),
                sum(one == name for one, _ in known),
            )
            for name in MUTATIONS
        },
        "confusion": confusion(known),
        "confusion_without_truth": confusion(blind),
    }


def mode_of(run: dict) -> str:
    found = classify(run)
    return found.mode if found else "none"


# Speed


def inferred_tools(runs: list[dict]) -> list[dict]:
    """Tools whose schemas fit the calls of these runs: the file has none, and checking them is part
    of the work.
    """
    seen: dict[str, dict[str, set]] = {}
    times: Counter = Counter()
    for run in runs:
        for message in run["messages"]:
            for call in message.get("tool_calls") or []:
                name, args = call["function"]["name"], json.loads(call["function"]["arguments"])
                times[name] += 1
                for key, value in args.items():
                    seen.setdefault(name, {}).setdefault(key, set()).add(_json_type(value))
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "parameters": {
                    "type": "object",
                    "properties": {
                        key: {"type": sorted(kinds)} for key, kinds in seen.get(name, {}).items()
                    },
                    "additionalProperties": False,
                },
            },
        }
        for name in sorted(times)
    ]


def _json_type(value: Any) -> str:
    names = (
        (bool, "boolean"),
        (str, "string"),
        (int, "number"),
        (float, "number"),
        (list, "array"),
        (dict, "object"),
    )
    return next((name for kind, name in names if isinstance(value, kind)), "null")


def per_second(runs: list[dict], repeats: int) -> float:
    """Runs classified a second by one core, in the median of the passes. Each pass gets runs fresh
    from JSON.
    """
    body, speeds = msgspec.json.encode(runs), []
    for _ in range(repeats):
        fresh = msgspec.json.decode(body)
        at = time.process_time()
        for run in fresh:
            classify(run)
        speeds.append(len(fresh) / (time.process_time() - at))
    return sorted(speeds)[len(speeds) // 2]


def long_run(steps: int) -> dict:
    """A failed run of so many steps, with errors, repeats, dangerous calls and empty answers in
    it.
    """
    messages: list[dict] = [{"role": "user", "content": "Tidy up all of it."}]
    for step in range(steps):
        tool = ("search_files", "delete_file", "move_file", "read_file")[step % 4]
        function = {"name": tool, "arguments": json.dumps({"path": f"/home/{step % 5000}"})}
        call = {"id": f"call_{step}", "type": "function", "function": function}
        text = ("[]", "Deleted.", "Error: no such file", "text " * 40)[step % 4]
        messages += [
            {"role": "assistant", "content": "I go on.", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"call_{step}", "content": text},
        ]
    tools = [
        {
            "type": "function",
            "function": {
                "name": name,
                "x-dangerous": name == "delete_file",
                "parameters": {
                    "type": "object",
                    "properties": {"path": {"type": "string"}},
                    "required": ["path"],
                },
            },
        }
        for name in ("search_files", "delete_file", "move_file", "read_file")
    ]
    right = [
        {"tool": "move_file", "args": {"path": f"/home/{place}"}} for place in range(0, 800, 2)
    ]
    approve = [{"kind": "approve", "message_index": index} for index in range(1, 2 * steps, 2)]
    return {
        "messages": messages,
        "tools": tools,
        "outcome_status": "failure",
        "interventions": approve,
        "metadata": {"expected": right},
    }


def speed_report(runs: list[dict], repeats: int) -> dict[str, Any]:
    tools = inferred_tools(runs)
    failed = [run for run in runs if run["outcome_status"] == "failure"]
    seconds = {}
    for steps in (16_500, 33_000):
        run, at = long_run(steps), time.process_time()
        classify(run)
        seconds[steps] = round(time.process_time() - at, 2)
    return {
        "as_in_the_file": round(per_second(runs, repeats)),
        "with_tools": round(per_second([run | {"tools": tools} for run in runs], repeats)),
        "failures_with_tools": round(
            per_second([run | {"tools": tools} for run in failed], repeats)
        ),
        "failures_without_truth": round(
            per_second([run | {"tools": tools, "metadata": {}} for run in failed], repeats)
        ),
        "long_run_s": seconds,
    }


# The report


def table(title: str, head: list[str], lines: Iterable[list[Any]]) -> None:
    made = Table(title=title, title_justify="left")
    for place, name in enumerate(head):
        made.add_column(name, justify="right" if place else "left")
    for line in lines:
        made.add_row(*map(str, line))
    console.print(made)


def told(value: dict) -> str:
    if not value["n"]:
        return "–"
    low, high = value["interval"]
    return f"{value['right']}/{value['n']} = {value['share']:.0%} [{low:.0%}, {high:.0%}]"


def matrix(title: str, counts: dict[str, dict[str, int]]) -> None:
    names = sorted({said for row in counts.values() for said in row})
    table(
        title,
        ["", *names],
        ([true, *(row.get(name, 0) or "·" for name in names)] for true, row in counts.items()),
    )


def show(report: dict[str, Any]) -> None:
    tau, hand, bfcl, speed = (report[name] for name in ("tau_bench", "by_hand", "bfcl", "speed"))
    table(
        f"tau-bench: {tau['failed']} failures of {tau['runs']}",
        ["mode", "n"],
        tau["modes"].most_common(),
    )
    table("what decided", ["rule", "n"], tau["deciding_rules"].most_common())
    console.print(
        f"blamed step is the first wrong change that worked: {told(tau['step_that_worked'])}"
    )
    console.print(
        f"blamed step is the first wrong change that was tried: {told(tau['step_that_was_tried'])}"
    )
    blamed = (
        f"{tau['successes_blamed']}, with the outcome unknown {tau['successes_blamed_as_unknown']}"
    )
    console.print(f"successes blamed: {blamed} of {tau['runs'] - tau['failed']}\n")
    lines = (
        [mode, told(row["precision"]), told(row["recall"])] for mode, row in hand["modes"].items()
    )
    table(f"read by hand: {hand['mode']['n']} failures", ["mode", "precision", "recall"], lines)
    console.print(f"same mode {told(hand['mode'])}; same step {told(hand['step'])}\n")
    matrix("a person's word (rows), the rules' (columns)", hand["confusion"])
    lines = ([name, MODES[name], told(row)] for name, row in bfcl["each"].items())
    table(
        f"BFCL: {bfcl['tasks']} answers made wrong", ["made wrong", "right bucket", "given"], lines
    )
    console.print(
        f"all {told(bfcl['right'])}; right answers blamed:"
        f" {bfcl['right_answers_blamed']}/{bfcl['right_answers']}\n"
    )
    matrix("what was made wrong, and the bucket given", bfcl["confusion"])
    matrix("the same without ground truth, outcome unknown", bfcl["confusion_without_truth"])
    table(
        "speed, one core", ["", "trajectories/s"], ([name, value] for name, value in speed.items())
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=9, help="passes over the file for the speed")
    given_args = parser.parse_args()
    if not (DATA / "tau_bench").exists():
        raise SystemExit(f"the sample data are not in {DATA.name}")
    runs = tau_inputs()
    report = {"machine": machine(), "tau_bench": tau_report(runs), "by_hand": hand_report(runs)}
    report |= {
        "bfcl": bfcl_report(given_args.seed),
        "speed": speed_report(runs, given_args.repeats),
    }
    HOME.mkdir(parents=True, exist_ok=True)
    (HOME / "failures.json").write_text(json.dumps(report, indent=1))
    show(report)
    slowest = min(
        report["speed"][name]
        for name in (
            "as_in_the_file",
            "with_tools",
            "failures_with_tools",
            "failures_without_truth",
        )
    )
    return 0 if report["bfcl"]["right"]["share"] >= GOAL_RIGHT and slowest >= GOAL_PER_SECOND else 1


if __name__ == "__main__":
    sys.exit(main())
