"""What redaction takes out, what it leaves, and that it breaks nothing. Pure: no database."""

from __future__ import annotations

import json
import string
from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.trajectories import redaction
from apps.trajectories.redaction import BUILTINS, Leaf, Redactor, Rule, RuleError, presidio
from apps.trajectories.redaction.kinds import anything
from apps.trajectories.redaction.rules import compile_pattern
from bench import secret_rows

ALL = Redactor([Rule(kind, kind) for kind in BUILTINS])
TOKENS = Redactor(
    [Rule(kind, kind, replacement=f"[{kind.upper()}_{{id}}]") for kind in BUILTINS], key=b"k"
)
PEM = (
    "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nMIIEow+/=\n-----END RSA PRIVATE"
    " KEY-----"
)
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc_def"

# text, and what of it is to go (None: all of it)
HITS: dict[str, list[tuple[str, str | None]]] = {
    "email": [
        ("joe.doe@example.com", None),
        ("<joe+spam@sub.example.co.uk>,", "joe+spam@sub.example.co.uk"),
        ("'joe@x.org'", "joe@x.org"),
        ("Ask O'Brien@example.com.", "O'Brien@example.com"),
        ("jürgen@müller.example", None),
        ("li@163.com", None),
        ("https://bob:pass@host.example.com/", "pass@host.example.com"),
    ],
    "phone": [
        *(
            (text, None)
            for text in (
                "+1 415 555 0132",
                "+14155550132",
                "(415) 555-0132",
                "415-555-0132",
                "415.555.0132",
                "1-800-555-0199",
                "+44 20 7946 0958",
                "+44 (0)20 7946 0958",
                "0044 20 7946 0958",
                "020 7946 0958",
                "07700 900123",
                "0171 1234567",
                "0171/1234567",
                "(030) 12345678",
                "089-12345678",
                "030 12 34 56 78",
                "01 23 45 67 89",
                "01.23.45.67.89",
                "+33 1 23 45 67 89",
                "03-1234-5678",
                "+91 98765 43210",
                "0412 345 678",
                "+49\u00a0171\u00a01234567",
            )
        ),
        ("phone: 4155550132", "4155550132"),
        ("call me at 415 5550132, please", "415 5550132"),
        ("Tel. 5551234567", "5551234567"),
        ("My mobile number is 4155550132", "4155550132"),
        ("“0171 1234567”", "0171 1234567"),
        ("line\n0171 1234567\nline", "0171 1234567"),
    ],
    "card": [
        *(
            (text, None)
            for text in (
                "4111 1111 1111 1111",
                "4111111111111111",
                "5555-5555-5555-4444",
                "378282246310005",
                "3782 822463 10005",
                "6011111111111117",
                "3056 930902 5904",
                "3530111333300000",
                "2223003122003222",
            )
        ),
        ("4111 1111 1111 1111 12/27", "4111 1111 1111 1111"),
        ("4111 1111 1111 1111 123", "4111 1111 1111 1111"),
        ("2024 4111 1111 1111 1111", "4111 1111 1111 1111"),
    ],
    "iban": [
        *(
            (text, None)
            for text in (
                "DE89 3704 0044 0532 0130 00",
                "DE89370400440532013000",
                "GB82WEST12345698765432",
                "nl91abna0417164300",
                "FR14 2004 1010 0505 0001 3M02 606",
                "NO93 8601 1117 947",
            )
        ),
        ("GB82 WEST 1234 5698 7654 32 THEN go", "GB82 WEST 1234 5698 7654 32"),
    ],
    "ip": [
        *(
            (text, None)
            for text in (
                "203.0.113.7",
                "2001:db8::7",
                "2001:0db8:85a3:0000:0000:8a2e:0370:7334",
                "::ffff:203.0.113.7",
                "192.168.1.20",
            )
        ),
        ("from 203.0.113.7:8080.", "203.0.113.7"),
        ("12:30:45:203.0.113.7", "203.0.113.7"),
        ("[2001:db8::7]:443", "2001:db8::7"),
    ],
    "api_key": [
        *(
            (text, None)
            for text in (
                "sk-proj-abcdefghij1234567890XYZ",
                "sk-ant-api03-abcdefghij1234567890",
                "AKIAIOSFODNN7EXAMPLE",
                "ghp_" + "a1" * 18,
                "github_pat_" + "A1b2" * 8,
                "xoxb-123456789012-abcdef",
                "AIza" + "Sy1" * 11 + "ab",
                JWT,
                "fw_" + "a1B2" * 11,
                PEM,
                "-----BEGIN PRIVATE KEY-----\nMIIE",
                "sk_live_" + "a1B2" * 6,
                "hf_" + "a1B2" * 9,
            )
        ),
        ("Authorization: Bearer abcdef1234567890abc", "abcdef1234567890abc"),
        (
            "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
            "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        ),
        (f"{PEM} and then", PEM),
    ],
    "password": [
        ("password: hunter2-Blue!", "hunter2-Blue!"),
        ("my password is Summer2024!.", "Summer2024!"),
        ("DB_PASSWORD=hunter\nPORT=80", "hunter"),
        ("postgres://bob:s3cr3t@db:5432/x", "s3cr3t"),
        ("curl -u bob:hunter2 https://x.example", "hunter2"),
        ("mysql -u root -pS3cret db", "S3cret"),
        ("deploy --token 'abcd1234efgh5678' now", "abcd1234efgh5678"),
        ("CREATE USER x IDENTIFIED BY 'abc123'", "abc123"),
        ("Cookie: session=abcdef0123456; a=b", "session=abcdef0123456; a=b"),
        ("Mot de passe : Soleil2024!", "Soleil2024!"),
        ("пароль: Tundra-2024", "Tundra-2024"),
        ("see https://x.example/f?sig=abcDEF0123456789xyz&v=1", "abcDEF0123456789xyz"),
        ("password: str = 'aB3-xyz!'", "aB3-xyz!"),
        ("- name: API_TOKEN\n  value: aB3xyz99kLmnop", "aB3xyz99kLmnop"),
        ("<Password>aB3xyz99</Password>", "aB3xyz99"),
        ('{"client_secret": "correct horse", "n": 1}', "correct horse"),
        ('{"name": "DB_PASSWORD", "value": "plainword"}', "plainword"),
    ],
    "us_ssn": [
        ("078-05-1121", None),
        ("SSN 078051121", "078051121"),
        ("social security number: 078 05 1121.", "078 05 1121"),
    ],
}

NEAR = [
    # e-mail
    "@app.route",
    "user@localhost",
    "git@github.com:org/repo.git",
    "icon@2x.png",
    "lodash@4.17.21-beta.next",
    "a @ b.org",
    # numbers that are no phone
    "2026-11-02T14:30:00Z",
    "2026-11-02 14:30",
    "2026-01-02 10:00:00",
    "02-11-2026 1430",
    "order W2378156",
    "id 4155550132",
    "1764662400000",
    "550e8400-e29b-41d4-a716-446655440000",
    "1,234,567.89",
    "52.520008, 13.404954",
    "0.123456789",
    "02139-4307",
    "ORD-0123-456789",
    "call_8473629105",
    "2+12345678=",
    "978-0-306-40615-7",
    "100 200 3000",
    "05/06/2024-07/06/2024",
    "2026-11-02-0171",
    "0123456789",
    "3.14159265358979",
    "#0171 1234567",
    "phone 15 pro",
    "cancel 12345678",
    "10:00-12:00 12/11/2026",
    "hotel: 12345678",
    "phone at 2026-11-02 14:30",
    # cards and accounts whose check digit is wrong, or of no issuer
    "4111 1111 1111 1112",
    "1234567812345670",
    "9999999999999999",
    "0000000000000000",
    "DE89 3704 0044 0532 0130 01",
    "XX89370400440532013000",
    "GB25123456789012345678",
    "a4111111111111111",
    "4111111111111111z",
    "4" * 60,
    # addresses
    "v1.2.3.4",
    "version 1.2.3.4",
    "1.2.3.4.5",
    "127.0.0.1",
    "0.0.0.0",
    "::1",
    "256.1.1.1",
    "192.168.1",
    "12:30:45",
    "std::vector",
    "a::b",
    "face::cafe",
    "aa:bb:cc:dd:ee:ff",
    "12:30:45:12",
    # keys
    "sk-learn",
    "sk-this-is-a-very-long-slug-of-words",
    "task-abcdefghijklmnopqrstuvwxyz0123",
    "bearer of good news",
    "Bearer authentication required",
    "fw_version_one",
    "AKIA",
    "eyJhbGci",
    "-----BEGIN CERTIFICATE-----",
    # words about secrets, and what stands for one
    "password=None",
    "password = user_password",
    "passwords must have 12 characters",
    "I forgot my password",
    "the token is invalid",
    'api_key=os.environ["API_KEY"]',
    "API_KEY=<your-key>",
    "SECRET_KEY=\nPORT=8080",
    "max_tokens: 512",
    "api_key_id: abcd1234efgh5678",
    "next_page_token=abcd1234efgh5678",
    "PWD=/home/user1",
    '{"password": {"type": "string", "description": "Your password"}}',
    "arn:aws:secretsmanager:eu-west-1:123456789012:secret:prod/db-a1B2c3",
    "password: ****51",
    "https://host.example:8080/a@b",
    # social security numbers that are never given out
    "000-12-3456",
    "666-12-3456",
    "912-12-3456",
    "078-00-1121",
    "078-05-0000",
    "078-05-11212",
    "078-05-1120",
]


@pytest.mark.parametrize(
    ("kind", "text", "found"), [(k, t, f) for k, rows in HITS.items() for t, f in rows]
)
def test_it_finds(kind: str, text: str, found: str | None) -> None:
    hits = redaction.test([Rule(kind, kind)], text)
    assert [hit.text for hit in hits] == [found or text]
    assert (
        text[hits[0].start : hits[0].end] == hits[0].text
        and hits[0].replacement == f"[{kind.upper()}]"
    )
    assert [hit.rule for hit in ALL.hits(text)] == [kind], "with all kinds on it has the same name"
    row = {"messages": [{"role": "user", "content": text}]}
    content = ALL.redact(row)[0]["messages"][0]["content"]
    assert content == text.replace(found or text, f"[{kind.upper()}]")


@pytest.mark.parametrize("text", NEAR)
def test_it_leaves(text: str) -> None:
    assert ALL.hits(text) == []
    row = {"messages": [{"role": "user", "content": text}]}
    assert ALL.redact(row)[0] is row


def test_every_place_of_a_row_is_looked_at_but_the_clients_id() -> None:
    mail = "joe@x.org"
    row = {
        "id": mail,
        "session_id": mail,
        "user_id": mail,
        "tags": [mail, "vip"],
        "started_at": "2026-11-02T10:00:00Z",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": mail}]},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": mail,
                        "type": "function",
                        "function": {"name": "send", "arguments": {"to": [mail], "cc": {mail: 1}}},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": mail, "content": json.dumps({"from": mail})},
        ],
        "tools": [{"type": "function", "function": {"name": "send", "description": f"as {mail}"}}],
        "outcome": {"status": "failure", "label": mail, "reason": mail},
        "interventions": [
            {"kind": "edit", "by": mail, "before": mail, "after": {"to": mail}, "note": mail}
        ],
        "metadata": {"deep": [{"er": mail}]},
    }
    given_row = json.loads(json.dumps(row))
    done, counts = ALL.redact(row)
    assert row == given_row, "the row that was given is not touched"
    text = json.dumps(done)
    assert text.count(mail) == 3, "the client's id, and the id that ties a reply to its call"
    assert done["id"] == mail and done["messages"][2]["tool_call_id"] == mail
    assert done["messages"][1]["tool_calls"][0]["id"] == mail
    assert counts == Counter(email=text.count("[EMAIL]")) and counts["email"] == 15


