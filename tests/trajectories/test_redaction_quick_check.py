"""The quick check before redaction misses nothing that all rules find, in rows and in spans, and it
lets ordinary text pass.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.trajectories import redaction, traces
from apps.trajectories.otlp import Event, LogRecord, Span
from apps.trajectories.redaction import Redactor, Rule
from apps.trajectories.redaction.names import HALF_NAMES, NAMES, TRAILING
from bench.secret_rows import SECRETS

DEFAULTS = Redactor([Rule(kind, kind) for kind in ("api_key", "password", "card")])
TEXTS = [text for _, row, _ in SECRETS for text in redaction.strings(row)]
LINES = sorted({line for text in TEXTS for line in text.splitlines() if len(line) < 200})
WORDS = sorted({word for line in LINES for word in re.findall(r"\S+|\s+", line)})
# What stands between a name and its value, what begins or ends a word, and what hides it.
GLUE = (
    *("=", ":", ": ", " is ", "\nis\n", " -> ", " => ", "：", " | ", '":"', "', '", "</b> ", ">"),
    *(" as ", " as the ", "use ", "://", "@", "?", "&amp;", "%", "-", "_", ".", "\\", "\\n", "\\/"),
    *("\t", "\f", "\r\n", "\x0b", "\0", "\u00a0", "é", "ſ", "K", "\u2028", "\ud800", "x", "7", ""),
)
pieces = st.one_of(
    st.sampled_from(LINES),
    st.sampled_from(WORDS),
    st.sampled_from(sorted(NAMES | HALF_NAMES | TRAILING | {"pin", "-p", "curl", "d", "k"})),
    st.sampled_from(GLUE),
    st.text(max_size=4),
)
texts = st.lists(pieces, min_size=1, max_size=7).map("".join)
texts = st.one_of(texts, texts.map(str.upper), texts.map(str.title))
numbers = st.one_of(st.integers(), st.sampled_from([4111111111111111, 1234567, 2.5]))
values = st.recursive(
    st.one_of(texts, texts, numbers, st.booleans(), st.none()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(texts, inner, max_size=4),
        st.fixed_dictionaries({"name": inner, "value": inner}),
        inner.map(json.dumps),
        inner.map(lambda value: json.dumps(value, ensure_ascii=False, indent=1)),
    ),
    max_leaves=10,
)
attributes = st.dictionaries(texts, values, max_size=3)


@settings(max_examples=500, deadline=None)
@given(values)
def test_no_hit_in_a_row_is_missed(value: Any) -> None:
    row = {"messages": [{"role": "user", "content": value}], "metadata": {"all": value}}
    _, counts = DEFAULTS._redact(row, Counter())
    assert DEFAULTS.may_hit(row) or not counts


@settings(max_examples=200, deadline=None)
@given(attributes, attributes, attributes, texts)
def test_no_hit_in_a_span_is_missed(
    own: dict[str, Any], of_event: dict[str, Any], resource: dict[str, Any], name: str
) -> None:
    span = Span(
        "1", "2", name=name, attributes=own, events=[Event(name, 3, of_event)], resource=resource
    )
    log = LogRecord("1", "2", body=own, attributes=of_event, resource=resource)
    done = traces.redacted(DEFAULTS, traces.Packed([span], [log]))
    for before, after in ((span, done.spans[0]), (log, done.logs[0])):
        said = traces._said(before) | {"resource": resource}
        redacted, counts = DEFAULTS._redact(said, Counter())
        assert traces._said(after) | {"resource": after.resource} == redacted
        assert after is before or counts
    assert done.spans[0].events[0].time_ns == 3


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("kind", ["as it is", "as JSON", "as JSON in JSON"])
def test_every_kind_of_secret_is_looked_at(kind: str) -> None:
    for _, row, _ in SECRETS:
        nested = {"as it is": row, "as JSON": {"content": json.dumps(row)}}
        sent = nested.get(kind, {"content": json.dumps(json.dumps(row))})
        _, counts = DEFAULTS._redact(sent, Counter())
        assert DEFAULTS.may_hit(sent) or not counts, sent


@pytest.mark.parametrize(
    "text",
    [
        "It ran from 12:30:45 to 2025-11-30T14:02:59Z, see http://localhost:8000/runs?page=3",
        "input_tokens 512, passengers 3, the path of an author, a passport and authentication",
        "The keynote compares a pattern with a template; spin the wheel, then a long tokenizer",
    ],
)
def test_ordinary_text_passes(text: str) -> None:
    assert not DEFAULTS.may_hit({"messages": [{"role": "user", "content": text}]})
