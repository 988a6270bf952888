"""Steps of runs: what is read of them, how they are kept, and how they are asked for."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.core.management import call_command
from django.test import Client
from django.urls import reverse
from django.utils.html import escape

from apps.core.models import Project
from apps.trajectories import digest, filters, ids, step_figures, step_filters, step_rows, steps
from apps.trajectories.actions import scores, store
from apps.trajectories.models import Arrival, Step, Trajectory
from apps.trajectories.otlp import Event, Scope, Span, assemble
from apps.trajectories.scores import Sent
from tests.amounts import amount
from tests.factories import make_eval_set, make_key, make_member, make_project, row
from tests.shared import copied, once

NOON = 1_790_000_000 * 10**9
RUN = {
    "model": "gpt-5",
    "latency_ms": 900.0,
    "input_tokens": 70,
    "output_tokens": 7,
    "cost_usd": 0.01,
}
USER = {"role": "user", "content": "Where is order 7?"}


def calling(*calls: tuple[str, str, str]) -> dict:
    """An assistant message of calls (id, tool, arguments)."""
    return {
        "role": "assistant",
        "tool_calls": [
            {"id": name, "type": "function", "function": {"name": tool, "arguments": given}}
            for name, tool, given in calls
        ],
    }


def reply(call: str, text: str, **more: Any) -> dict:
    return {"role": "tool", "tool_call_id": call, "content": text, **more}


def read(messages: list[dict], metadata: Any = None) -> list[steps.Step]:
    reader = steps.Reader(RUN, metadata or {})
    reader.read(messages[:2])
    reader.read(messages[2:])
    return reader.steps()


def brief(found: list[steps.Step]) -> list[tuple[str, str, str]]:
    return [(step.kind, step.name, step.status) for step in found]


def test_steps_of_messages_alone() -> None:
    found = read(
        [
            USER,
            calling(("a", "search", '{"order": 7}'), ("b", "lookup", "{}"), ("c", "pay", "{}")),
            reply("b", '{"isError": true, "content": [{"type": "text", "text": "no such row"}]}'),
            reply("a", '{"found": 1}'),
            {"role": "assistant", "content": "It is on its way.", "usage": {"prompt_tokens": 9}},
        ]
    )
    assert brief(found) == [
        ("model", "gpt-5", "ok"),
        ("tool", "search", "ok"),
        ("tool", "lookup", "error"),
        ("tool", "pay", "unanswered"),
        ("model", "gpt-5", "ok"),
    ]
    assert [step.key for step in found] == ["1", "1.0", "1.1", "1.2", "4"]
    assert found[1].arguments == '{"order": 7}' and "no such row" in found[2].error
    assert found[4].input_tokens == 9 and found[0].duration_ms is None


def test_a_run_of_one_model_call_is_that_call() -> None:
    (step,) = read([USER, {"role": "assistant", "content": "Soon."}])
    assert (step.duration_ms, step.input_tokens, step.cost_usd) == (900.0, 70, 0.01)


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ('{"success": false, "message": "declined"}', "error"),
        ('{"jsonrpc": "2.0", "error": {"code": -32602, "message": "bad"}}', "error"),
        ("Error: timed out", "error"),
        ('{"status": "failed", "order": 7}', "ok"),  # a record that was read
        ("", "ok"),
    ],
)
def test_a_failed_call_is_what_it_is_for_the_rules(text: str, status: str) -> None:
    found = read([USER, calling(("a", "pay", "{}")), reply("a", text)])
    assert found[1].status == status


def span(number: int, at: float, seconds: float, parent: int = 0, **attributes: Any) -> Span:
    start = NOON + int(at * 1e9)
    return Span(
        "1" * 32,
        f"{number:016x}",
        f"{parent:016x}" if parent else "",
        name=attributes.pop("name", f"span {number}"),
        start_ns=start,
        end_ns=start + int(seconds * 1e9),
        attributes={f"gen_ai.{name}".replace("__", "."): v for name, v in attributes.items()},
    )


def agent_spans() -> list[Span]:
    """An agent that calls two tools, of which the second fails without a reply."""
    wants = calling(("a", "search", '{"order": 7}'), ("b", "pay", '{"eur": 3}'))
    told = [USER, wants, reply("a", "found it"), reply("b", "Error: declined")]
    failed = span(
        5, 1.5, 3.0, 1, operation__name="execute_tool", tool__name="pay", tool__call__id="b"
    )
    failed.status_code, failed.name = 2, "running tool"
    failed.events = [
        Event("exception", attributes={"exception.type": "Declined", "exception.message": "no"})
    ]
    return [
        span(1, 0, 6, operation__name="invoke_agent", agent__name="clerk"),
        span(
            2,
            0,
            1,
            1,
            operation__name="chat",
            request__model="gpt-5",
            usage__input_tokens=11,
            input__messages=[USER],
            output__messages=[wants],
        ),
        span(
            4,
            1,
            0.5,
            1,
            operation__name="execute_tool",
            tool__name="search",
            tool__call__id="a",
            tool__call__result="found it",
        ),
        failed,
        span(
            6,
            5,
            1,
            1,
            operation__name="chat",
            request__model="gpt-5",
            input__messages=told,
            output__messages=[{"role": "assistant", "content": "Not paid."}],
        ),
    ]


def test_spans_say_when_and_messages_say_with_what() -> None:
    (run,) = assemble(agent_spans(), [])
    found = read(run.row["messages"], run.row["metadata"])
    assert brief(found) == [
        ("agent", "clerk", "ok"),
        ("model", "span 2", "ok"),
        ("tool", "search", "ok"),
        ("tool", "pay", "error"),
        ("model", "span 6", "ok"),
    ]
    pay = found[3]
    assert pay.arguments == '{"eur": 3}' and "no" in pay.error
    assert (pay.start_ms, pay.duration_ms, pay.key) == (1500.0, 3000.0, f"{5:016x}")
    assert found[1].input_tokens == 11


def test_calls_that_no_span_reports_come_after_the_call_that_made_them() -> None:
    spans = [one for one in agent_spans() if "tool.name" not in str(one.attributes)]
    (run,) = assemble(spans, [])
    found = read(run.row["messages"], run.row["metadata"])
    assert [(step.kind, step.duration_ms is None) for step in found] == [
        ("agent", False),
        ("model", False),
        ("tool", True),
        ("tool", True),
        ("model", False),
    ]


def test_a_call_that_two_instrumentations_report_is_one_step() -> None:
    spans = agent_spans()
    again = span(7, 0.1, 0.8, 2, operation__name="chat", request__model="gpt-5")
    again.scope = Scope("another")
    (run,) = assemble([*spans, again], [])
    assert len(run.row["metadata"]["steps"]) == 6
    assert brief(read(run.row["messages"], run.row["metadata"])) == [
        ("agent", "clerk", "ok"),
        ("model", "span 2", "ok"),
        ("tool", "search", "ok"),
        ("tool", "pay", "error"),
        ("model", "span 6", "ok"),
    ]


HOSTILE: list[Any] = [
    None,
    7,
    {"steps": {"a": 1}},
    {"steps": [None, 3, {"kind": "tool"}, {"kind": ["tool"]}, {"kind": "agent", "name": {}}]},
    {
        "steps": [
            {
                "kind": "tool",
                "name": 5,
                "message_index": [1],
                "start_ms": float("inf"),
                "duration_ms": 10**400,
                "error": {"a": [1]},
                "input": {"b": 1},
                "span_id": 9,
                "input_tokens": -4,
                "cost_usd": "much",
            }
        ]
        * 2
    },
]


@pytest.mark.parametrize("metadata", HOSTILE)
def test_any_metadata_is_tolerated(metadata: Any) -> None:
    found = read([USER, calling(("a", "pay", "{}")), reply("a", "ok")], metadata)
    assert len({step.key for step in found}) == len(found)


# Kept


def ingest(project: Project, *rows: dict) -> None:
    store.ingest(project=project, rows=rows)
    digest.run()


def names(project: Project) -> list[str]:
    return list(project.steps.order_by("pk").values_list("name", flat=True))


@pytest.mark.django_db
def test_steps_go_with_their_run(project: Project) -> None:
    messages = [USER, calling(("a", "search", '{"order": 7}')), reply("a", "found")]
    ingest(project, row("one", messages=messages, model="m"))
    assert names(project) == ["m", "search"]
    kept = Step.objects.get(name="search")
    assert (kept.agent_name, kept.agent_version, kept.message_index) == ("assistant", "1", 1)
    again = [*messages[:1], calling(("a", "pay", "{}")), reply("a", "Error: no")]
    ingest(project, row("one", messages=again, model="m"))
    assert names(project) == ["m", "pay"]
    store.remove(project, list(Trajectory.objects.all()))
    assert not Step.objects.exists()
    digest.run()
    assert not Step.objects.exists()


@pytest.mark.django_db
@pytest.mark.parametrize("metadata", HOSTILE[2:])
def test_hostile_steps_are_stored(project: Project, metadata: Any) -> None:
    metadata = {
        "steps": [
            {k: v for k, v in one.items() if k not in ("start_ms", "duration_ms")}
            if isinstance(one, dict)
            else one
            for one in metadata["steps"]
        ]
    }
    ingest(project, row("one", metadata=metadata))
    assert Step.objects.filter(trajectory_id=Trajectory.objects.get().pk).exists()


# Asked for


def made_runs(_: Path) -> Project:
    """Two versions of an agent, three runs of each: the tool `pay` fails in version 2."""
    project = make_project()
    for version in "12":
        for n in range(3):
            span = {"kind": "tool", "start_ms": 0, "message_index": 2}
            call = calling(("a", "search", f'{{"order": "order-{version}{n}"}}'), ("b", "pay", ""))
            failed = "Error: card declined" if version == "2" else "paid"
            ingest(
                project,
                row(
                    f"run-{version}-{n}",
                    agent={"name": "clerk", "version": version},
                    started_at=f"2026-11-0{1 + n}T12:00:00Z",
                    messages=[
                        USER,
                        call | {"usage": {"input_tokens": 10 + n, "output_tokens": 1}},
                        reply("a", "found"),
                        reply("b", failed),
                    ],
                    metadata={
                        "steps": [
                            span | {"name": "search", "duration_ms": 1000 * (n + int(version))},
                            span | {"name": "pay", "message_index": 3, "duration_ms": 10 * n},
                        ]
                    },
                ),
            )
    return project


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from once(request, made_runs)


@pytest.fixture
def runs(kept: Any, db: None, settings: Any) -> Project:
    return copied(kept, settings)


@pytest.fixture
def engineer(runs: Project, client: Client) -> Client:
    client.force_login(make_member(runs))
    return client


@pytest.fixture
def agent(runs: Project) -> Client:
    return Client(headers={"Authorization": f"Bearer {make_key(runs)}"})


def asked(agent: Client, query: str = "", expect: int = 200) -> Any:
    answer = agent.get(f"/api/v1/steps/{query}")
    assert answer.status_code == expect, answer.content
    return answer.json()


def found(agent: Client, query: str) -> list[str]:
    return sorted(f"{one['run']} {one['name']}" for one in asked(agent, query)["results"])


@pytest.mark.django_db
def test_the_questions_of_an_issue(runs: Project, agent: Client) -> None:
    slow = "?kind=tool&name=search&duration_min=2"
    assert found(agent, slow) == [f"run-{n} search" for n in ("1-1", "1-2", "2-0", "2-1", "2-2")]
    assert found(agent, f"{slow}&agent_version=2&status=error") == []
    assert found(agent, "?kind=tool&status=error") == [f"run-2-{n} pay" for n in range(3)]
    both = "?kind=tool&agent_version=2&failed_or_over="
    failed = [f"run-2-{n} pay" for n in range(3)]
    assert found(agent, f"{both}4") == sorted([*failed, "run-2-2 search"])
    assert found(agent, f"{both}4.5") == failed
    assert found(agent, "?arguments=order-21") == ["run-2-1 search"]
    assert found(agent, "?error=card+decl&agent=clerk") == [f"run-2-{n} pay" for n in range(3)]
    assert found(agent, "?run=run-1-0&kind=tool") == ["run-1-0 pay", "run-1-0 search"]
    assert found(agent, "?from=2026-11-03&kind=tool&name=pay") == ["run-1-2 pay", "run-2-2 pay"]
    one = asked(agent, "?run=run-1-0&name=search")["results"][0]
    assert one["arguments"] == '{"order": "order-10"}' and one["duration_ms"] == 1000
    assert one["started_at"] == "2026-11-01T12:00:00Z" and one["message_index"] == 2


@pytest.mark.proof
@pytest.mark.django_db
def test_many_matches_are_walked_and_few_are_looked_up(
    runs: Project, agent: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = (
        "?kind=tool&name=search&duration_min=2",
        "?kind=tool&failed_or_over=2",
        "?kind=tool&failed_or_over=0.5",
        "?status=error",
        "?arguments=order-21",
        "?error=card",
    )
    monkeypatch.setattr(step_filters, "RARE", 0)
    monkeypatch.setattr(step_filters, "PROBED", 1)
    looked_up = [found(agent, query) for query in queries]
    monkeypatch.setattr(step_filters, "MOST", 0)
    monkeypatch.setattr(filters.few_of, "__defaults__", (0,))
    too_many = [found(agent, query) for query in queries]
    monkeypatch.setattr(step_filters, "RARE", 10**9)
    walked = [found(agent, query) for query in queries]
    assert looked_up == too_many == walked and all(walked)


OVER_MONTHS = ("2019-05-01", "2026-08-31", "2026-09-01", "2026-10-15", "2026-10-31", "2026-11-01")


LOOKED_UP = (
    {"name": "pay", "status": "error"},
    {"name": "search", "duration_min": "2"},
    {"kind": "tool", "failed_or_over": "2"},
    {"name": "search", "failed_or_over": "2", "agent_version": "3"},
    {"arguments": "order"},
    {"error": "card", "kind": "tool"},
    {"score": "fit"},
    {"score": "fit", "score_value_min": "2", "name": "pay"},
    {"score": "fit", "from": "2026-09-01", "to": "2026-10-31"},
)
WAYS = ((10_000, 1), (10_000, 5_000), (3, 2))


@pytest.mark.more
@pytest.mark.django_db
@pytest.mark.parametrize(("most", "near"), WAYS)
def test_pages_that_are_looked_up_are_those_that_are_walked(
    runs: Project, monkeypatch: pytest.MonkeyPatch, most: int, near: int
) -> None:
    """In the suite every sixth query, each in one of the three ways, in proof all in each."""
    queries = amount(LOOKED_UP[WAYS.index((most, near)) :: 6 * len(WAYS)], LOOKED_UP)
    spans = [
        {"kind": "tool", "name": name, "start_ms": 0, "duration_ms": 2500, "message_index": 3}
        for name in ("pay", "search")
    ]
    call = calling(("a", "pay", '{"order": "order-20"}'), ("b", "search", '{"order": "order"}'))
    said = [USER, call, reply("a", "Error: card declined"), reply("b", "found")]
    one = {"agent": {"name": "clerk", "version": "3"}, "messages": said}
    for n, day in enumerate(OVER_MONTHS):
        at = f"{day}T00:00:00Z"
        ingest(runs, row(f"m-{n}", **one, started_at=at, metadata={"steps": spans}))
    names = dict(Trajectory.objects.values_list("pk", "external_id"))
    scores.receive(
        project=runs,
        sent=[
            Sent(run=names[step.trajectory_id], name="fit", value=step.number, step=step.key)
            for step in Step.objects.filter(kind="tool")
        ],
    )

    def pages(given: dict) -> list[list[Any]]:
        seen = []
        for sort in ("started", "-started"):
            pages = [step_rows.page(runs, given | {"sort": sort}, 4)]
            while after := pages[-1]["next"]:
                pages.append(step_rows.page(runs, given | {"sort": sort, "cursor": after}, 4))
            before = {"sort": sort, "cursor": pages[-1]["previous"]}
            assert step_rows.page(runs, given | before, 4)["rows"] == pages[-2]["rows"]
            seen += [[step.pk for step in page["rows"]] for page in pages]
        return seen

    with monkeypatch.context() as patch:
        patch.setattr(step_filters, "_search", lambda *args: None)
        walked = list(map(pages, queries))
    assert all(len(one) > 2 for one in walked)
    monkeypatch.setattr(step_filters, "RARE", 0)
    monkeypatch.setattr(step_filters, "PROBED", 1)
    monkeypatch.setattr(step_filters, "COMMON", 10**6)
    monkeypatch.setattr(step_filters, "MOST", most)
    search, looked_up = step_filters._looked_up, []
    monkeypatch.setattr(
        step_filters, "_looked_up", lambda *args: looked_up.append(args) or search(*args)
    )
    monkeypatch.setattr(step_filters, "NEAR", near)
    for given, expected in zip(queries, walked, strict=True):
        looked_up.clear()
        assert pages(given) == expected and looked_up, given


@pytest.mark.django_db
def test_what_excludes_words_is_of_steps_without_any_too(
    runs: Project, agent: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pay` is called without arguments."""
    monkeypatch.setattr(step_filters, "RARE", 0)  # they are looked up
    monkeypatch.setattr(step_figures, "READ", -1)
    query = "?name=pay&status=error&arguments=-order"
    assert found(agent, query) == [f"run-2-{n} pay" for n in range(3)]
    assert agent.get(f"/api/v1/steps/metrics/{query}").json()["steps"] == 3