def test_arguments_stay_json_and_keep_everything_else() -> None:
    said = (
        '{ "n": 1.50, "big": 12345678901234567890, "t": "line\\njoe\\u0040x.org", "phone":'
        ' "4155550132", "card": 4111111111111111, "a@x.org": 1, "b@x.org": 2, "s":'
        ' "\\ud83d\\ude00", "tel": 4155550132 }'
    )
    row = {
        "messages": [
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": said}}]}
        ]
    }
    done = ALL.redact(row)[0]["messages"][0]["tool_calls"][0]["function"]["arguments"]
    assert (
        done
        == '{ "n": 1.50, "big": 12345678901234567890, "t": "line\\n[EMAIL]", "phone": "[PHONE]",'
        ' "card": "[CARD]", "[EMAIL]": 1, "[EMAIL] 2": 2, "s": "\\ud83d\\ude00", "tel": "[PHONE]" }'
    )


def test_json_within_json_stays_json() -> None:
    inner = json.dumps({"card": 4111111111111111, "text": "\n0171 1234567"})
    row = {
        "messages": [
            {"role": "tool", "content": json.dumps({"result": inner, "n": [1, "joe@x.org"]})}
        ]
    }
    outer = json.loads(ALL.redact(row)[0]["messages"][0]["content"])
    assert json.loads(outer["result"]) == {"card": "[CARD]", "text": "\n[PHONE]"} and outer[
        "n"
    ] == [1, "[EMAIL]"]
    assert [hit.rule for hit in ALL.hits(row["messages"][0]["content"])] == ["card, phone", "email"]


