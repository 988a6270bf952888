"""What a header of several words means: “Antwort des Bots” is an answer of the agent, so it heads
the answers.

Each word stands for one or more concepts. A header fits a field only if all of its words are known
and their concepts are exactly what one of the field's patterns asks for: “Antwort des Kunden” and
“Antwort 2” fit none.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import islice, product

from apps.trajectories.importers.words import UMLAUTS, fold, spellings

CONCEPTS = {
    "customer": (
        "customer client user human caller visitor guest requester enduser Kunde Kunden Kundin"
        " Nutzer Nutzerin Benutzer Anrufer Gast utilisateur usager appelant visiteur cliente"
        " usuario usuário utilizador utente klant gebruiker beller"
    ),
    "agent": (
        "agent bot assistant ai ia ki robot chatbot support advisor operator copilot Assistent"
        " Assistentin Roboter Berater Beraterin Mitarbeiter conseiller agente asistente assistente"
        " atendente robô medewerker"
    ),
    "ask": (
        "question query request prompt inquiry enquiry asked asks gefragt fragt demandé"
        " preguntó perguntou Frage Anfrage Rückfrage demande requête pregunta consulta duda"
        " solicitud pergunta solicitação dúvida domanda richiesta vraag verzoek pedido"
    ),
    "answer": (
        "answer response reply answered answers replied geantwortet antwortet répondu respondió"
        " respondeu Antwort Erwiderung réponse respuesta contestación resposta risposta antwoord"
        " Rückmeldung"
    ),
    "text": (
        "text message content body utterance msg transcript Nachricht Inhalt Äußerung Wortlaut"
        " texte contenu propos texto mensaje contenido mensagem conteúdo testo messaggio"
        " contenuto tekst bericht inhoud Meldung"
    ),
    "what": "what was que quoi qué che cosa wat",
    "who": "who wer qui quién quem chi wie",
    "says": (
        "speaks speaking says said wrote writes talks spoke spricht gesagt geschrieben schreibt"
        " sagt sagte schrieb redet parle écrit dit habla escribe dice dijo escribió fala escreve"
        " disse parla scrive spreekt zegt schrijft"
    ),
    "speaker": (
        "role speaker sender author Rolle Sprecher Absender Verfasser Autor rôle locuteur"
        " expéditeur auteur intervenant émetteur rol hablante remitente emisor papel falante"
        " remetente ruolo mittente autore parlante spreker afzender Teilnehmer"
    ),
    "kind": "type kind art typ tipo",
    "when": "when wann quand cuándo quando wanneer",
    "date": "date Datum fecha data",
    "hour": "time Zeit Uhrzeit heure temps hora tiempo ora orario tijd",
    "moment": "timestamp datetime Zeitpunkt Zeitstempel horodatage tijdstip",
    "sent": (
        "sent created received posted gesendet erstellt empfangen eingegangen Eingang envoyé envoi"
        " créé création reçu enviado envío creado creación recibido envio criado criação recebido"
        " inviato invio creato ricevuto verzonden ontvangen aangemaakt"
    ),
    "begin": "start started begin Beginn Start début inicio início inizio",
    "at": "at on am um le il el em op",
    "talk": (
        "conversation chat dialog dialogue thread session ticket call case interaction Gespräch"
        " Konversation Unterhaltung Anruf Vorgang Fall Sitzung dossier entretien échange appel"
        " affaire conversación caso expediente hilo sesión llamada conversa atendimento sessão"
        " chamado protocolo conversazione pratica sessione chiamata gesprek zaak sessie"
        " discussion fil charla diálogo"
    ),
    "id": (
        "id nr no number num identifier key Nummer Kennung Kennzeichen numéro identifiant"
        " número identificador numero identificativo codice codigo kenmerk référence referencia"
    ),
    "turn": (
        "turn step Zug Schritt Runde tour étape turno paso passo ordem orden ordine beurt stap"
        " Reihenfolge volgorde index position rang ordre etapa"
    ),
    "tool": (
        "tool function Werkzeug outil fonction herramienta función ferramenta função strumento"
        " funzione Funktion"
    ),
    "call": "call invocation Aufruf appel llamada chamada chiamata aanroep",
    "called": "name named Name nom nombre nome naam",
    "arguments": (
        "arguments args parameters params Argumente Parameter paramètres argumentos parámetros"
        " parâmetros argomenti parametri"
    ),
    "result": (
        "result output Ergebnis Ausgabe résultat sortie resultado salida saída risultato uscita"
        " resultaat"
    ),
    "lag": "latency lag Latenz latence latencia latência latenza latentie",
    "lasts": ("duration elapsed Dauer durée duración duração durata duur Antwortzeit"),
    "s": "s sec secs second Sek Sekunde seconde segundo secondo",
    "ms": "ms msec millis millisecond Millisekunde",
    "cost": "cost Kosten coût coste costo custo",
    "usd": "usd dollar dollars",
    "state": "Stand",
    "version": "version release build versión versão versione versie",
    "rating": (
        "rating stars score Bewertung Sterne note évaluation étoiles valoración calificación"
        " puntuación avaliação nota valutazione voto beoordeling Punkte Punktzahl Zufriedenheit"
        " puntaje estrellas pontuação estrelas stelle punteggio sterren"
    ),
    "thumb": "thumb Daumen pouce pulgar polegar pollice duim",
    "solved": (
        "solved resolved success successful gelöst erledigt erfolgreich résolu réussi resuelto"
        " éxito resolvido sucesso risolto opgelost Erfolg succès réussite exitoso"
    ),
    "problem": "problem issue Problem Anliegen problème problema probleem",
    "comment": (
        "comment remark Kommentar Bemerkung Anmerkung commentaire remarque comentario"
        " comentário commento opmerking Grund Begründung Fehlermeldung raison motif motivo razón"
        " observación razão observação reden"
    ),
    "model": "model Modell modèle modelo modello",
    "token": "token jeton",
    "history": (
        "history Verlauf Chatverlauf Gesprächsverlauf historique historial histórico cronologia"
        " geschiedenis"
    ),
    "system": (
        "system systemprompt Systemnachricht Anweisung Anweisungen consigne instrucciones"
        " instruções istruzioni instructies"
    ),
    "end": "end ended Ende Endzeit beendet fin fim término fine einde",
    "topic": (
        "topic category Kategorie Thema Bereich catégorie sujet thème categoría tema asunto"
        " categoria assunto argomento onderwerp"
    ),
    "tag": "tag tags Schlagwörter Stichworte étiquettes etiquetas etichette",
    "metadata": "metadata Metadaten métadonnées metadatos metadados metadati",
    "in": "input prompt in Eingabe entrée entrada ingresso",
    "out": "output completion out Ausgabe sortie salida saída uscita",
}
OF_NO_MEANING = (  # between other words
    "a an and by d da das de dei del dell della delle dello dem den der des di did die do does dos"
    " du e een ein eine en es est et for gli has hat het i im in is l la las les lo los na no o"
    " oder of or ou the to un und une van vom von y zum zur"
)
BETWEEN = frozenset(OF_NO_MEANING.split())
# What the concepts of a header may be, the best first; those after “?” are optional.
PATTERNS = {
    field: tuple(
        tuple(frozenset(half.split()) for half in f"{one}?".split("?")[:2])
        for one in given.split(" | ")
    )
    for field, given in {
        "question": (
            "ask customer ? text | text customer ? at | what customer says | what customer ask |"
            " says customer | ask text | ask"
        ),
        "answer": (
            "answer agent ? text at | answer model ? text | text agent ? at | what agent says |"
            " what agent answer | says agent | answer text | answer"
        ),
        "role": "who says | speaker ? text kind | who",
        "content": "what says | text",
        "conversation": "talk id | talk",
        "id": "talk id | talk",
        "order": "turn ? id text | text id",
        "started_at": (
            "date hour ? sent text talk at | moment ? sent text talk at | when | sent date ? at"
            " text | sent hour ? at | sent at | date begin | hour begin | talk begin | date text |"
            " hour text | date talk | date"
        ),
        "tool_calls": "tool call",
        "tool_name": "tool called",
        "tool_arguments": "tool arguments",
        "tool_result": "tool result ? text | tool answer",
        "latency_s": "lasts s | lasts answer s | lag s | answer hour s | hour s",
        "latency_ms": "lasts ms | lasts answer ms | lag ms | answer hour ms | hour ms",
        "ended_at": "end ? date hour at",
        "cost_usd": "cost usd",
        "agent_name": "agent called",
        "agent_version": "version agent | state agent",
        "model": "model called",
        "user_id": "customer id",
        "outcome": "solved ? talk problem | thumb ? customer",
        "score": "rating customer",
        "reason": "comment customer",
        "input_tokens": "token in",
        "output_tokens": "token out",
    }.items()
}
# Words that head a column of the field by themselves.
ALONE = {
    "messages": "history",
    "conversation": "talk",
    "order": "turn",
    "role": "speaker",
    "content": "text",
    "question": "ask",
    "answer": "answer",
    "system": "system",
    "tool_name": "tool",
    "tool_arguments": "arguments",
    "id": "id",
    "outcome": "solved result rating",
    "score": "rating",
    "reason": "comment",
    "started_at": "moment date hour sent begin",
    "ended_at": "end",
    "agent_version": "version",
    "model": "model",
    "workload": "topic",
    "cost_usd": "cost",
    "latency_ms": "lag",
    "latency_s": "lasts",
    "tags": "tag",
    "metadata": "metadata",
}
SIGNS = str.maketrans(
    {
        "€": " eur ",
        "£": " gbp ",
        "¥": " jpy ",
        "$": " usd ",
        "%": " percent ",
        "№": " no ",
        "#": " no ",
        "°": "o ",
        "º": "o ",
    }
)
CURRENCIES = frozenset(("eur", "euro", "euros", "gbp", "jpy", "chf", "brl", "mxn"))
CAMEL = re.compile(r"(?<=[a-zà-ÿ])(?=[A-ZÀ-Þ])")
MAX_WORDS = 8
MAX_READINGS = 200
LONG_WORD = 32  # letters; a compound that is longer is not split
ENDINGS = ("en", "es", "er", "s", "n", "e")
LINKS = ("", "s", "n", "en", "es", "e")  # between the parts of a compound: Vorgang-s-nummer


def names_of(field: str) -> tuple[str, ...]:
    """The words that head a column of a field by themselves, as `simple` writes them."""
    return spellings(" ".join(CONCEPTS[concept] for concept in ALONE.get(field, "").split()))


def _table() -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for concept, words in CONCEPTS.items():
        for word in words.split():
            for spelling in (fold(word), fold(word.translate(UMLAUTS))):
                found.setdefault(spelling, set()).add(concept)
    return {word: frozenset(concepts) for word, concepts in found.items()}


WORDS = _table()


def header_words(header: str) -> list[str]:
    """“¿Quién habla?” is [quien, habla], and currencies are words: “Cost ($)” is [cost, usd]."""
    return re.findall(r"[^\W_]+", fold(CAMEL.sub(" ", header.translate(SIGNS))))


@lru_cache(maxsize=4096)
def meanings(header: str) -> tuple[frozenset[str], ...]:
    """The sets of concepts that a header may stand for; none where one of its words is unknown."""
    words = header_words(header)
    if not 0 < len(words) <= MAX_WORDS:
        return ()
    readings = [
        _readings(word, at)
        for at, word in enumerate(words)
        if not (word in BETWEEN and 0 < at < len(words) - 1)
    ]
    return tuple(
        dict.fromkeys(frozenset().union(*one) for one in islice(product(*readings), MAX_READINGS))
    )


def _readings(word: str, at: int) -> list[frozenset[str]]:
    if word in BETWEEN and at == 0 and word not in WORDS:
        return [frozenset()]  # “La question”
    return _of_word(word) or (_of_compound(word) if len(word) <= LONG_WORD else [])


def _of_word(word: str) -> list[frozenset[str]]:
    forms = [
        word,
        *(
            word.removesuffix(end)
            for end in ENDINGS
            if word.endswith(end) and len(word) - len(end) >= (3 if end == "s" else 4)
        ),
    ]
    return [
        frozenset({concept})
        for concept in next((WORDS[form] for form in forms if form in WORDS), ())
    ]


def _of_compound(word: str) -> list[frozenset[str]]:
    """Of a word such as “Kundenanfrage”: what its parts stand for, if each is known."""
    for cut in range(len(word) - 2, 2, -1):
        begin, rest = word[:cut], word[cut:]
        known = next(
            (
                WORDS[begin.removesuffix(link)]
                for link in LINKS
                if begin.endswith(link) and begin.removesuffix(link) in WORDS
            ),
            None,
        )
        if known and len(begin) > 2 and (after := (_of_word(rest) or _of_compound(rest))):
            return list({frozenset({concept}) | one for concept in known for one in after})
    return []


def rank(header: str, field: str) -> int | None:
    """The place of the pattern that a header fits, from 0, the best; None if it fits none of the
    field's.
    """
    for place, (needed, optional) in enumerate(PATTERNS.get(field, ())):
        if any(needed <= meaning <= needed | optional for meaning in meanings(header)):
            return place
    return None


def mentions(header: str, *concepts: str) -> bool:
    """Whether a word of the header, or the end of one, stands for one of these; the others may be
    unknown.
    """
    found = {
        concept
        for at, word in enumerate(header_words(header))
        for one in _readings(word, at)
        for concept in one
    }
    ends = [
        WORDS[end]
        for word in header_words(header)
        for end in WORDS
        if len(end) > 3 and word.endswith(end)
    ]
    return bool(found.union(*ends) & set(concepts))