@pytest.mark.django_db
def test_steps_of_a_version_are_looked_for_where_its_runs_are(runs: Project, agent: Client) -> None:
    rows = Trajectory.objects.filter(project=runs).order_by("id")
    first, *_, last = rows.filter(agent_version="1").values_list("id", flat=True)
    within = step_filters._within_version(runs, "1", {})
    assert within == {"gte": first, "lte": last}
    later = step_filters.ids_within(ids.time_of(last), None)
    assert step_filters._within_version(runs, "1", later) == later | {"lte": last}
    assert step_filters._within_version(runs, "unknown", later) == later
    listed = {one["run"] for one in asked(agent, "?agent_version=1&kind=tool")["results"]}
    assert listed == set(rows.filter(agent_version="1").values_list("external_id", flat=True))


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("sort", "column"),
    [("started", "run_started_at"), ("duration", "duration_ms"), ("tokens", "input_tokens")],
)
def test_every_step_is_on_one_page(runs: Project, agent: Client, sort: str, column: str) -> None:
    for order in (sort, f"-{sort}"):
        seen, query = [], f"?limit=5&sort={order}"
        while query:
            page = asked(agent, query)
            seen += page["results"]
            query = f"?limit=5&sort={order}&cursor={page['next']}" if page["next"] else ""
        having = {"duration": {"duration_ms__isnull": False}, "tokens": {"total_tokens__gt": 0}}
        count = Step.objects.filter(**having.get(sort, {})).count()
        assert len({(one["run"], one["key"]) for one in seen}) == len(seen) == count
        values = [one[column] for one in seen]
        assert values == sorted(values, reverse=order.startswith("-"))
    back = asked(agent, f"?limit=5&sort={order}&cursor={page['previous']}")
    assert back["results"][-1] == seen[-len(page["results"]) - 1]


