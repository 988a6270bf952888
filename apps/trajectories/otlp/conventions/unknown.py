"""Conventions that nobody here knows. Many say what kind of step a span is, what went in and what
came out, in attributes of their own whose names say so (`acme.span.type`, `acme.span.input`). They
are read as if they had OpenInference's names.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from apps.trajectories.otlp.conventions.base import Attributes, unquoted
from apps.trajectories.otlp.spans import Span
from apps.trajectories.values import label, structured

KINDS = {
    **dict.fromkeys(
        ("llm", "chatmodel", "generation", "model", "completion", "llmcall", "modelcall"), "LLM"
    ),
    **dict.fromkeys(("agent", "agentrun", "workflow"), "AGENT"),
    **dict.fromkeys(("tool", "toolcall", "functioncall"), "TOOL"),
    **dict.fromkeys(("retriever", "retrieval"), "RETRIEVER"),
    "guardrail": "GUARDRAIL",
}
KIND = "openinference.span.kind"
VALUES, MODEL = ("input.value", "output.value"), "llm.model_name"
NAMES = (
    (KIND, r"(span|observation|event|step|run|action)[._]?(type|kind|attributes)|subtype"),
    ("input.value", r"(span[._]?)?inputs?([._]?json)?"),
    ("output.value", r"(span[._]?)?outputs?([._]?json)?"),
    (MODEL, r"model([._]?(name|id))?|metadata"),
    ("tool_call.id", r"tool[._]?call[._]?id"),
    ("usage", r"(token)?[._]?usage|metrics"),
)
PATTERNS = [(name, re.compile(rf"(?:.*[.:_])(?:{ends})", re.IGNORECASE)) for name, ends in NAMES]
IN_BODY = re.compile(
    rb"(span|observation|event|step|run|action)[._]?(type|kind|attributes)|:subtype", re.I
)
ID = re.compile(r"[\w.-]+/[\w.:/-]+")
MANY_NAMES = 10_000


@lru_cache(MANY_NAMES)
def known_name(key: str) -> str:
    """OpenInference's name of what an attribute says by its own; "" if it says nothing here."""
    return next((name for name, pattern in PATTERNS if pattern.fullmatch(key)), "")


def may_name_a_kind(body: bytes) -> bool:
    """Whether a request has a name by which a span may say its kind."""
    return IN_BODY.search(body) is not None


def names_kind(value: Any) -> str:
    """The kind that a value names, also as JSON or as the `type` of an object."""
    found = structured(value)
    found = found.get("type") if isinstance(found, dict) else found
    plain = re.sub(r"[^a-z]", "", found.lower()) if isinstance(found, str) else ""
    return KINDS.get(plain, "")


def translated(span: Span, has_kind: bool) -> Attributes:
    """What a span says in names of its own under known ones; nothing where it names no kind. Of a
    span whose kind is known only the input and the output are wanted.
    """
    attributes, named = span.attributes, {}
    for key, value in attributes.items():
        name = known_name(key)
        if name == KIND:
            value = names_kind(value)
        elif name == MODEL:
            found = structured(value)
            value = label(found.get("model") if isinstance(found, dict) else found)
        elif name in VALUES:
            value = unquoted(value)
        if name and value not in (None, "") and name not in attributes:
            named.setdefault(name, value)
    if has_kind:
        return {name: named[name] for name in VALUES if name in named}
    if named.get(KIND) == "LLM" and (asked := _asked_model(span, named)):
        named["llm.request.model_name"] = asked
    return named if KIND in named else {}


def _asked_model(span: Span, named: Attributes) -> str:
    """The model in the request, else in the span's name (`provider/model`)."""
    request = structured(named.get("input.value"))
    asked = label(request.get("model")) if isinstance(request, dict) else ""
    return asked or (span.name if MODEL not in named and ID.fullmatch(span.name) else "")
