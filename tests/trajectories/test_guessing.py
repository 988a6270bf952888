"""Which columns of a homemade table are guessed, and which are not: a wrong guess that looks right
is worse than none.
"""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from apps.trajectories.decoding import RowError
from apps.trajectories.importers import OpenFile, read
from apps.trajectories.importers.guess import guess
from apps.trajectories.importers.mapping import Mapping, as_json

SAID = (
    "Where is my suitcase?",
    "It is on belt 3.",
    "Thanks a lot!",
    "You are welcome.",
    "Cancel flight R2.",
    "I cannot do that.",
    "Why can you not?",
    "The fare is not flexible.",
)
COLUMNS: dict[str, tuple] = {
    "conversation": ("c1", "c1", "c1", "c1", "c2", "c2", "c2", "c2"),
    "order": ("1", "2", "3", "4") * 2,
    "role": ("Kunde", "Bot") * 4,
    "content": SAID,
    "started_at": tuple(f"2026-11-23 07:4{minute}" for minute in range(8)),
    "question": SAID[::2] * 2,
    "answer": SAID[1::2] * 2,
    "id": tuple(f"V-{number}" for number in range(8)),
    "outcome": ("👍", "👎") * 4,
    "latency_s": ("1,5", "2,25") * 4,
    "agent_version": ("v2.3", "v2.4") * 4,
    "user_id": ("K1", "K2") * 4,
}
MESSAGES = {"conversation": "conversation", "role": "role", "content": "content"}
PAIRS = {"question": "question", "answer": "answer"}
HEADERS = {
    "role": (
        "Speaker role|Who is speaking?|Sender type|Wer spricht|Wer schreibt?|Art des Absenders|Qui"
        " parle|Qui écrit ?|Rôle de l'auteur|¿Quién habla?|Quién escribe|Quem fala|Chi"
        " parla|Ruolo|Mittente|Wie spreekt|Afzender"
    ),
    "content": (
        "Message text|Text der Nachricht|Texte|Texte du message|Contenu du message|Texto del"
        " mensaje|Conteúdo da mensagem|Testo del messaggio|Messaggio|Bericht"
    ),
    "conversation": (
        "Case no.|Chat ID|Conversation #|Vorgangs-Nr|Vorgangs-Nr.|Nr. des Gesprächs|Dossier|N° de"
        " dossier|Numéro de conversation|Número de caso|ID de la conversación|Nº do"
        " atendimento|Numero della conversazione|Pratica|Zaaknummer"
    ),
    "order": (
        "Turn no.|Message number|Nachrichten-Nr|Schritt-Nr.|Tour|N° du tour|Número de"
        " turno|Passo|Beurt"
    ),
    "started_at": (
        "Sent at|Time of message|messageTimestamp|Quand|Wann?|Uhrzeit der Nachricht|Datum und"
        " Uhrzeit|Heure du message|Date d'envoi|Fecha y hora|Hora del mensaje|¿Cuándo?|Data e"
        " ora|Data e hora|Tijdstip"
    ),
    "question": (
        "Customer message|What the customer said|userQuestion|Frage des"
        " Kunden|Kundenanfrage|Nachricht des Nutzers|Question du client|Demande de"
        " l'utilisateur|Mensaje del cliente|Pregunta del usuario|Pergunta do cliente|Domanda del"
        " cliente|Vraag van de klant|Domanda"
    ),
    "answer": (
        "Bot reply|What the agent answered|assistantReply|Antwort des Bots|Bot-Antwort|Nachricht"
        " des Beraters|Réponse du robot|Réponse de l'assistant|Respuesta del bot|Mensaje del"
        " agente|Resposta do robô|Risposta del bot|Antwoord van de bot|Risposta"
    ),
    "id": "Case-ID|Vorgangs-Nr|N° de dossier|Número de caso",
    "outcome": "Daumen|Pouce|Thumb|Fall gelöst?|Problème résolu ?|¿Caso resuelto?",
    "latency_s": (
        "Durée (s)|Dauer (s)|Antwortzeit (s)|Temps de réponse (s)|Response time in"
        " seconds|Duración (s)"
    ),
    "agent_version": "Bot-Stand|Version du robot|Version des Bots|Versión del agente",
    "user_id": "Kunden-Nr.|N° client|Customer key|Número de cliente",
}
NOT_GUESSED = {
    "role": "Type|Channel|Kanal|Canal|Priority|Geschlecht|Rollenspiel|Qui est disponible ?",
    "content": "Betreff|Note interne|Zusammenfassung|Text der Rechnung|Message cost",
    "question": (
        "Antwort des Kunden|Frage 2|Question_b|Sicherheitsfrage|Question de sécurité|Beschwerde"
    ),
    "answer": (
        "response_a|Antwort 2|Correct answer|Réponse du client|Respuesta"
        " correcta|Antwortvorlage|Erste Antwort"
    ),
    "started_at": (
        "Date of birth|Due date|Geburtsdatum|Date de livraison|Fecha de vencimiento|Rechnungsdatum"
    ),
    "latency_s": "Wartezeit (Tage)|Durée du contrat (mois)|Response time target",
    "user_id": "Kundenname|Customer since|Client VIP",
    "outcome": "Newsletter|Opt-in|Premium",
}