@pytest.mark.more(rows=3)
@pytest.mark.django_db
@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("?tool=pay", "Unknown filter “tool”"),
        ("?agent_name=x", "Did you mean “agent”?"),
        ("?status=failed", "must be one of ok, error"),
        ("?duration_min=two", "must be a number"),
        ("?from=yesterday", "date or time"),
        ("?cursor=after-7", "is not a cursor"),
        (f"?sort=-tokens&cursor=after-{UUID(int=1)}.1-inf", "is not a cursor"),
        (f"?sort=duration&cursor=after-{UUID(int=1)}.1-nan", "is not a cursor"),
        ("?sort=name", "must be one of"),
    ],
)
def test_what_is_not_a_filter_is_refused(
    runs: Project, agent: Client, engineer: Client, query: str, says: str
) -> None:
    page = engineer.get(reverse("trajectories:steps", args=[runs.slug]) + query)
    assert says in str(asked(agent, query, expect=400)) and page.status_code == 400
    assert escape(says) in page.content.decode()


@pytest.mark.django_db
def test_figures_by_tool_and_version(runs: Project, agent: Client, engineer: Client) -> None:
    answer = agent.get("/api/v1/steps/metrics/?kind=tool&by=name&split=agent_version").json()
    groups = {(one["value"], one["part"]): one for one in answer["groups"]}
    assert groups["search", "2"]["p50_ms"] == 3000 and groups["pay", "2"]["error_rate"] == 1
    assert groups["pay", "1"]["errors"] == 0 and answer["steps"] == 12 and answer["complete"]
    page = reverse("trajectories:steps_chart", args=[runs.slug])
    text = engineer.get(f"{page}?kind=tool&measure=p95&split=agent_version").content.decode()
    assert "agent_version=2" in text and "Duration, p95 by name and version" in text
    drawn = json.loads(re.search(r"<script[^>]*json[^>]*>(.*?)</script>", text, re.DOTALL)[1])
    assert drawn["layout"]["yaxis"]["categoryarray"] == ["search", "pay"]  # names beside the chart
    assert [trace["name"] for trace in drawn["data"]] == ["1", "2"]
    assert drawn["data"][0]["y"] == ["pay", "search"] and drawn["data"][0]["x"][1] == 2.9
    links = re.findall(r'href="(\?[^"]+)"', text)
    for link in {unescape(link) for link in links}:
        listed = engineer.get(reverse("trajectories:steps", args=[runs.slug]) + link)
        assert listed.status_code == 200 and b"data-row" in listed.content


