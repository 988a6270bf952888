"""Files of other products: recognised with certainty, and every message, token and verdict of them
in its place.
"""

from __future__ import annotations

import io
import json
from typing import Any

import pyarrow as pa
import pytest
import yaml
from pyarrow import parquet

from apps.trajectories.decoding import RowError
from apps.trajectories.importers import ImportError_, OpenFile, read
from apps.trajectories.importers.encodings import guesses
from apps.trajectories.importers.helpdesks import plain_text
from apps.trajectories.schema import Parsed, parse_row


def opened(data: Any, name: str = "file.json", **options: Any) -> OpenFile:
    raw = data if isinstance(data, bytes) else json.dumps(data).encode()
    return read(io.BytesIO(raw), name, **options)


def parsed(data: Any, name: str = "file.json", format: str = "") -> list[Parsed]:
    reading = opened(data, name)
    assert reading.format == format or not format
    return [parse_row(row) for _, row in reading.rows]


def said(row: Parsed) -> list[tuple[str, Any]]:
    return [(message.role, message.content) for message in row.row.messages]


def part(kind: str, body: str | None, author: str) -> dict:
    return {"part_type": kind, "body": body, "author": {"type": author, "id": f"id-{author}"}}


INTERCOM = {
    "type": "conversation",
    "id": "215",
    "created_at": 1767225600,
    "source": {
        "type": "email",
        "subject": "Rückgabe",
        "body": "<p>Wie kann ich die Schuhe zurückgeben?</p><p>Größe 43 &amp; neu</p>",
        "author": {"type": "lead", "id": "kunde-1"},
    },
    "conversation_parts": {
        "conversation_parts": [
            part("assignment", None, "bot"),
            part("note", "<p>VIP, bitte schnell</p>", "admin"),
            part("comment", "<p>Mit dem <a href='x'>Etikett</a>.</p>", "bot"),
            part("comment", "<p>Danke<br>Anna</p>", "lead"),
        ],
        "total_count": 4,
    },
    "ai_agent": {"resolution_state": "confirmed_resolution"},
    "tags": {"tags": [{"name": "returns"}]},
}


@pytest.mark.parametrize(
    "document",
    [INTERCOM, {"type": "conversation.list", "conversations": [INTERCOM]}, [INTERCOM]],
)
def test_intercom_keeps_what_the_customer_could_read(document: Any) -> None:
    [row] = parsed(document, format="intercom")
    assert said(row) == [
        ("user", "Rückgabe\n\nWie kann ich die Schuhe zurückgeben?\nGröße 43 & neu"),
        ("assistant", "Mit dem Etikett."),
        ("user", "Danke\nAnna"),
    ]
    assert (row.row.outcome.status, row.row.user_id, row.row.tags) == (
        "success",
        "kunde-1",
        ["returns"],
    )


@pytest.mark.parametrize(("rating", "status"), [(5, "success"), (3, "unknown"), (1, "failure")])
def test_a_rating_of_intercom_decides_over_its_agent(rating: int, status: str) -> None:
    rated = INTERCOM | {"conversation_rating": {"rating": rating, "remark": "hm"}}
    [row] = parsed(rated)
    assert (row.row.outcome.status, row.row.outcome.reason) == (status, "hm")


@pytest.mark.parametrize(
    ("agent", "status", "label"),
    [
        ({"resolution_state": "escalated"}, "failure", "escalated"),
        ({"resolution_state": "negative_feedback"}, "failure", "negative_feedback"),
        ({"resolution_state": "procedure_handoff"}, "unknown", "procedure_handoff"),
        ({"resolution_state": "assumed_resolution", "rating": 1}, "failure", "rated 1 of 5"),
    ],
)
def test_what_became_of_intercoms_agent_decides_where_nobody_rated_the_conversation(
    agent: dict, status: str, label: str
) -> None:
    [row] = parsed(INTERCOM | {"conversation_rating": None, "ai_agent": agent})
    assert (row.row.outcome.status, row.row.outcome.label) == (status, label)


def test_a_conversation_from_a_list_without_its_parts_lacks_history() -> None:
    listed = {key: value for key, value in INTERCOM.items() if key != "conversation_parts"}
    [row] = parsed(listed)
    assert row.row.tags == ["returns", "missing-history"]
    parts = INTERCOM["conversation_parts"] | {"total_count": 600}
    [row] = parsed(INTERCOM | {"conversation_parts": parts})
    assert "missing-history" in row.row.tags


def test_a_conversation_without_words_is_an_error() -> None:
    silent = INTERCOM | {"source": {"body": "<p> </p>", "author": {"type": "user"}}}
    silent["conversation_parts"] = {"conversation_parts": [part("note", "<p>x</p>", "admin")]}
    [(_, row)] = opened({"conversations": [silent]}).rows
    assert isinstance(row, RowError)


