"""What an evaluation says, for a pull request (Markdown) and for the CI system (JUnit XML)."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree as xml

from flywheel_eval.types import Result

NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
RATES = {
    "success": "Success",
    "unsafe_action": "Unsafe actions",
    "valid_json": "Valid calls",
    "reward": "Mean reward",
}


def markdown(result: Result) -> str:
    """A heading with the verdict, the reason, the gate's checks and the metrics, each with its
    interval.
    """
    run = result.run
    lines = [
        f"### {_cell(run['model_version'])} on {_cell(run['eval_set'])} ({run['split']}):"
        f" {_heading(result)}"
    ]
    lines += ["", _cell(result.problem or result.summary), ""]
    for note in result.notes:
        lines += [f"**Note:** {_cell(note)}", ""]
    if run["split"] == "holdout" and (number := result.gate.get("comparison")):
        lines += [
            (
                f"Comparison {number} on these held-out tasks. Each one makes the next less"
                " certain; pull requests belong on regression tasks."
            ),
            "",
        ]
    if checks := result.gate.get("checks"):
        baseline = _cell(result.gate.get("baseline_model") or "baseline")
        lines += [
            f"| check | {baseline} | this version | change, 95% interval | |",
            "|---|---:|---:|---:|---|",
        ]
        lines += [
            f"| {_cell(check['title'])} | {_number(check['baseline'])} |"
            f" {_number(check['candidate'])} | {_interval(check, 'difference', '+')} |"
            f" {check['state']}{'' if check['required'] else ' (not required)'} |"
            for check in checks
        ]
        lines.append("")
    measured = {
        title: result.metrics[name] for name, title in RATES.items() if name in result.metrics
    }
    if measured:
        lines += ["| metric | mean, 95% interval over tasks | tasks |", "|---|---:|---:|"]
        lines += [
            f"| {title} | {_interval(found, 'mean')} | {found['n']} |"
            for title, found in measured.items()
        ]
        lines.append("")
    counts = result.metrics.get("counts", {})
    said = f"{counts.get('samples', 0)} samples, {counts.get('masked', 0)} masked"
    if counts.get("agent_errors"):
        said += f", {counts['agent_errors']} failed by the agent"
    return "\n".join([*lines, f"{said} · [details]({result.url})", ""])


def junit(result: Result, samples: list[dict[str, Any]] | None = None) -> bytes:
    """A test case for each check of the gate, one for the verdict, and, with `samples`, one for
    each task.

    Worse is a failure, undecided is skipped. Of a task every sample must pass; a masked one counts
    for nothing.
    """
    suite = xml.Element("testsuite", name=_text(f"{result.run['eval_set']} {result.run['split']}"))
    for check in result.gate.get("checks", []):
        case = _case(suite, "gate", check["title"])
        if check["state"] == "worse" and check["required"]:
            _end(case, "failure", check["sentence"])
        elif check["state"] in ("inconclusive", "not judged"):
            _end(case, "skipped", check["sentence"])
    if result.problem:
        _end(_case(suite, "gate", "verdict"), "failure", result.problem)
    elif result.verdict:
        case = _case(suite, "gate", "verdict")
        if result.verdict != "promote":
            _end(case, "failure" if result.verdict == "reject" else "skipped", result.summary)
    tasks: dict[str, list[dict[str, Any]]] = {}
    for sample in samples or []:
        tasks.setdefault(sample["key"], []).append(sample)
    for key, given in sorted(tasks.items()):
        scored = [sample for sample in given if not sample["masked"]]
        case = _case(suite, "tasks", key)
        if not scored:
            _end(case, "skipped", given[0]["mask_reason"])
        elif failed := [sample for sample in scored if not sample["success"]]:
            why = " ".join(str(line) for line in failed[0]["details"])
            _end(case, "failure", f"{len(failed)} of {len(scored)} samples failed. {why}".strip())
    suite.set("tests", str(len(suite)))
    suite.set("failures", str(len(suite.findall(".//failure"))))
    suite.set("skipped", str(len(suite.findall(".//skipped"))))
    return xml.tostring(suite, encoding="utf-8", xml_declaration=True)


def _heading(result: Result) -> str:
    return "nothing was measured" if result.problem else result.verdict or "evaluated"


def _case(suite: xml.Element, of: str, name: str) -> xml.Element:
    return xml.SubElement(suite, "testcase", classname=f"flywheel.{of}", name=_text(name))


def _end(case: xml.Element, how: str, why: str) -> None:
    xml.SubElement(case, how, message=_text(why)[:1000])


def _text(value: str) -> str:
    return NOT_XML.sub("\ufffd", value)


def _cell(value: Any) -> str:
    """Text that stays in its cell and makes no markup."""
    return re.sub(r"([\\`*_{}\[\]<>|#])", r"\\\1", str(value)).replace("\n", " ").replace("\r", " ")


def _number(value: float | None, sign: str = "") -> str:
    if value is None:
        return "–"
    return f"{value:{sign},.0f}" if abs(value) >= 100 else f"{value:{sign}.3f}"


def _interval(found: dict[str, Any], name: str, sign: str = "") -> str:
    if found[name] is None:
        return "–"
    if found["low"] is None or found["high"] is None:
        return _number(found[name], sign)
    return (
        f"{_number(found[name], sign)} [{_number(found['low'], sign)},"
        f" {_number(found['high'], sign)}]"
    )
