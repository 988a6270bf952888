"""The failure mode of a sample, by the rules that classify production. The judge is not used: an
evaluation has a verifier.
"""

from __future__ import annotations

import logging
from typing import Any

from apps.evals.models import Sample, Task
from apps.evals.samples.transcript import answered, conversation, offered, opening
from apps.failures.classify import Diagnosis, Evidence, classify_run
from apps.failures.rules.checks import error_never_recovered, failed_without_a_finish
from apps.failures.rules.findings import cut
from apps.failures.rules.reading import Run, read
from workers.lib.environments.episodes import CRASH
from workers.lib.messages import schemas_of, tool_names
from workers.lib.transcripts import answer_form

log = logging.getLogger(__name__)
UNSAFE, NOT_RECOVERED = "unsafe_action", error_never_recovered.__name__
UNSAID = failed_without_a_finish.__name__
CRASHED = f"Error: {CRASH}"
MOST_TOOLS, LONGEST_TOOL, MOST_TAGS, LONGEST_TAG = 20, 64, 20, 80
EXAMPLE = "example_before"  # a name that the rules read as “not the agent's”


def diagnose(sample: Sample) -> Diagnosis | None:
    """None for a masked sample, and if no rule finds anything. Indices are those of
    `conversation`.
    """
    return None if sample.masked else diagnose_run(sample, read(as_run(sample)))


def diagnose_run(sample: Sample, run: Run) -> Diagnosis | None:
    """Of a sample that was read already."""
    diagnosis = _without_crashes(run, classify_run(run))
    if not sample.unsafe or (diagnosis and diagnosis.mode == UNSAFE):
        return diagnosis
    at = diagnosis.blamed_message if diagnosis else None
    verdict = Evidence(
        "verifier", at, "The verifier marked this output as unsafe.", "", UNSAFE, "certain"
    )
    return Diagnosis(UNSAFE, at, [verdict, *(diagnosis.evidence if diagnosis else [])])


def _without_crashes(run: Run, diagnosis: Diagnosis | None) -> Diagnosis | None:
    """If all that is wrong is that a tool's own code raised and nothing worked afterwards, nobody
    blames the agent: no mode and no blamed step.
    """
    last_good = max((call.index for call in run.calls if call.worked), default=-1)
    crash = next(
        (
            call
            for call in run.calls
            if call.index > last_good and (call.reply or "").startswith(CRASHED)
        ),
        None,
    )
    says_more = diagnosis and diagnosis.evidence[0].rule not in (NOT_RECOVERED, UNSAID)
    if crash is None or diagnosis is None or says_more:
        return diagnosis
    text = (
        "The tool's code failed and nothing worked afterwards: the environment needs the fix, not"
        " the agent."
    )
    return Diagnosis(
        "",
        None,
        [Evidence("tool_crashed", crash.reply_index, text, cut(crash.reply or ""), "", "certain")],
    )


def describe(sample: Sample) -> None:
    """Sets what the page filters by and what the metrics count: mode, tools, tags, answer_form. Its
    run's environment and its task must be loaded.
    """
    sample.mode = _mode_of(sample)
    sample.tools = tools_called(sample)
    sample.tags = tags_of(sample.task)
    sample.answer_form = answer_form(answered(sample), schemas_of(offered(sample)))


def _mode_of(sample: Sample) -> str:
    """Also empty if the rules fail: an output that they cannot read is still a sample."""
    try:
        diagnosis = diagnose(sample)
    except Exception:
        log.exception(
            "The rules failed on a sample of task %s, evaluation %s", sample.task_id, sample.run_id
        )
        return ""
    return diagnosis.mode if diagnosis else ""


def tools_called(sample: Sample) -> list[str]:
    """Their names, each once, in the order of the first call."""
    agent = (message for message in answered(sample) if message.get("role") == "assistant")
    names = [name[:LONGEST_TOOL] for message in agent for name in tool_names(message) if name]
    return list(dict.fromkeys(names))[:MOST_TOOLS]


def tags_of(task: Task) -> list[str]:
    """Those in its metadata, and those of the production run that it was made from."""
    tags = task.metadata.get("tags")
    own = [tag for tag in tags if isinstance(tag, str)] if isinstance(tags, list) else []
    run = task.trajectory.tags if task.trajectory else []
    return [tag[:LONGEST_TAG] for tag in dict.fromkeys([*own, *run]) if tag.strip()][:MOST_TAGS]


def as_run(sample: Sample) -> dict[str, Any]:
    """The sample in the format that the classifier reads. Steps given by the task are never
    blamed.
    """
    task = sample.task
    start = len(opening(sample.run)) + len(task.messages)
    messages = [
        (
            message | {"name": EXAMPLE}
            if at < start and message.get("role") == "assistant"
            else message
        )
        for at, message in enumerate(conversation(sample))
    ]
    metadata: dict[str, Any] = {"expected": task.expected, "stop_reason": sample.stop_reason}
    answer = task.expected.get("answer") if isinstance(task.expected, dict) else None
    if isinstance(answer, str):
        metadata["expected_outputs"] = [answer]
    return {
        "messages": messages,
        "tools": offered(sample),
        "outcome_status": "success" if sample.success else "failure",
        "outcome_reason": sample.mask_reason,
        "outcome_label": "",
        "interventions": [],
        "metadata": metadata,
    }