def test_the_key_tells_what_a_value_is() -> None:
    row = {
        "metadata": {
            "phone_number": "4155550132",
            "order": "4155550132",
            "ssn": 781234567,
            "mobile": 4155550132,
        }
    }
    assert ALL.redact(row)[0]["metadata"] == {
        "phone_number": "[PHONE]",
        "order": "4155550132",
        "ssn": "[US_SSN]",
        "mobile": "[PHONE]",
    }


def test_pictures_are_not_scanned() -> None:
    picture = "data:image/png;base64," + "AKIAIOSFODNN7EXAMPLE/4111111111111111+" * 40
    row = {
        "messages": [
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": picture}}]}
        ]
    }
    assert ALL.redact(row)[0] is row or ALL.redact(row)[0] == row
    mixed = f"![x]({picture}) by joe@x.org"
    assert [hit.text for hit in ALL.hits(mixed)] == ["joe@x.org"]


def test_tokens_are_equal_for_equal_values_of_one_project() -> None:
    rules = [
        Rule("email", "email", replacement="[EMAIL_{id}]"),
        Rule("phone", "phone", replacement="[PHONE_{id}]"),
    ]
    row = {"messages": ["Joe@x.org, joe@x.org, ann@x.org, +49 171 1234567, +49-171-1234567"]}
    one, two, three, four, five = (
        Redactor(rules, key=b"a").redact(row)[0]["messages"][0].split(", ")
    )
    assert one == two != three and four == five and len(one) == len("[EMAIL_k3wq7d]")
    assert one not in Redactor(rules, key=b"b").redact(row)[0]["messages"][0]


