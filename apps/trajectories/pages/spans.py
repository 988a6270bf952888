"""The spans of a run as a tree, and one of them open: input, output, error, attributes, tokens and
time.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

import msgspec
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render

from apps.core.access import project_view
from apps.core.models import Project
from apps.core.routes import RUNS, shows
from apps.trajectories.pages.detail import find
from apps.trajectories.pages.parts import Reader
from apps.trajectories.pages.transcript import pretty, turns_of
from apps.trajectories.pages.waterfall import Bar, Waterfall, waterfall
from apps.trajectories.shown import runs_shown
from apps.trajectories.spans import Opened, open_span
from apps.trajectories.spans import find as find_stored
from workers.lib.messages import RESULT_ROLES, text_of
from workers.lib.token_usage import TOKENS, parse

PARTS = ("input", "output", "stacktrace")
TREE = 200  # spans of the tree on one page
LONGEST, BRIEF = (
    4_000,
    600,
)  # characters of an input or output, and of an attribute; the whole is a link away
SHOWN_ATTRIBUTES, SHOWN_MESSAGES, SHOWN_EVENTS = 100, 8, 20


@shows(RUNS)
@project_view(query={"span": None})
def spans(request: HttpRequest, project: Project, pk: UUID) -> HttpResponse:
    """The page; for htmx (j and k) only the tree and the span of `?span=`, else the first that
    failed, else the first.
    """
    row = find(project, pk)
    runs_shown(project, [pk], to=request.user, where="run")
    reader = Reader(row)
    metadata = reader.head["metadata"]
    tree, at = chosen(metadata, request.GET.get("span", ""))
    bar = tree.bars[at]
    start = max(0, min(at - TREE // 3, len(tree.bars) - TREE))
    failed = [place for place, other in enumerate(tree.bars) if other.error]
    context = {
        "row": row,
        "tree": tree,
        "shown": tree.bars[start : start + TREE],
        "first": start + 1,
        "last": min(start + TREE, len(tree.bars)),
        "total": metadata.get("span_count") or len(tree.bars),
        "bar": bar,
        "previous": tree.bars[at - 1] if at else None,
        "next": tree.bars[at + 1] if at + 1 < len(tree.bars) else None,
        "failed": len(failed),
        "next_failed": next(
            (
                tree.bars[place]
                for place in [*(p for p in failed if p > at), *failed]
                if place != at
            ),
            None,
        ),
    } | opened(row, metadata, bar, reader)
    response = render(request, f"trajectories/{'_span' if request.htmx else 'span'}.html", context)
    response["Cache-Control"] = "private, no-cache"
    response["Vary"] = "HX-Request"
    return response


def chosen(metadata: dict[str, Any], key: str) -> tuple[Waterfall, int]:
    """The tree and the place of the span in it. Raises Http404 for a run without steps, and for a
    span that it has not.
    """
    tree = waterfall(metadata)
    if tree is None:
        raise Http404("This run has no spans.")
    if not key:
        return tree, next((place for place, bar in enumerate(tree.bars) if bar.error), 0)
    at = next((place for place, bar in enumerate(tree.bars) if bar.key == key), None)
    if at is None:
        raise Http404("This run has no such span.")
    return tree, at


def opened(row: Any, metadata: dict[str, Any], bar: Bar, reader: Reader) -> dict[str, Any]:
    span = open_span(row, metadata, bar.step)
    used, read = parse(bar.step), span.reading
    if read and not used.counts:
        used = read.usage
    model = {"model": bar.step.get("model") or (read.model if read else "")} | {
        name: getattr(used, name) for name in (*TOKENS, "cost_usd")
    }
    message = reader.message(bar.message_index) if bar.message_index is not None else None
    if span.output is None and message is not None:
        span.output = text_of(message) if message.get("role") in RESULT_ROLES else [message]
    attributes = [(name, *short(value, BRIEF)) for name, value in sorted(span.attributes.items())]
    return {
        "span": span,
        "model": model,
        "input": part_of(span.input),
        "output": part_of(span.output),
        "attributes": attributes[:SHOWN_ATTRIBUTES],
        "more_attributes": max(0, len(attributes) - SHOWN_ATTRIBUTES),
        "events": [
            (event.get("name"), *short({k: v for k, v in event.items() if k != "name"}, BRIEF))
            for event in span.events[:SHOWN_EVENTS]
        ],
        "resource": [(name, *short(value, BRIEF)) for name, value in sorted(span.resource.items())][
            :SHOWN_ATTRIBUTES
        ],
        "self_url": urlencode({"span": bar.key}),
    }


def part_of(value: Any) -> dict[str, Any] | None:
    """An input or output for the page: turns where it is messages, of which the last are shown,
    else text.
    """
    if value is None or value == "" or value == []:
        return None
    if isinstance(value, list) and all(
        isinstance(item, dict) and isinstance(item.get("role"), str) for item in value
    ):
        skipped = max(0, len(value) - SHOWN_MESSAGES)
        return {
            "turns": turns_of(map(cut_message, value[skipped:]), first=skipped),
            "skipped": skipped,
        }
    text, cut = short(value)
    return {"text": text, "cut": cut}


def cut_message(message: dict[str, Any]) -> dict[str, Any]:
    """Its texts are shortened, so that eight of them make a page and not a megabyte."""
    return {name: cut_text(value) for name, value in message.items()}


def cut_text(value: Any) -> Any:
    if isinstance(value, str):
        return (
            value
            if len(value) <= LONGEST
            else f"{value[:LONGEST]}\n… {len(value) - LONGEST:,} more characters"
        )
    if isinstance(value, list):
        return [cut_text(item) for item in value[:100]]
    return (
        {name: cut_text(item) for name, item in list(value.items())[:100]}
        if isinstance(value, dict)
        else value
    )


def short(value: Any, longest: int = LONGEST) -> tuple[str, int]:
    """(the text of a value, how many characters of it were cut off)."""
    text = value if isinstance(value, str) and len(value) > longest else pretty(value)
    return text[:longest], max(0, len(text) - longest)


@shows(RUNS)
@project_view(query={"span": None, "attribute": None, "part": PARTS})
def span_text(request: HttpRequest, project: Project, pk: UUID) -> HttpResponse:
    """The whole of a span as text, or with `part` its input or output, or with `attribute` one of
    its attributes.
    """
    row = find(project, pk)
    runs_shown(project, [pk], to=request.user, where="run")
    metadata = Reader(row).head["metadata"]
    tree, at = chosen(metadata, request.GET.get("span", ""))
    step = tree.bars[at].step
    span = open_span(row, metadata, step)
    wanted, part = request.GET.get("attribute"), request.GET.get("part", "")
    if wanted is not None:
        if wanted not in span.attributes:
            raise Http404("The span has no such attribute.")
        value = span.attributes[wanted]
    elif part:
        value = getattr(span, part)
    else:
        value = as_json(row, metadata, step, span)
    text = (
        value
        if isinstance(value, str)
        else json.dumps(value, indent=2, ensure_ascii=False, default=str)
    )
    return HttpResponse(text, content_type="text/plain; charset=utf-8")


def as_json(
    row: Any, metadata: dict[str, Any], step: dict[str, Any], span: Opened
) -> dict[str, Any]:
    """The step as the run keeps it, and the span as it came."""
    found = find_stored(row, metadata, step) if span.stored else None
    return {"step": step} | (
        {"span": msgspec.to_builtins(found[0]), "logs": msgspec.to_builtins(found[1])}
        if found
        else {"attributes": span.attributes}
    )
