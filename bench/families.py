"""Failures found on families of traffic, and each rule's hits on each family. `python -m
bench.families [--data families-sealed]`

The families in bench/data have planted failures, and their truth beside them; no rule was written
on them. Next to them: what lies beside the project (tau-bench, BFCL, Workplace Assistant, reported
faults). Each run is classified with its outcome unknown, as in production; with it known; and with
the right calls known where there are any. A rule is right where the run failed, and where the
outcome is known, where the mode that it says is one of what was planted. At last, each
good run is cut off before a reply.

Only figures are printed, never a run: whoever writes rules may look at `families-dev` alone. Writes
var/bench/families.json.
"""

from __future__ import annotations

import argparse
import json
import random
import tarfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from apps.core.intervals import wilson
from apps.failures.classify import Diagnosis, classify
from apps.failures.rules.checks import ended_on_a_call
from apps.failures.rules.reading import read
from apps.failures.rules.reply_forms import NO_FORMS, Forms
from bench import failures
from bench.good_runs import forms_of
from bench.peers import HOME

DATA = Path(__file__).parent / "data"
REPORTED = failures.ROOT.parent / "shared" / "faults" / "failures"
UNSAID = "unexplained"  # a mode that claims nothing
# What a rule may say of a planted cause; of a rating or a takeover the cause is not planted.
MODES = {
    "broken_call": "format_error hallucinated_api wrong_arguments wrong_tool_choice",
    "tool_error_unrecovered": "incomplete_execution wrong_arguments",
    "loop": "bad_planning",
    "cut_off": "incomplete_execution",
    "empty_answer": "incomplete_execution",
    "gave_up": "incomplete_execution retrieval_failure",
    "partial": "incomplete_execution",
    "off_question": "incomplete_execution bad_planning",
    "false_claim": "incomplete_execution misread_tool_result",
    "made_up_fact": "misread_tool_result retrieval_failure wrong_arguments",
    "misread": "misread_tool_result",
    "wrong_entity": "wrong_arguments ambiguous_request unsafe_action wrong_tool_choice",
    "wrong_unit": "wrong_arguments misread_tool_result",
    "constraint_ignored": "wrong_arguments policy_violation bad_planning",
    "policy_broken": "policy_violation unsafe_action",
    "destructive_action": "unsafe_action policy_violation wrong_tool_choice",
    "privacy_leak": "policy_violation unsafe_action",
    "wrong_format": "format_error policy_violation",
    "wrong_language": "policy_violation",
}


@dataclass(frozen=True)
class Case:
    """A run as the rules get it, and what is true of it. `modes` and `step` are None where nobody
    knows; a step may also be known to be none. `right` is the metadata with the right calls.
    """

    run: dict
    failed: bool
    modes: frozenset[str] | None = None
    step: int | str | None = "unknown"
    by_structure: bool = False
    right: dict = field(default_factory=dict)


Family = list[Case]


def families(path: Path) -> Iterator[tuple[str, list[tuple[dict, dict]]]]:
    """(name, [(run, its truth)]) of each folder with runs and their truth."""
    with tarfile.open(path) as archive:
        read: dict[str, dict[str, list[dict]]] = {}
        for member in archive.getmembers():
            folder, _, name = member.name.rpartition("/")
            if name in ("runs.jsonl", "truth.jsonl"):
                lines = archive.extractfile(member)
                read.setdefault(folder, {})[name] = [json.loads(line) for line in lines or ()]
    for folder, files in sorted(read.items()):
        truth = {item["id"]: item for item in files["truth.jsonl"]}
        name = folder.removeprefix("./").rpartition("/")[2]
        yield name, [(run, truth[run["id"]]) for run in files["runs.jsonl"]]


def planted(path: Path) -> Iterator[tuple[str, Family]]:
    for name, runs in families(path):
        yield name, [_planted(run, truth) for run, truth in runs]


def _planted(run: dict, truth: dict) -> Case:
    modes = MODES.get(truth["cause"] or "")
    return Case(
        run,
        truth["failed"],
        modes=frozenset(modes.split()) if modes else None,
        step=truth["first_wrong_step"] if truth["failed"] else "unknown",
        by_structure=truth["failed"] and truth["visible_by_structure"],
    )


def tau_bench() -> Family:
    labels = {label["id"]: label for label in json.loads(failures.LABELS.read_text())}
    return [_tau_case(run, labels.get(run["id"])) for run in failures.tau_inputs()]


