"""However a person's name is written, it is found and taken out: by Python in values, and by
PostgreSQL in columns.
"""

from __future__ import annotations

import html
import json
import unicodedata
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from django.db import connection
from hypothesis import given
from hypothesis import strategies as st

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
ADDRESS, PERSON, PHONE = "ann@x.com", "ann-17", "+49 30 1234567"
# What stands around a word, in texts and formats: it is found.
AROUND = [
    *("{}", " {} ", "{}.", "{}, and", "{};", "({})", "<{}>", "[{}]", "'{}'", '"{}"', "`{}`"),
    *("“{}”", "«{}»", "*{}*", "**{}**", "_{}_", "__{}__", "~{}~", "{}…", "{}...", "{}.\n\nBob"),
    *("{}!", "{}?", "{}'s", "{}’s", "{} - x", "mailto:{}", "user:{}", "id={}&a=1", "?q={}+1"),
    *("a/{}/b", "/users/{}", "{}:80", "|{}|", "{}—x", "x—{}", "- {}", "\t{}\r\n", "\u200b{}\ufeff"),
    *(
        "邮箱{}是",
        "이것은{}입니다",
        "{}さん",
        "\\n{}\\n",
        '\\"{}\\"',
        "\\u003c{}\\u003e",
        "%20{}%20",
    ),
    *("%3C{}%3E", "%2520{}%2520", "&lt;{}&gt;", "&nbsp;{}&nbsp;", "&amp;quot;{}&amp;quot;"),
    *(
        "=3D{}=0A",
        "=3C{}=3E",
        "\\ud83d\\ude00{}\\ud83d\\ude00",
        "{}.&nbsp;Bob",
    ),
    *("{}.%0A", "{}.\\nBob", "{}.</p>", "😀{}😀", "{}²"),
]
# What makes another identifier of an address, a user's name or a number: it is not found.
MORE = [
    *("mary.{}", "mary-{}", "mary_{}", "mary+{}", "mary__{}", "mary--{}", "mary{}", "m{}", "7{}"),
    *(
        "{}.au",
        "{}-org.de",
        "{}y",
        "{}_2",
        "{}7",
        "é{}",
        "e\u0301{}",
        "{}\u0301",
        "юрий.{}",
        "{}.рф",
    ),
    *("ß{}", "mary\\u002e{}", "mary%2E{}", "mary%2B{}", "mary&#46;{}", "mary\\.{}", "mary\\_{}"),
    *("{}\\u002eau", "{}%2Eau", "{}%252Eau", "{}&#x2e;au", "\\u00e9{}", "%C3%A9{}", "&eacute;{}"),
    *(
        "{}\\u00e9",
        "{}%C3%A9",
        "{}&eacute;",
        "=C3=A9{}",
        "mary‐{}",
        "mary\u2011{}",
        "be{}",
        "=be{}",
    ),
    *("अ{}", "{}ा", "א{}", "{}а", "１{}", "mary@{}", "x.y.{}"),
]
FOUND += [
    (ADDRESS, "ann%40x.com"),
    (ADDRESS, "to=mail+ann%40x.com+"),
    (ADDRESS, "to=ann@x.com+mail"),
    (ADDRESS, "ann=40x.com"),
    (ADDRESS, "ANN@X.COM"),
    (ADDRESS, "mary.ann@x.com, ann@x.com"),
    (ANN, "Joann Example, Ann Example"),
    (ANN, "Hello.Ann Example.Bye"),
    (ANN, "Hello+Ann+Example+here"),
    ("jo jo", "mojo jo jo"),
    ("Ann", "Ann"),
    ("Zoë", "l'Zoe\u0308's"),
    ("राम", "राम, श्री राम।"),
    (PHONE, "tel:+49301234567"),
    (PHONE, "Tel.+49-30-123 45 67."),
    (PHONE, "+49 (30) 1234567"),
    (PHONE, "?phone=%2B49%2030%201234567"),
    ("+1 212 555 1234", "+1 (212) 555-1234"),
    ("4711-99", "No.4711-99, x"),
    ("王伟", "我是王伟。"),
]
IN_CONTEXT = [(word, around.format(word)) for word in (ADDRESS, PERSON, ANN) for around in AROUND]
NOT_FOUND = [
    *((word, more.format(word)) for word in (ADDRESS, PERSON) for more in MORE),
    (ADDRESS, "o'ann@x.com"),
    (ADDRESS, "mary%2Bann%40x.com"),
    (ADDRESS, "to=mary+ann@x.com"),
    (ADDRESS, "ann@x,com"),
    (ANN, "Mary-Ann Example"),
    (ANN, "Ann Example-Smith"),
    (ANN, "x_Ann Example"),
    ("ann", "ann@x.com"),
    ("x.com", "ann@x.com"),
    ("Zoe", "Zoe\u0308"),
    ("राम", "रामा"),
    (PHONE, "+49 30 12345678"),
    (PHONE, "+49 30 1234567-8"),
    (PHONE, "1+49 30 1234567"),
    ("192.168.10.25", "192.168.102.5"),
    ("4711", "1.4711"),
    ("김철수", "김철수\u11b7"),
    (ANN, "Joann Example"),
    (ANN, "Ann Examples"),
    (ANN, "AnnExample"),
    ("bob", "bobcat"),
    ("100%_x", "100 of x"),
    ("a.c", "abc"),
    ("a|b", "a"),
    ("[a-z]+", "abc"),
]


@pytest.mark.parametrize(("word", "text"), [*FOUND, *IN_CONTEXT])
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
    monkeypatch.setattr(written, "AROUND", 16)
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


LETTERS = st.sampled_from("anxz09éßжאराم")
# Not of digits alone: “No.4711” has the number 4711.
IDENTIFIER = (
    st.lists(st.text(LETTERS, min_size=1, max_size=3), min_size=1, max_size=4)
    .flatmap(lambda names: st.sampled_from(".-_+").map(lambda sign: sign.join(names)))
    .filter(lambda name: any(map(str.isalpha, name)))
)


def as_it_is(text: str) -> str:
    return text


@given(
    names=st.lists(IDENTIFIER, min_size=1, max_size=5),
    wanted=IDENTIFIER,
    sign=st.sampled_from([" ", ", ", "/", "\n", ": ", ">", '", "', "; "]),
    write=st.sampled_from([as_it_is, json.dumps, quote, html.escape]),
)
def test_of_a_list_just_the_wanted_name_goes(
    names: list[str], wanted: str, sign: str, write: Any
) -> None:
    """Whatever it is that others have in common with it."""
    text = sign.join(names)
    same = [name for name in names if folded(name) == folded(wanted)]
    assert Words([wanted]).are_in(write(text)) == bool(same), (text, wanted)
    assert Words([wanted]).out_of(text) == sign.join(
        "[deleted]" if name in same else name for name in names
    )


def folded(text: str) -> str:
    return unicodedata.normalize("NFC", text).casefold()
