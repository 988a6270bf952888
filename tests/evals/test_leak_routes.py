"""A held-out task is recognised by whichever route it comes back, and other tasks of its template
are not refused.

A small slice of what `python -m bench.leaks` measures, with another seed.
"""

from __future__ import annotations

import json
import random
from copy import deepcopy
from functools import cache

import pytest

from apps.evals.near_duplicates.glyphs import fold, unescaped
from apps.evals.near_duplicates.search import Held, HeldOut, Match, Row, Why
from apps.evals.near_duplicates.spelling import digits_for_words, one_slip
from bench.leak_routes import CALLS, MARKUP, OTHER, TYPOS, VERBATIM, chat, in_kind, in_words
from bench.leak_tasks import FAMILIES, Invented, World
from tests.amounts import amount

pytestmark = pytest.mark.more
SEED, HELD = 77, amount(14, 56)
LONG = ("meeting", "email", "transfer", "flight", "product", "salad", "boilerplate")


drawn = cache(World)  # its thousands of words cost more than a search


def world_of(seed: int) -> World:
    return deepcopy(drawn(seed))


@pytest.fixture(scope="module")
def held() -> list[Invented]:
    return world_of(SEED).tasks(HELD)


@pytest.fixture(scope="module")
def index(held: list[Invented]) -> HeldOut:
    return HeldOut([task.held() for task in held])


def caught(index: HeldOut, rows: list[dict]) -> set[int]:
    return {match.key for match in index.search((at, Row.of(row)) for at, row in enumerate(rows))}


@pytest.mark.more(rows=18)
@pytest.mark.parametrize("name", VERBATIM)
def test_a_request_is_found_in_every_wrapping_and_place(
    name: str, held: list[Invented], index: HeldOut
) -> None:
    world = world_of(SEED + 1)
    rows = [VERBATIM[name](world, task) for task in held]
    missed = [held[at].request for at in sorted(set(range(len(held))) - caught(index, rows))]
    assert missed == []


@pytest.mark.parametrize("name", MARKUP)
def test_no_markup_and_no_decoration_of_lines_hides_a_request(
    name: str, held: list[Invented], index: HeldOut
) -> None:
    world = world_of(SEED + 6)
    found = caught(index, [MARKUP[name](world, task) for task in held])
    assert [held[at].request for at in sorted(set(range(HELD)) - found)] == []


SMALL_CAPITALS = str.maketrans(
    "abcdefghijklmnoprstuvwyzABCDEFGHIJKLMNOPRSTUVWYZ", "ᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘʀꜱᴛᴜᴠᴡʏᴢ" * 2
)
SQUARED = {ord(char): chr(0x1F170 + at) for at, char in enumerate("ABCDEFGHIJKLMNOPQRSTUVWXYZ")}
GREEK = str.maketrans("ABEZHIKMNOPTYXoaivu", "ΑΒΕΖΗΙΚΜΝΟΡΤΥΧοαινυ")
INVISIBLE = {
    "Hangul filler": "\u3164",
    "half-width filler": "\uffa0",
    "choseong filler": "\u115f",
    "joiner": "\u034f",
    "tag": "\U000e0061",
    "tatweel": "\u0640",
}
GLYPHS = {
    "small capitals": lambda text: text.translate(SMALL_CAPITALS),
    "squared": lambda text: text.upper().translate(SQUARED),
    "Greek": lambda text: text.translate(GREEK),
    "Greek capitals": lambda text: text.upper().translate(GREEK),
    **{
        name: lambda text, sign=sign: "".join(
            char + sign * (at % 3 == 0) for at, char in enumerate(text)
        )
        for name, sign in INVISIBLE.items()
    },
}


@pytest.mark.more(rows=3)
@pytest.mark.parametrize("name", GLYPHS)
def test_no_look_alike_and_nothing_invisible_hides_a_request(
    name: str, held: list[Invented], index: HeldOut
) -> None:
    found = caught(
        index, [chat(world_of(SEED), GLYPHS[name](task.request), in_words(task)) for task in held]
    )
    assert [held[at].request for at in sorted(set(range(HELD)) - found)] == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ΝΙΚΗ και λόγος", "νίκη ΚΑΙ ΛΌΓΟΣ"),
        ("ПРИВЕТ, Ау", "привет, АУ"),
        ("ŁÓDŹ", "łódź"),
        ("İstanbul", "istanbul"),
    ],
)
def test_a_word_of_another_alphabet_stays_one_word_in_capitals(one: str, other: str) -> None:
    assert fold(one) == fold(other)


DISORDERED = {
    "digits for letters": lambda text, rng: text.translate(str.maketrans("aeiost", "431057")),
    "signs for letters": lambda text, rng: text.translate(str.maketrans("aeios", "@310$")),
    "shuffled words": lambda text, rng: " ".join(rng.sample(text.split(), len(text.split()))),
}


@pytest.mark.parametrize("name", DISORDERED)
def test_digits_for_letters_and_shuffled_words_hide_few_requests(
    name: str, held: list[Invented], index: HeldOut
) -> None:
    rng = random.Random(SEED)
    rows = [
        chat(world_of(SEED), DISORDERED[name](task.request, rng), in_words(task)) for task in held
    ]
    assert len(caught(index, rows)) >= 0.95 * HELD