def _tau_case(run: dict, label: dict | None) -> Case:
    failed = run["outcome_status"] == "failure"
    step = label["blamed"] if label else failures.first_wrong_write(run, tries=True)
    modes = frozenset([label["mode"]]) if label else None
    known = failed and (label is not None or step is not None)
    return Case(run, failed, modes, step if known else "unknown", right=run["metadata"])


def made_wrong(tasks: list[dict], others: dict[str, Any], seed: int = 1) -> Family:
    """Right answers, and each made wrong in six ways."""
    chance, cases = random.Random(seed), []
    for task in tasks:
        right = failures.as_run(task, failures.with_call(task, -1, None), "", known=True)
        cases.append(Case(right, failed=False, right=right["metadata"]))
        for name, mutate in failures.MUTATIONS.items():
            changed = task | {"functions": dict(task["functions"])}
            if calls := mutate(changed, others, chance):
                run = failures.as_run(changed, calls, "", known=True)
                step, mode = len(run["messages"]) - 1, frozenset([failures.MODES[name]])
                cases.append(Case(run, True, mode, step, right=run["metadata"]))
    return cases


def bfcl() -> Family:
    tasks = failures.bfcl_tasks()
    return made_wrong(tasks, {name: it for task in tasks for name, it in task["functions"].items()})


def workplace_assistant() -> Family:
    """Its scored rollouts, and the right calls of its tasks made wrong."""
    folder = failures.DATA / "workplace_assistant"
    tasks, others = [], {}
    for line in (folder / "example.jsonl").read_text().splitlines():
        item = json.loads(line)
        tools = item["responses_create_params"]["tools"]
        others |= {tool["name"]: tool["parameters"] for tool in tools}
        calls = [(call["name"], json.loads(call["arguments"])) for call in item["ground_truth"]]
        question = item["responses_create_params"]["input"]
        tasks.append({"question": question, "functions": dict(others), "calls": calls})
    rollouts = map(json.loads, (folder / "example_rollouts.jsonl").read_text().splitlines())
    return [*map(_rollout, rollouts), *made_wrong(tasks, others)]


