"""The model card of a version, which writes itself from what is recorded: the README.md of its download and a part of its page.

Of a hold-out it has names, counts and intervals, never a task.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from apps.core.models import JobState
from apps.promotion.models import GateReport, Promotion
from apps.registry.models import MergedModel, ModelKind, ModelVersion
from apps.training.lineage import Job, count, datasets_behind, jobs_behind
from apps.training.models import TrainingRun

MOST = 20  # evaluations, moves and reports
MARKUP = re.compile(r"([\\`*_{}\[\]<>#|!~&])")
SETTINGS = ("steps", "learning_rate", "batch_size", "group_size", "lora_rank", "lora_alpha", "loss", "beta")


@dataclass(frozen=True)
class Section:
    """`head` and `rows` are a table; a section without rows says `empty`."""

    title: str
    head: tuple[str, ...]
    rows: list[tuple[str, ...]]
    empty: str = ""


@dataclass(frozen=True)
class Card:
    title: str
    summary: str
    sections: list[Section]
    front: dict[str, str]

    def markdown(self) -> str:
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        yield from ("---", *(f"{name}: {value}" for name, value in self.front.items()), "---")
        yield from ("", f"# {plain(self.title)}", "", plain(self.summary))
        for section in self.sections:
            yield from ("", f"## {section.title}", "")
            if not section.rows:
                yield section.empty
                continue
            yield f"| {' | '.join(section.head)} |"
            yield "|" + "---|" * len(section.head)
            for row in section.rows:
                yield f"| {' | '.join(map(plain, row))} |"


def plain(text: str) -> str:
    """In one line, without markup: names are typed by people."""
    return MARKUP.sub(r"\\\1", " ".join(text.split()))


def card_of(version: ModelVersion, merged: MergedModel | None = None) -> Card:
    """`merged`: of the merged model, which is a whole model of transformers."""
    behind = jobs_behind(version)
    made = next((job for node, job in behind[:1] if job), None)
    kind = version.get_kind_display()
    base = version.base_version()
    how = f", made by {method_of(made)}" if made else f", {version.lineage['method'].upper()}" if version.lineage.get("method") else ""  # fmt: skip
    on = f" on {base}" if base != version else ""
    what = f"{kind} merged into {base}, a whole model in {merged.dtype}" if merged else f"{kind}{on}"
    return Card(
        title=f"{version}, merged" if merged else str(version),
        summary=f"{what}{how}. Written by Flywheel from its own records.",
        sections=[
            Section("Intended use", ("", ""), list(use_of(version, made)), "Nothing is recorded."),
            Section("What it was trained on", ("", ""), list(training_of(version, made)), "It was not trained here."),
            Section("Lineage", ("Version", "Kind", "Digest", "Made by", "From"), list(lineage_of(behind))),
            Section(
                "Evaluation", ("Eval set", "Split", "Tasks", "Success (95%)", "Reward (95%)", "Environment"),
                list(evaluations_of(version)), "It was not evaluated.",
            ),
            Section("Gate", ("Compared with", "Channel", "Verdict", "Date"), list(gate_of(version)), "No gate report."),
            Section("Where it has run", ("Channel", "Move", "Date"), list(moves_of(version)), "In no channel."),
            Section("Hashes", ("", "SHA-256"), list(hashes_of(version, merged))),
        ],
        front={"tags": "[flywheel]"} | library_of(version, merged),
    )  # fmt: skip


def library_of(version: ModelVersion, merged: MergedModel | None) -> dict[str, str]:
    """As Hugging Face's hub reads the head of a card. It has no `base_model`: that would be a name on the hub, which is not known here."""
    if merged:
        return {"library_name": "transformers", "pipeline_tag": "text-generation"}
    return {"library_name": "peft"} if version.kind == ModelKind.ADAPTER else {}


def method_of(job: Job) -> str:
    return job.get_method_display() if isinstance(job, TrainingRun) else "prompt search"


