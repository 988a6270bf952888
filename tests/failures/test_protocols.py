"""Who speaks in runs whose protocol is text, and what such runs show."""

from __future__ import annotations

from typing import Any

import pytest

from apps.failures.classify import classify
from apps.failures.rules.ratings import bad_rating
from apps.failures.rules.reading import Run, read

SHELL = "Jede Antwort enthält genau einen Block ```sh … ``` und sonst nichts. Am Ende ein Satz."
REACT = "Répondez ainsi :\nPensée : …\nOutil : chercher | lire\nEntrée : JSON\nFin : la réponse"
TAGS = "कार्य को <kaam>…</kaam> में लिखें। उत्तर बिना टैग के।"


def said(role: str, content: str, name: str = "") -> dict[str, Any]:
    return {"role": role, "content": content} | ({"name": name} if name else {})


def turns(*texts: str, system: str = "") -> list[dict[str, Any]]:
    """User and agent in turn, after the instructions."""
    told = [said("system", system)] if system else []
    return told + [said(("user", "assistant")[at % 2], text) for at, text in enumerate(texts)]


def sh(command: str) -> str:
    return f"```sh\n{command}\n```"


def outil(name: str, given: str) -> str:
    return f"Pensée : voyons.\nOutil : {name}\nEntrée : {given}"


def run_of(messages: list[dict[str, Any]]) -> Run:
    return read({"messages": messages})


def found_in(messages: list[dict[str, Any]]) -> tuple[str, int | None] | None:
    found = classify({"messages": messages, "tools": [], "outcome_status": "unknown"})
    return (found.evidence[0].rule, found.blamed_message) if found else None


@pytest.mark.parametrize(
    ("messages", "calls", "people", "answers"),
    [
        pytest.param(
            turns("Zähl die Zeilen.", sh("wc -l a"), "7 a", "Es sind 7.", "Danke.", system=SHELL),
            [("sh", 2, 3)],
            [1, 5],
            [4],
            id="fences that the instructions show",
        ),
        pytest.param(
            turns(
                "Le tarif ?",
                outil("chercher", '{"q": "tarif"}'),
                "Résultat : 12 €",
                "Fin : 12 €",
                system=REACT,
            ),
            [("chercher", 2, 3)],
            [1],
            [4],
            id="labels that the instructions show",
        ),
        pytest.param(
            turns("मौसम?", "<kaam>mausam दिल्ली</kaam>", "31°", "31 डिग्री", system=TAGS),
            [("kaam", 2, 3)],
            [1],
            [4],
            id="tags that the instructions show",
        ),
        pytest.param(
            turns("Go.", *(t for n in range(3) for t in (sh(f"ls {n}"), f"{n}")), "Done."),
            [("sh", 1, 2), ("sh", 3, 4), ("sh", 5, 6)],
            [0],
            [7],
            id="fences in all messages",
        ),
        pytest.param(
            turns("How?", "Like this:\n" + sh("ls"), "Thanks, and hidden ones?", sh("ls -a")),
            [],
            [0, 2],
            [1, 3],
            id="a person is shown code",
        ),
        pytest.param(
            turns(
                "Compare.",
                "First:\n" + sh("a") + "\nor\n" + sh("b"),
                "The second.",
                "Good.",
                system=SHELL,
            ),
            [],
            [1, 3],
            [2, 4],
            id="two blocks are an explanation",
        ),
    ],
)
def test_who_speaks(
    messages: list[dict], calls: list[tuple], people: list[int], answers: list[int]
) -> None:
    run = run_of(messages)
    assert [(call.tool, call.index, call.reply_index) for call in run.calls] == calls
    assert [index for index, _ in run.users] == people
    assert [index for index, _ in run.answers] == answers


def test_the_label_before_a_programs_answer_is_not_part_of_it() -> None:
    asked = turns("?", outil("lire", "1"), "Résultat : Error: no file", "Fin : rien", system=REACT)
    (call,) = run_of(asked).calls
    assert call.reply == "Error: no file" and call.error


def crew(*rest: tuple[str, str]) -> list[dict[str, Any]]:
    told = said("system", "Two work together: skribent and granskare. The order comes from hanna.")
    return [told, said("user", "Skriv en rubrik.", "hanna")] + [
        said("user", text, name) for name, text in rest
    ]


def test_agents_in_one_history_speak_under_their_names() -> None:
    run = run_of(crew(("skribent", "Regn i natt"), ("console", "saved"), ("hanna", "Tack!")))
    assert [index for index, _ in run.answers] == [2]
    assert [index for index, _ in run.users] == [1, 4]


