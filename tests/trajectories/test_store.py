"""What is stored, once, with its history, its roll-ups and its words."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction
from django.db.models import Sum
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apps.core.models import Project
from apps.core.postgres import array
from apps.trajectories import contents, decoding, digest, filters, ids, partitions
from apps.trajectories.actions.deletions import delete
from apps.trajectories.actions.store import find, ingest
from apps.trajectories.models import (
    Arrival,
    Content,
    Facet,
    HourlyCount,
    SearchText,
    Trajectory,
    TrajectoryKey,
    in_chunks,
    with_content,
)
from apps.trajectories.rollups import KIND
from apps.trajectories.schema import Feedback, OutcomeChange
from flywheel.outages import is_transient
from tests.factories import make_project, row, tell

pytestmark = pytest.mark.django_db
NOW = datetime.now(UTC)


def long_row(steps: int, **changes: Any) -> dict:
    messages = [{"role": "user", "content": "start"}]
    messages += [
        {"role": "assistant", "content": f"step{number} thinking"} for number in range(steps)
    ]
    return row(**changes) | {"messages": messages}


def test_ids_sort_by_start(project: Project) -> None:
    starts = [NOW - timedelta(microseconds=n * 7) for n in range(50)] + [
        NOW - timedelta(days=n) for n in range(1, 50)
    ]
    random.Random(1).shuffle(starts)
    made = [ids.uuid7(at) for at in starts]
    assert [pk for _, pk in sorted(zip(starts, made, strict=True))] == sorted(made)
    assert all(
        pk.version == 7 and ids.floor_of(at) <= pk for at, pk in zip(starts, made, strict=True)
    )
    assert ids.time_of(ids.uuid7(NOW)) == NOW.replace(microsecond=NOW.microsecond // 1000 * 1000)


def test_a_row_is_filed_in_the_month_of_its_start(project: Project) -> None:
    starts = [
        "1970-01-01T00:00:00Z",
        "2019-12-31T23:59:59Z",
        "2020-01-01T00:00:00Z",
        "2024-02-29T12:00:00Z",
    ]
    ingest(project=project, rows=[row(name=at, started_at=at) for at in starts])
    with connection.cursor() as cursor:
        cursor.execute("SELECT external_id, tableoid::regclass::text FROM trajectories_trajectory")
        found = dict(cursor.fetchall())
    assert [found[at].removeprefix("trajectories_trajectory_") for at in starts] == [
        "older",
        "older",
        "2020_01",
        "2024_02",
    ]
    assert [str(item) for item in Trajectory.objects.order_by("pk")] == starts


def test_a_clock_in_the_future_is_told_and_filed_under_now(project: Project) -> None:
    done = ingest(project=project, rows=[row(name="a", started_at="2100-01-01T00:00:00Z")])
    assert done.accepted == 1
    assert done.warnings == [
        {
            "index": 0,
            "path": "started_at",
            "warning": "is in the future; the run is stored under its arrival time",
        }
    ]
    stored = find(project, "a")
    assert stored and abs(ids.time_of(stored.pk) - timezone.now()) < timedelta(minutes=1)
    assert stored.started_at.year == 2100 and stored.warnings[0]["path"] == "started_at"


@pytest.mark.parametrize("table", ["trajectories_step", "trajectories_trajectory"])
@pytest.mark.parametrize("is_dropped", [True, False])
def test_a_table_that_lost_its_partition_is_missed_and_gets_it_back(
    is_dropped: bool, table: str, project: Project
) -> None:
    month = max(partitions.months())
    name = f"{table}_{partitions.suffix(month)}"
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} DETACH PARTITION {name}")
        if is_dropped:
            cursor.execute(f"DROP TABLE {name}")
    assert month in partitions.missing_ahead()
    partitions.ensure_ahead()
    assert not partitions.missing_ahead()


def test_a_request_whose_partition_was_lost_is_to_be_sent_again(project: Project) -> None:
    """This process knows the month's partitions, so it does not look for them."""
    ingest(project=project, rows=[row(id="before")])
    name = f"{partitions.FIRST}_{partitions.suffix(ids.month_of(timezone.now()))}"
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {partitions.FIRST} DETACH PARTITION {name}")
    partitions._known.add(ids.month_of(timezone.now()))
    with pytest.raises(OperationalError) as lost, transaction.atomic():
        ingest(project=project, rows=[row(id="a")])
    assert is_transient(lost.value)
    ingest(project=project, rows=[row(id="a")])
    assert find(project, "a") and find(project, "before")


