"""Converts JSON to typed values with msgspec; errors name the field by its path and say how to fix
it.

The writer and the reader of a spec share one Struct. Light: no torch, no Django.
"""

from __future__ import annotations

import ast
import re
import threading
import types
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct

from workers.lib.errors import SpecError

T = TypeVar("T")
LARGEST = 1e300  # so that the sum of a few is still finite
SHOWN = 12  # names listed in an error

# NaN and infinity satisfy no bounds.
Number = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]
Share = Annotated[float, Meta(ge=0, le=1)]
Positive = Annotated[float, Meta(gt=0, le=LARGEST)]
NotNegative = Annotated[float, Meta(ge=0, le=LARGEST)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
AtLeastOne = Annotated[int, Meta(ge=1, le=2**53)]
Text = Annotated[str, Meta(min_length=1)]
Seed = Annotated[int, Meta(ge=0, le=2**31 - 1)]
# Of sampling. Beyond 10, answers are noise; 0 is greedy.
Temperature = Annotated[float, Meta(ge=0, le=10)]
TopP = Annotated[float, Meta(gt=0, le=1)]
AnswerTokens = Annotated[int, Meta(ge=1, le=2**20)]

NAMES = {
    "str": "a text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
BOUNDS = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}
_EXPECTED = re.compile(r"Expected `([^`]+)`(?: of length)?(?: (>=|<=|>|<) ([^ ,`]+))?")
_LENGTH = re.compile(r"Expected `(\w+)` of length (>=|<=|==|>|<)? ?(\d+)")
_PATTERN = re.compile(r"Expected `str` matching regex (.*)\Z", re.DOTALL)
_FIELD = re.compile(r"Object (missing required|contains unknown) field `(.*)`\Z", re.DOTALL)
# An error of a form's __post_init__: the field, and what is wrong with it.
_OWN = re.compile(r"(\w+): (.*)\Z", re.DOTALL)
_known: set[type] = set()
_first = threading.RLock()
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")


class Form(Struct, forbid_unknown_fields=True, kw_only=True):
    """A form without unknown fields: a misspelt setting is an error instead of silently becoming a
    default.
    """


class FormError(SpecError):
    """JSON that does not match the form: `path` is where (“” for the whole), `problem` says what,
    as the end of a sentence.
    """

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"“{path}” {problem}." if path else f"It {problem}.")
        self.path, self.problem = path, problem


def know(form: T) -> T:
    """The same form, once msgspec has read the fields of its Structs: before threads share it. It
    crashes the process where a second thread meets a Struct while the first is still reading them.
    """
    if isinstance(form, type) and form in _known:
        return form
    with _first:
        msgspec.json.Decoder(form)
        if isinstance(form, type):
            _known.add(form)
    return form


def convert(value: Any, form: type[T], path: str = "") -> T:
    """The value as `form`; `path` is its path within a larger value. Raises FormError for the first
    invalid field.
    """
    know(form)
    try:
        return msgspec.convert(value, form)
    except msgspec.ValidationError as error:
        raise _explained(str(error), value, form, path) from error


def plain(value: Any) -> Any:
    """A Struct as JSON types that `convert` accepts."""
    return msgspec.to_builtins(value)


def json_schema(form: type) -> dict[str, Any]:
    """JSON Schema 2020-12 of a form, without references, for the API's documentation."""
    (schema,), components = msgspec.json.schema_components(
        [form], ref_template="#/components/schemas/{name}"
    )
    return _inlined(schema, components)


