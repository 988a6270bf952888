"""Whatever comes in by whatever door: it is stored or refused with a reason, and every page and API
can read on.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apps.core.models import Project
from apps.trajectories import assembly, digest, retention, traces
from apps.trajectories.actions import store
from apps.trajectories.importers import batches, read
from apps.trajectories.models import Arrival, Feedback, Retention
from tests.amounts import amount
from tests.factories import admin_of, make_key, row
from tests.trajectories.test_traces import attributes, span

pytestmark = [pytest.mark.django_db, pytest.mark.more]
ONE = "/api/v1/trajectories/"


def nested(levels: int) -> Any:
    value: Any = "deep"
    for _ in range(levels):
        value = [value]
    return value


NUMBERS = [
    0,
    -0.0,
    -1,
    1e-320,
    1.7e308,
    -1.7e308,
    2**31 - 1,
    2**31,
    2**53 + 1,
    2**63,
    -(2**63),
    2**64,
    10**18,
    10**30,
    10**31,
    10**400,
    1e15,
    0.1,
    True,
    None,
    "12",
    "NaN",
]
TIMES = [
    "9999-12-31T23:59:59-01:00",
    "0001-01-01T00:00:00+02:00",
    "0001-01-01T00:00:00Z",
    "9999-12-31T23:59:59.999999Z",
    "1970-01-01T00:00:00Z",
    "1969-12-31T23:59:59Z",
    "2100-12-31T23:59:59Z",
    "2101-01-01T00:00:00Z",
    "2038-01-19T03:14:08Z",
    "2026-06-30T23:59:60Z",
    "2026-02-29T00:00:00Z",
    "2026-01-01",
    "2026-01-01T00:00:00+23:59",
    "yesterday",
    "",
    0,
    1e18,
]
TEXTS = [
    "",
    " ",
    "\x00",
    "a\x00b",
    "\ud800",
    "\udfff\ud800",
    "\u202eevil\u202c",
    "שלום עולם",
    "مرحبا",
    "𝕬" * 50,
    "é" * 200,
    "\ufffe\uffff",
    "\r\n\t",
    "\u2028",
    "'; DROP TABLE x; --",
    "<script>alert(1)</script>",
    "{{ 7*7 }}",
    "%s%n%00",
    "../../etc",
    "{}",
    "[" * 200,
    "\\",
    '"',
    "NULL",
    "\\N",
    "\\.",
    "{a,b}",
    "x" * 200,
    "x" * 10_000,
    "👩‍👩‍👧‍👦" * 30,
]
QUERIES: list[dict[str, Any]] = [
    {},
    {"q": "word"},
    {"since": "30d"},
    {"from": "0001-01-01"},
    {"to": "9999-12-31"},
    {"latency_max": "1e308"},
    {"from": "9999-12-31T23:59-01:00"},
    {"cols": "cost,latency,tokens,reward,tags,session,user,started"},
]
HUGE = "word " * amount(400_000, 2_000_000)  # megabytes
ANYTHING = [*NUMBERS, *TEXTS, nested(50), nested(70), [], {}, [None], {"": {"": None}}]
FIELDS: dict[str, list[Any]] = {
    "id": TEXTS,
    "latency_ms": NUMBERS,
    "usage.input_tokens": NUMBERS,
    "usage.cost_usd": NUMBERS,
    "usage.prompt_tokens": NUMBERS,
    "outcome.reward": NUMBERS,
    "outcome.reason": TEXTS,
    "outcome.label": TEXTS,
    "started_at": TIMES,
    "ended_at": TIMES,
    "agent.name": TEXTS,
    "model": TEXTS,
    "session_id": TEXTS,
    "user_id": TEXTS,
    "tags": [[text] for text in TEXTS],
    "tools": [[{"type": "function", "function": value}] for value in ANYTHING],
    "metadata": (
        [{"x": value} for value in ANYTHING]
        + [
            {"steps": [{"start_ms": number, "ms": number, "name": "a", "message_index": number}]}
            for number in NUMBERS
        ]
    ),
    "interventions": [
        [{"kind": "edit", "message_index": value, "after": value, "by": "x"}] for value in ANYTHING
    ],
    "messages": (
        [[{"role": "user", "content": value}] for value in ANYTHING]
        + [
            [
                {
                    "role": "assistant",
                    "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": value}}],
                }
            ]
            for value in ANYTHING
        ]
    ),
}


def extreme(name: str, field: str, value: Any) -> dict:
    made = row(name=name, started_at="2026-03-01T10:00:00Z")
    outer, _, inner = field.partition(".")
    made[outer] = {**made.get(outer, {}), inner: value} if inner else value
    return made


EXTREMES = [
    extreme(f"{field} {n}", field, value)
    for field, values in FIELDS.items()
    for n, value in enumerate(values)
]


ONE_PART = {
    "ended_at": "started_at",
    "latency_ms": "started_at",
}  # what has to fit together comes as it was accepted


def packed(rows: list[dict]) -> list[dict]:
    """The same extremes in fewer rows: at most one in each part of a row, interventions with their
    messages alone.
    """
    usual = extreme("", "id", "")
    made: list[tuple[dict, set[str]]] = []
    for item in rows:
        changed = {
            key: value
            for key, value in item.items()
            if key != "id" and value != usual.get(key, usual)
        }
        changed |= {"id": item["id"]} if item["id"] in TEXTS else {}
        parts = {ONE_PART.get(key, key) for key in changed}
        fits = (one for one in made if not (one[1] & parts or "interventions" in one[1] | parts))
        into, taken = next(fits, ({}, set()))
        if not into:
            into |= item
            made.append((into, taken))
        into |= changed
        taken |= parts
    return [into for into, _ in made]


@pytest.fixture
def agent(project: Project) -> Client:
    return Client(
        headers={"Authorization": f"Bearer {make_key(project)}"}, raise_request_exception=False
    )


@pytest.fixture
def admin(project: Project) -> Client:
    client = Client(raise_request_exception=False)
    client.force_login(admin_of(project))
    return client


def everything_reads(project: Project, agent: Client, admin: Client, each: bool = True) -> None:
    """Every page and every reading call, of each run; then what removes them."""
    digest.run()
    assert not list(Arrival.objects.values_list("problem", flat=True))
    project_url = lambda name, *args: reverse(f"trajectories:{name}", args=[project.slug, *args])  # noqa: E731
    lists = [project_url(name) for name in ("list", "count", "trend", "sessions", "export")]
    # in the suite, each query once and every list
    seen = list(product(lists, QUERIES))[:: amount(len(lists), 1)]
    seen += [(project_url("export"), {"format": kind}) for kind in ("parquet", "sft")]
    seen += [(project_url(name), {}) for name in ("arrivals", "redaction", "import")]
    seen += [(ONE, query) for query in ({}, {"limit": 500}, {"since": "24h"}, {"q": "\x00"})]
    seen.append((f"{ONE}?session=%ED%A0%80&user=%00&cursor=after-%00", {}))
    rows = list(project.trajectories.order_by("pk"))
    for item in rows[:: amount(12, 1)] if each else ():
        seen += [(project_url("detail", item.pk), {}), (project_url("raw", item.pk), {})]
        seen += [(project_url("compare"), {"a": str(item.pk), "b": str(rows[0].pk)})]
        seen += [(project_url("session"), {"id": item.session_id})] if item.session_id else []
        if not set(item.external_id) & set("/?#\\"):
            seen.append((reverse("api:trajectory", args=[item.external_id]), {}))
    for at, query in seen:
        answer = (agent if at.startswith(ONE) else admin).get(at, query)
        body = b"".join(answer) if answer.streaming else answer.content
        assert answer.status_code in (200, 302, 400, 404), (at, query, body[-500:])
        assert (
            answer.status_code != 400
            or at.startswith(ONE)
            or query.keys() & {"from", "to", "latency_max"}
        ), (
            at,
            query,
        )
    if rows:
        name = next(
            item.external_id
            for item in rows
            if item.external_id.isascii() and " " in item.external_id
        )
        assert agent.delete(reverse("api:trajectory", args=[name])).status_code == 204
    Retention.objects.create(project=project, days=1)
    retention.enforce(timezone.now().replace(year=2200))
    digest.run()
    assert not project.trajectories.exists() and not Arrival.objects.exists()


def text_of(value: Any) -> bytes:
    """JSON as a client may write it: lone surrogates as escapes."""
    return json.dumps(value).encode()


@pytest.mark.proof
def test_one_by_one(project: Project, agent: Client, admin: Client) -> None:
    accepted = []
    for item in EXTREMES:  # all of them come in batches
        answer = agent.post(ONE, text_of(item), content_type="application/json")
        assert answer.status_code in (200, 201, 400), (item, answer.content[-300:])
        assert answer.status_code != 400 or answer.json()["error"]
        accepted += [item] if answer.status_code != 400 else []
    everything_reads(project, agent, admin, each=False)
    Retention.objects.filter(project=project).delete()
    for item in packed(accepted):  # each row's pages show an extreme in every part
        answer = agent.post(ONE, text_of(item), content_type="application/json")
        deleted = "is not stored again" in answer.json().get("error", "")  # by `everything_reads`
        assert answer.status_code in (200, 201) or deleted, (item, answer.content[-300:])
    everything_reads(project, agent, admin)


KINDS = ["application/json", "application/x-ndjson"]


@pytest.mark.parametrize("kind", KINDS[: amount(1, 2)])
def test_in_batches(project: Project, agent: Client, admin: Client, kind: str) -> None:
    rows = [text_of(item) for item in EXTREMES]
    body = b"\n".join(rows) if kind.endswith("ndjson") else b"[" + b",".join(rows) + b"]"
    answer = agent.post(f"{ONE}batch/", body, content_type=kind)
    assert answer.status_code == 200, answer.content[-300:]
    done = answer.json()
    assert done["accepted"] + done["duplicates"] + done["updated"] + len(done["rejected"]) == len(
        EXTREMES
    )
    assert done["accepted"] > len(EXTREMES) / 2 and all(item["error"] for item in done["rejected"])
    everything_reads(project, agent, admin, each=False)


@pytest.mark.proof
def test_as_a_file(project: Project, agent: Client, admin: Client) -> None:
    data = b"\n".join(text_of(item) for item in EXTREMES)

    @contextmanager
    def opened(name: str) -> Iterator[Any]:
        yield read(io.BytesIO(data), name, "auto")

    summary = batches.run(
        ["x.jsonl"], opened, lambda rows: store.ingest(project=project, rows=rows)
    )
    assert summary.accepted + summary.duplicates + summary.updated + summary.rejected == len(
        EXTREMES
    )
    assert summary.accepted > len(EXTREMES) / 2
    everything_reads(project, agent, admin, each=False)


@pytest.mark.proof
def test_as_spans(project: Project, agent: Client, admin: Client) -> None:
    times = [
        0,
        1,
        -1,
        2**63 - 1,
        2**63,
        2**64 - 1,
        4_133_980_799 * 10**9,
        253_402_300_799 * 10**9,
        10**30,
        "x",
    ]
    spans = []
    pairs = list(product(times, times))
    for number, at in enumerate(pairs, start=1):
        made = span(number, number, gen_ai__operation__name="chat", gen_ai__input__messages="[]")
        spans.append(made | {"startTimeUnixNano": str(at[0]), "endTimeUnixNano": str(at[1])})
    for number, value in enumerate([*TEXTS, *map(str, NUMBERS), HUGE[:1_000_000]], start=1_000):
        made = span(
            number,
            number,
            gen_ai__operation__name="chat",
            session__id=value,
            gen_ai__request__model=value,
        )
        tokens = attributes(
            gen_ai__usage__input_tokens=value, operation__cost=value, gen_ai__output__messages=value
        )
        spans.append(made | {"name": value, "attributes": made["attributes"] + tokens})
    for made in spans:
        body = text_of({"resourceSpans": [{"scopeSpans": [{"spans": [made]}]}]})
        assert agent.post("/v1/traces", body, content_type="application/json").status_code in (
            200,
            400,
        )
    traces.sort_some()
    while assembly.step(timezone.now() + traces.PATIENCE):
        pass
    assert not traces.look().has_spans and project.trajectories.count() > len(spans) / 2
    name = row(name="with space")
    assert agent.post(ONE, text_of(name), content_type="application/json").status_code == 201
    everything_reads(project, agent, admin)


@pytest.mark.proof
def test_as_feedback(project: Project, agent: Client, admin: Client) -> None:
    names = [
        "a run",
        *(
            text
            for text in TEXTS
            if text.isprintable() and text.strip() and not set(text) & set("/?#\\%")
        ),
    ]
    news = [
        *({"comment": text, "by": text} for text in TEXTS),
        *({"score": number} for number in NUMBERS),
        *({"corrected": value, "message_index": value} for value in ANYTHING),
        *({"id": text} for text in TEXTS),
        *({"outcome": {"reason": text, "label": text}} for text in TEXTS),
        *({"outcome": value} for value in ANYTHING),
    ]
    for index, item in enumerate(news):
        url = reverse("api:feedback", args=[names[index % len(names)]])
        answer = agent.post(url, text_of(item), content_type="application/json")
        assert answer.status_code in (200, 202, 400), (url, item, answer.content[-300:])
    assert Feedback.objects.filter(project=project).count() > 50
    sent = [row(name=name, started_at="2026-03-01T10:00:00Z") for name in names]
    assert (
        agent.post(f"{ONE}batch/", text_of(sent), content_type="application/json").status_code
        == 200
    )
    everything_reads(project, agent, admin)
    assert not Feedback.objects.filter(project=project, external_id__in=names).exists()


@pytest.mark.proof
def test_megabytes_of_one_string(project: Project, agent: Client, admin: Client) -> None:
    rows = [
        extreme("a message", "messages", [{"role": "user", "content": HUGE}]),
        extreme("a reason", "outcome.reason", HUGE),
    ]
    rows += [
        extreme("a value", "metadata", {"x": HUGE}),
        extreme("an id", "id", HUGE),
        extreme("a tag", "tags", [HUGE]),
    ]
    answer = agent.post(f"{ONE}batch/", text_of(rows), content_type="application/json")
    assert answer.status_code == 200 and answer.json()["accepted"] == 3
    everything_reads(project, agent, admin)


@pytest.mark.proof
@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.fixed_dictionaries(
        {}, optional={field: st.sampled_from(values) for field, values in FIELDS.items()}
    )
)
def test_together(project: Project, agent: Client, admin: Client, changes: dict[str, Any]) -> None:
    Retention.objects.filter(project=project).delete()
    made = row(name="a run", started_at="2026-03-01T10:00:00Z")
    for field, value in changes.items():
        outer, _, inner = field.partition(".")
        if outer != "id":
            made[outer] = {**made.get(outer, {}), inner: value} if inner else value
    answer = agent.post(ONE, text_of(made), content_type="application/json")
    assert answer.status_code in (200, 201, 400)
    everything_reads(project, agent, admin)