def use_of(version: ModelVersion, made: Job | None) -> Iterator[tuple[str, str]]:
    if version.notes:
        yield "Notes", version.notes[:2000]
    if made:
        yield "Meant for", f"tasks like those of {made.dataset.eval_set}, in the environment {made.environment}"
        yield "Not shown for", "other tasks, tools or environments than those evaluated below"
    if version.kind == ModelKind.REWARD:
        yield "It scores", "answers, and gives none"


def training_of(version: ModelVersion, made: Job | None) -> Iterator[tuple[str, str]]:
    if made is None:
        if version.lineage.get("trained") == "elsewhere":
            yield "Trained", "elsewhere; Flywheel knows its files only"
        return
    learned, more = count([made.dataset_id])
    over, over_more = count(datasets_behind(version))
    yield "Method", method_of(made)
    yield "Run", f"{made.name} ({made.pk})"
    yield "Data", f"{made.dataset}, SHA-256 {made.dataset.digest}"
    yield (
        "Production trajectories behind it",
        f"{learned:,}{'+' if more else ''}; {over:,}{'+' if over_more else ''} over all generations",
    )
    yield "Environment", str(made.environment)
    if isinstance(made, TrainingRun):
        config = made.spec.get("config", {}) | made.reduced
        shown = ", ".join(f"{name} {config[name]}" for name in SETTINGS if config.get(name) not in (None, "", 0))
        yield "Verifier", f"{made.environment.verifier}, SHA-256 {made.environment.verifier.hash}"
        yield "Settings", f"seed {made.spec.get('seed', 0)}{', ' if shown else ''}{shown}"


def lineage_of(behind: list[tuple[ModelVersion, Job | None]]) -> Iterator[tuple[str, ...]]:
    for node, job in behind:
        made = method_of(job) if job else "registered"
        yield str(node), node.get_kind_display(), node.digest[:16], made, str(job.dataset) if job else "–"


def evaluations_of(version: ModelVersion) -> Iterator[tuple[str, ...]]:
    """Aggregates only."""
    rows = version.eval_runs.filter(state=JobState.SUCCEEDED).select_related("eval_set", "environment")
    for run in rows.order_by("-created_at")[:MOST]:
        metrics = run.result.get("metrics") or {}
        success = metrics.get("success") or {}
        yield (
            str(run.eval_set), run.get_split_display(), f"{success.get('n') or 0:,} × {run.samples_per_task}",
            shown(success, 100, "%"), shown(metrics.get("reward") or {}, 1, ""), str(run.environment),
        )  # fmt: skip


def shown(estimate: dict[str, Any], factor: float, unit: str) -> str:
    values = [estimate.get(name) for name in ("mean", "low", "high")]
    if values[0] is None:
        return "–"
    digits = 1 if unit else 3
    text = f"{values[0] * factor:.{digits}f}{unit}"
    if None in values:
        return text
    return f"{text} ({values[1] * factor:.{digits}f} to {values[2] * factor:.{digits}f})"


def gate_of(version: ModelVersion) -> Iterator[tuple[str, ...]]:
    rows = GateReport.objects.filter(project=version.project_id, candidate__model_version=version)
    for row in rows.select_related("baseline__model_version", "channel")[:MOST]:
        yield str(row.baseline.model_version), row.channel.name, row.get_verdict_display(), f"{row.created_at:%Y-%m-%d}"


def moves_of(version: ModelVersion) -> Iterator[tuple[str, ...]]:
    rows = Promotion.objects.filter(channel__project=version.project_id, to_version=version).select_related("channel")
    for move in rows[:MOST]:
        yield move.channel.name, move.get_kind_display(), f"{move.at:%Y-%m-%d %H:%M} UTC"


def hashes_of(version: ModelVersion, merged: MergedModel | None = None) -> Iterator[tuple[str, ...]]:
    yield "Version", version.digest
    if (base := version.base_version()) != version:
        yield f"Base ({base})", base.digest
    if version.artifact:
        yield "Adapter" if merged else "Artifact", version.artifact.digest
    if merged:
        yield "Merged model", merged.artifact_id
    files = merged.artifact if merged else version.artifact
    for entry in files.files if files else ():
        yield entry["path"], entry["sha256"]