def test_the_earlier_rule_names_an_overlap_and_the_union_goes() -> None:
    rules = [Rule("customer", "regex", r"CUST-\w+"), Rule("email", "email")]
    assert Redactor(rules).redact({"tags": ["CUST-12@x.org"]})[0] == {"tags": ["[CUSTOMER]"]}
    assert Redactor(rules[::-1]).redact({"tags": ["CUST-12@x.org"]})[0] == {"tags": ["[EMAIL]"]}


@pytest.mark.parametrize(
    "pattern", [r"^ab$", r"\Aab\z", r"(?m)^ab$", r"\bab\b", "ab", "(?i)AB", r"[^x]b"]
)
def test_own_patterns_see_one_string_at_a_time(pattern: str) -> None:
    redactor = Redactor([Rule("own", "regex", pattern, "-")])
    assert redactor.redact({"tags": ["ab", "xx"]})[0] == {"tags": ["-", "xx"]}


def test_own_patterns_leave_roles_and_ids_alone() -> None:
    row = {
        "id": "1",
        "messages": [{"role": "user", "content": "user 7", "tool_call_id": "c7"}],
        "outcome": {"status": "x7"},
    }
    done = Redactor([Rule("own", "regex", r"user|\d", "#")]).redact(row)[0]
    assert done == {
        "id": "1",
        "messages": [{"role": "user", "content": "# #", "tool_call_id": "c7"}],
        "outcome": {"status": "x7"},
    }


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (Rule("own", "regex", ""), "empty"),
        (Rule("own", "regex", "a*"), "matches empty text"),
        (Rule("own", "regex", r"\b"), "matches empty text"),
        (Rule("own", "regex", "("), "does not compile"),
        (Rule("own", "regex", "(?<=a)b"), "does not support lookarounds"),
        (Rule("own", "regex", r"(a)\1"), "does not support lookarounds"),
        (Rule("own", "regex", "a" * 501), "500 are allowed"),
        (Rule("own", "regex", r"(?:\pL{90} ){90}"), "does not compile|steps"),
        (Rule("own", "regex", r"a\C"), "one byte"),
        (Rule("own", "regex", "a\ud800(", "x"), "does not compile"),
        (Rule("own", "regex", "a", "x" * 81), "80 are allowed"),
        (Rule("own", "regex", "a", "{id}"), "secret key"),
        (Rule("", "email"), "Rule names"),
        (Rule("own", "nonsense"), "Unknown rule kind"),
    ],
)
def test_it_refuses_a_rule_with_a_sentence(rule: Rule, said: str) -> None:
    with pytest.raises(RuleError, match=said) as caught:
        Redactor([rule])
    assert str(caught.value).endswith(".")