def table(**columns: str) -> list[dict]:
    """Rows with the values of these fields under these headers."""
    return [{header: COLUMNS[field][at] for field, header in columns.items()} for at in range(8)]


def around(field: str, header: str) -> dict[str, str]:
    """A table with this header in which the field belongs."""
    return (PAIRS if field not in (*MESSAGES, "order", "started_at") else MESSAGES) | {
        field: header
    }


def cases(headers: dict[str, str]) -> list[tuple[str, str]]:
    return [(field, header) for field, line in headers.items() for header in line.split("|")]


@pytest.mark.parametrize(("field", "header"), cases(HEADERS))
def test_headers_of_several_words_and_in_seven_languages_are_guessed(
    field: str, header: str
) -> None:
    wanted = around(field, header)
    found = guess(table(**wanted))
    assert {name: found.fields.get(name) for name in wanted} == wanted


@pytest.mark.parametrize(("field", "header"), cases(NOT_GUESSED))
def test_a_header_with_another_meaning_is_not_guessed(field: str, header: str) -> None:
    """Although the column holds what the field would."""
    message = field in ("role", "content", "started_at")
    rows = table(**({"role": "role", "content": "content"} if message else PAIRS) | {field: header})
    if field == "started_at":  # the times are in no order, which alone would say much
        rows = [row | {header: COLUMNS[field][-at]} for at, row in enumerate(rows)]
    assert header not in guess(rows).fields.values()


def rows_of(header: str, *lines: str) -> list[dict]:
    names = header.split(";")
    return [
        {name: cell for name, cell in zip(names, line.split(";"), strict=True) if cell}
        for line in (header, *lines)[1:]
    ]


def can_be_imported(mapping: Mapping) -> bool:
    needed = {
        "conversation": {"messages"},
        "messages": {"role", "content"},
        "pairs": {"question", "answer"},
    }
    return needed[mapping.layout] <= set(mapping.fields)


NO_CONVERSATIONS = {
    "orders": (
        "Order no;Customer;Item;Qty;Price;Order date;Status",
        *(
            f"A-{number};Karen Smith;USB cable, 2 m;{number};9.90;2026-11-2{number} 10:00;shipped"
            for number in range(9)
        ),
    ),
    "orders with a gift message": (
        "Bestell-Nr;Kunde;Nachricht;Menge;Bestellt am;Bearbeitet von",
        *(
            f"{number};Eva Maier;Alles Gute zum Geburtstag!;1;2{number}.11.2026 10:00;Shop"
            for number in range(9)
        ),
    ),
    "a survey in long form": (
        "Respondent;Question;Answer",
        *(
            f"{who};{asked};{4 - who % 3}"
            for who in range(4)
            for asked in ("How satisfied are you?", "Would you recommend us?")
        ),
    ),
    "a survey in words": (
        "Teilnehmer;Frage;Antwort",
        *(
            f"{who};{asked};{('Ja', 'Nein')[who % 2]}"
            for who in range(4)
            for asked in ("Sind Sie zufrieden?", "Kommen Sie wieder?")
        ),
    ),
    "a survey in wide form": (
        "Timestamp;How satisfied are you?;What could we do better?;Would you recommend us?",
        *(f"2026-11-2{number} 10:00;4;Answer the phone, please.;Yes" for number in range(9)),
    ),
    "tickets of a CRM": (
        "Ticket-Nr;Kunde;Betreff;Beschreibung;Bearbeiter;Status;Erstellt am;Geschlossen am",
        *(
            f"T{number};ACME Inc.;Drucker defekt;Der Drucker im 2. Stock druckt nicht"
            f" mehr.;Karl;offen;2{number}.11.2026 08:00;"
            for number in range(9)
        ),
    ),
    "contacts of a CRM, opened by either side": (
        "Case ID;Opened by;Subject;Description;Status",
        *(
            f"C{number};{('Customer', 'Agent')[number % 2]};Refund;The customer wants the money"
            " back now.;open"
            for number in range(9)
        ),
    ),
    "activities of a CRM": (
        "Contact ID;Type;Author;Notes;Date",
        *(
            f"K{number // 3};{('Call', 'E-mail', 'Visit')[number % 3]};Karen;Talked about the new"
            f" offer today.;2026-11-2{number}"
            for number in range(9)
        ),
    ),
    "reviews": (
        "Author;Text;Rating;Date",
        *(
            f"Anna{number};The best cable I have ever bought.;5;2026-11-2{number}"
            for number in range(9)
        ),
    ),
    "translations": (
        "source;text;target",
        *("Where is my order?;Wo ist meine Bestellung?;Où est ma commande ?" for _ in range(9)),
    ),
    "two candidate answers": (
        "prompt;response_a;response_b;winner",
        *(
            f"What is {number} times 7?;It is {number * 7}, I think.;No idea, sorry.;a"
            for number in range(9)
        ),
    ),
    "an exam": (
        "Question;Correct answer;Student answer;Points",
        *(
            f"What is the capital of country {number}?;It is Oslo, of course.;I think it is Rome.;0"
            for number in range(9)
        ),
    ),
    "metrics of a call center": (
        "Call ID;Agent;Customer;Duration;First response time;CSAT",
        *(f"C{number};Karl;ACME Ltd.;93;12;4" for number in range(9)),
    ),
    "bookings": (
        "Booking;Booked by;Room;Comment;Date",
        *(
            f"B{number};{('Guest', 'Agent', 'Guest')[number % 3]};12;Late arrival, please keep the"
            f" key.;2026-11-2{number}"
            for number in range(9)
        ),
    ),
}