def test_a_new_database_has_the_partitions_of_the_months_to_come(project: Project) -> None:
    assert not partitions.missing_ahead()


@pytest.mark.parametrize(
    ("now", "months"),
    [
        ("2031-11-29T00:30", ["2031_11", "2031_12", "2032_01"]),
        ("2032-01-31T23:59", ["2032_01", "2032_02", "2032_03"]),
        ("2033-05-01T00:00", ["2033_05", "2033_06"]),
    ],
)
def test_partitions_are_made_ahead(
    project: Project, monkeypatch: pytest.MonkeyPatch, now: str, months: list[str]
) -> None:
    """For every month that begins in the next six weeks, also where one lies between now and
    then.
    """
    moment = datetime.fromisoformat(now).replace(tzinfo=UTC)
    monkeypatch.setattr(partitions.timezone, "now", lambda: moment)
    partitions.ensure_ahead()
    assert {f"{month:%Y_%m}" for month in partitions.months()} >= set(months)
    with connection.cursor() as cursor:
        for month in months:
            for table in partitions.TABLES:
                cursor.execute("SELECT to_regclass(%s)", [f"{table}_{month}"])
                assert cursor.fetchone()[0], (table, month)


def test_nobody_tries_to_compress_words(project: Project) -> None:
    ingest(project=project, rows=[row("old", started_at="2021-03-04T05:06:07Z")])
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT relname, attstorage FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid"
            " WHERE attname = 'words' AND relname LIKE 'trajectories_searchtext%'"
            " AND relkind IN ('p', 'r')"
        )
        storage = dict(cursor.fetchall())
    assert "trajectories_searchtext_2021_03" in storage and set(storage.values()) == {"e"}


def test_only_the_partitions_of_the_time_are_read(project: Project) -> None:
    ingest(project=project, rows=[row(started_at="2024-02-29T12:00:00Z"), row()])
    plan = filters.apply_filters(
        Trajectory.objects.filter(project=project), {"since": "24h"}
    ).explain()
    assert "2024_02" not in plan and "older" not in plan


def test_what_is_not_known_of_a_message_is_kept(project: Project) -> None:
    message = {"role": "assistant", "content": None, "refusal": "no", "audio": {"id": "a"}}
    ingest(project=project, rows=[row(name="a") | {"messages": [message]}])
    stored = find(project, "a")
    assert stored and stored.messages == [message]


def test_a_long_run_is_kept_in_parts_and_read_whole(project: Project) -> None:
    ingest(
        project=project,
        rows=[long_row(1000, name="long"), row(name="short"), long_row(450, name="middle")],
    )
    long = find(project, "long")
    assert long and long.message_count == 1001
    firsts = list(
        Content.objects.filter(trajectory_id=long.pk)
        .order_by("first")
        .values_list("first", flat=True)
    )
    assert firsts == [0, 200, 400, 600, 800, 1000]
    assert [message["content"] for message in long.messages[1:]] == [
        f"step{n} thinking" for n in range(1000)
    ]
    read = {
        item.external_id: len(item.messages)
        for item in with_content(list(Trajectory.objects.all()))
    }
    assert read == {"long": 1001, "short": 2, "middle": 451}
    assert sum(len(chunk) for chunk in in_chunks(Trajectory.objects.all(), 2)) == 3


@given(
    lengths=st.lists(st.integers(0, 400_000), min_size=1, max_size=8),
    many=st.integers(0, 700),
)
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_chunks_hold_what_was_cut(lengths: list[int], many: int) -> None:
    messages = [{"role": "user", "content": "x" * length} for length in lengths]
    messages += [{"role": "assistant", "content": str(n)} for n in range(many)]
    content = contents.EMPTY | {"messages": messages, "metadata": {"a": 1}}
    parts = contents.chunks(content)
    assert contents.join(data for _, data in parts) == content
    cut = [(first, contents.unpack(data)["messages"]) for first, data in parts]
    assert [first for first, _ in cut] == [sum(len(m) for _, m in cut[:n]) for n in range(len(cut))]
    assert all(1 <= len(part) <= contents.CHUNK_MESSAGES for _, part in cut)