def test_html_is_words_also_where_it_is_hostile() -> None:
    assert plain_text("a &lt;b&gt; <b>c</b><br/>d<!-- no --><img alt='e'><p>f &amp; g</p>") == (
        "a <b> c\nd[image: e]\nf & g"
    )
    for part in ("<a ", "<!--", "<", "&#", "<img alt='"):
        assert plain_text(part * 20_000)
    assert plain_text("&#" + "9" * 10_000 + ";<b>x</b>").endswith("x")


def test_zendesk_tells_the_requester_from_agents_and_leaves_notes_out() -> None:
    ticket = {
        "id": 31,
        "requester_id": 900,
        "subject": "Paiement",
        "description": "Ma carte est refusée.",
        "comments": [
            {"author_id": 900, "plain_body": "Ma carte est refusée.", "public": True},
            {"author_id": 12, "body": "à vérifier", "public": False},
            {"author_id": 12, "html_body": "<p>C'est corrigé.</p>", "public": True},
        ],
        "satisfaction_rating": {"score": "bad", "comment": "trop lent"},
    }
    [row] = parsed({"tickets": [ticket]}, format="zendesk")
    assert said(row) == [("user", "Ma carte est refusée."), ("assistant", "C'est corrigé.")]
    assert (row.row.outcome.status, row.row.outcome.reason) == ("failure", "trop lent")


@pytest.mark.parametrize("public", [False, 0, "0", "false", "False"])
def test_what_a_table_makes_of_an_internal_note_is_left_out(public: Any) -> None:
    notes = [{"author_id": 12, "body": "à vérifier", "public": public}]
    asked = [{"author_id": 900, "body": "Bonjour", "public": 1}]
    ticket = {"requester_id": 900, "description": "Bonjour", "via": {"channel": "web"}}
    [row] = parsed([ticket | {"comments": asked + notes}], format="zendesk")
    assert said(row) == [("user", "Bonjour")]


def promptfoo(**changes: Any) -> dict:
    return {
        "promptIdx": 0,
        "testIdx": 3,
        "prompt": {"raw": "Übersetze: Haus", "label": "v2"},
        "provider": {"id": "anthropic:messages:m"},
        "vars": {"word": "Haus"},
        "response": {"output": "house", "tokenUsage": {"prompt": 12, "completion": 3}},
        "cost": 0.25,
        "latencyMs": 40,
        "success": False,
        "score": 0.5,
        "gradingResult": {
            "pass": False,
            "reason": "Expected maison",
            "componentResults": [
                {"pass": False, "score": 0, "assertion": {"type": "equals", "value": "maison"}}
            ],
        },
    } | changes


@pytest.mark.parametrize("packing", ["json", "yaml", "lines"])
def test_promptfoo_results_in_each_of_its_files(packing: str) -> None:
    document = {"evalId": "e", "results": {"version": 3, "results": [promptfoo()]}, "config": {}}
    data = {
        "json": json.dumps(document).encode(),
        "yaml": yaml.safe_dump(document, allow_unicode=True).encode(),
        "lines": json.dumps(promptfoo()).encode() + b"\n" + json.dumps(promptfoo(id="b")).encode(),
    }[packing]
    row = parsed(data, f"r.{packing}", format="promptfoo")[0].row
    assert [message.content for message in row.messages] == ["Übersetze: Haus", "house"]
    assert (row.outcome.status, row.outcome.reward, row.outcome.reason) == (
        "failure",
        0.5,
        "Expected maison",
    )
    usage = row.usage
    assert (usage.input_tokens, usage.output_tokens, usage.cost_usd) == (12, 3, 0.25)
    assert row.metadata["assertions"][0]["type"] == "equals"


def test_promptfoo_tool_calls_are_calls() -> None:
    call = {"type": "function", "id": "c", "function": {"name": "find", "arguments": "{}"}}
    [row] = parsed({"results": [promptfoo(response={"output": [call]})]}, format="promptfoo")
    assert row.row.messages[-1].tool_calls[0].function.name == "find"


@pytest.mark.proof
def test_yaml_aliases_cannot_blow_up() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    with pytest.raises(ImportError_, match="too large"):
        opened("\n".join(lines).encode(), "bomb.yaml")
    with pytest.raises(ImportError_, match="nested deeper"):
        opened(b"a:\n  " + b"[" * 100_000, "bomb.yaml")


