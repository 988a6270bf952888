"""Looking for names with Presidio: rows wait, encrypted and unseen, until it has read them; and
nothing is lost where it cannot.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.core.models import AuditEvent, Project, Role
from apps.trajectories import held, names
from apps.trajectories.actions import redaction
from apps.trajectories.actions.store import find
from apps.trajectories.models import HeldBatch, SpanBatch, SpanBody
from apps.trajectories.redaction import Redactor, Rule, RuleError, presidio
from tests.factories import admin_of, make_member, make_project, row
from tests.trajectories.test_traces import assembled, chat, send, text, trace_id

ONE = "/api/v1/trajectories/"
ON = presidio.Settings(entities=("PERSON",), language="en", score=0.4, model="own")


class Fake:
    """As much of Presidio's AnalyzerEngine as is used;
    `test_the_real_presidio_takes_the_same_calls` compares them.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []

    def analyze(
        self, text: str, language: str, entities: list[str], score_threshold: float
    ) -> list[Any]:
        assert (language, entities, score_threshold) == ("en", ["PERSON"], 0.4)
        self.asked.append(text)
        if "boom" in text:
            raise ValueError("no")
        return [
            SimpleNamespace(start=place, end=place + 3)
            for place in [text.find("Ann")]
            if place >= 0
        ]

    def get_supported_entities(self, language: str) -> list[str]:
        return ["PERSON"]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    fake = Fake()
    forget()
    monkeypatch.setattr(presidio, "is_installed", lambda: True)
    monkeypatch.setattr(presidio, "models", lambda: {"own": "en", "de_core_news_sm": "de"})
    monkeypatch.setattr(presidio, "analyzer", lambda language, model: fake)
    yield fake
    forget()


def forget() -> None:
    for cached in (presidio._find_cached, presidio.engine_of, redaction._compiled):
        cached.cache_clear()
    redaction._kept.clear()


# The rule


def rule(settings: presidio.Settings = ON) -> Rule:
    return Rule("presidio", "presidio", presidio.pattern_of(settings), "[SOMEBODY]")


def test_what_it_finds_goes_and_what_it_cannot_read_goes_whole(engine: Fake) -> None:
    sent = {"tags": ["é Ann\ud800", "boom", "fine", "fine"]}
    redactor = Redactor([rule()])
    assert redactor.redact(sent)[0] == {
        "tags": ["é [SOMEBODY]\ud800", "[SOMEBODY]", "fine", "fine"]
    }
    asked = len(engine.asked)
    redactor.redact(sent)
    assert (
        engine.asked.count("fine") == 1 and len(engine.asked) == asked
    )  # the same texts come with every run


def test_a_long_text_is_read_in_pieces_and_a_row_beyond_the_limit_is_refused(
    engine: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presidio, "PIECE", 300)
    for at in range(250, 330, 7):
        long = "word " * 200
        long = f"{long[:at]} Ann {long[at:]}"
        assert "Ann" not in Redactor([rule()]).redact({"tags": [long]})[0]["tags"][0], at
    assert max(map(len, engine.asked)) <= 300
    monkeypatch.setattr(presidio, "LARGEST", 1_000)
    with pytest.raises(presidio.TooLong, match="more than 1,000 characters"):
        Redactor([rule()]).redact({"tags": ["a" * 600, "b" * 600]})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"entities": ()}, "at least one entity"),
        ({"entities": ("EVERYTHING",)}, "Unknown entity “EVERYTHING”"),
        ({"score": 0.0}, "above 0"),
        ({"language": "xx"}, "The language must be one of"),
        (
            {"model": "de_core_news_sm"},
            "“de_core_news_sm” for the language “en” is not on this machine",
        ),
        (
            {"language": "fr", "model": ""},
            (
                "needs a spaCy model for the language “fr”. Run `python -m spacy download"
                " fr_core_news_sm`"
            ),
        ),
        ({"model": "patterns"}, "Patterns alone cannot find people"),
        ({"entities": ("PERSON", "UK_NHS")}, "Presidio finds no UK NHS numbers in English"),
    ],
)
def test_settings_that_cannot_be_used_are_refused_with_what_to_do(
    engine: Fake, changes: dict, said: str
) -> None:
    settings = presidio.Settings(
        **{name: getattr(ON, name) for name in ON.__struct_fields__} | changes
    )
    with pytest.raises(RuleError, match=said):
        Redactor([rule(settings)])