def test_two_of_one_id_in_a_batch_lose_nothing(project: Project) -> None:
    done = ingest(
        project=project,
        rows=[row(name="a", model="one"), row(name="a", model="two"), row(name="b")],
    )
    assert (done.accepted, done.updated, done.duplicates) == (2, 1, 0)
    stored = find(project, "a")
    assert stored and stored.model == "two" and stored.revisions.get().content["model"] == "one"


def test_the_same_content_in_another_order_is_a_duplicate(project: Project) -> None:
    sent = row(name="a", metadata={"x": 1, "y": [1, 2]}, started_at="2026-01-01T00:00:00Z")
    again = dict(reversed(sent.items())) | {"metadata": {"y": [1, 2], "x": 1}}
    ingest(project=project, rows=[sent])
    assert ingest(project=project, rows=[again]).duplicates == 1


def test_ids_are_a_projects_own(project: Project) -> None:
    other = make_project()
    for owner in (project, other):
        assert ingest(project=owner, rows=[row(name="a")]).accepted == 1
    found = [find(owner, "a") for owner in (project, other)]
    assert all(found) and found[0] != found[1]


def test_deleting_leaves_nothing(project: Project) -> None:
    ingest(project=project, rows=[long_row(500, name="a"), row(name="b")])
    digest.run()
    gone = find(project, "a")
    assert gone
    delete(trajectory=gone)
    digest.run()
    assert find(project, "a") is None
    for model in (Content, SearchText):
        assert not model.objects.filter(trajectory_id=gone.pk).exists()
    assert (
        TrajectoryKey.objects.count()
        == HourlyCount.objects.aggregate(n=Sum("trajectories"))["n"]
        == 1
    )
    assert ingest(project=project, rows=[long_row(500, name="a")], restore=True).accepted == 1


def test_words_are_found_after_the_digest(project: Project) -> None:
    sent = [
        row(name="a", request="Move the harpsichord to the attic"),
        row(
            name="b",
            call={"tool": "files.share", "args": {"file": "harvest-report", "person": "Zoë"}},
        ),
        row(name="c")
        | {
            "messages": [
                {"role": "system", "content": "harpsichord"},
                {"role": "user", "content": "x"},
            ]
        },
    ]
    ingest(project=project, rows=sent)
    assert digest.run() == 1 and not Arrival.objects.exists() and digest.run() == 0
    for query, names in {
        "harpsichord": ["a"],
        "harpsich": ["a"],
        "attic move": ["a"],
        '"the attic"': ["a"],
        '"attic the"': [],
        "harpsichord or zoë": ["b", "a"],
        "harvest-report": ["b"],
        "files.share": ["b"],
        "c": ["c"],
        "harpsichord -attic": [],
        "'; drop table": [],
        "a & | ! b:*": [],
    }.items():
        found = filters.apply_filters(
            Trajectory.objects.filter(project=project), {"q": query}
        ).order_by("-pk")
        assert [item.external_id for item in found] == names, query


@pytest.mark.proof
@given(text=st.text(max_size=40))
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_no_search_breaks(text: str) -> None:
    assert filters.apply_filters(Trajectory.objects.all(), {"q": text}).count() == 0


changes = st.fixed_dictionaries(
    {},
    optional={
        "model": st.sampled_from(["", "m1", "m2"]),
        "agent": st.fixed_dictionaries(
            {"name": st.just("a"), "version": st.sampled_from(["1", "2"])}
        ),
        "workload": st.sampled_from(["w1", "w2"]),
        "started_at": st.sampled_from(
            ["2026-03-01T10:59:59Z", "2026-03-01T11:00:00+02:00", "2021-01-01T00:00:00"]
        ),
        "outcome": st.fixed_dictionaries(
            {"status": st.sampled_from(["success", "failure", "unknown"])}
        ),
        "usage": st.fixed_dictionaries(
            {"input_tokens": st.integers(0, 10), "cost_usd": st.floats(0, 1)}
        ),
        "latency_ms": st.none() | st.integers(0, 100),
        "tags": st.lists(st.sampled_from(["x", "y"]), max_size=2, unique=True),
        "call": st.just({"tool": "files.share", "args": {}}),
    },
)
steps = st.lists(
    st.tuples(
        st.sampled_from(["send", "send", "feedback", "delete", "digest"]),
        st.integers(0, 5),
        changes,
    ),
    min_size=1,
    max_size=25,
)


