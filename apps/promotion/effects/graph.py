"""From a version down to the production runs that it learned from, and up to the channels and the
traffic that it served.

Everything large is a single node with a count and a link to the list of exactly these items.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from django.db.models import Count, Sum
from django.urls import reverse

from apps.core.models import Project
from apps.failures.models import Failure
from apps.promotion.effects.windows import label_of
from apps.promotion.models import Promotion
from apps.registry.models import ModelVersion
from apps.training.lineage import COUNTED, heirs_of, ids_of, jobs_behind
from apps.trajectories.models import HourlyCount

COLUMNS = ("Production runs", "Tasks", "Trained by", "Versions", "Channels", "Traffic")
MOST = 8  # nodes of a kind that one node leads to; the rest are combined into one more
WIDTH, HEIGHT, GAP, ROW, TOP = 150, 44, 18, 56, 28  # pixels


@dataclass
class Node:
    id: str
    column: int
    title: str
    detail: str = ""
    url: str = ""
    current: bool = False
    row: int = 0

    @property
    def x(self) -> int:
        return self.column * (WIDTH + GAP)

    @property
    def y(self) -> int:
        return TOP + self.row * ROW


@dataclass(frozen=True)
class Edge:
    """In pixels: a curve from the right side of a node to the left of another, or down within a
    column.
    """

    path: str


@dataclass
class Graph:
    nodes: dict[str, Node] = field(default_factory=dict)
    links: list[tuple[str, str]] = field(default_factory=list)

    def add(self, node: Node, *, after: str = "") -> Node:
        if node.id not in self.nodes:
            node.row = sum(one.column == node.column for one in self.nodes.values())
            self.nodes[node.id] = node
        if after:
            self.links.append((after, node.id))
        return self.nodes[node.id]

    @property
    def size(self) -> tuple[int, int]:
        rows = max((node.row for node in self.nodes.values()), default=0) + 1
        # 1: half of a frame's line lies outside its box
        return len(COLUMNS) * (WIDTH + GAP) - GAP + 1, TOP + rows * ROW

    @property
    def headings(self) -> list[tuple[int, str]]:
        return [(at * (WIDTH + GAP), title) for at, title in enumerate(COLUMNS)]

    @property
    def edges(self) -> Iterator[Edge]:
        for start, end in dict.fromkeys(self.links):
            a, b = self.nodes[start], self.nodes[end]
            if a.column == b.column:
                side, one, two = a.x, a.y + HEIGHT // 2, b.y + HEIGHT // 2
                yield Edge(f"M{side} {one} C{side - 18} {one} {side - 18} {two} {side} {two}")
            else:
                left, right, one, two = a.x + WIDTH, b.x, a.y + HEIGHT // 2, b.y + HEIGHT // 2
                middle = (left + right) // 2
                yield Edge(f"M{left} {one} C{middle} {one} {middle} {two} {right} {two}")


def graph_of(project: Project, version: ModelVersion) -> Graph:
    graph = Graph()
    chain = jobs_behind(version)
    for node, _ in chain:
        graph.add(_version(project, node, version))
    for (node, job), parent in zip(chain, [*(one for one, _ in chain[1:]), None], strict=True):
        if parent is not None:
            graph.links.append((f"v{parent.pk}", f"v{node.pk}"))
        if job is not None:
            _down(graph, project, node, job)
    children = heirs_of({version.pk})[version.pk]
    for child in children[:MOST]:
        graph.add(
            _version(project, child, version),
            after=f"v{child.parent_id}" if f"v{child.parent_id}" in graph.nodes else "",
        )
    if len(children) > MOST:
        page = reverse("promotion:model", args=[project.slug, version.pk])
        graph.add(
            Node("heirs", 3, f"{len(children) - MOST:,} more derived", "", page),
            after=f"v{version.pk}",
        )
    _up(graph, project, version)
    return graph


def _version(project: Project, one: ModelVersion, shown: ModelVersion) -> Node:
    url = reverse("promotion:graph", args=[project.slug, one.pk])
    return Node(f"v{one.pk}", 3, str(one), one.get_kind_display(), url, current=one.pk == shown.pk)


def _down(graph: Graph, project: Project, version: ModelVersion, job: Any) -> None:
    """The job that made a version, its data, and the runs that these come from, by failure mode."""
    dataset, name = job.dataset, f"j{job.pk}"
    graph.add(Node(name, 2, job.name, job.get_state_display(), job.get_absolute_url()))
    graph.links.append((name, f"v{version.pk}"))
    detail = f"{dataset.size:,} {dataset.get_shape_display()}"
    sets = reverse("evals:detail", args=[project.slug, dataset.eval_set_id])
    graph.add(Node(f"d{dataset.pk}", 1, str(dataset.eval_set), detail, sets))
    graph.links.append((f"d{dataset.pk}", name))
    runs = ids_of([dataset.pk], COUNTED)
    if not runs:
        return
    page = reverse("trajectories:list", args=[project.slug])
    failed = Failure.objects.filter(trajectory__in=runs).standing().order_by()
    modes = list(
        failed.values_list("mode__slug", "mode__name")
        .annotate(n=Count("*"))
        .order_by("-n", "mode__slug")
    )
    for slug, title, n in modes[:MOST]:
        url = f"{page}?{urlencode({'trained': job.pk, 'mode': slug})}"
        graph.add(Node(f"m{dataset.pk}{slug}", 0, title, _runs(n, "failed run"), url))
        graph.links.append((f"m{dataset.pk}{slug}", f"d{dataset.pk}"))
    if rest := len(runs) - sum(n for _, _, n in modes[:MOST]):
        title = "Other runs" if modes else "Runs without a failure"
        graph.add(
            Node(
                f"r{dataset.pk}", 0, title, _runs(rest), f"{page}?{urlencode({'trained': job.pk})}"
            )
        )
        graph.links.append((f"r{dataset.pk}", f"d{dataset.pk}"))


def _up(graph: Graph, project: Project, version: ModelVersion) -> None:
    """The channels that it was promoted to, and the runs that name it."""
    moves = Promotion.objects.filter(channel__project=project, to_version=version).select_related(
        "channel"
    )
    newest: dict[str, list[Promotion]] = {}
    for move in moves.order_by("-at"):
        newest.setdefault(move.channel.name, []).append(move)
    for name, of in newest.items():
        live = of[0].channel.current_id == version.pk
        detail = f"{'live since' if live else 'last'} {of[0].at:%Y-%m-%d}" + (
            f", {len(of)} moves" * (len(of) > 1)
        )
        url = reverse("promotion:effect", args=[project.slug, of[0].pk])
        graph.add(Node(f"c{name}", 4, name, detail, url), after=f"v{version.pk}")
    label, page = label_of(version), reverse("trajectories:list", args=[project.slug])
    for field_name in ("agent_version", "model"):
        rows = HourlyCount.objects.filter(project=project, **{field_name: label}).order_by()
        served = (
            rows.values_list("agent_name")
            .annotate(n=Sum("trajectories"))
            .filter(n__gt=0)
            .order_by("-n")
        )
        for agent, n in served[:MOST]:
            url = f"{page}?{urlencode({field_name: label} | ({'agent': agent} if agent else {}))}"
            node = graph.add(Node(f"t{field_name}{agent}", 5, agent or "Traffic", _runs(n), url))
            graph.links.append(
                (f"c{agent}" if f"c{agent}" in graph.nodes else f"v{version.pk}", node.id)
            )
        if served:
            return


def _runs(n: int, what: str = "run") -> str:
    return f"{n:,}{'+' if n >= COUNTED else ''} {what}{'s' * (n != 1)}"


def as_json(graph: Graph) -> dict[str, Any]:
    return {
        "nodes": [
            {
                "id": one.id,
                "kind": COLUMNS[one.column],
                "title": one.title,
                "detail": one.detail,
                "url": one.url,
            }
            for one in graph.nodes.values()
        ],
        "edges": [{"from": start, "to": end} for start, end in dict.fromkeys(graph.links)],
    }