@pytest.mark.parametrize(
    ("request_", "disguised"),
    [
        (
            "Move the two crates of order LX318 to bay five",
            "M0v3 th3 tw0 cr4t3s 0f 0rd3r LX318 t0 b4y f1v3",
        ),
        ("Unlock the account of user mreyes91", "Unl0ck th€ 4cc0unt 0f u53r mr3y3591"),
    ],
)
def test_digits_for_letters_of_number_words_and_identifiers(request_: str, disguised: str) -> None:
    index = HeldOut([Held([{"role": "user", "content": request_}], None)])
    row = Row.of({"messages": [{"role": "user", "content": disguised}]})
    assert list(index.search([("row", row)]))


@pytest.mark.parametrize("name", TYPOS)
def test_a_typo_in_every_fourth_word_hides_at_most_one_in_twenty(name: str) -> None:
    world = world_of(SEED + 2)
    held = world.tasks(amount(60, 100))
    index = HeldOut([task.held() for task in held])
    found = caught(index, [TYPOS[name](world, task) for task in held])
    assert len(found) >= 0.95 * len(held)


@pytest.mark.parametrize("name", CALLS)
def test_the_same_calls_are_the_same_task(name: str, held: list[Invented], index: HeldOut) -> None:
    world = world_of(SEED + 3)
    assert caught(index, [CALLS[name](world, task) for task in held]) == set(range(HELD))


@pytest.mark.more(rows=4)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("calls", [True, False])
def test_other_tasks_of_a_template_are_not_refused(family: str, calls: bool) -> None:
    world = world_of(SEED + 4)
    tasks = world.tasks(amount(48, 120), [family])
    index = HeldOut([task.held(calls) for task in tasks[::2]])
    rest = tasks[1::2]
    answer = in_kind if calls else in_words
    refused = caught(index, [chat(world, task.request, answer(task)) for task in rest])
    assert len(refused) <= 0.03 * len(rest) + 1, [rest[at].request for at in refused]


def asked(text: str, expected: dict | None = None) -> Held:
    return Held([{"role": "user", "content": text}], expected)


def found(held: Held, row: dict) -> Match | None:
    return next(HeldOut([held]).search([(0, Row.of(row))]), None)


@pytest.mark.parametrize(
    ("row", "is_leak"),
    [
        ({"messages": [{"role": "user", "content": "Please cancel my order!"}]}, True),
        (
            {
                "messages": [
                    {"role": "user", "content": '{"intent": "order", "text": "Cancel my order."}'}
                ]
            },
            True,
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": OTHER},
                    {"role": "tool", "content": "cancel my order"},
                ]
            },
            True,
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": "Cancel my order for the blue lamp and send a green one",
                    }
                ]
            },
            False,
        ),
        (
            {
                "messages": [
                    {
                        "role": "system",
                        "content": "Customers may ask to cancel their order or my order.",
                    }
                ]
            },
            False,
        ),
    ],
)
def test_a_short_request_of_common_words_counts_where_it_is_a_whole_passage(
    row: dict, is_leak: bool
) -> None:
    assert bool(found(asked("Cancel my order"), row)) is is_leak


@pytest.mark.parametrize(
    ("held", "call", "request_text", "is_leak"),
    [
        (
            {"tool": "orders.cancel", "args": {"id": 4711}},
            {"tool": "orders.cancel", "args": {"id": "4711"}},
            "Undo it all",
            True,
        ),
        (
            {"tool": "orders.cancel", "args": {"id": 4711}},
            {"tool": "orders.cancel", "args": {"id": 4712}},
            "Undo it all",
            False,
        ),
        (
            {"tool": "orders.list", "args": {}},
            {"tool": "orders.list", "args": {}},
            "Sing a song about rain",
            False,
        ),
        (
            {"tool": "orders.list", "args": {}},
            {"tool": "orders.list", "args": {}},
            "My open orders please",
            True,
        ),
        (
            {"tool": "f", "args": {"city": "Rome"}, "accept": {"city": ["Rome", "Roma"]}},
            {"tool": "f", "args": {"city": "Roma"}},
            "Hm",
            True,
        ),
        (
            {"calls": [{"tool": "a", "args": {"x": 12345}}, {"tool": "b", "args": {}}]},
            {"tool": "a", "args": {"x": 12345}},
            "Hm",
            False,
        ),
    ],
)
def test_calls_that_say_little_need_a_text_that_agrees(
    held: dict, call: dict, request_text: str, is_leak: bool
) -> None:
    row = chat(world_of(0), request_text, json.dumps(call))
    match = found(asked("Show the open orders of this week", held), row)
    assert (match is not None) is is_leak
    assert match is None or match.why == Why.CALLS


