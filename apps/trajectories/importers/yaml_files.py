"""YAML as records: the items of a list, or one document."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from typing import Any

import yaml

from apps.trajectories.decoding import MAX_DEPTH, RowError
from apps.trajectories.importers.records import CHUNK, ImportError_, Record, Source

MAX_YAML = 4 * 1024 * 1024
MAX_VALUES = 2_000_000  # that aliases may blow it up to
NAME = re.compile(r"\.ya?ml(\.gz)?$")
BEGINS = re.compile(rb"(?:#[^\n]*\n|---[^\n]*\n|\s)*(?:[A-Za-z_][\w -]*:(?:\s|$)|- )")
NESTED = re.compile(
    rb"(?:#[^\n]*\n|---[^\n]*\n|\s)*(?:[\w-]+:[ \t][^\n]*\n)*[\w-]+:[ \t]*\r?\n(?:[ \t]+\S|- )"
)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Dates stay texts, and yes and off, as in YAML 1.2."""


REPLACED = ("tag:yaml.org,2002:bool", "tag:yaml.org,2002:timestamp")
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in REPLACED]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    REPLACED[0], re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z"), list("tTfF")
)


def looks_like_yaml(name: str, sample: bytes) -> bool:
    """By its beginning: a key with something below it, or, as a table or a transcript may begin
    alike, any key in a file that is called so.
    """
    begin = sample.removeprefix(codecs.BOM_UTF8)
    return bool(NESTED.match(begin) or (NAME.search(name.lower()) and BEGINS.match(begin)))


def yaml_records(source: Source) -> Iterator[Record]:
    """Raises ImportError_."""
    body = bytearray()
    while chunk := source.read(CHUNK):
        body += chunk
        if len(body) > MAX_YAML:
            limit = MAX_YAML // 2**20
            raise ImportError_(f"{source.name} is YAML of more than {limit} MiB. Save it as JSON.")
    if source.stopped:
        raise ImportError_(f"{source.name} is too large to be previewed: YAML is read whole.")
    text = bytes(body).decode("utf-8-sig", "replace")
    try:
        if _is_deep(text):
            raise ImportError_(f"{source.name} is nested deeper than {MAX_DEPTH} levels.")
        found = list(yaml.load_all(text, _Loader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problem = " ".join(str(error).split())[:300]
        raise ImportError_(f"{source.name} is not YAML: {problem}.") from error
    if _exceeds(found, MAX_VALUES):
        raise ImportError_(f"{source.name} becomes too large where its aliases are filled in.")
    documents = [one for document in found for one in _items(document)]
    for number, record in enumerate(documents, 1):
        yield number, record if isinstance(record, dict) else RowError("", "expected an object")


def _is_deep(text: str) -> bool:
    """By its events, one after the other: what builds values recurses, and crashes if too deep."""
    depth = 0
    for event in yaml.parse(text, _Loader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            return True
    return False


def _items(document: Any) -> list:
    return document if isinstance(document, list) else [document]


def _exceeds(value: Any, limit: int) -> bool:
    """Whether a value has more parts than this, each alias counted as what it stands for."""
    waiting = [value]
    while waiting:
        limit -= 1
        if limit < 0:
            return True
        one = waiting.pop()
        if isinstance(one, dict):
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
        if len(waiting) > limit:
            return True
    return False