def test_output_items_of_hosted_evals_have_the_answer_and_the_graders() -> None:
    item = {
        "object": "eval.run.output_item",
        "id": "outputitem_9",
        "run_id": "evalrun_2",
        "status": "fail",
        "datasource_item": {"frage": "Wie viel?"},
        "results": [
            {"name": "exact", "passed": False, "score": 0.0},
            {"name": "near", "passed": True, "score": 1.0},
        ],
        "sample": {
            "input": [{"role": "user", "content": "Wie viel?"}],
            "output": [{"role": "assistant", "content": "Sieben."}],
            "model": "m",
            "usage": {"prompt_tokens": 20, "completion_tokens": 4, "cached_tokens": 8},
        },
    }
    [row] = parsed({"object": "list", "data": [item]}, format="openai-evals")
    assert said(row) == [("user", "Wie viel?"), ("assistant", "Sieben.")]
    assert (row.row.outcome.status, row.row.outcome.reward) == ("failure", 0.5)
    assert row.row.outcome.reason == "exact"
    assert (row.row.usage.input_tokens, row.row.usage.output_tokens) == (20, 4)
    scores = [(one["name"], one["value"]) for one in row.row.metadata["scores"]]
    assert scores == [("exact", 0.0), ("near", 1.0)]


@pytest.mark.parametrize(
    "pair",
    [
        {
            "input": {"messages": [{"role": "user", "content": "¿Y?"}]},
            "preferred_output": [{"role": "assistant", "content": "Sí."}],
            "non_preferred_output": [{"role": "assistant", "content": "No."}],
        },
        {"prompt": "¿Y?", "chosen": "Sí.", "rejected": "No."},
        {
            "chosen": [{"role": "user", "content": "¿Y?"}, {"role": "assistant", "content": "Sí."}],
            "rejected": [
                {"role": "user", "content": "¿Y?"},
                {"role": "assistant", "content": "No."},
            ],
        },
    ],
)
def test_a_preference_pair_is_two_runs(pair: dict) -> None:
    better, worse = parsed(pair, format="openai-preference")
    assert said(better) == [("user", "¿Y?"), ("assistant", "Sí.")]
    assert said(worse) == [("user", "¿Y?"), ("assistant", "No.")]
    assert (better.row.outcome.status, worse.row.outcome.status) == ("success", "failure")


def spans(flat: bool) -> list[dict]:
    """A model call and a tool's in one trace, as Phoenix's API and as its data frame have them."""
    asked = [{"message": {"role": "user", "content": "Wo?"}}]
    call = {"tool_call": {"id": "c", "function": {"name": "find", "arguments": '{"a": 1}'}}}
    answered = [{"message": {"role": "assistant", "tool_calls": [call]}}]
    llm = {"model_name": "m", "token_count": {"prompt": 7, "completion": 2}}
    llm |= {"input_messages": asked, "output_messages": answered}
    kinds = {
        "1": ("LLM", "", {"llm": llm}),
        "2": (
            "TOOL",
            "1",
            {"tool": {"name": "find"}, "input": {"value": {"a": 1}}, "output": {"value": "hier"}},
        ),
    }
    found = []
    for number, (kind, parent, attributes) in kinds.items():
        ids = {"trace_id": "c" * 32, "span_id": number * 16}
        span = {
            "name": kind,
            "span_kind": kind,
            "parent_id": parent * 16 or None,
            "start_time": f"2026-01-01T10:00:0{number}Z",
            "end_time": f"2026-01-01T10:00:0{number}.5Z",
            "status_code": "OK",
        }
        if flat:
            columns = {
                f"attributes.{outer}.{inner}": value
                for outer, inside in attributes.items()
                for inner, value in inside.items()
            }
            span |= {f"context.{key}": value for key, value in ids.items()} | columns
        else:
            span |= {"context": ids, "attributes": attributes}
        found.append(span)
    return found


@pytest.mark.parametrize("packing", ["data", "lines", "parquet"])
def test_spans_of_phoenix_are_one_run(packing: str) -> None:
    data: Any = {"data": spans(flat=False)}
    if packing == "lines":
        data = b"\n".join(json.dumps(span).encode() for span in spans(flat=False))
    if packing == "parquet":
        file, rows = io.BytesIO(), spans(flat=True)
        rows = [dict.fromkeys(rows[0] | rows[1]) | row for row in rows]
        parquet.write_table(pa.Table.from_pylist(rows), file)
        data = file.getvalue()
    [row] = parsed(data, f"spans.{packing}", format="spans")
    assert said(row) == [("user", "Wo?"), ("assistant", None), ("tool", "hier")]
    assert row.row.messages[1].tool_calls[0].function.name == "find"
    assert (row.row.usage.input_tokens, row.row.usage.output_tokens) == (7, 2)


def test_objects_that_an_export_unpacked_are_one_value_again() -> None:
    [row] = parsed({"data": spans(flat=False)[1:]}, format="spans")
    [call] = row.row.messages[-2].tool_calls
    assert json.loads(call.function.arguments) == {"a": 1}


