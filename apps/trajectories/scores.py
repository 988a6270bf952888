"""Named scores of runs and steps: what is sent of them, and what comes with runs. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta, Struct

from apps.trajectories.decoding import RowError
from apps.trajectories.importers.formats import TABLE
from apps.trajectories.schema import MAX_NAME, Id

MAX_VALUE = 1e12
MAX_TEXT, MAX_COMMENT = 4_000, 4_000
MOST = 500  # that come with one run
KINDS = ("number", "yes_no", "category", "text")
YES, NO = ("yes", "true", "pass", "passed"), ("no", "false", "fail", "failed")
Text = Annotated[str, Meta(max_length=MAX_TEXT)]


class Sent(Struct, forbid_unknown_fields=True):
    """A score as it is sent. `kind` follows from the value: a number, true or false, else a
    category, or a text where it has several lines or more than 120 characters.
    """

    run: Id
    name: Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
    value: float | bool | Text
    step: Annotated[str, Meta(max_length=40)] = ""
    kind: Literal["number", "yes_no", "category", "text"] | None = None
    comment: Annotated[str, Meta(max_length=MAX_COMMENT)] = ""
    source: Literal["person", "code", "judge"] = "code"
    by: Annotated[str, Meta(max_length=200)] = ""
    id: Annotated[str, Meta(max_length=200)] = ""


class Value(NamedTuple):
    kind: str
    value: float | None
    text: str


def value_of(given: float | bool | str, kind: str | None = None) -> Value:
    """Raises RowError for what is no value of the kind."""
    if kind is None:
        kind = _kind_of(given)
    if kind == "number":
        return Value(kind, _number(given), "")
    if kind == "yes_no":
        word = str(given).strip().lower()
        if word not in (*YES, *NO) and given not in (0, 1):
            raise RowError("value", "must be true or false, or yes or no")
        is_yes = word in YES or given == 1
        return Value(kind, float(is_yes), "yes" if is_yes else "no")
    text = _text_of(given).strip()
    if not text:
        raise RowError("value", "is empty")
    return Value(kind, None, text[: MAX_NAME if kind == "category" else MAX_TEXT])


def _kind_of(given: float | bool | str) -> str:
    if isinstance(given, bool):
        return "yes_no"
    if isinstance(given, int | float):
        return "number"
    return "text" if "\n" in given or len(given) > MAX_NAME else "category"


def _text_of(given: float | bool | str) -> str:
    if isinstance(given, bool):
        return "yes" if given else "no"
    return given if isinstance(given, str) else f"{given:.15g}"


def _number(given: float | bool | str) -> float:
    try:
        number = float(given)
    except ValueError:
        number = math.nan
    if not abs(number) <= MAX_VALUE:
        raise RowError("value", f"must be a number of at most {MAX_VALUE:g}")
    return number


WITH_SCORES = {"otlp"} | {one.name for one in TABLE if one.has_scores}


class Came(NamedTuple):
    """A score that came with its run; `key` tells those of one name apart."""

    step: str
    name: str
    key: str
    value: Value
    source: str
    comment: str


def of_metadata(metadata: Any) -> list[Came]:
    """OTLP's `gen_ai.evaluation.result` events and imported scores; any shape is tolerated."""
    if not isinstance(metadata, dict):
        return []
    found = [*_otlp(metadata.get("evaluations")), *_imported(metadata.get("scores"))]
    if metadata.get("source") not in WITH_SCORES:
        return []
    return list({(one.step, one.name, one.key): one for one in found[:MOST]}.values())


def _otlp(given: Any) -> Iterator[Came]:
    for said in _dicts(given):
        number, text = said.get("score.value"), said.get("score.label")
        is_number = isinstance(number, int | float)
        value, label = (number, text) if is_number else (text, None)
        step = str(said.get("span_id") or "")[:40]
        yield from _came(said, "otlp", value, step, said.get("explanation"), label)


def _imported(given: Any) -> Iterator[Came]:
    for said in _dicts(given):
        text, kind = said.get("string_value"), str(said.get("data_type") or "").upper()
        value = said.get("value")
        if kind == "BOOLEAN" and value in (0, 1):
            value = bool(value)
        elif isinstance(text, str) and text:
            value = text
        step = str(said.get("observation_id") or "")[:40]
        yield from _came(said, "import", value, step, said.get("comment"))


def _came(
    said: Mapping[str, Any], source: str, value: Any, step: str, comment: Any, label: Any = None
) -> Iterator[Came]:
    """`label`: what the number means (“relevant”)."""
    name = said.get("name")
    if not isinstance(name, str) or not name or not isinstance(value, bool | int | float | str):
        return
    try:
        read = value_of(value)
    except (RowError, OverflowError):
        return
    if read.kind == "number" and isinstance(label, str):
        read = read._replace(text=label[:MAX_NAME])
    by = said.get("source")
    key = f"{source}:{by if isinstance(by, str) else ''}"[:220]
    comment = comment[:MAX_COMMENT] if isinstance(comment, str) else ""
    yield Came(step, name[:MAX_NAME], key, read, source, comment)


def _dicts(given: Any) -> list[dict[str, Any]]:
    return [one for one in given[:MOST] if isinstance(one, dict)] if isinstance(given, list) else []