def test_a_pattern_that_hangs_other_engines_does_not_hang() -> None:
    hostile = Redactor([Rule("own", "regex", r"(a|a)*(a+)+b")])
    row = {"messages": ["a" * 100_000]}
    assert hostile.redact(row)[0] is row


def test_presidio_is_asked_for_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presidio, "is_installed", lambda: False)
    with pytest.raises(RuleError, match=r"pip install -r requirements/presidio\.txt"):
        Redactor([Rule("presidio", "presidio")])


def test_presidio_never_loads_a_model_from_afar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presidio, "is_installed", lambda: True)
    monkeypatch.setattr(presidio, "models", dict)
    with pytest.raises(RuleError, match="spaCy model"):
        Redactor([Rule("presidio", "presidio")])


# -- properties
# --------------------------------------------------------------------------------------------------------  # noqa: E501

PARTS = [text for rows in HITS.values() for text, _ in rows] + NEAR
GLUE = [
    "",
    " ",
    "-",
    ".",
    "@",
    "\n",
    "\\",
    '"',
    "'",
    "\t",
    "/",
    ":",
    "1",
    "+",
    "(",
    "0",
    "é",
    "\u00a0",
    "\ud800",
    "\x00",
    "phone ",
]
pieces = st.one_of(st.sampled_from(PARTS), st.sampled_from(GLUE), st.text(max_size=8))
texts = st.lists(pieces, max_size=8).map("".join)
keys = st.one_of(st.sampled_from(["phone", "ssn", "card", "to", "joe@x.org"]), st.text(max_size=5))
numbers = st.one_of(
    st.integers(), st.just(4111111111111111), st.floats(allow_nan=False, allow_infinity=False)
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(keys, inner, max_size=4),
        inner.map(json.dumps),
        inner.map(lambda value: json.dumps(value, ensure_ascii=False)),
    ),
    max_leaves=12,
)
calls = st.fixed_dictionaries(
    {"id": texts, "function": st.fixed_dictionaries({"name": texts, "arguments": values})}
)
messages = st.one_of(
    values,
    st.fixed_dictionaries(
        {
            "role": texts,
            "content": values,
            "tool_calls": st.one_of(values, st.lists(calls, max_size=2)),
        }
    ),
)
rows = st.one_of(
    st.fixed_dictionaries(
        {"messages": st.lists(messages, max_size=3)},
        optional={"metadata": values, "outcome": values},
    ),
    st.dictionaries(
        st.sampled_from(["id", "messages", "tools", "tags", "interventions", "usage"]), values
    ),
)


def shape(value: Any) -> Any:
    """The structure of a JSON value: containers and their sizes, kinds of leaves; JSON in strings
    is looked into.
    """
    if isinstance(value, list):
        return [shape(item) for item in value]
    if isinstance(value, dict):
        return "object", [shape(item) for item in value.values()]
    if isinstance(value, str) and redaction.is_json(value):
        return "json", shape(json.loads(value))
    if isinstance(value, str) or (
        isinstance(value, int) and not isinstance(value, bool) and 10**6 < value < 10**19
    ):
        return "text or large number"
    return value


@settings(max_examples=300, deadline=None)
@given(rows, st.sampled_from([ALL, TOKENS]))
def test_it_never_raises_keeps_the_structure_and_is_done_after_once(
    row: dict, redactor: Redactor
) -> None:
    before = json.dumps(row)
    done, counts = redactor.redact(row)
    assert json.dumps(row) == before
    assert list(done) == list(row) and shape(list(done.values())) == shape(list(row.values()))
    if not counts:
        assert done is row
    again, more = redactor.redact(done)
    assert again is done and not more