@pytest.mark.django_db
def test_figures_are_a_file(runs: Project, agent: Client, engineer: Client) -> None:
    query = "?kind=tool&by=name&split=agent_version&format=csv"
    page = reverse("trajectories:steps_chart", args=[runs.slug])
    files = [agent.get(f"/api/v1/steps/metrics/{query}"), engineer.get(page + query)]
    assert files[0].content == files[1].content and files[0]["Content-Type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(files[0].content.decode("utf-8-sig"))))
    found = {(one["name"], one["agent_version"]): one for one in rows}
    assert float(found["search", "2"]["p50_ms"]) == 3000 and found["pay", "2"]["errors"] != "0"
    assert float(found["pay", "1"]["error_low"]) == 0 < float(found["pay", "1"]["error_high"])
    whole = agent.get("/api/v1/steps/metrics/?kind=guardrail&format=csv").content.decode()
    assert whole.strip("\ufeff\r\n") == "name"


@pytest.mark.django_db
def test_tokens_of_models_are_summed_and_drawn(
    runs: Project, agent: Client, engineer: Client
) -> None:
    rows = Step.objects.filter(project=runs, kind="model")
    groups = agent.get("/api/v1/steps/metrics/?kind=model").json()["groups"]
    assert sum(one["tokens"] for one in groups) == sum(row.total_tokens or 0 for row in rows) > 0
    page = reverse("trajectories:steps_chart", args=[runs.slug])
    assert engineer.get(f"{page}?kind=model&measure=tokens").status_code == 200


@pytest.mark.more(rows=2)
@pytest.mark.django_db
@pytest.mark.parametrize(
    "query",
    [
        "name=nothing",
        "run=unknown&kind=tool",
        "arguments=nothing",
        "error=nothing",
        "run=unknown&error=nothing",
        "kind=tool&tokens_max=-1000000000000",
    ],
)
def test_what_nothing_matches(
    runs: Project, agent: Client, engineer: Client, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    monkeypatch.setattr(step_filters, "RARE", 0)
    assert found(agent, f"?{query}") == []
    assert agent.get(f"/api/v1/steps/metrics/?{query}").json()["groups"] == []
    assert b"".join(agent.get(f"/api/v1/steps/export/?{query}").streaming_content) == b""
    for page in ("steps", "steps_chart"):
        address = reverse(f"trajectories:{page}", args=[runs.slug])
        assert engineer.get(f"{address}?{query}").status_code == 200


@pytest.mark.django_db
def test_runs_behind_figures_are_looked_for_only_where_something_is_held_out(
    runs: Project, agent: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    lookups, runs_of = [], step_filters.runs_of

    def counted(project: Project, given: Any) -> Any:
        lookups.append(given)
        return runs_of(project, given)

    monkeypatch.setattr(step_filters, "runs_of", counted)
    address = "/api/v1/steps/metrics/?arguments=order"
    assert agent.get(address).status_code == 200 and not lookups
    make_eval_set(runs)
    assert agent.get(address).status_code == 200 and lookups


@pytest.mark.django_db
def test_words_are_of_the_arguments_alone(runs: Project, agent: Client) -> None:
    assert found(agent, "?kind=tool&arguments=declined") == []
    assert len(found(agent, "?name=search&arguments=order+-found")) == 6


@pytest.mark.django_db
def test_a_row_leads_to_its_place(runs: Project, engineer: Client) -> None:
    address = reverse("trajectories:steps", args=[runs.slug])
    text = engineer.get(f"{address}?run=run-2-0&kind=tool&name=pay").content.decode()
    run = Trajectory.objects.get(external_id="run-2-0")
    assert f"{run.get_absolute_url()}#m3" in text and "card declined" in text
    detail = engineer.get(run.get_absolute_url()).content.decode()
    assert "?run=run-2-0&amp;sort=started" in detail and 'id="m3"' in detail


@pytest.mark.django_db
def test_files(runs: Project, agent: Client, engineer: Client) -> None:
    lines = b"".join(agent.get("/api/v1/steps/export/?status=error").streaming_content)
    assert [json.loads(line)["name"] for line in lines.splitlines()] == ["pay"] * 3
    Step.objects.filter(name="pay").update(arguments="=cmd()")
    address = reverse("trajectories:steps_export", args=[runs.slug])
    text = b"".join(engineer.get(f"{address}?format=csv&name=pay").streaming_content).decode()
    rows = list(csv.DictReader(io.StringIO(text.removeprefix("\ufeff"))))
    assert len(rows) == 6 and {one["arguments"] for one in rows} == {"'=cmd()"}


@pytest.mark.django_db
def test_views_of_steps_are_not_views_of_runs(runs: Project, engineer: Client) -> None:
    address = reverse("trajectories:steps", args=[runs.slug])
    save = reverse("trajectories:save_view", args=[runs.slug])
    saved = engineer.post(save, {"name": "Slow", "page": "steps", "query": "duration_min=2"})
    assert saved.url == f"{address}?duration_min=2"
    assert b"?duration_min=2" in engineer.get(address).content
    runs_list = engineer.get(reverse("trajectories:list", args=[runs.slug])).content
    assert b"duration_min=2" not in runs_list
    refused = engineer.post(save, {"name": "Slow", "query": "duration_min=2"})
    assert refused.status_code == 400


@pytest.mark.django_db
def test_a_run_that_was_just_deleted_has_no_steps_on_a_page(runs: Project, agent: Client) -> None:
    """The digest may have been writing them meanwhile."""
    gone = Trajectory.objects.get(external_id="run-2-0")
    Trajectory.objects.filter(pk=gone.pk).delete()
    assert Step.objects.filter(trajectory_id=gone.pk).exists()
    left = {one["run"] for one in asked(agent, "?limit=500")["results"]}
    assert left == {f"run-{version}-{n}" for version in "12" for n in range(3)} - {"run-2-0"}
    assert b"run-2-0" not in b"".join(agent.get("/api/v1/steps/export/").streaming_content)


def test_steps_of_runs_that_were_stored_before_there_were_any(runs: Project) -> None:
    before = list(Step.objects.filter(project=runs).order_by("pk").values())
    Step.objects.filter(project=runs).delete()
    call_command("backfill_steps", project=runs.slug)
    call_command("backfill_steps", project=runs.slug)
    assert list(Step.objects.filter(project=runs).order_by("pk").values()) == before
    assert not Arrival.objects.exists()