@given(steps=steps)
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_roll_ups_are_what_counting_gives(project: Project, steps: list) -> None:
    """Whatever is sent, changed and deleted, in whatever order it is digested."""
    for row_ in list(project.trajectories.all()):
        delete(trajectory=row_)
    for kind, number, change in steps:
        stored = find(project, f"r{number}")
        if kind == "send":
            ingest(project=project, rows=[row(name=f"r{number}", **change)])
        elif kind == "feedback" and stored:
            tell(stored, Feedback(outcome=OutcomeChange(status="failure"), score=0.0))
        elif kind == "delete" and stored:
            delete(trajectory=stored)
        elif kind == "digest":
            digest.run()
    digest.run()
    expected: Counter = Counter()
    sums: Counter = Counter()
    facets: Counter = Counter()
    for item in project.trajectories.all():
        hour = ids.time_of(item.pk).replace(
            minute=0, second=0, microsecond=0
        )  # where lists have it
        key = (hour, *(getattr(item, name) for name in KIND))
        expected[key] += 1
        sums[key] += item.input_tokens or 0
        for name in item.tool_names:
            facets["tool", name] += 1
        for name in item.tags:
            facets["tag", name] += 1
    counted = {
        (item.hour, *(getattr(item, name) for name in KIND)): (item.trajectories, item.input_tokens)
        for item in HourlyCount.objects.filter(project=project)
    }
    assert {key: value for key, value in counted.items() if value != (0, 0)} == {
        key: (n, sums[key]) for key, n in expected.items()
    }
    found = project.facets.filter(kind__in=["tool", "tag"], trajectories__gt=0)
    assert {(item.kind, item.value): item.trajectories for item in found} == facets


def test_facets_are_bounded(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "FACETS_LIMIT", 3)
    ingest(project=project, rows=[row(tags=[f"t{n}" for n in range(10)])])
    digest.run()
    assert project.facets.filter(kind=Facet.Kind.TAG).count() == 3


@pytest.mark.parametrize(
    ("messages", "path"),
    [
        ([{"role": "tool", "tool_call_id": "x", "content": "?"}], "messages[0].tool_call_id"),
        ([{"role": "user", "content": "a\x00b"}], "messages[0].content"),
        ([{"role": "user", "content": "a\ud800b"}], "messages[0].content"),
    ],
)
def test_what_is_odd_is_stored_with_a_warning(project: Project, messages: list, path: str) -> None:
    done = ingest(project=project, rows=[row(name="a") | {"messages": messages}])
    assert done.accepted == 1 and [item["path"] for item in done.warnings] == [path]
    stored = find(project, "a")
    assert stored and [item["path"] for item in stored.warnings] == [path]


@pytest.mark.parametrize(
    "text",
    [
        b'{"a": 1}',
        b'{"a": "\\u0000"}',
        b'{"a": 123456789012345678901}',
        b"[0,-123456789012345678901]",
        b'{"a":1.234567890123456789012, "b":\t123456789012345678901}',
        b'{"a": "1234567890123456789"}',
        b'{"a": [1.5, true, null, "\\u00e9"]}',
    ],
)
def test_both_ways_of_decoding_agree(text: bytes) -> None:
    quick = decoding.decode(text)
    value = quick.value if isinstance(quick, decoding.Decoded) else quick
    assert value == decoding.loads(text)


def test_digits_of_a_text_are_no_large_number() -> None:
    assert isinstance(decoding.decode(b'{"id": "run-1234567890123456789"}'), decoding.Decoded)


@pytest.mark.parametrize(
    "text", [b"NaN", b'{"a": Infinity}', b"[" * 5000, b"{", b"", b"\xff", b"1 2"]
)
def test_what_is_no_json_is_refused_in_both(text: bytes) -> None:
    with pytest.raises(decoding.RowError, match="not JSON"):
        decoding.decode(text)


@pytest.mark.proof
@given(
    st.recursive(
        st.none() | st.text() | st.integers(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_depth(value: Any) -> None:
    def depth(value: Any) -> int:
        inner = (
            value.values()
            if isinstance(value, dict)
            else value
            if isinstance(value, list)
            else None
        )
        return 0 if inner is None else 1 + max(map(depth, inner), default=0)

    for levels in range(4):
        assert decoding.deeper(value, levels) == (depth(value) > levels + 1), levels


@given(
    st.lists(
        st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=8),
        max_size=5,
    )
)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_arrays_of_text_arrive_as_they_were(values: list[str]) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT %s::text[]", [array(values)])
        assert cursor.fetchone()[0] == values