def _rollout(row: dict) -> Case:
    messages = list(row["responses_create_params"]["input"])
    for item in row["response"]["output"]:
        if item["type"] == "function_call":
            function = {"name": item["name"], "arguments": item["arguments"]}
            call = {"id": item["call_id"], "type": "function", "function": function}
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        elif item["type"] == "function_call_output":
            reply = {"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]}
            messages.append(reply)
        elif item["type"] == "message":
            text = "".join(part["text"] for part in item["content"])
            messages.append({"role": "assistant", "content": text})
    tools = [{"type": "function", "function": it} for it in row["responses_create_params"]["tools"]]
    return Case({"messages": messages, "tools": tools}, failed=not row["reward"])


def reported() -> Family:
    """Runs that others reported: failures that were missed, and a false alarm."""
    return [
        Case(json.loads(line), failed=path.name.startswith("missed"))
        for path in sorted(REPORTED.glob("*.jsonl"))
        for line in path.read_text().splitlines()
    ]


def diagnosed(case: Case, forms: Forms = NO_FORMS, *, known: bool, right: bool) -> Diagnosis | None:
    given = {name: case.run.get(name) or [] for name in ("messages", "tools", "interventions")}
    status = ("failure" if case.failed else "success") if known else "unknown"
    own = {} if case.right else case.run.get("metadata") or {}
    outcome = {"outcome_status": status, "outcome_reason": ""}
    metadata = {"metadata": case.right if right else own, "forms": forms}
    return classify(given | outcome | metadata)


def figures(family: Family, rules: dict[str, Counter[bool]], **given: bool) -> dict[str, int]:
    """Counts of a family; adds each rule's hits that are right, and wrong, to `rules`."""
    count: Counter[str] = Counter()
    forms = forms_of({"messages": [], "tools": []} | case.run for case in family)
    for case in family:
        found = diagnosed(case, forms, **given)
        structural = case.failed and case.by_structure
        count += Counter(failed=case.failed, fine=not case.failed, by_structure=structural)
        if found is None:
            continue
        says = found.mode != UNSAID
        has_step = case.failed and case.step != "unknown"
        named = has_step and found.blamed_message is not None
        right = has_step and found.blamed_message == case.step
        count += Counter(
            found=case.failed,
            found_by_structure=structural,
            false=not case.failed,
            says=case.failed and says,
            steps=has_step,
            step=right,
            named=named,
            named_right=named and right,
        )
        if not given["known"] or not case.failed:
            for rule in {item.rule for item in found.evidence}:
                rules[rule][case.failed] += 1
        elif says and case.modes is not None:
            rules[found.evidence[0].rule][found.mode in case.modes] += 1
    return dict(count)


def cut_off(family: Family) -> dict[str, int]:
    """Each good run in turn ends with one of its calls, while all others are as they were: its
    program died, or the recording did, before the reply.
    """
    count: Counter[str] = Counter()
    runs = [{"messages": [], "tools": []} | case.run for case in family]
    for at, case in enumerate(family):
        replies = {call.reply_index: call.index for call in read(runs[at]).calls}
        ends = sorted({index for reply, index in replies.items() if reply is not None})
        if case.failed or not ends:
            continue
        end = ends[at % len(ends)]
        run = runs[at] | {"messages": runs[at]["messages"][: end + 1], "interventions": []}
        forms = forms_of([*runs[:at], run, *runs[at + 1 :]])
        found = diagnosed(replace(case, run=run), forms, known=False, right=False)
        rules = {item.rule for item in found.evidence} if found else set()
        is_found = ended_on_a_call.__name__ in rules
        count += Counter(cut=1, found=is_found, step=is_found and found.blamed_message == end)
    return dict(count)


GIVEN = {
    "outcome unknown": {"known": False, "right": False},
    "outcome known": {"known": True, "right": False},
    "right calls known": {"known": True, "right": True},
}


def report(all_families: dict[str, Family]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for title, given in GIVEN.items():
        chosen = {
            name: family
            for name, family in all_families.items()
            if not given["right"] or any(case.right for case in family)
        }
        rows, rules = {}, {}
        for name, family in chosen.items():
            rules[name] = defaultdict(Counter)
            rows[name] = figures(family, rules[name], **given)
        made[title] = {"families": rows, "rules": rules}
    return made


COLUMNS: dict[str, Callable[[Counter[str]], tuple[int, int]]] = {
    "found": lambda of: (of["found"], of["failed"]),
    "of structure": lambda of: (of["found_by_structure"], of["by_structure"]),
    "says a cause": lambda of: (of["says"], of["failed"]),
    "right step": lambda of: (of["step"], of["steps"]),
    "of named": lambda of: (of["named_right"], of["named"]),
    "good runs blamed": lambda of: (of["false"], of["fine"]),
}


def show(title: str, made: dict[str, Any]) -> Iterator[Table]:
    rows = made["families"]
    table = Table("family", *COLUMNS, title=title, title_justify="left")
    total = sum(map(Counter, rows.values()), Counter())
    for name, row in [*rows.items(), ("all", total)]:
        table.add_row(name, *(share(*shown(Counter(row))) for shown in COLUMNS.values()))
    yield table
    right = Table("right of hits", *(_short(name) for name in rows), "all", "families")
    by_rule: Counter[str] = Counter()
    for rules in made["rules"].values():
        by_rule.update({rule: hits.total() for rule, hits in rules.items()})
    for rule, _ in by_rule.most_common():
        hits = [rules.get(rule, Counter()) for rules in made["rules"].values()]
        whole = sum(hits, Counter())
        cells = [f"{it[True]}/{it.total()}" if it else "" for it in hits]
        seen = sum(1 for it in hits if it)
        right.add_row(rule, *cells, share(whole[True], whole.total()), str(seen))
    yield right


def _short(name: str) -> str:
    return name.partition("_")[0] if name[1:3].isdigit() else name


def share(hits: int, n: int) -> str:
    if not n:
        return "–"
    low, high = wilson(hits, n)
    return f"{hits}/{n} {hits / n:.0%} [{low:.0%}, {high:.0%}]"


def beside() -> Iterable[tuple[str, Family]]:
    if failures.DATA.exists():
        yield from {
            "tau": tau_bench(),
            "bfcl": bfcl(),
            "workplace": workplace_assistant(),
            "reported": reported(),
        }.items()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="families-dev", help="families-dev or families-sealed")
    chosen = parser.parse_args()
    all_families = dict([*planted(DATA / f"{chosen.data}.tar.xz"), *beside()])
    made = report(all_families)
    console = Console(width=220)
    for title, result in made.items():
        for table in show(title, result):
            console.print(table)
    cut = {name: cut_off(family) for name, family in all_families.items()}
    table = Table("cut off before a reply", "found", "right step")
    for name, row in cut.items():
        count = Counter(row)
        table.add_row(
            name, share(count["found"], count["cut"]), share(count["step"], count["found"])
        )
    console.print(table)
    HOME.mkdir(parents=True, exist_ok=True)
    plain = json.dumps({"data": chosen.data, "cut off": cut} | made, indent=1, default=dict)
    (HOME / "families.json").write_text(plain)


if __name__ == "__main__":
    main()