@pytest.mark.parametrize(
    "record",
    [
        {"observations": ["tall", "blue"], "name": "a bird"},
        {"data": [{"a": 1}], "meta": {"page": 1}},
        {"conversations": [{"id": 1, "title": "x"}]},
        {"conversations": 12, "day": "monday"},
        {"request": {"path": "/"}, "response": {"status": 200}},
        {"trajectory": [[0.1, 0.2]], "reward": 1},
        {"source": {"body": "x", "kind": "css"}, "id": 1},
        {"steps": 4, "agent": "x", "schema_version": 2},
        {"results": [{"score": 1}], "config": {}},
        {"messages": [{"author": "a", "text": "b"}]},
    ],
)
def test_a_field_of_the_same_name_proves_nothing(record: dict) -> None:
    assert opened(record).format == "mapped"


@pytest.mark.parametrize(
    ("document", "what"),
    [
        ({"data": [{"input": "a", "expectedOutput": "b", "datasetId": "d"}]}, "data set"),
        ({"dataset_id": "d", "inputs": {"q": "a"}, "outputs": {"a": "b"}}, "data set"),
        ({"prompts": ["{{a}}"], "tests": [{"vars": {"a": 1}}]}, "configuration of Promptfoo"),
        ({"object": "eval", "testing_criteria": [{"type": "string_check"}]}, "hosted eval"),
        ({"item": {"question": "2+2", "answer": "4"}}, "items of an eval"),
        ({"name": "p", "type": "text", "prompt": "Hi", "labels": []}, "a prompt"),
        ({"traceId": "t", "name": "tone", "value": 1, "dataType": "NUMERIC"}, "scores"),
    ],
)
def test_what_holds_no_runs_says_where_it_belongs(document: dict, what: str) -> None:
    with pytest.raises(ImportError_, match=what):
        opened(document)


QUESTIONS = {
    "cp1251": "question;answer\nКогда приедет мой заказ?;Завтра утром.\n",
    "cp1252": "question;answer\nWann kommt mein Gepäck zurück?;Morgen früh, schöne Grüße.\n",
    "cp1250": "question;answer\nKiedy przyjdzie moja paczka?;Jutro, proszę się nie martwić.\n",
    "cp1253": "question;answer\nΠότε έρχεται το δέμα μου;Αύριο το πρωί.\n",
    "koi8_r": "question;answer\nКогда приедет мой заказ?;Завтра утром.\n",
    "gb18030": "question;answer\n我的包裹什么时候到?;明天早上。\n",
    "cp932": "question;answer\n私の注文はいつ届きますか?;明日の朝にお届けします。\n",
    "cp949": "question;answer\n제 주문은 언제 도착하나요?;내일 아침에 도착합니다.\n",
    "iso8859_15": "question;answer\nWas kostet das zurück?;Fünf €, schöne Grüße.\n",
}


@pytest.mark.more(rows=3)
@pytest.mark.parametrize("encoding", QUESTIONS)
def test_an_encoding_is_guessed_shown_and_chosen(encoding: str) -> None:
    text = QUESTIONS[encoding]
    data = text.encode(encoding)
    guessed = opened(data, "calls.csv")
    assert guessed.source.is_encoding_guessed and guesses(data)[0] == encoding
    example = next(one for one in guessed.source.examples if one["name"] == encoding)
    assert example["example"] in text
    chosen = opened(data, "calls.csv", encoding=encoding)
    [(_, row)] = chosen.rows
    assert not chosen.source.is_encoding_guessed
    assert row["messages"][0]["content"] in text


def test_letters_that_cannot_begin_a_word_tell_encodings_apart() -> None:
    """As text in Windows-1255 these lines begin with marks, which charset_normalizer allows."""
    rows = "".join(f"Где мой груз {n}?;Билет {n} готов.\n" for n in range(4))
    assert guesses(f"question;answer\n{rows}".encode("cp1251"))[0] == "cp1251"


def test_a_damaged_line_does_not_change_the_encoding_of_a_file() -> None:
    data = "question;answer\nWann früh?;Um acht.\n".encode() + b"Wo ist Z\xfcrich?;Dort.\n"
    reading = opened(data, "calls.csv")
    assert reading.source.encoding == "utf-8" and not reading.source.is_encoding_guessed


def test_what_a_guess_leaves_out_is_listed_by_its_path() -> None:
    talk = [
        {"role": "user", "content": "Hi", "sent": "10:00"},
        {"role": "assistant", "content": "Yo", "mood": {"calm": 1}},
    ]
    rows = [{"talk": talk, "call": {"region": "EU", "agent": {"team": "blue"}}} for _ in range(2)]
    reading = opened(rows)
    assert [parse_row(row).row.messages[0].content for _, row in reading.rows] == ["Hi", "Hi"]
    assert reading.report.unmapped == {
        "call.region": 2,
        "call.agent.team": 2,
        "talk[].sent": 2,
        "talk[].mood": 2,
    }
    assert reading.report.lost == {"talk[].sent", "talk[].mood"}
