"""What may stand in the query of an address. A name or value that is not declared is refused:
ignored, a filter would show everything.

The API's routes declare their parameters in `extend_schema`, pages in `project_view(query=…)`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any

from django.http import QueryDict
from drf_spectacular.utils import OpenApiParameter

from workers.lib.typed import FormError

UNKNOWN = "Unknown filter"
SHOWN = 30  # names in an error
PAGING = ("cursor", "limit", "offset", "sort")  # where empty is the usual
MANY = "array"
TRUTHY, FALSY = ("1", "true", "yes", ""), ("0", "false", "no")
# What browsers, mail and other sites append to an address.
FOREIGN = re.compile(r"utm_\w+|fbclid|gclid|msclkid|mc_[ce]id")
CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


# Names of parameters; in a mapping with the values of each: choices, `int`, or None for any.
Query = Collection[str] | Mapping[str, Collection[str] | type[int] | None]


class QueryError(FormError):
    """A query that is refused. `path` is the parameter, `problem` a sentence, or the end of one
    that begins with its name.
    """

    @property
    def sentence(self) -> str:
        whole = self.problem.startswith(UNKNOWN)
        return self.problem if whole else f"“{self.path}” {self.problem.rstrip('.')}."


def refuse_unknown(query: QueryDict, known: Collection[str]) -> None:
    """Raises QueryError for a name that is not known."""
    for name in query:
        if name not in known:
            raise QueryError(name[:100], unknown(name, known))


def refuse_invalid_of_page(query: QueryDict, known: Query) -> None:
    """Raises QueryError for a name that is not known, unless another site appended it, and for a
    value that one cannot have.

    Empty values, as a form sends them, are none.
    """
    for name, values in query.lists():
        if name not in known:
            if FOREIGN.fullmatch(name):
                continue
            raise QueryError(name[:100], unknown(name, known))
        values_of = known[name] if isinstance(known, Mapping) else None
        for value in filter(None, map(str.strip, values)):
            if values_of is int and not _is_number(value, "integer"):
                raise QueryError(name, "must be a whole number")
            if isinstance(values_of, Collection) and value not in values_of:
                raise QueryError(name, f"must be one of {', '.join(filter(None, values_of))}")


def refuse_invalid(query: QueryDict, parameters: Iterable[OpenApiParameter]) -> None:
    """Raises QueryError for a name that is not among the parameters, a value that one cannot have,
    and two where one is meant.
    """
    known = {parameter.name: parameter for parameter in parameters}
    refuse_unknown(query, known)
    for name, values in query.lists():
        schema = _schema_of(known[name])
        if len(values) > 1 and schema.get("type") != MANY:
            raise QueryError(name, "is given more than once, and has one value.")
        for value in values:
            if problem := _problem(
                value, schema.get("items", schema), is_filter=name not in PAGING
            ):
                raise QueryError(name, problem)


def unknown(name: str, known: Collection[str]) -> str:
    names = sorted(known)
    meant = closest(name, names)
    listed = ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
    return (
        f"{UNKNOWN} “{name[:100]}”. "
        + (f"Did you mean “{meant}”? " if meant else "")
        + f"Known: {listed or 'none'}."
    )


def closest(name: str, known: Collection[str]) -> str:
    """The known name that was probably meant, "" for none: its words in another notation or with
    more of them, or a typo.
    """
    words = _words(name)
    same = [other for other in known if _words(other) == words]
    within = [other for other in known if (rest := _words(other)) and words[: len(rest)] == rest]
    longer = [other for other in known if _words(other)[: len(words)] == words]
    typo = get_close_matches("_".join(words), known, 1, 0.6)
    return next(iter([*same, *sorted(within, key=len, reverse=True), *typo, *longer]), "")


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[\W_]+", CAMEL.sub("_", name).lower()) if word]


def _schema_of(parameter: OpenApiParameter) -> Mapping[str, Any]:
    if isinstance(parameter.type, dict):
        return parameter.type
    names = {int: "integer", float: "number", bool: "boolean"}
    schema: dict[str, Any] = {"type": names.get(parameter.type, "string")}
    return schema | ({"enum": list(parameter.enum)} if parameter.enum else {})


def _problem(value: str, schema: Mapping[str, Any], is_filter: bool) -> str:
    """What is wrong with a value; "" if nothing is."""
    if schema.get("type") == "boolean":
        return "" if value.lower() in TRUTHY + FALSY else "must be true or false"
    if not value.strip():
        return "is empty: give a value, or leave it out." if is_filter else ""
    if schema.get("enum") and value not in schema["enum"]:
        return f"must be one of {', '.join(map(str, schema['enum']))}"
    if schema.get("type") in ("integer", "number") and not _is_number(value, schema["type"]):
        return "must be a whole number" if schema["type"] == "integer" else "must be a number"
    return ""


def _is_number(value: str, kind: str) -> bool:
    pattern = (
        r"[+-]?\d{1,30}"
        if kind == "integer"
        else r"[+-]?(\d{1,30}(\.\d{0,30})?|\.\d{1,30})(e[+-]?\d{1,2})?"
    )
    return re.fullmatch(pattern, value.strip(), re.ASCII | re.IGNORECASE) is not None


def parameters_of(view: Any, method: str) -> tuple[OpenApiParameter, ...]:
    """The query parameters that an API view declares for a method."""
    return _parameters_of(type(view), "GET" if method == "HEAD" else method)


@cache
def _parameters_of(view: type, method: str) -> tuple[OpenApiParameter, ...]:
    declared = getattr(view, "kwargs", {}).get("schema")
    if declared is None:
        return ()
    schema, instance = declared(), view()
    instance.request = None  # whose version would matter
    schema.view, schema.method = instance, method
    return tuple(
        item for item in schema.get_override_parameters() if item.location == OpenApiParameter.QUERY
    )
