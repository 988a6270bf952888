"""The columns of the list of trajectories, and how their values read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.utils.html import format_html
from django.utils.safestring import SafeString

from apps.core.templatetags.flywheel import ago, tone
from apps.trajectories.models import Score, Step, Trajectory
from workers.lib.prices import AT_LEAST, Cost


@dataclass(frozen=True, slots=True)
class Column:
    key: str
    title: str
    cell: Callable[[Trajectory], Any]
    css: str = ""

    @property
    def named(self) -> bool:
        """Whether a value needs its title beside it where there is no table head."""
        return self.key not in ("outcome", "failure", "tools", "tags", "started")


def duration(ms: float | None) -> str:
    """Milliseconds in the unit that fits."""
    if ms is None:
        return ""
    if ms < 1000:
        return f"{ms:.0f} ms"
    if ms < 10_000:
        return f"{ms / 1000:.2f} s"
    return (
        f"{ms / 1000:.1f} s"
        if ms < 90_000
        else f"{ms / 60_000:.1f} min"
        if ms < 5_400_000
        else f"{ms / 3.6e6:.1f} h"
    )


def money(usd: float | None) -> str:
    """Cents from a dollar on, else four decimals; what these would show as nothing is said to be
    less.
    """
    if usd is None:
        return ""
    return f"${usd:,.2f}" if usd >= 1 else "< $0.0001" if 0 < usd < 0.00005 else f"${usd:.4f}"


def cost(known: Cost) -> str:
    """A cost, and whether it is only a part of one."""
    return f"at least {money(known.usd)}" if known.basis == AT_LEAST else money(known.usd)


def _cost(row: Trajectory) -> str | SafeString:
    if row.cost.basis != AT_LEAST:
        return money(row.cost_usd)
    title = row.get_cost_basis_display()
    return format_html('<span title="{}">≥ {}</span>', title, money(row.cost_usd))


def _count(name: str) -> Callable[[Trajectory], str]:
    def shown(row: Trajectory) -> str:
        return "" if (count := getattr(row, name)) is None else f"{count:,}"

    return shown


def _outcome(row: Trajectory) -> SafeString:
    return format_html(
        '<span class="badge {}">{}</span>', tone(row.outcome_status), row.outcome_status
    )


def _failure(row: Trajectory) -> str:
    failure = getattr(row, "failure", None)
    return failure.mode.name if failure and failure.state != "dismissed" else ""


def tokens(row: Trajectory | Step) -> str:
    counts = (row.input_tokens, row.output_tokens)
    return (
        " / ".join("–" if n is None else f"{n:,}" for n in counts)
        if any(n is not None for n in counts)
        else ""
    )


def _started(row: Trajectory) -> SafeString:
    return format_html(
        '<time title="{} UTC">{}</time>', f"{row.started_at:%Y-%m-%d %H:%M:%S}", ago(row.started_at)
    )


def _tags(row: Trajectory) -> str | SafeString:
    shown = row.tags[:3]
    more = f"+{len(row.tags) - 3}" if len(row.tags) > 3 else ""
    return ", ".join([*shown, more] if more else shown)


COLUMNS = (
    Column("outcome", "Outcome", _outcome),
    Column("failure", "Failure", _failure, "nowrap"),
    Column("tools", "Tools", lambda row: ", ".join(row.tool_names[:12]), "mono clip tools"),
    Column("agent", "Agent", lambda row: row.agent_name, "clip short"),
    Column("version", "Version", lambda row: row.agent_version, "clip short"),
    Column("model", "Model", lambda row: row.model, "clip short"),
    Column("workload", "Workload", lambda row: row.workload, "clip short"),
    Column("tags", "Tags", _tags, "clip short"),
    Column("label", "Label", lambda row: row.outcome_label, "clip short"),
    Column(
        "reward",
        "Reward",
        lambda row: "" if row.outcome_reward is None else f"{row.outcome_reward:.3g}",
        "num",
    ),
    Column("session", "Session", lambda row: row.session_id, "clip short mono"),
    Column("user", "User", lambda row: row.user_id, "clip short mono"),
    Column("id", "Id", lambda row: row.external_id, "clip short mono"),
    Column("messages", "Messages", lambda row: f"{row.message_count:,}", "num"),
    Column("latency", "Latency", lambda row: duration(row.latency_ms), "num"),
    Column("tokens", "Tokens in / out", tokens, "num"),
    Column("cached", "Cached input", _count("cache_read_tokens"), "num"),
    Column("cache_write", "Cache write", _count("cache_write_tokens"), "num"),
    Column("reasoning", "Reasoning", _count("reasoning_tokens"), "num"),
    Column("cost", "Cost", _cost, "num"),
    Column("started", "Started", _started, "num muted"),
)
SCORE = "score."
DEFAULT = ("outcome", "failure", "tools", "version", "latency", "tokens", "started")


def of_scores(names: Iterable[str]) -> list[Column]:
    """A column for each name of scores; the rows need `with_scores`."""
    return [
        Column(f"{SCORE}{name}", name, partial(_scores, name), "clip short")
        for name in names
        if "," not in name
    ]


def _scores(name: str, row: Trajectory) -> str:
    said = row.said_of[name]  # type: ignore[attr-defined]
    return ", ".join(said[:3] + ([f"+{len(said) - 3}"] if len(said) > 3 else []))


def with_scores(rows: Iterable[Trajectory], columns: Iterable[Column]) -> None:
    """Reads what was said of these runs by the scores that columns show."""
    names = [one.key.removeprefix(SCORE) for one in columns if one.key.startswith(SCORE)]
    if not names:
        return
    by_run = {row.pk: row for row in rows}
    for row in by_run.values():
        row.said_of = defaultdict(list)  # type: ignore[attr-defined]
    found = Score.objects.filter(trajectory_id__in=by_run, step="", name__in=names)
    for score in found.order_by("created_at", "pk"):
        by_run[score.trajectory_id].said_of[score.name].append(score.said)


def chosen(given: str, columns: Sequence[Column] = COLUMNS) -> list[Column]:
    """The columns of “outcome,cost”, in the order of the table; the usual ones where none is
    known.
    """
    keys = set(given.split(",")) & {column.key for column in columns} or set(DEFAULT)
    return [column for column in columns if column.key in keys]
