"""However a person's name is written, it is found and taken out: by Python in values, and by
PostgreSQL in columns.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from django.db import connection

from apps.core import mentions, written
from apps.core.mentions import Words

ANN, ZOE, MAIL = "Ann Example", "Zoë O'Quixote", "zoe+7@quixote.example"
FOUND = [
    (ZOE, json.dumps({"name": ZOE})),
    (ZOE, json.dumps({"arguments": json.dumps({"name": ZOE})})),
    (ZOE, json.dumps({"arguments": json.dumps({"a": json.dumps([ZOE])})})),
    (ZOE, "ZOË O'QUIXOTE"),
    (ZOE, "Zoe\u0308 O'Quixote"),
    (ZOE, "Zo&euml; O&#x27;Quixote"),
    (ZOE, "&lt;b&gt;Zo&amp;#235; O&amp;#39;Quixote"),
    (ANN, json.dumps(f"Dear\n{ANN}\tof")),
    (ANN, "Ann\nExample"),
    (ANN, "Ann  \u00a0 Example"),
    (ANN, "Ann\\r\\n Example"),
    (ANN, "私はAnn Exampleです"),
    (MAIL, "?" + urlencode({"q": f"user:{MAIL}"})),
    (MAIL, "?next=" + quote("/p/x/?" + urlencode({"q": f"user:{MAIL}"}), safe="")),
    (MAIL, "mailto:zoe%2B7@quixote.example"),
    ("田中太郎", "私は田中太郎です"),
    ("田中太郎", json.dumps("私は田中太郎です")),
    ("김철수", "김철수는 왔다"),
    ("สมชาย", "คุณสมชายครับ"),
    ("Юрий Гагарин", json.dumps("ЮРИЙ Гагарин")),
    ("Straße 5", "STRASSE 5"),
    ('say "x"', json.dumps({"a": 'say "x"'})),
    ("a\\b c", json.dumps("a\\b c")),
]
NOT_FOUND = [
    (ANN, "Joann Example"),
    (ANN, "Ann Examples"),
    (ANN, "AnnExample"),
    ("bob", "bobcat"),
    ("100%_x", "100 of x"),
    ("a.c", "abc"),
    ("a|b", "a"),
    ("[a-z]+", "abc"),
]


@pytest.mark.parametrize(("word", "text"), FOUND)
def test_a_name_is_taken_out_however_it_is_written(word: str, text: str) -> None:
    words = Words([word])
    assert words.are_in(text)
    assert not words.are_in(words.out_of(text))
    assert "[deleted]" in words.out_of(text)


@pytest.mark.parametrize(("word", "text"), NOT_FOUND)
def test_what_only_resembles_a_word_stays(word: str, text: str) -> None:
    assert Words([word]).out_of(text) == text


@pytest.mark.django_db
@pytest.mark.parametrize(("word", "text"), FOUND)
def test_the_database_finds_what_python_finds(word: str, text: str) -> None:
    (pattern,) = Words([word]).roughly
    with connection.cursor() as cursor:
        for value in (text, json.dumps({"a": [text]}, ensure_ascii=False)):
            cursor.execute("SELECT %s ~* %s", [value, pattern])
            assert cursor.fetchone() == (True,), value
        cursor.execute("SELECT %s::jsonb::text ~* %s", [json.dumps({text: 1}), pattern])
        assert cursor.fetchone() == (True,)


@pytest.mark.parametrize(("word", "text"), FOUND)
def test_a_file_is_found_on_the_edge_of_two_parts(
    word: str, text: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(mentions, "READ", 1)
    monkeypatch.setattr(written, "WIDEST", 8)
    (tmp_path / "a.jsonl").write_text(f"{'-' * 999} {text} {'-' * 999}")
    (tmp_path / "b.jsonl").write_text("-" * 999)
    assert list(mentions.files_mentioning([tmp_path], Words([word]))) == [tmp_path / "a.jsonl"]


def test_a_file_is_found_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "steps" / f"of {ZOE}.json"
    path.parent.mkdir()
    path.write_text("{}")
    assert list(mentions.files_mentioning([tmp_path], Words([ZOE]))) == [path]


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        ("Zoë".encode(), True),
        ("Zoë".encode("latin-1"), False),
        ("Zoë".encode("utf-16"), False),
        (b"PAR1\x00\x15", False),
    ],
)
def test_what_cannot_be_read_as_text_is_known(data: bytes, answer: bool, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(data)
    assert mentions.is_text(tmp_path / "file") is answer
