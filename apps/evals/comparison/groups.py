"""Success of evaluations by groups of tasks: the failure mode that a task came from, tools, tags,
difficulty.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from apps.evals.comparison.measures import RATE, Cell, Measure, cells_of
from apps.evals.comparison.tables import SEPARATOR, TAGS, TOOLS, Tables
from apps.evals.paired import corrected

BUCKET, TOOL, TAG, DIFFICULTY = "bucket", "tool", "tag", "difficulty"
KINDS = {
    BUCKET: ("Failure mode", "of the production failure the task was created from"),
    TOOL: ("Tool", "called in at least one of the evaluations"),
    TAG: ("Tag", "of the task, or of the production run it was created from"),
    DIFFICULTY: ("Difficulty", ""),
}
MOST, LONGEST = 25, 80
NAMED = "as given in the tasks"
POOLED = "by the pass rate over all of these evaluations together, so that it favours none of them"
HARD, EASY = 1 / 3, 2 / 3


@dataclass(frozen=True)
class Group:
    """`n` tasks; `cells` like those of a measure: success, and its difference from the baseline."""

    value: str
    name: str
    n: int
    cells: list[Cell]


@dataclass(frozen=True)
class Kind:
    """Groups of one kind, the largest first; `hidden` smaller ones are left out. Their intervals
    hold simultaneously.
    """

    key: str
    title: str
    meaning: str
    groups: list[Group]
    hidden: int
    comparisons: int


def kinds_of(tables: Tables, comparable: Collection[int], names: Mapping[str, str]) -> list[Kind]:
    """`names` of failure modes, by slug. Kinds without groups, or with only one, are left out."""
    tools, tags = _named_in_samples(tables)
    found = [
        _kind(tables, comparable, BUCKET, dict(_buckets(tables, names))),
        _kind(tables, comparable, TOOL, tools),
        _kind(tables, comparable, TAG, tags),
        _difficulty(tables, comparable),
    ]
    return [kind for kind in found if kind.groups]


def _kind(
    tables: Tables,
    comparable: Collection[int],
    key: str,
    members: Mapping[str, tuple[str, Collection[int]]],
    meaning: str = "",
    ordered: bool = False,
) -> Kind:
    """`members`: {value: (name, numbers of tasks)}"""
    title, usual = KINDS[key]
    chosen = list(members.items())
    if not ordered:
        chosen.sort(key=lambda item: (-len(item[1][1]), item[0]))
    shown, comparisons = chosen[:MOST], min(len(chosen), MOST) * len(comparable)
    level, groups = corrected(comparisons), []
    for value, (name, numbers) in shown:
        at = np.fromiter(numbers, int, len(numbers))
        success = Measure("success", name, RATE, 1, tables.rates[:, at])
        groups.append(
            Group(value, name, len(at), cells_of(success, tables.groups[at], comparable, level))
        )
    return Kind(key, title, meaning or usual, groups, len(chosen) - len(shown), comparisons)


def _buckets(
    tables: Tables, names: Mapping[str, str]
) -> Iterator[tuple[str, tuple[str, list[int]]]]:
    found: dict[str, list[int]] = {}
    by_task = {
        task: (of_run, given)
        for task, of_run, given in tables.task_rows(
            "trajectory__failure__mode__slug", "metadata__mode"
        )
    }
    for at, task in enumerate(tables.ids):
        of_run, text = by_task[task]
        given = json.loads(text) if text else ""
        slug = of_run or (given if isinstance(given, str) else "")
        if slug:
            found.setdefault(slug[:LONGEST], []).append(at)
    yield from ((slug, (names.get(slug, slug), numbers)) for slug, numbers in found.items())


Members = dict[str, tuple[str, set[int]]]  # value → (name, numbers of tasks)


def _named_in_samples(tables: Tables) -> tuple[Members, Members]:
    """Tasks by the tools and by the tags of their samples, of all evaluations together."""
    found: tuple[Members, Members] = ({}, {})
    for members, which in zip(found, (TOOLS, TAGS), strict=True):
        for _, task, text in tables.texts(which):
            for name in set(text.split(SEPARATOR)) - {""}:
                members.setdefault(name, (name, set()))[1].add(task)
    return found


def _difficulty(tables: Tables, comparable: Collection[int]) -> Kind:
    rows = (
        (task, json.loads(text)) for task, text in tables.task_rows("metadata__difficulty") if text
    )
    given = {task: str(value)[:LONGEST] for task, value in rows if isinstance(value, str | int)}
    members: dict[str, tuple[str, list[int]]] = {}
    if given:
        for at, task in enumerate(tables.ids):
            if name := given.get(task, ""):
                members.setdefault(name, (name, []))[1].append(at)
        return _kind(tables, comparable, DIFFICULTY, members, NAMED)
    scored = tables.sums["scored"].sum(axis=0)
    share = np.divide(
        tables.sums["passed"].sum(axis=0),
        scored,
        out=np.full(len(tables), np.nan),
        where=scored > 0,
    )
    for value, name, chosen in (
        ("hard", "Hard: under 1/3 pass", share < HARD),
        ("medium", "Medium", (share >= HARD) & (share <= EASY)),
        ("easy", "Easy: over 2/3 pass", share > EASY),
    ):
        if chosen.any():
            members[value] = (name, np.flatnonzero(chosen).tolist())
    return _kind(tables, comparable, DIFFICULTY, members, POOLED, ordered=True)


def as_json(kind: Kind) -> dict[str, Any]:
    return {
        "key": kind.key,
        "title": kind.title,
        "meaning": kind.meaning,
        "hidden": kind.hidden,
        "comparisons": kind.comparisons,
        "groups": [
            {
                "value": one.value,
                "name": one.name,
                "tasks": one.n,
                "cells": [cell.as_dict() for cell in one.cells],
            }
            for one in kind.groups
        ],
    }
