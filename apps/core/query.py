"""What the query of an address may hold. What is not declared is refused: an ignored filter would
show everything.

A `Query` is declared once. A page takes it as `project_view(query=…)`, an operation of the API as
`extend_schema(parameters=parameters(…))`, and the query of a bulk change is checked against it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import date, datetime
from difflib import get_close_matches
from functools import cache
from typing import Any
from uuid import UUID

from django.http import QueryDict
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request

from apps.core.storable import PROBLEM
from workers.lib.storable import is_storable
from workers.lib.typed import FormError

Schema = Mapping[str, Any]
# A JSON schema or short for one: None for any text, a type, or the choices.
Kind = Schema | type | Collection[str] | None
Query = Mapping[str, Kind]

UNKNOWN = "Unknown filter"
SHOWN = 30  # names in an error
PAGING = ("cursor", "limit", "offset", "sort")  # which clients leave empty
LARGEST_KEY = 2**63 - 1  # of a bigint
TRUTHY, FALSY = ("1", "true", "yes", "on", ""), ("0", "false", "no", "off")
# What browsers, mail and other sites append to an address.
FOREIGN = re.compile(r"utm_\w+|fbclid|gclid|msclkid|mc_[ce]id")
TYPO = 0.75  # how much of a name has to be right
# What others call a filter, by what it may be called here.
SYNONYMS: Mapping[str, Collection[str]] = {
    "tool": ("name",),
    "function": ("tool", "name"),
    "latency": ("duration",),
    "duration": ("latency",),
    "slow": ("duration", "latency"),
    "status": ("outcome", "state"),
    "state": ("status", "outcome"),
    "outcome": ("status", "state"),
    "success": ("outcome", "status", "state"),
    "level": ("status",),
    "start": ("from",),
    "started": ("from",),
    "after": ("from",),
    "end": ("to",),
    "until": ("to",),
    "before": ("to",),
    "last": ("since",),
    "text": ("q", "arguments"),
    "query": ("q", "arguments"),
    "search": ("q", "arguments"),
    "q": ("arguments",),
    "id": ("q",),
    "input": ("arguments",),
    "type": ("kind",),
    "trace": ("run",),
    "trajectory": ("run",),
    "author": ("source",),
    "score": ("name",),
}
CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
WHOLE = re.compile(r"-?[0-9]{1,30}")
NUMBER = re.compile(
    r"[+-]?([0-9]{1,30}(\.[0-9]{0,30})?|\.[0-9]{1,30})(e[+-]?[0-9]{1,2})?", re.IGNORECASE
)
TYPES: Mapping[type, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    UUID: {"type": "string", "format": "uuid"},
    date: {"type": "string", "format": "date"},
}
# What each format is read with, and what is said of a text that it is not.
FORMATS: Mapping[str, tuple[Callable[[str], Any], str]] = {
    "uuid": (UUID, "must be an id, such as 0d3f0c52-5d0a-4d6e-9b8e-0c1d2e3f4a5b"),
    "date": (date.fromisoformat, "must be a day, such as 2026-11-23"),
    "date or time": (
        datetime.fromisoformat,
        "must be a date or time in ISO 8601, such as 2026-01-31 or 2026-01-31T10:00:00Z",
    ),
}


class QueryError(FormError):
    """A query that is refused.

    `path` is the parameter; `problem` is a sentence, or the end of one that begins with its name;
    `meant` is the known name that an unknown one resembles.
    """

    def __init__(self, path: str, problem: str, meant: str = "") -> None:
        super().__init__(path, problem)
        self.meant = meant

    @property
    def sentence(self) -> str:
        whole = self.problem.startswith(UNKNOWN)
        return self.problem if whole else f"“{self.path}” {self.problem.rstrip('.')}."


def whole_number(
    least: int | None = None, most: int | None = None, default: int | None = None
) -> Schema:
    limits = {"minimum": least, "maximum": most, "default": default}
    return {"type": "integer"} | {
        name: value for name, value in limits.items() if value is not None
    }


def many(kind: Kind) -> Schema:
    """A parameter that may be given several times."""
    return {"type": "array", "items": schema_of(kind)}


MOMENT: Schema = {"type": "string", "format": "date or time"}
KEY = whole_number(1, LARGEST_KEY)  # the id of a row
PAGE_NUMBER = whole_number(1)  # beyond the last page: `paging.page_of`
FLAG = ("1",)  # `?archived` or `?archived=1`


def schema_of(kind: Kind) -> Schema:
    # Other mappings are choices with their labels.
    if isinstance(kind, Mapping) and ("type" in kind or isinstance(kind.get("enum"), list)):
        return kind
    if isinstance(kind, type):
        return TYPES[kind]
    return TYPES[str] if kind is None else TYPES[str] | {"enum": list(kind)}


def parameters(query: Query, **descriptions: str) -> list[OpenApiParameter]:
    """The query as the API declares it."""
    return [_parameter(name, dict(schema_of(kind)), descriptions) for name, kind in query.items()]


def _parameter(
    name: str, schema: dict[str, Any], descriptions: Mapping[str, str]
) -> OpenApiParameter:
    schema.pop("title", "")
    about, required = schema.pop("description", ""), schema.pop("required", False)
    return OpenApiParameter(
        name, schema, required=required, description=descriptions.get(name, about)
    )


def refuse_invalid(query: QueryDict, known: Query, *, by_form: bool = False) -> None:
    """Raises QueryError for a name that is not known, for a value that it cannot have or that
    cannot be stored, for a second value where one is meant, and for a required parameter that is
    missing.

    `by_form`: as a browser sends it, where empty fields are no filters and another site may have
    appended to it.
    """
    for name, values in query.lists():
        if name not in known:
            if by_form and FOREIGN.fullmatch(name):
                continue
            raise unknown(name, known)
        schema = schema_of(known[name])
        sent = [value for value in values if value.strip()] if by_form else values
        if schema.get("type") == "array":
            schema = schema["items"]
        elif len(sent) > 1:
            raise QueryError(name, "is given more than once, and has one value")
        if not all(map(is_storable, values)):
            raise QueryError(name, PROBLEM)
        for value in sent:
            if problem := problem_of(value, schema, is_filter=name not in PAGING):
                raise QueryError(name, problem)
    for name, kind in known.items():
        if name not in query and (schema := schema_of(kind)).get("required") is True:
            raise QueryError(name, _required(schema))


def _required(schema: Schema) -> str:
    choices = ", ".join(filter(None, map(str, schema.get("enum", ()))))
    return f"is required: one of {choices}" if choices else "is required"


def from_browser(query: QueryDict, known: Query) -> QueryDict:
    """The query without what means nothing: fields left empty, and what other sites appended. A
    flag without a value (`?archived`) is set. Raises QueryError.
    """
    refuse_invalid(query, known, by_form=True)
    accepted = QueryDict(mutable=True)
    for name, values in query.lists():
        if name in known and (sent := [value for value in values if value.strip()]):
            accepted.setlist(name, sent)
        elif known.get(name) == FLAG:
            accepted[name] = FLAG[0]
    return accepted


def selection_of(
    form: QueryDict, ids: Kind, filters: Query, fields: Collection[str]
) -> tuple[list[str], QueryDict | None]:
    """What a form selects for a bulk change: the ids of “ids=…,…”, or with `all` the filters of
    `query`. `fields` are the others of the form.

    Raises QueryError for a field or filter that is not known, and for a value that it cannot have.
    """
    own = ("ids", "query", "csrfmiddlewaretoken", *fields)
    refuse_invalid(form, dict.fromkeys(own) | {"all": FLAG}, by_form=True)
    if form.get("all"):
        return [], from_browser(QueryDict(form.get("query", "")), filters)
    chosen = [text for text in form.get("ids", "").split(",") if text]
    for text in chosen:
        if problem := problem_of(text, ids):
            raise QueryError("ids", f"contains “{text[:60]}”: each {problem}")
    return chosen, None


def unknown(name: str, known: Collection[str]) -> QueryError:
    names, name = sorted(known), name[:100]
    meant = closest(name, names)
    listed = ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
    suggestion = f"Did you mean “{meant}”? " if meant else ""
    return QueryError(name, f"{UNKNOWN} “{name}”. {suggestion}Known: {listed or 'none'}.", meant)


def closest(name: str, known: Collection[str]) -> str:
    """The known name that was probably meant, "" for none: the same words in another notation or
    order, with more of them or fewer, what others call it, or a typo.
    """
    words, others = _words(name), {other: _words(other) for other in known}
    readings = [words, *_synonyms(words)] if words else []
    for choose in (_same, _within, _longer):
        if meant := next(filter(None, (choose(reading, others) for reading in readings)), ""):
            return meant
    if any(word in SYNONYMS for word in words):
        return ""  # no typo
    called = {"_".join(reading): other for other, own in others.items() for reading in _also(own)}
    named = called | {other: other for other in known}
    typo = get_close_matches("_".join(words), named, 1, TYPO)
    return named[typo[0]] if typo else ""


def _same(words: list[str], known: Mapping[str, list[str]]) -> str:
    found = [other for other, own in known.items() if sorted(own) == sorted(words)]
    return min(found, key=lambda other: known[other] != words, default="")


def _within(words: list[str], known: Mapping[str, list[str]]) -> str:
    found = (other for other, own in known.items() if _begins_or_ends(words, own))
    return max(found, key=len, default="")


def _longer(words: list[str], known: Mapping[str, list[str]]) -> str:
    """Who gives one bound usually means the lower one."""
    found = (other for other, own in known.items() if _begins_or_ends(own, words))
    return min(found, key=lambda other: (other.endswith("_max"), len(other)), default="")


def _begins_or_ends(words: list[str], part: list[str]) -> bool:
    return bool(part) and part in (words[: len(part)], words[-len(part) :])


def _synonyms(words: list[str]) -> Iterator[list[str]]:
    for place, word in enumerate(words):
        for other in SYNONYMS.get(word, ()):
            yield [*words[:place], other, *words[place + 1 :]]


def _also(words: list[str]) -> Iterator[list[str]]:
    """What somebody would say who means these."""
    for place, word in enumerate(words):
        for other, meant in SYNONYMS.items():
            if word in meant:
                yield [*words[:place], other, *words[place + 1 :]]


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[\W_]+", CAMEL.sub("_", name).lower()) if word]


def problem_of(value: str, expected: Kind, *, is_filter: bool = True) -> str:
    """What is wrong with a value; "" if nothing is."""
    schema = schema_of(expected)
    kind = schema.get("type")
    if kind == "boolean":
        return "" if value.lower() in TRUTHY + FALSY else "must be true or false"
    if not value.strip():
        if schema.get("required") is True:
            return _required(schema)
        return "is empty: give a value, or leave it out" if is_filter else ""
    if schema.get("enum") and value not in schema["enum"]:
        return f"must be one of {', '.join(filter(None, map(str, schema['enum'])))}"
    if kind in ("integer", "number"):
        return _problem_of_number(value, schema)
    if schema.get("format") in FORMATS:
        read, problem = FORMATS[schema["format"]]
        try:
            read(value.strip())
        except ValueError:
            return problem
    return ""


def _problem_of_number(value: str, schema: Schema) -> str:
    whole, least, most = schema["type"] == "integer", schema.get("minimum"), schema.get("maximum")
    if (WHOLE if whole else NUMBER).fullmatch(value):
        number = int(value) if whole else float(value)
        if (least is None or number >= least) and (most is None or number <= most):
            return ""
    bounds = (
        ""
        if least is None
        else f", at least {least}"
        if most is None
        else f" from {least} to {most}"
    )
    return f"must be a {'whole ' * whole}number{bounds}"


def number_of(request: Request, name: str) -> int | None:
    """A whole number of the query, or its declared default; None where the method declares none."""
    declared = parameters_of(request.parser_context["view"], request.method)
    value = request.query_params.get(name)
    return int(value) if value else schema_of(declared.get(name)).get("default")


def is_true(request: Request, name: str) -> bool:
    """Whether a boolean of the query is given and true."""
    value = request.query_params.get(name)
    return value is not None and value.lower() in TRUTHY


def parameters_of(view: Any, method: str) -> Query:
    """The query that an API view declares for a method."""
    return _parameters_of(type(view), "GET" if method == "HEAD" else method)


@cache
def _parameters_of(view: type, method: str) -> Query:
    declared = getattr(view, "kwargs", {}).get("schema")
    if declared is None:
        return {}
    schema, instance = declared(), view()
    instance.request = None  # whose version would matter
    schema.view, schema.method = instance, method
    items = schema.get_override_parameters()
    return {item.name: _declared(item) for item in items if item.location == OpenApiParameter.QUERY}


def _declared(parameter: OpenApiParameter) -> Schema:
    schema = dict(schema_of(parameter.type))
    if parameter.enum:
        schema["enum"] = list(parameter.enum)
    return schema | {"required": True} if parameter.required else schema
