"""Flows in words, for pages and messages."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from cronsim import CronSim
from django.urls import NoReverseMatch, reverse
from msgspec import structs

from apps.automation import specs
from apps.automation.models import FlowStep, StepState
from apps.automation.specs import FlowSpec, Step
from apps.core.models import Job
from apps.evals.models import EvalRun
from apps.training.models import TrainingRun

PAGES: dict[type[Job], str] = {EvalRun: "evals:run", TrainingRun: "training:detail"}
# (kind, description, fields) of triggers and steps, for the editor.
KINDS = [
    (
        kind,
        " ".join((one.__doc__ or "").replace("`", "").split()),
        [
            each.encode_name
            for each in structs.fields(one)
            if each.name not in ("name", "condition")
        ],
        list(one.outputs),
    )
    for kind, one in specs.STEPS.items()
]


UNREADABLE = (
    "This version was saved by an older release of Flywheel and can no longer be read. Edit the"
    " flow to fix it."
)


def starts_of(spec: FlowSpec | None) -> list[str]:
    if spec is None:
        return [UNREADABLE]
    return [_start(one, spec) for one in spec.starts] or ["Manual only"]


def _start(one: Any, spec: FlowSpec) -> str:
    of_mode = f" of {one.mode}" if getattr(one, "mode", "") else ""
    if isinstance(one, specs.Cron):
        return f"{CronSim(one.when, datetime.now(UTC)).explain()} ({spec.timezone})"
    if isinstance(one, specs.NewFailures):
        in_cluster = f" in the cluster {one.cluster[:8]}" if one.cluster else ""
        return f"{one.at_least:,} new failures{of_mode}{in_cluster}"
    if isinstance(one, specs.FailureRate):
        by = f" by more than {100 * one.rise:g} points" if one.rise else ""
        return f"The failure rate{of_mode} over {one.days} days rises{by} (99.7% confidence)"
    if isinstance(one, specs.NewVersion):
        return (
            f"A new {'agent version' if one.of == 'version' else 'model'} reaches {one.runs:,} runs"
            " in production"
        )
    return "A webhook call"


def is_called(spec: FlowSpec | None) -> bool:
    return spec is not None and any(isinstance(one, specs.Call) for one in spec.starts)


def steps_of(spec: FlowSpec | None) -> list[dict[str, Any]]:
    return [{"step": step, "given": given(step)} for step in spec.steps] if spec else []


def given(step: Step) -> list[tuple[str, Any]]:
    """The values that the author set for a step, without defaults; objects by name."""
    left_out, found = ("name", "condition"), []
    for each in structs.fields(step):
        value = getattr(step, each.name)
        if each.name in left_out or value == each.default:
            continue
        inner = value.items() if isinstance(value, dict) else [(each.encode_name, value)]
        found += [(_spoken(name), part) for name, part in inner]
    return found


def limits_of(spec: FlowSpec | None) -> list[str]:
    if spec is None:
        return []
    budget = spec.budget
    found = [
        f"At most {value:g} {unit} {span}"
        for value, unit, span in (
            (budget.hours_a_run, "hours", "per run"),
            (budget.hours_a_day, "hours", "per day"),
            (budget.usd_a_run, "USD", "per run"),
            (budget.usd_a_day, "USD", "per day"),
        )
        if value is not None
    ]
    found += [
        f"No step starts between {quiet.start} and {quiet.end} ({spec.timezone})"
        for quiet in spec.quiet
    ]
    times = {0: "not retried", 1: "retried once", 2: "retried twice"}.get(
        spec.retries, f"retried {spec.retries} times"
    )
    return [*found, f"A failed step is {times}"]


def attempts_of(step: FlowStep, spec: FlowSpec | None) -> str:
    """Which attempt it is at, once one has failed; "" before."""
    if not step.attempt:
        return ""
    if step.state == StepState.FAILED:
        return (
            "failed at the first attempt"
            if step.attempt == 1
            else f"{step.attempt} attempts failed"
        )
    of = f" of {spec.retries + 1}" if spec else ""
    return f"attempt {step.attempt + 1}{of}"


def made(step: FlowStep) -> list[tuple[str, str]]:
    """A step's outputs in display order, without unknown ones and those that have a page
    (`rows_of`).
    """
    order = specs.STEPS[step.kind].outputs if step.kind in specs.STEPS else step.outputs
    names = [
        name
        for name in order
        if name not in ("run", "report", "eval_set", "model") and step.outputs.get(name) is not None
    ]
    return [(_spoken(name), _shown(step.outputs[name])) for name in names]


def _spoken(name: str) -> str:
    return name.replace("_", " ")


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.3f}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def link_of(job: Job, slug: str) -> tuple[str, str, str]:
    """(name, state, URL or "") of a job in the project `slug`."""
    name = PAGES.get(type(job))
    return job.name, str(job.state), reverse(name, args=[slug, job.pk]) if name else ""


def rows_of(step: FlowStep) -> list[tuple[str, str]]:
    """(name, URL) of the outputs of a step that have a page."""
    slug, found = step.run.project.slug, []
    for output, page in (
        ("eval_set", "evals:detail"),
        ("report", "promotion:report"),
        ("model", "promotion:model"),
    ):
        if value := step.outputs.get(output):
            try:
                found.append((output.replace("_", " "), reverse(page, args=[slug, value])))
            except NoReverseMatch:
                continue
    return found
