"""The forms of tool replies, in ways of saying “failed” that no rule knows the words of."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from apps.failures.classify import classify
from apps.failures.rules.reading import read
from apps.failures.rules.reply_forms import RECORD, TEXT, Form, Forms, forms_in, reply_of
from tests.factories import tool_message

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {"item": {"type": "string"}, "count": {"type": "integer"}},
                "required": ["item"],
            },
        },
    }
    for name in ("varaa", "katso")
]
Say = Callable[[int], str]


def as_json(**fields: Any) -> str:
    return json.dumps(fields, ensure_ascii=False)


# What tools say of a call that worked, and of one that was refused; `n` is data.
WAYS: dict[str, tuple[Say, Say]] = {
    "a field in Finnish": (
        lambda n: as_json(tila="OK", varaus=f"V{n}", summa=n * 1.5),
        lambda n: as_json(tila="HYLATTY", koodi=f"K-{n}", selite=f"Pyyntö {n} ei kelpaa"),
    ),
    "a number": (
        lambda n: as_json(tilakoodi=0, data={"id": n}),
        lambda n: as_json(tilakoodi=17 + n, data=None),
    ),
    "a status of HTTP in JSON": (
        lambda n: as_json(http=200, keho={"saldo": n, "yksikkö": "kpl"}),
        lambda n: as_json(http=422, keho={"saldo": None, "yksikkö": ""}),
    ),
    "a flag in Turkish": (
        lambda n: as_json(başarılı=True, değer=n, not_="tamam"),
        lambda n: as_json(başarılı=False, değer=0, not_="uygun değil"),
    ),
    "XML": (
        lambda n: f"<vastaus><rivi>{n}</rivi><paikka>hylly {n}</paikka></vastaus>",
        lambda n: f'<vika koodi="{n}"><selitys>Ei onnistu nyt {n}</selitys></vika>',
    ),
    "XML of one shape": (
        lambda n: f"<r><st>A</st><v>{n}</v></r>",
        lambda n: f"<r><st>X</st><v>{n}</v></r>",
    ),
    "Japanese": (
        lambda n: f"在庫は{n}個あります。場所は棚{n}です。",
        lambda n: "リクエストを処理できませんでした。",
    ),
    "codes in a text": (
        lambda n: f"E-000 varattu, numero {n}",
        lambda n: f"E-417 pyyntö ei täytä ehtoja ({n})",
    ),
    "labelled lines": (
        lambda n: f"STAV: HOTOVO\nPOČET: {n}",
        lambda n: f"STAV: ZAMÍTNUTO\nDŮVOD: nelze {n}",
    ),
    "a sentence instead of JSON": (
        lambda n: as_json(varaus=n, paikka="A"),
        lambda n: f"Pyyntöä {n} ei voitu lukea",
    ),
}


def run(*calls: tuple[str, Any, str | None], end: str = "Valmis.") -> dict:
    """Calls are (tool, arguments, reply)."""
    messages: list[dict] = [{"role": "user", "content": "Varaa minulle jotain."}]
    for at, (tool, args, reply) in enumerate(calls):
        made = tool_message({"tool": tool, "args": {}}, str(at))
        text = args if isinstance(args, str) else json.dumps(args, ensure_ascii=False)
        made["tool_calls"][0]["function"]["arguments"] = text
        messages.append(made)
        if reply is not None:
            messages.append({"role": "tool", "tool_call_id": str(at), "content": reply})
    if end:
        messages.append({"role": "assistant", "content": end})
    return {"messages": messages, "tools": TOOLS}


def good_runs(say: Say) -> list[dict]:
    return [
        run(
            ("katso", {"item": f"x{n}"}, say(n)),
            ("varaa", {"item": f"x{n}", "count": n}, say(n + 40)),
        )
        for n in range(1, 8)
    ]


def counted(runs: list[dict], known: tuple[Form, ...] = ()) -> list[Any]:
    return forms_in((each for at, one in enumerate(runs) for each in read(one).heard(at)), known)


def found(one: dict, forms: Forms) -> str:
    diagnosis = classify(one | {"forms": forms})
    return diagnosis.evidence[0].rule if diagnosis else ""


@pytest.mark.parametrize("way", WAYS)
def test_an_answer_unlike_those_of_calls_in_order_has_not_accepted_a_broken_call(way: str) -> None:
    works, refuses = WAYS[way]
    broken = [
        run(("varaa", {"item": "a", "count": "kaksi"}, refuses(3))),
        run(("varaa", '{"item": "a", "count": 2', refuses(4))),
    ]
    lenient = run(("varaa", {"item": "a", "count": "2"}, works(9)))
    mended = run(("varaa", {"count": 2}, refuses(5)), ("varaa", {"item": "a"}, works(8)))
    runs = [*good_runs(works), *broken, lenient, mended]
    forms = Forms(counted(runs))
    assert [found(one, forms) for one in broken] == [
        "arguments_break_the_schema",
        "arguments_do_not_parse",
    ]
    assert not any(found(one, forms) for one in [*good_runs(works), lenient, mended])
    assert not any(found(one, Forms()) for one in runs)


@pytest.mark.parametrize("way", WAYS)
def test_a_confirmed_form_is_a_tools_error(way: str) -> None:
    works, refuses = WAYS[way]
    args = {"item": "a", "count": 2}
    gave_up = run(*(("varaa", args, refuses(n)) for n in (3, 4)), end="Ei onnistu.")
    again = run(*(("varaa", args, refuses(n)) for n in (5, 6)), ("varaa", args, works(7)))
    runs = [*good_runs(works), gave_up, again]
    forms = counted(runs)
    assert not found(gave_up, Forms(forms))
    failing = [item.form for item in forms if item.form.fits(reply_of(read(gave_up).calls[0]))]
    known = Forms(forms, failing)
    assert found(gave_up, known) == "error_never_recovered"
    assert not any(found(one, known) for one in [*good_runs(works), again])
    # A new reply is recognised, and what was decided outlives other statistics.
    newer = run(*(("varaa", args, refuses(n)) for n in (8, 9)), end="Ei onnistu.")
    assert found(newer, Forms((), failing)) == "error_never_recovered"
    after = counted([newer, *runs[:3]], tuple(failing))
    assert {item.form for item in after} & set(failing)


def test_a_tool_that_is_not_offered_has_refused_in_words_with_its_name() -> None:
    works, _ = WAYS["a field in Finnish"]
    ghost = run(("alennus", {"item": "a"}, "Tuntematon työkalu: alennus"))
    providers = run(("haku", {"item": "a"}, '["a", "b"]'))
    forms = Forms(counted([*good_runs(works), ghost, providers]))
    assert found(ghost, forms) == "tool_is_not_there" and not found(providers, forms)


def test_an_answer_that_people_dismissed_is_no_refusal() -> None:
    works, refuses = WAYS["a number"]
    broken = run(("varaa", {"item": "a", "count": "kaksi"}, refuses(3)))
    forms = counted([*good_runs(works), broken])
    form = next(item.form for item in forms if item.broken)
    assert found(broken, Forms(forms)) and not found(broken, Forms(forms, (), [form]))


def test_without_a_usual_form_nothing_is_concluded() -> None:
    texts = ["Aurinko paistaa.", "{}", "[3]", "<a>1</a>", "Sataa vettä ja lunta idässä."]
    runs = [run(("varaa", {"item": "a"}, text)) for text in texts]
    broken = run(("varaa", {"count": 1}, "Kelpaa kyllä, mutta myöhemmin."))
    assert not found(broken, Forms(counted([*runs, broken])))


def test_a_run_that_ends_on_a_call_is_cut_if_the_tool_answers_others() -> None:
    works, _ = WAYS["a number"]
    cut = run(("katso", {"item": "a"}, works(1)), ("varaa", {"item": "a"}, None), end="")
    forms = Forms(counted([*good_runs(works), cut]))
    diagnosis = classify(cut | {"forms": forms})
    assert diagnosis and diagnosis.evidence[0].rule == "ended_on_a_call"
    assert diagnosis.blamed_message == 3
    submits = [
        run(("katso", {"item": "a"}, works(n)), ("varaa", {"item": "a"}, None), end="")
        for n in (1, 2)
    ]
    final = Forms(counted([*good_runs(works)[:4], *submits]))
    assert not any(found(one, final) for one in submits)


def test_calls_in_a_row_that_other_runs_show_to_be_in_vain_are_a_loop_however_short() -> None:
    looks = [run(("katso", {"item": f"x{n}"}, f"{n}" if n % 2 else "[]")) for n in range(12)]
    presses = [run(("varaa", {"item": "seuraava"}, "ok")) for _ in range(6)]
    usual, same = [*looks, *presses], ("katso", {"item": "a"}, "[]")
    ends = ("varaa", {"item": "b"}, "ok")
    loops = [
        run(*[same] * 6, ends),
        run(*[same, ("katso", {"item": "c"}, "[]")] * 4, ends),
    ]
    asked = {"role": "user", "content": "Entä nyt?"}
    hourly = run(*[same] * 7)
    hourly["messages"] = [
        each
        for message in hourly["messages"]
        for each in ([asked, message] if message.get("tool_calls") else [message])
    ]
    new = [each for n in range(7) for each in (same, ("varaa", {"item": str(n)}, "ok"))]
    good = [run(*[("varaa", {"item": "seuraava"}, "ok")] * 9, same), run(*new), hourly]
    for one in loops:
        forms = Forms(counted([*usual, one]))
        assert found(one, forms) == "looped" and not found(one, Forms())
        # Who waits for something gets another reply, in some run or in most.
        waits = [run(same, same, ("katso", {"item": "a"}, "7"))]
        assert not found(one, Forms(counted([*usual, one, *waits])))
        assert not found(one, Forms(counted([*usual, one, *[run(same, same)] * 4])))
    forms = Forms(counted([*usual, *good]))
    assert not any(found(one, forms) for one in good)


def test_data_does_not_make_forms() -> None:
    replies = [as_json(tila="OK", nimi=f"Nimi {n}", paikka=f"P{n}", saldo=n) for n in range(40)]
    runs = [run(("katso", {"item": str(n)}, reply)) for n, reply in enumerate(replies)]
    assert len(counted(runs)) == 1
    people = ("Aino Virta", "Hüsnü Kara", "田中", "Éva Nagy")
    texts = [f"Asiakasta {name} ei ole rekisterissä, tarkista nimi." for name in people]
    assert len(counted([run(("katso", {"item": "a"}, text)) for text in texts])) == 1


@pytest.mark.parametrize(
    "text", ["", "\0", "\ud800", '{"\\u0000": 1}', "<a", "<a><b></a>", "[" * 500, "*#*", "a:\nb:"]
)
def test_any_reply_has_a_form_that_can_be_stored(text: str) -> None:
    call = read(run(("katso", {"item": text}, text))).calls[0]
    form = forms_in(read(run(("katso", {"item": text}, text))).heard(1))[0].form
    assert form.fits(reply_of(call)) and form.digest and "\0" not in form.structure
    form.structure.encode()


def test_the_state_of_a_record_that_is_rare_for_its_tool_is_no_refusal() -> None:
    states = ["toimitettu"] * 6 + ["avoin"] * 3 + ["peruttu"]
    runs = [
        run(
            *(
                (tool, {"item": str(n)}, as_json(tila=state, numero=n))
                for tool in ("katso", "varaa")
            )
        )
        for n, state in enumerate(states)
    ]
    lenient = run(("katso", {"item": "a", "count": "2"}, as_json(tila="peruttu", numero=7)))
    assert not found(lenient, Forms(counted([*runs, lenient])))


@pytest.mark.parametrize(
    ("form", "meaning"),
    [
        (Form("t", TEXT, "Code #: done", (("Code #: done #0", ("404",), True),)), "Code 404: done"),
        (
            Form("t", TEXT, "Code #: done", (("Code #: done #0", ("0", "1"), False),)),
            "Code #: done; #1 is not 0 or 1",
        ),
        (Form("t", RECORD, "a\nstate", (("state", ("OK",), False),)), "state is not OK; with a"),
        (Form("t", RECORD, "state", (("state", ("",), True),)), "state is empty"),
    ],
)
def test_the_line_of_a_form_has_what_tells_it_from_others(form: Form, meaning: str) -> None:
    assert form.meaning == meaning


def meanings(*replies: str) -> list[str]:
    runs = [run(("katso", {"item": f"x{n}"}, reply)) for n, reply in enumerate(replies)]
    return sorted(item.form.meaning for item in counted(runs))


@pytest.mark.parametrize(
    "table",
    [
        "id,nimi,tila\n{n},Aino {n},auki\n{n}7,Ville,kiinni",
        "id;nimi\n{n};Aino, Oy",
        "ID   NAME   STATUS\n{n}   api-{n}   Running",
        "| id | nimi |\n|----|------|\n| {n} | Aino {n} |",
        "id\tnimi\n{n}\tAino",
    ],
)
def test_tables_are_told_apart_by_their_header(table: str) -> None:
    tables = [table.format(n=n) + "\n" * (n % 3) for n in range(10, 40)]
    assert len(meanings(*tables)) == 1
    other = table.replace("id", "koodi").replace("ID", "KOODI").format(n=4)
    assert len(meanings(*tables, other)) == 2


@pytest.mark.parametrize("text", ["Hei, Aino\nTervehdys, Ville", "1,2\n3,4", "a,b", "a,a\n1,2"])
def test_what_has_no_header_is_no_table(text: str) -> None:
    assert reply_of(read(run(("katso", {}, text))).calls[0]).kind == TEXT


@pytest.mark.parametrize(
    "says",
    ["Pyyntö {n} käsitelty koodi={code}", "koodi:{code} pyyntö {n}", "Pyyntö {n}; koodi: {code}"],
)
def test_the_codes_of_a_labelled_field_tell_forms_apart(says: str) -> None:
    codes = ["17" if n % 4 == 0 else "00" for n in range(40)]
    known = meanings(*(says.format(n=n + 100, code=code) for n, code in enumerate(codes)))
    assert len(known) == 2
    assert ["00" in known[0] + known[1], "17" in known[0] + known[1]] == [True, True]
    rare = meanings(*(says.format(n=n + 100, code="17" if n == 3 else "00") for n in range(40)))
    assert len(rare) == 2 and any("koodi is not 00" in one for one in rare)


def test_the_examples_of_a_form_differ_most() -> None:
    texts = ["Varaus 1 tehty", *[f"Varaus {n} tehty" for n in range(2, 20)], "Varaus peruttu, 20"]
    runs = [run(("katso", {"item": "a"}, text)) for text in texts]
    form = Form("katso", TEXT, "Varaus *")
    (item,) = counted(runs, (form,))
    shown = [each.call.reply for each in item.examples()]
    assert shown[0] == texts[0] and shown[1] == texts[-1] and len(set(shown)) == 3
    (one,) = counted([run(("katso", {}, "Varaus 1"))] * 4, (form,))
    assert len(one.examples()) == 1