def test_people_with_names_in_one_channel_are_people() -> None:
    talk = [said("user", "Lunch?", "eva"), said("assistant", "Noon."), said("user", "Ok", "ivo")]
    assert [index for index, _ in run_of(talk).users] == [0, 2]


def test_a_name_that_is_no_text_is_none() -> None:
    odd = [said("user", "a", "eva"), said("user", "b", "ivo"), said("assistant", "c")]
    odd[2]["name"] = ["eva"]
    assert [index for index, _ in run_of([*odd, said("user", "d") | {"name": {}}]).users] == [
        0,
        1,
        3,
    ]


LOOP = [t for _ in range(3) for t in (sh("make"), "make: *** No rule to make target 'all'.")]
OLA = [said("system", "[Ola W. dołącza]"), said("assistant", "Tu Ola, pomogę.", "Ola W.")]
POLITE = [("skribent", "Tack, fint!"), ("granskare", "Tack själv!")]


@pytest.mark.parametrize(
    ("messages", "rule", "blamed"),
    [
        pytest.param(turns("Bau es.", *LOOP, system=SHELL), "looped", 4, id="loop in a shell"),
        pytest.param(
            turns("Bau es.", *LOOP, sh("ls"), "CMakeLists.txt", sh("cmake ."), "ok", "Gebaut."),
            None,
            None,
            id="who looped went on to something new",
        ),
        pytest.param(
            turns("Warte.", *(t for t in (sh("stat"), "wait") * 3), sh("stat"), "ready", "Fertig."),
            None,
            None,
            id="who waited got it",
        ),
        pytest.param(
            turns(
                "Le tarif ?",
                outil("lire", "le tarif de nuit"),
                "Résultat : Error: gone",
                outil("lire", "tarif de nuit"),
                "Résultat : Error: gone",
                "Fin : je ne sais pas",
                system=REACT,
            ),
            "error_never_recovered",
            2,
            id="errors to the end",
        ),
        pytest.param(
            turns(
                "Le tarif ?",
                "Outil chercher",
                "Il manque « Entrée : » avec du JSON.",
                "chercher(tarif)",
                "Il manque « Entrée : » avec du JSON.",
                system=REACT,
            ),
            "arguments_do_not_parse",
            2,
            id="a form that the program refuses",
        ),
        pytest.param(crew(*POLITE * 4), "looped", 2, id="agents that thank each other"),
        pytest.param(crew(*POLITE, ("skribent", "Klart.")), None, None, id="thanks, once"),
        pytest.param(
            crew(("skribent", "")), "answered_with_nothing", 2, id="an agent says nothing"
        ),
        pytest.param(
            [*turns("Halo?", "Zaraz połączę."), *OLA], None, None, id="the agent handed over"
        ),
        pytest.param(
            [*turns("Rachunek?", "Kasa?", "Tak."), OLA[1]], None, None, id="an agent hands to one"
        ),
        pytest.param(
            turns("おすすめは?", "寿司です。", "[評価] 1/5"), "rated_badly", 1, id="a bad rating"
        ),
        pytest.param(turns("Food?", "Rice.", "[rating] 5/5"), None, None, id="a good rating"),
        pytest.param(turns("[rating] 1/5", "Sorry to hear."), None, None, id="before the agent"),
    ],
)
def test_what_such_runs_show(messages: list[dict], rule: str | None, blamed: int | None) -> None:
    assert found_in(messages) == ((rule, blamed) if rule else None)


@pytest.mark.parametrize(
    ("text", "is_bad"),
    [
        ("👎", True),
        ("Nein. 👎 falsch", True),
        ("★☆☆☆☆", True),
        ("★★★★☆", False),
        ("[Bewertung: 2 von 5 Sternen] ging so", True),
        ("[Bewertung: 4 von 5 Sternen]", False),
        ("(отзыв) 1 из 10", True),
        ("Nur 2 von 5 Dosen sind da", False),
        ('{"rating": 0}', True),
        ('Ugh {"rating": "bad", "why": "late"}', True),
        ('{"rating": 5}', False),
        ('{"helpful": false}', True),
        ('{"rating": {"a": 0}}', False),
        ('{"rating": ', False),
        ("", False),
        ("[a] 1/5000", False),
    ],
)
def test_ratings(text: str, is_bad: bool) -> None:
    assert bool(bad_rating(text)) is is_bad
