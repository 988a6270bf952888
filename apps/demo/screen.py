"""What the demo draws in a terminal: the progress of a step, and the table at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from apps.evals.models import EvalRun

ROWS = (
    ("Valid JSON", "valid_json"),
    ("Correct tool", "correct_tool"),
    ("Correct arguments", "correct_arguments"),
    ("Execution success", "execution_success"),
    ("Unsafe actions", "unsafe_action"),
    ("Success", "success"),
    ("Mean reward", "reward"),
)


Advance = Callable[[int, int, str], None]


@contextmanager
def bars(console: Console) -> Iterator[Callable[[str], Advance]]:
    """Progress bars: add(title) adds one, and returns what moves it: advance(done, total,
    label)."""
    columns = (
        TextColumn("  {task.fields[title]:<22}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True) as progress:

        def add(title: str) -> Advance:
            task = progress.add_task("waiting", total=None, title=title)

            def advance(done: int, total: int, label: str) -> None:
                progress.update(task, completed=done, total=total or None, description=label)

            return advance

        yield add


def table_of(runs: list[EvalRun], samples_per_task: int) -> Table:
    """The evaluations side by side."""
    table = Table(
        title=f"Held-out tasks: {runs[0].result['metrics']['counts']['tasks']}, "
        f"{samples_per_task} samples each, 95% intervals"
    )
    table.add_column("")
    for run in runs:
        table.add_column(str(run.model_version), justify="right")
    metrics = [run.result["metrics"] for run in runs]
    for title, name in ROWS:
        table.add_row(title, *(_interval(m[name]) for m in metrics))
    for k in metrics[0]["pass_at_k"]:
        table.add_row(f"pass@{k}", *(f"{m['pass_at_k'][k]:.3f}" for m in metrics))
    table.add_row(
        "Latency p50 / p95 (ms)",
        *(f"{m['latency_ms']['p50']:.0f} / {m['latency_ms']['p95']:.0f}" for m in metrics),
    )
    table.add_row(
        "Tokens in / out", *(f"{m['input_tokens']:.0f} / {m['output_tokens']:.0f}" for m in metrics)
    )
    return table


def _interval(found: dict[str, float | None]) -> str:
    if found["mean"] is None:
        return "not measured"
    return f"{found['mean']:.3f} [{found['low']:.3f}, {found['high']:.3f}]"