def test_another_form_of_answer_lets_nothing_through() -> None:
    held = asked(
        "Move the team lunch with Rosa to Friday at noon",
        {"tool": "calendar.move", "args": {"to": "Friday"}},
    )
    turned = "On Friday at noon: please move the team lunch with Rosa"
    rows = [
        chat(world_of(0), turned, "Done."),
        {"messages": [{"role": "user", "content": turned}], "expected": {"answer": "42"}},
    ]
    assert all(found(held, row) for row in rows)


PIZZAS = "Order three pizzas for the office on 7 March at 14:30 from Luigi, invoice INV-20931."


@pytest.mark.parametrize(
    ("old", "new", "is_leak"),
    [
        ("three", "threee", True),
        ("three", "thre", True),
        ("three", "five", False),
        ("March", "Marhc", True),
        ("March", "May", False),
        ("14:30", "14.30", True),
        ("14:30", "14h30", True),
        ("14:30", "14:20", False),
        ("INV-20931", "INV20931", True),
        ("INV-20931", "INV/20931", True),
        ("INV-20931", "INV20932", False),
        ("on 7 March", "in August", False),
    ],
)
def test_a_value_misspelt_or_with_other_signs_is_that_value(
    old: str, new: str, is_leak: bool
) -> None:
    row = {"text": f"{world_of(SEED).filling(60)}. {PIZZAS.replace(old, new)}"}
    assert bool(found(asked(PIZZAS), row)) is is_leak


def test_a_month_misspelt_without_a_day_is_that_month() -> None:
    held = asked("Book seats for the concert in August in the main hall")
    assert found(
        held, {"text": "So they say. Book seats for the concert in Agust in the main hall"}
    )
    assert not found(
        held, {"text": "So they say. Book seats for the concert in April in the main hall"}
    )


VAN = "Send the blue van from %s to %s on Monday."


@pytest.mark.parametrize(
    ("text", "args", "is_leak"),
    [
        (VAN % ("Odense", "Aarhus"), {"from": "Odense", "to": "Aarhus"}, False),
        (VAN % ("Odense", "Aarhus"), {"from": "Aarhus", "to": "Odense"}, True),
        (VAN % ("Aarhus", "Odense"), {"from": "Odense", "to": "Aarhus"}, True),
        (
            "On Monday, send the blue van to Odense from Aarhus.",
            {"from": "Odense", "to": "Aarhus"},
            True,
        ),
    ],
)
def test_two_values_that_change_places_make_another_task(
    text: str, args: dict, is_leak: bool
) -> None:
    """Where the expected calls change with them; else it is the same task."""
    held = asked(
        VAN % ("Aarhus", "Odense"),
        {"tool": "vans.send", "args": {"from": "Aarhus", "to": "Odense"}},
    )
    row = {
        "messages": [{"role": "user", "content": text}],
        "expected": {"tool": "vans.send", "args": args},
    }
    assert bool(found(held, row)) is is_leak


def test_markup_in_the_held_out_request_hides_nothing() -> None:
    held = asked(
        "Send the <b>espresso</b> [grinder](https://shop.example/p/88) of order 20931 back to the"
        " **seller**"
    )
    assert found(
        held,
        {"text": "Well: send the espresso grinder of order 20931 back to the seller, they said."},
    )


def test_a_request_divided_by_junk_is_not_guessed_and_a_long_text_hides_nothing() -> None:
    world = world_of(SEED + 5)
    task = world.task(["flight"])
    words = task.request.split(" ")
    scattered = " ".join(f"{word} {world.filling(9)}" for word in words)
    assert found(task.held(), {"text": scattered}) is None
    assert found(
        task.held(), {"text": f"{world.filling(20_000)} {task.request} {world.filling(20_000)}"}
    )


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("twenty-five people", "25 people"),
        ("four thousand seven hundred and eleven", "4711"),
        ("id four seven one one", "id 4711"),
        ("in twenty twenty-six", "in 2026"),
        ("one hundred thousand and two", "100002"),
        ("two million three hundred thousand", "2300000"),
        ("one meeting, two rooms", "one meeting, 2 rooms"),
        ("someone tends to a hundredfold", "someone tends to a hundredfold"),
    ],
)
def test_numbers_in_words_are_digits(text: str, plain: str) -> None:
    assert digits_for_words(text) == plain


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        (r"a\nb", "a b"),
        (r"\\\"a\\\" \u00fc \\\\u0041", '"a" ü A'),
        ("a&amp;nbsp;b &#39;", "a\xa0b '"),
        ("q=a%20b%2Bc 100% of", "q=a b+c 100% of"),
        ("sched-\n  ule", "schedule"),
    ],
)
def test_escapes_are_undone(text: str, plain: str) -> None:
    assert unescaped(text) == plain


@pytest.mark.parametrize(
    ("a", "b", "slip"),
    [
        ("meeting", "meting", True),
        ("meeting", "meetign", True),
        ("ab", "ba", True),
        ("abcd", "bcde", False),
        ("anna", "hanna", True),
        ("rome", "roma", True),
        ("", "a", True),
        ("", "ab", False),
        ("x", "x", True),
    ],
)
def test_one_slip(a: str, b: str, slip: bool) -> None:
    assert one_slip(a, b) is one_slip(b, a) is slip