@settings(max_examples=300, deadline=None)
@given(rows)
def test_the_quick_check_hides_no_hit(row: dict) -> None:
    _, counts = ALL._redact(row, Counter())
    assert ALL.may_hit(row) or not counts


@settings(max_examples=300, deadline=None)
@given(texts)
def test_hits_say_what_is_replaced(text: str) -> None:
    hits = ALL.hits(text)
    assert all(text[hit.start : hit.end] == hit.text for hit in hits) or redaction.is_json(text)
    assert [hit.start for hit in hits] == sorted(hit.start for hit in hits)
    changed = ALL._replace([Leaf("", text)])
    assert bool(changed) == bool(hits) or redaction.is_json(text)


@settings(max_examples=200, deadline=None)
@given(
    st.recursive(
        st.one_of(st.none(), st.text(), st.integers()),
        lambda i: st.lists(i) | st.dictionaries(st.text(), i),
    )
)
def test_a_row_of_any_shape_is_taken(value: Any) -> None:
    own = Redactor([Rule("own", "regex", r"\w\W|^.$", "{id}"), *ALL.rules], key=b"k")
    own.redact({"messages": value, "outcome": value, "interventions": [value], "any": value})
    own.redact(value)
    own.hits(json.dumps(value))


def test_depth_is_no_matter() -> None:
    row: dict = {"messages": []}
    place = row["messages"]
    for _ in range(5000):
        place.append([])
        place = place[0]
    place.append("joe@x.org")
    ALL.redact(row)
    ALL.redact({"messages": ["[" * 100_000, '{"a":' * 100_000, "joe@x.org"]})


PASSWORD = Redactor([Rule("password", "password")])


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("openai_api_key=SecretStr('SEjtqMsHmm7IydgUsG')", "SEjtqMsHmm7IydgUsG"),
        ("Your verification code is 839204. It expires in 10 minutes.", "839204"),
        ("net use Z: \\\\srv\\share /user:corp\\kim Gs9VOY4nqFW181", "Gs9VOY4nqFW181"),
        (
            (
                "git clone"
                " https://ebc1a167f5f53b5492c1e554eb689342c5c76ec1:x-oauth-basic@github.com/a/b.git"
            ),
            "ebc1a167f5f53b5492c1",
        ),
        ("page.getByLabel('Password').fill('N54iiSDx')", "N54iiSDx"),
        ('driver.find_element(By.NAME, "password").send_keys("N54iiSDx")', "N54iiSDx"),
        ('{"card_pin": "4821"}', "4821"),
        ('{"user": "kim", "password": "ab1"}', "ab1"),
    ],
)
def test_a_password_goes_from_text_arguments_and_metadata(text: str, secret: str) -> None:
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "run", "arguments": json.dumps({"code": text})},
    }
    rows = [
        {"messages": [{"role": "user", "content": text}]},
        {"messages": [{"role": "assistant", "content": None, "tool_calls": [call]}]},
    ]
    assert all(secret not in json.dumps(PASSWORD.redact(row)[0]) for row in rows)


@pytest.mark.parametrize(
    "text",
    [
        "Password reset e-mail sent to kim@acme.io.",
        "The next page token is eyJvZmZzZXQiOjIwfQ==",
        "auth = OAuth2(client)",
        "access_token expires_in=3600",
        "password: !vault |",
        "zip code 10115",
    ],
)
def test_words_after_a_name_that_are_no_secret_stay(text: str) -> None:
    assert PASSWORD.hits(text) == []


TOKEN = "tkR7-4h2k9Qm81vXz03pLw_Ab5"
SECRETS = (
    TOKEN,
    "pa55wort!",
    "opensesame",
    "s3cretpw!x",
    "geheim99x",
    "Pa55wort!xx",
    "AbCd1234EfGh5678",
    "correcthorse",
    "Zx81!kdGs2",
    "dXNlcjpw",
)
DEFAULTS = Redactor([Rule(kind, kind) for kind in ("api_key", "password", "card")])


