"""Agent versions: an agent's name and its version together. A version alone identifies nothing, as
two agents may both have a version “2”.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, NamedTuple

from django.db.models import Min
from msgspec import Meta

from apps.core.models import Project
from apps.core.query import QueryError
from apps.failures.models import DailyRuns
from workers.lib.storable import storable

KEY = ("agent_name", "agent_version")
LISTED = 5  # agents that an error names

AgentText = Annotated[str, Meta(title="Agent", description="The agent's name")]
VersionText = Annotated[
    str,
    Meta(
        title="Agent version",
        description="“bank 2”; or only “2” if a single agent has it, or `agent` names the agent",
    ),
]


class AgentVersion(NamedTuple):
    agent: str
    version: str

    def __str__(self) -> str:
        return " ".join(filter(None, (self.agent, self.version or "(no version)")))


@dataclass(frozen=True)
class Chosen:
    """The runs of an agent, of one of its versions, or all of them."""

    agent: str | None = None
    version: str = ""

    def among(self, rows: Any, prefix: str = "") -> Any:
        """Those of a queryset with the columns `KEY`, after the prefix."""
        wanted = {"agent_name": self.agent, "agent_version": self.version or None}
        known = {prefix + name: value for name, value in wanted.items() if value is not None}
        return rows.filter(**known) if known else rows

    def includes(self, one: AgentVersion) -> bool:
        return self.agent in (None, one.agent) and self.version in ("", one.version)

    def __bool__(self) -> bool:
        return self != ALL

    def __str__(self) -> str:
        return " ".join(filter(None, (self.agent, self.version)))


ALL = Chosen()


def chosen(project: Project, agent: str = "", version: str = "") -> Chosen:
    """What an address names. Raises QueryError for a version that several agents have."""
    agent, version = storable(agent, ""), storable(version, "")
    if agent or not version:
        return Chosen(agent or None, version)
    known = of_runs(project)
    found = [one for one in known if str(one) == version]
    found = found or [one for one in known if one.version == version]
    if len(found) > 1:
        agents = ", ".join(f"“{one.agent or '(no name)'}”" for one in found[:LISTED])
        raise QueryError("version", f"is a version of several agents: {agents}. Write “{found[0]}”")
    return Chosen(*found[0]) if found else Chosen(version=version)


def newest_first(first: Mapping[tuple[str, ...], datetime]) -> list[AgentVersion]:
    """Versions by their first run. The roll-ups know its hour: of those that began in the same one,
    the higher number is the newer.
    """
    ordered = sorted(first, key=lambda key: (first[key], *map(_natural, key)), reverse=True)
    return [AgentVersion(*key) for key in ordered]


def _natural(text: str) -> list[tuple[int, int, str]]:
    """Numbers in a text compare as numbers: 2 comes before 10."""
    parts = re.findall(r"[0-9]{1,18}|[^0-9]+|[0-9]", text)
    return [(1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts]


def of_runs(project: Project) -> list[AgentVersion]:
    """Those that runs name, by their first run, the newest first."""
    rows = DailyRuns.objects.filter(project=project).order_by().values_list(*KEY)
    return newest_first({tuple(key): at for *key, at in rows.annotate(at=Min("first"))})


def offered(project: Project, most: int) -> list[str]:
    """The newest with a version, to choose from."""
    return [str(one) for one in of_runs(project) if one.version][:most]