def test_models_are_packages_and_folders(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "meta.json").write_text('{"lang": "de"}')
    (tmp_path / "other").mkdir()
    monkeypatch.setattr(presidio, "FOLDER", tmp_path)
    found = presidio.models()
    assert found["ours"] == "de" and "other" not in found
    assert presidio.model_of(presidio.Settings(language="de", model="ours")) == "ours"


REAL = pytest.mark.skipif(
    find_spec("presidio_analyzer") is None, reason="pip install -r requirements/presidio.txt"
)


@REAL
def test_the_real_presidio_takes_the_same_calls_and_finds_by_patterns() -> None:
    settings = presidio.Settings(entities=("US_ITIN", "UK_NHS"), score=0.3, model=presidio.PATTERNS)
    found = Redactor([rule(settings)]).redact(
        {"tags": ["My NHS number is 943 476 5919.", "Order 12 of Anna."]}
    )[0]
    assert found["tags"] == ["My NHS number is [SOMEBODY].", "Order 12 of Anna."]


@REAL
@pytest.mark.skipif("en" not in presidio.models().values(), reason="no English spaCy model")
def test_the_real_presidio_finds_people_and_places() -> None:
    redactor = Redactor([rule(presidio.Settings(entities=("PERSON", "LOCATION")))])
    said = redactor.redact({"tags": ["My name is Hannah Lindqvist and I live in Toronto."]})[0][
        "tags"
    ][0]
    assert "Lindqvist" not in said and "Toronto" not in said and said.startswith("My name is")


# In a project


@pytest.fixture
def project(db: None, engine: Fake) -> Project:
    made = make_project()
    by = admin_of(made)
    redaction.save_builtins(project=made, chosen={"email": False}, by=by)
    redaction.save_presidio(project=made, on=True, settings=ON, token=False, by=by)
    redaction._kept.clear()
    return made


def post(agent: Client, *rows: dict, to: str = "batch/") -> Any:
    body = json.dumps(list(rows) if to else rows[0])
    return agent.post(f"{ONE}{to}", body, content_type="application/json")


def sent(name: str, request: str = "Ann, zoe@x.org") -> dict:
    return row(name=name, request=request)


def released() -> int:
    done = 0
    while some := names.step():
        done += some
    return done


def test_rows_wait_encrypted_and_unseen_until_presidio_has_read_them(
    agent: Client, project: Project, engine: Fake
) -> None:
    answer = post(agent, sent("a"), to="")
    assert answer.status_code == 202 and (answer.json()["held"], answer.json()["accepted"]) == (
        1,
        0,
    )
    assert not engine.asked, "it takes too long for a request"
    batch = HeldBatch.objects.get()
    plain = held.unsealed(batch)
    assert b"Ann" in plain and b"zoe@x.org" not in plain and plain not in bytes(batch.data)
    assert b"messages" in plain and b"messages" not in bytes(batch.data)
    assert agent.get(f"{ONE}a/").status_code == 404 and agent.get(ONE).json()["results"] == []
    assert released() == 1 and not HeldBatch.objects.exists()
    stored = find(project, "a")
    assert stored and "Ann" not in json.dumps(stored.content, default=str)
    assert "[PRESIDIO], [EMAIL]" in json.dumps(stored.messages)


def test_bad_rows_are_refused_at_once_and_the_later_of_two_stays(
    agent: Client, project: Project
) -> None:
    done = post(agent, sent("a", "First"), {"messages": 5}, sent("a", "Second")).json()
    assert done["held"] == 2 and [one["index"] for one in done["rejected"]] == [1]
    released()
    stored = find(project, "a")
    assert stored and "Second" in json.dumps(stored.messages) and stored.revisions.count() == 1


def test_spans_wait_too(agent: Client, project: Project, engine: Fake) -> None:
    send(agent, chat(1, 1, [text("user", "Ann, zoe@x.org")], "Done"))
    assert not SpanBody.objects.exists() and not SpanBatch.objects.exists() and not engine.asked
    assert assembled() == 0 and released() == 1
    assembled()
    stored = find(project, trace_id(1))
    assert stored and stored.messages[0]["content"] == "[PRESIDIO], [EMAIL]"