# What one argument of a program's list says of the next, in the definition of a tool, in a call and
# in metadata.
SECRET_ARGUMENTS: list[dict[str, Any]] = [
    {"args": ["--token", TOKEN]},
    {"args": ["curl", "-H", "X-Api-Key: " + TOKEN, "https://x.example.org"]},
    {"args": ["curl", "-H", "Authorization: Basic dXNlcjpwYXNzd29yZDEyMw=="]},
    {"args": ["curl", "-u", "joe:pa55wort!x", "https://x"]},
    {"command": "curl", "args": ["--user", "joe:pa55wort!x"]},
    {"command": "mysql", "args": ["-u", "root", "-ppa55wort!"]},
    {"command": "mysql", "args": ["-u", "root", "-p", "pa55wort!"]},
    {"argv": ["sshpass", "-p", "pa55wort!", "ssh", "h"]},
    {"cmd": ["redis-cli", "-a", "s3cretpw!x"]},
    {"args": ["docker", "run", "-e", "DB_PASSWORD=pa55wort!", "img"]},
    {"args": ["tool", "-p", "Zx81!kdGs2"]},
    {"args": ["--auth-token", TOKEN]},
    {"args": ["--secret", "correcthorse9battery"]},
    {"args": ["--passwort", "geheim99x"]},
    {"args": ["psql", "postgres://joe:pa55wort!@db/x"]},
    {"args": ["--access-key", "AbCd1234EfGh5678"]},
    {"headers": {"Authorization": "opensesame"}},
    {"url": "https://m", "authorization": "opensesame"},
    {"server_url": "https://m", "authorization": "correcthorsebattery"},
    {"env": {"API_TOKEN": "opensesame1234"}},
    {"authorization": "correcthorsebattery"},
    {"command": "npx", "args": ["-y", "srv", "--", "--api-key=" + TOKEN]},
    {"args": ["az", "login", "-u", "joe", "-p", "Pa55wort!xx"]},
    {"args": ["gh", "auth", "login", "--with-token", TOKEN]},
    {"args": ["smbclient", "-U", "joe%pa55wort!", "//h/s"]},
    {"args": ["unzip", "-P", "pa55wort!", "a.zip"]},
    {"args": ["vault", "login", "-token", TOKEN]},
    {"args": ["/usr/bin/mysql", "--password", "pa55wort!"]},
]
SECRET_ARGUMENTS += [
    {"headers": [["X-Api-Key", "opensesame12"], ["Accept", "text/html"]]},
    {"args": ["cloud", "configure", "set", "secret_access_key", TOKEN]},
    # A schema's default of a parameter, a cookie, a secret that is stored.
    {"properties": {"api_key": {"type": "string", "default": TOKEN}}},
    {"properties": {"password": {"type": "string", "examples": ["pa55wort!"]}}},
    {"args": ["curl", "-b", f"sid={TOKEN}", "https://x"]},
    {"args": ["curl", "-s", "--cookie", f"sid={TOKEN}"]},
    {"args": ["gh", "secret", "set", "DEPLOY", "--body", "pa55wort!"]},
    {"args": ["aws", "secretsmanager", "put-secret-value", "--secret-string", "pa55wort!"]},
    {"args": ["kubectl", "create", "secret", "generic", "db", "--from-literal=word=pa55wort!"]},
    {"args": ["aws", "ssm", "put-parameter", "--type", "SecureString", "--value", "pa55wort!"]},
    {"yaml": "parameters:\n  - name: password\n    default: pa55wort!"},
]
PLAIN_ARGUMENTS: list[dict[str, Any]] = [
    {"required": ["password", "username", "token", "retries"]},
    {"columns": ["secret", "created_at", "session_token", "user2name"]},
    {"args": ["mkdir", "-p", "src/app/models"]},
    {"args": ["docker", "run", "-p", "8080:80", "nginx"]},
    {"args": ["ssh", "-p", "2222", "host"]},
    {"args": ["--max-tokens", "1000"]},
    {"args": ["--tokenizer", "gpt2-large-v1"]},
    {"args": ["--page-token", "CAUQAA12bc34de56"]},
    {"args": ["pytest", "-p", "no:cacheprovider"]},
    {"args": ["--password-stdin", "registry.example.org"]},
    {"tags": ["password", "reset"]},
    {"authorization": "approved"},
    {"authorization": "required"},
    {"status": "open", "authorization": "unauthenticated"},
    {"args": ["git", "commit", "-m", "Fix password reset"]},
    {"args": ["grep", "-rn", "password", "src"]},
    {"args": ["--key", "server.pem"]},
    {"args": ["--token-file", "/run/secrets/token"]},
    {"args": ["--password", "${DB_PASSWORD}"]},
    {"args": ["--password", "--verbose"]},
    {"args": ["python", "-p", "3.11"]},
    {"choices": ["-", "token", "secret"]},
    {"args": ["curl", "-H", "Content-Type: application/json", "-d", '{"a": 1}']},
    {"args": ["cp", "-p", "Report2024.PDF", "/tmp"]},
    {"url": "https://m", "authorization": "none"},
    {"args": ["mysql", "-P", "3306", "-h", "db"]},
    {"args": ["curl", "-b", "cookies.txt", "https://x"]},
    {"args": ["kubectl", "get", "secret", "db", "-o", "yaml"]},
    {"properties": {"password": {"type": "string", "default": "generated"}}},
    {"properties": {"token": {"type": "string"}, "zone": {"default": "eu-west-1b"}}},
]