@pytest.mark.parametrize("name", NO_CONVERSATIONS)
def test_a_table_that_holds_no_conversations_is_left_open(name: str) -> None:
    found = guess(rows_of(*NO_CONVERSATIONS[name]))
    assert not can_be_imported(found), as_json(found)
    assert not {"Customer", "Order date", "Price"} & set(found.fields.values()), (
        "names, and what belongs to no conversation"
    )


def test_the_structure_says_what_headers_do_not() -> None:
    """Speakers, numbers that begin again, the value that changes there, sentences, and times in
    order.
    """
    headers = {
        "conversation": "Spalte A",
        "order": "Spalte B",
        "role": "Spalte C",
        "content": "Spalte D",
        "started_at": "Spalte E",
    }
    rows = [
        row | {"Kanal": ("App", "Web")[at % 2], "Stand": "7"}
        for at, row in enumerate(table(**headers))
    ]
    found = guess(rows)
    assert found.layout == "messages" and found.fields == headers
    without = guess(
        [{name: value for name, value in row.items() if name != "Spalte B"} for row in rows]
    )
    assert not can_be_imported(without), "nothing says where a conversation begins"


def test_the_structure_decides_nothing_where_two_columns_fit() -> None:
    twice = table(conversation="Akte", order="Zeile", role="Von", content="Wortwechsel")
    assert guess(twice).fields == {
        "conversation": "Akte",
        "order": "Zeile",
        "role": "Von",
        "content": "Wortwechsel",
    }
    assert not can_be_imported(
        guess([row | {"An": ("Bot", "Kunde")[at % 2]} for at, row in enumerate(twice)])
    )
    assert not can_be_imported(guess([row | {"Intern": SAID[-at]} for at, row in enumerate(twice)]))
    assert not can_be_imported(
        guess([row | {"Wortwechsel": SAID[at // 4]} for at, row in enumerate(twice)])
    ), "a subject"
    both = [
        row | {"Antwort der KI": row["Antwort des Bots"]}
        for row in table(question="Frage", answer="Antwort des Bots")
    ]
    assert guess(both).fields == {"question": "Frage"}


def test_costs_in_another_currency_are_no_dollars() -> None:
    for header, wanted in (
        ("Kosten (€)", None),
        ("Kosten EUR", None),
        ("Cost in £", None),
        ("Cost ($)", "Cost ($)"),
        ("Kosten USD", "Kosten USD"),
    ):
        rows = [row | {header: "0,02"} for row in table(**PAIRS)]
        assert guess(rows).fields.get("cost_usd") == wanted


def test_an_id_is_one_only_if_it_is_short_and_its_repeats_make_a_conversation() -> None:
    rows = [row | {"Vorgangs-Nr": f"V-{at}"} for at, row in enumerate(table(**PAIRS))]
    assert guess(rows).fields == PAIRS | {"id": "Vorgangs-Nr"}
    assert guess([*rows, rows[-1]]).fields == PAIRS | {"conversation": "Vorgangs-Nr"}
    assert (
        guess([row | {"Gespräch": SAID[at]} for at, row in enumerate(table(**PAIRS))]).fields
        == PAIRS
    )


# Whole files


def opened(data: bytes, name: str) -> tuple[OpenFile, list[Any], list[tuple[int, str]]]:
    """The file, its trajectories as [(id, [(role, content)])], and what was refused."""
    reading = read(io.BytesIO(data), name)
    found = list(reading.rows)
    good = [
        (row["id"], [(one["role"], one["content"]) for one in row["messages"]])
        for _, row in found
        if isinstance(row, dict)
    ]
    return (
        reading,
        good,
        [(position, row.problem) for position, row in found if isinstance(row, RowError)],
    )


EXCEL = """Chat-Protokolle KW 47 – Müller & Söhne;;;;
;;;;
Fall;Datum;Lfd. Nr.;Wer schreibt;Was geschrieben wurde
F-1;16.11.2026 09:00;1;Kundin;Wo bleibt meine Bestellung?
;;2;Chatbot;Sie wird heute zugestellt.
F-2;16.11.2026 14:00;1;Kunde;Rechnung bitte stornieren.
;;2;Chatbot;Das ist leider nicht möglich.
;;;;Summe: 2 Fälle
"""


def test_a_spreadsheet_with_a_title_merged_cells_and_a_sum_is_read() -> None:
    reading, good, refused = opened(EXCEL.replace("\n", "\r\n").encode("cp1252"), "KW47.csv")
    assert reading.mapping.fill_down and reading.mapping.fields["conversation"] == "Fall"
    assert good == [
        (
            "F-1",
            [("user", "Wo bleibt meine Bestellung?"), ("assistant", "Sie wird heute zugestellt.")],
        ),
        (
            "F-2",
            [
                ("user", "Rechnung bitte stornieren."),
                ("assistant", "Das ist leider nicht möglich."),
            ],
        ),
    ]
    assert refused == [(8, "has neither a conversation nor a speaker, so it is not a message")]
    assert [(one["position"], one["warning"]) for one in reading.source.mended] == [
        (1, "“Chat-Protokolle KW 47 – Müller & Söhne” is a title above the header: it was skipped"),
    ]
    assert reading.report.records == 5
    reading.mapping.fill_down = False
    again = list(read(io.BytesIO(EXCEL.encode()), "KW47.csv", mapping=reading.mapping).rows)
    assert [isinstance(row, RowError) for _, row in again].count(True) == 3, (
        "without it these rows belong to none"
    )


@pytest.mark.parametrize(
    ("data", "columns"),
    [
        ("Export, 23.11.2026\n\nFrage;Antwort\nWo?;Hier.\n", ["Frage", "Antwort"]),
        ("Export;\nFrage;Antwort\nWo?;Hier.\n", ["Frage", "Antwort"]),
        ("Export;\n1;Hier.\n2;Dort.\n", ["Export", "column 2"]),
        ("Frage\n\nWo, bitte?\n", ["Frage"]),
        ("Frage;;\nWo?;Hier.;1\n", ["Frage", "column 2", "column 3"]),
        ("Frage\nWo?;Hier.\n", ["Frage"]),
    ],
)
def test_only_what_stands_alone_above_a_header_is_a_title(data: str, columns: list[str]) -> None:
    assert read(io.BytesIO(data.encode()), "x.csv").source.columns == columns


def test_names_that_are_too_long_for_a_path_are_refused_in_a_sentence() -> None:
    talk = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]
    deep = {"x" * 100: {"id": 1, "y" * 200: {"id": 1, "z" * 100: talk, "list": []}}}
    for record, problem in (({"x" * 301: talk}, "longer than 300"), (deep, "Choose a column")):
        assert problem in opened(json.dumps(record).encode(), "x.json")[0].problem


def test_messages_deep_in_a_helpdesk_export_are_found_with_their_speakers() -> None:
    comments = [
        {
            "id": 1,
            "author": {"type": "end-user", "name": "Ann"},
            "body": "Why was I charged twice?",
        },
        {
            "id": 2,
            "author": {"type": "bot", "name": "HelpBot"},
            "body": "The second charge is a reservation.",
        },
        {"id": 3, "author": {"type": "crew", "name": "Karl"}, "body": "I have released it."},
    ]
    tickets = [
        {"id": 70 + at, "subject": "Invoice", "talk": {"total": 3, "parts": {"comments": comments}}}
        for at in range(3)
    ]
    data = json.dumps({"tickets": tickets, "count": 3, "next_page": None}).encode()
    reading, good, refused = opened(data, "export.json")
    assert (reading.mapping.records, reading.mapping.fields) == (
        "tickets",
        {"messages": "talk.parts.comments", "id": "id"},
    )
    assert reading.mapping.roles == {"crew": "assistant"} and not refused
    assert good[0] == (
        "70",
        [
            ("user", comments[0]["body"]),
            ("assistant", comments[1]["body"]),
            ("assistant", comments[2]["body"]),
        ],
    )