def test_where_presidio_cannot_be_used_rows_wait_and_are_stored_once_it_can(
    agent: Client, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget()
    with monkeypatch.context() as broken:
        broken.setattr(presidio, "is_installed", lambda: False)
        assert post(agent, sent("a")).json()["held"] == 1
        assert released() == 0 and project.trajectories.count() == 0
        waiting = held.waiting_of(project)
        assert (waiting.waiting, waiting.set_aside) == (
            1,
            0,
        ) and "requirements/presidio.txt" in waiting.problem
    assert released() == 0, "it is asked again after some seconds"
    HeldBatch.objects.update(due_at="2020-01-01T00:00:00Z")
    assert released() == 1 and find(project, "a")


@pytest.mark.proof
def test_what_cannot_be_stored_is_set_aside_for_an_operator(
    agent: Client, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, reader, url = Client(), Client(), reverse("trajectories:held", args=[project.slug])
    client.force_login(admin_of(project))
    reader.force_login(make_member(project, Role.VIEWER))
    with monkeypatch.context() as small:
        small.setattr(presidio, "LARGEST", 2_000)
        post(agent, sent("long", "word " * 500), sent("fine", "x"))
        released()
    page = client.get(reverse("trajectories:redaction", args=[project.slug])).content.decode()
    assert (
        "1 could not be stored and was set aside: The text has more than 2,000 characters" in page
    )
    assert reader.post(url, {"do": "retry"}).status_code == 403
    client.post(url, {"do": "retry"})
    assert released() == 1 and find(project, "long")
    with monkeypatch.context() as small:
        small.setattr(presidio, "LARGEST", 2_000)
        post(agent, sent("gone", "word " * 500))
        released()
    client.post(url, {"do": "discard"})
    assert not HeldBatch.objects.exists() and find(project, "gone") is None
    said = AuditEvent.objects.filter(action__startswith="held.").order_by("pk")
    assert [(event.action, event.detail["n"]) for event in said] == [
        ("held.retried", 1),
        ("held.discarded", 1),
    ]


def test_imports_ask_presidio_at_once_since_they_are_jobs(project: Project, engine: Fake) -> None:
    from apps.trajectories.actions.store import ingest

    done = ingest(project=project, rows=[sent("a")])
    assert done.accepted == 1 and engine.asked and not HeldBatch.objects.exists()
    assert "[PRESIDIO]" in json.dumps(find(project, "a").messages)  # type: ignore[union-attr]


def test_an_operator_sets_it_on_the_page_and_each_change_is_a_version(
    agent: Client, project: Project
) -> None:
    made = project
    redaction.save_presidio(project=made, on=False, settings=ON, token=False, by=admin_of(made))
    forget()
    client, page = Client(), reverse("trajectories:redaction", args=[made.slug])
    client.force_login(admin_of(made))
    url = reverse("trajectories:redaction_presidio", args=[made.slug])
    given = {
        "on": "on",
        "entities": ["PERSON", "LOCATION"],
        "language": "en",
        "score": "0.6",
        "model": "own",
    }
    before = redaction.version_of(made)
    assert before in client.get(page).content.decode()
    shown = client.post(url, given | {"entities": []}, follow=True).content.decode()
    assert "Choose at least one entity" in shown and not redaction.looks_for_names(made)
    shown = client.post(url, given | {"score": "7"}, follow=True).content.decode()
    assert "Minimum score: Ensure this value is less than or equal to 1" in shown
    assert "Saved." in client.post(url, given, follow=True).content.decode()
    (row,) = made.redaction_rules.filter(kind="presidio", enabled=True)
    assert presidio.settings_of(row.pattern) == presidio.Settings(
        ("PERSON", "LOCATION"), "en", 0.6, "own"
    )
    after = redaction.version_of(made)
    assert after != before and after in client.get(page).content.decode()
    redaction._kept.clear()
    post(agent, sent("a"))
    shown = client.get(page).content.decode()
    assert (
        "1 row or batch of" in shown
        and "If you switch Presidio off, they are stored without it." in shown
    )
    client.post(url, {"language": "en", "score": "0.6"})
    assert redaction.version_of(made) == before
    said = list(AuditEvent.objects.filter(action__startswith="redaction.presidio").order_by("pk"))[
        -2:
    ]
    assert [event.action for event in said] == ["redaction.presidio_on", "redaction.presidio_off"]
    assert said[0].detail["entities"] == "PERSON, LOCATION" and said[0].detail["version"] == after
    assert said[1].detail["waiting"] == 1
    redaction._kept.clear()
    assert released() == 1 and "Ann" in json.dumps(find(made, "a").messages)  # type: ignore[union-attr]