def _inlined(schema: Any, components: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_inlined(item, components) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(components[schema["$ref"].rpartition("/")[2]], components)
    return {
        name: _inlined(item, components) for name, item in schema.items() if name != "discriminator"
    }


def _explained(text: str, value: Any, form: Any, path: str) -> FormError:
    """msgspec's message in our words, with its path appended to `path` and keys in place of its
    “[...]”.
    """
    sentence, _, where = text.partition(" - at `")
    steps = [name or index for name, index in _STEP.findall(where.rstrip("`").removeprefix("$"))]
    if (
        sentence.startswith("Invalid value") and steps
    ):  # the tag of a union, whose choices are known one level up
        steps, tag = steps[:-1], [steps[-1]]
    else:
        tag = []
    form, names, value = _inside(form, steps, value)
    at = joined(path, names + tag)
    if found := _FIELD.match(sentence):
        if found[1] == "missing required":
            return FormError(joined(at, [found[2]]), "is missing")
        return FormError(joined(at, [found[2]]), unknown(found[2], _fields(form, value)))
    if sentence.startswith(("Invalid enum value", "Invalid value")):
        return FormError(at, f"must be one of {', '.join(map(str, _choices(form)))}")
    if found := _OWN.match(sentence):
        return FormError(joined(at, [found[1]]), found[2])
    return FormError(at, _problem(sentence))


def unknown(name: str, known: list[str]) -> str:
    """What is wrong with an unknown name: suggests the one that was probably meant, and lists those
    that exist.
    """
    close = get_close_matches(name, known, 1, 0.6)
    meant = f"; did you mean “{close[0]}”?" if close else ""
    more = ", …" if len(known) > SHOWN else ""
    return f"is not known{meant or '.'} Known: {', '.join(known[:SHOWN]) or 'none'}{more}"


def _problem(sentence: str) -> str:
    if found := _PATTERN.match(sentence):
        return _unlike(ast.literal_eval(found[1]))
    if found := _LENGTH.match(sentence):
        kind, bound, count = found.groups()
        things = "characters" if kind == "str" else "entries"
        if bound == ">=" and count == "1":
            return "is empty"
        return f"must have {BOUNDS.get(bound or '', 'exactly')} {count} {things}"
    if found := _EXPECTED.match(sentence):
        kinds, bound, limit = found.groups()
        named = " or ".join(NAMES.get(kind.strip(), kind.strip()) for kind in kinds.split("|"))
        if bound and abs(float(limit)) == LARGEST:
            return "must be a finite number"
        return (
            f"must be {BOUNDS[bound]} {limit.removesuffix('.0')}" if bound else f"must be {named}"
        )
    return sentence[:1].lower() + sentence[1:]


def _unlike(pattern: str) -> str:
    """What a text that does not match the pattern should have been: not blank, a name, or a single
    line.
    """
    if pattern == r"\S":
        return "must not be blank"
    if "[-a-zA-Z0-9_]" in pattern:
        most = re.search(r"\{1,(\d+)\}", pattern)
        return "must consist of letters, digits, - and _" + (f", {most[1]} at most" if most else "")
    if pattern.startswith(r"\A[^"):
        return "must be text that can be stored" + (
            " and shown in one line" if r"\x1f" in pattern else ""
        )
    return f"must match {pattern}"


def joined(path: str, names: list[str | int]) -> str:
    """Where a value is: “path.name[2]”."""
    for name in names:
        path += f"[{name}]" if isinstance(name, int) else f".{name}" if path else str(name)
    return path


def _inside(form: Any, steps: list[str], value: Any) -> tuple[Any, list[str | int], Any]:
    """The form and the value at the end of a path, and the path's names: msgspec writes “[...]” for
    keys of an object.
    """
    names: list[str | int] = []
    for at, step in enumerate(steps):
        if isinstance(value, dict) and step == "...":
            step = next(
                (str(key) for key, item in value.items() if not _fits(item, form, steps[at + 1 :])),
                "…",
            )
        if isinstance(value, list) and step.isdigit():
            names.append(int(step))
            value = value[int(step)] if int(step) < len(value) else None
            form = _item_of(form)
        else:
            names.append(step)
            form = _field_of(form, step, value)
            value = value.get(step) if isinstance(value, dict) else None
    return form, names, value


def _fits(item: Any, form: Any, rest: list[str]) -> bool:
    inner = next((get_args(one)[1] for one in _alternatives(form) if get_origin(one) is dict), Any)
    try:
        msgspec.convert(item, inner)
    except msgspec.ValidationError:
        return False
    return True


def _alternatives(form: Any) -> Iterator[Any]:
    """The types that a form may be, without Annotated and Union."""
    origin = get_origin(form)
    if origin is Annotated:
        yield from _alternatives(get_args(form)[0])
    elif origin in (Union, types.UnionType):
        for one in get_args(form):
            yield from _alternatives(one)
    else:
        yield form


def _structs(form: Any, value: Any = None) -> list[type[Struct]]:
    """The Structs that a form may be; for a tagged union, the one with the value's tag."""
    found = [
        one for one in _alternatives(form) if isinstance(one, type) and issubclass(one, Struct)
    ]
    if isinstance(value, dict):
        tagged = [
            one
            for one in found
            if (tag := one.__struct_config__.tag) is not None
            and value.get(one.__struct_config__.tag_field) == tag
        ]
        return tagged or found
    return found


def _fields(form: Any, value: Any) -> list[str]:
    return list(
        dict.fromkeys(
            field.encode_name
            for one in _structs(form, value)
            for field in msgspec.structs.fields(one)
        )
    )


def _field_of(form: Any, name: str, value: Any) -> Any:
    for one in _structs(form, value):
        for field in msgspec.structs.fields(one):
            if field.encode_name == name:
                return get_type_hints(one, include_extras=True)[field.name]
    return next(
        (
            get_args(one)[1]
            for one in _alternatives(form)
            if get_origin(one) is dict and get_args(one)
        ),
        Any,
    )


def _item_of(form: Any) -> Any:
    return next(
        (
            get_args(one)[0]
            for one in _alternatives(form)
            if get_origin(one) in (list, tuple) and get_args(one)
        ),
        Any,
    )


def _choices(form: Any) -> list[Any]:
    found: list[Any] = []
    for one in _alternatives(form):
        if get_origin(one) is Literal:
            found += get_args(one)
        elif isinstance(one, type) and issubclass(one, Struct):
            found.append(one.__struct_config__.tag)
    return found