def rows_with(value: dict[str, Any]) -> list[dict[str, Any]]:
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "shell", "arguments": json.dumps(value)},
    }
    return [
        {"tools": [{"type": "mcp", **value}]},
        {"metadata": {"a": value}},
        {"messages": [{"role": "assistant", "tool_calls": [call]}]},
        {"messages": [{"role": "tool", "content": json.dumps([value])}]},
    ]


@pytest.mark.parametrize("value", SECRET_ARGUMENTS, ids=str)
def test_a_secret_among_arguments_goes(value: dict[str, Any]) -> None:
    for row in rows_with(value):
        copy, counts = DEFAULTS.redact(row)
        assert counts and DEFAULTS.may_hit(row), row
        assert not any(secret in json.dumps(copy) for secret in SECRETS), copy
    assert redaction.test(DEFAULTS.rules, json.dumps(value))


VENDOR_KEYS = (  # (what stands before, characters, how many)
    ("pul-", "hex", 40),
    ("CLOJARS_", "small", 60),
    ("LTAI", "any", 20),
    ("p8e-", "small", 32),
    ("ABSK", "any", 120),
    ("duffel_live_", "any", 43),
    ("FLWSECK_TEST-", "small", 32),
    ("HRKU-AA", "any", 58),
    ("s-s4t2ud-", "hex", 64),
    ("API-", "capital", 26),
    ("sha256~", "any", 43),
    ("rdme_", "small", 70),
    ("sgp_", "hex", 40),
    ("glffct-", "any", 20),
)
CHARACTERS = {
    "hex": "0123456789abcdef",
    "small": string.ascii_lowercase + string.digits,
    "capital": string.ascii_uppercase + string.digits,
    "any": string.ascii_letters + string.digits,
}


@pytest.mark.parametrize(("before", "kind", "length"), VENDOR_KEYS)
def test_the_key_of_a_vendor_goes_by_its_form(before: str, kind: str, length: int) -> None:
    random = Random(length)
    key = before + "".join(random.choices(CHARACTERS[kind], k=length - 1)) + "7"
    row = {"messages": [{"role": "tool", "content": f"It is {key}."}]}
    copy, counts = DEFAULTS.redact(row)
    assert counts["api_key"] == 1 and key not in json.dumps(copy)
    assert not DEFAULTS.redact({"messages": [{"role": "tool", "content": f"{before}of ours"}]})[1]


@pytest.mark.parametrize("value", PLAIN_ARGUMENTS, ids=str)
def test_other_arguments_stay(value: dict[str, Any]) -> None:
    for row in rows_with(value):
        assert DEFAULTS.redact(row) == (row, Counter()), row
    assert not redaction.test(DEFAULTS.rules, json.dumps(value))


@pytest.mark.parametrize(
    "kinds", [[rule.kind for rule in DEFAULTS.rules], [*BUILTINS]], ids=["defaults", "all"]
)
def test_the_quick_check_finds_in_parts_what_each_whole_pattern_finds(kinds: list[str]) -> None:
    whole = [compile_pattern(BUILTINS[kind].pattern.replace("{b}", r"\b")) for kind in kinds]
    parts = anything(frozenset(kinds))
    lines = {
        line.encode()
        for _, row, _ in secret_rows.SECRETS
        for text in redaction.strings(row)
        for line in text.splitlines()
    }
    lines |= {b"the db password, from the second page</b> hunter22", b"a pin for you>"}
    hit = [line for line in lines if any(pattern.search(line) for pattern in whole)]
    assert len(hit) > 100 and all(map(parts.may_hit, hit))
