"""What columns and speakers are called in German, French, Spanish, Portuguese, Italian and
Dutch.
"""

from __future__ import annotations

import re
import unicodedata

UMLAUTS = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "Ä": "ae", "Ö": "oe", "Ü": "ue"})

# Our field → headers, the most specific first. They are compared folded, with umlauts also written
# as ae, oe, ue.
HEADERS = {
    "messages": (
        "Gesprächsverlauf Unterhaltung Verlauf Chatverlauf Nachrichten Dialog messages échanges"
        " historique mensajes historial mensagens histórico"
    ),
    "conversation": (
        "Gesprächs-ID Gespräch-ID GesprächNr Gesprächsnummer Gespräch Konversation Konversations-ID"
        " Anruf Vorgangs-ID Fall-ID Unterhaltung Dialog-ID Vorgang Vorgangsnummer Fallnummer"
        " Sitzung ID_conversation identifiant_conversation entretien discussion échange fil"
        " id_conversación conversación id_conversacion hilo sesión charla id_conversa conversa"
        " atendimento sessão diálogo"
    ),
    "order": (
        "Reihenfolge Schritt Zug Position Nummer Nr Lfd_Nr ordre étape tour numéro rang orden paso"
        " turno número ordem passo etapa"
    ),
    "role": (
        "Rolle Sprecher Absender Verfasser Autor Teilnehmer rôle locuteur expéditeur auteur"
        " intervenant émetteur rol hablante remitente emisor papel função falante remetente"
    ),
    "content": (
        "Nachricht Inhalt Nachrichtentext Meldung Äußerung Wortlaut contenu texte propos mensaje"
        " contenido texto mensagem conteúdo"
    ),
    "question": (
        "Frage Anfrage Eingabe Kundenfrage Kundenanfrage Nutzereingabe demande requête entrée"
        " pregunta consulta solicitud entrada pergunta solicitação pedido"
    ),
    "answer": (
        "Antwort Ausgabe Agentenantwort Rückmeldung Erwiderung réponse sortie respuesta"
        " contestación salida resposta saída"
    ),
    "system": (
        "Systemprompt Systemnachricht Anweisung Anweisungen consigne invite_système instrucciones"
        " instruções"
    ),
    "tool_calls": (
        "Werkzeugaufrufe Toolaufrufe Tool-Aufrufe Aufrufe appels_outils appels_d_outils llamadas"
        " llamadas_a_herramientas chamadas chamadas_de_ferramentas"
    ),
    "tool_name": (
        "Werkzeug Werkzeugname Funktion outil nom_outil fonction herramienta función ferramenta"
    ),
    "tool_arguments": "Argumente Parameter paramètres argumentos parámetros parâmetros",
    "tool_result": (
        "Werkzeugergebnis Toolergebnis résultat_outil resultado_herramienta resultado_ferramenta"
    ),
    "id": "Kennung Vorgangsnummer Fallnummer Ticketnummer identifiant référence identificador",
    "outcome": (
        "Ergebnis Erfolg erfolgreich gelöst erledigt Bewertung résultat succès réussi résolu"
        " réussite resultado éxito exitoso resuelto sucesso resolvido"
    ),
    "score": (
        "Punkte Punktzahl Bewertung Sterne Zufriedenheit note score évaluation étoiles puntuación"
        " puntaje calificación valoración estrellas pontuação nota avaliação estrelas"
    ),
    "reason": (
        "Grund Begründung Kommentar Bemerkung Anmerkung Fehlermeldung raison motif commentaire"
        " remarque motivo razón comentario observación razão comentário observação"
    ),
    "started_at": (
        "Zeitpunkt Zeitstempel Startzeit Beginn Datum Uhrzeit Zeit Gesendet erstellt erstellt_am"
        " gesendet_am horodatage date_heure date_et_heure heure début créé_le envoyé_le fecha"
        " fecha_y_hora fecha_hora hora inicio marca_de_tiempo creado_en data_hora data_e_hora"
        " carimbo_de_data início criado_em data"
    ),
    "ended_at": (
        "Ende Endzeit beendet beendet_am fin date_fin date_de_fin heure_fin fecha_fin fecha_de_fin"
        " hora_fin data_fim fim término"
    ),
    "agent_name": (
        "Agentenname Assistent assistant nom_agent agente nombre_agente nome_agente assistente"
    ),
    "agent_version": "Agentenversion version_agent versión versão",
    "model": "Modell modèle modelo",
    "workload": (
        "Kategorie Thema Anliegen Bereich catégorie sujet thème categoría tema asunto categoria"
        " assunto"
    ),
    "session_id": "Sitzung Sitzungs-ID session_id sesión id_sesión sessão id_sessão",
    "user_id": (
        "Kundennummer Kunden-ID Nutzer-ID Benutzer-ID Nutzer Benutzer Kunde identifiant_client"
        " utilisateur client id_usuario usuario id_cliente cliente usuário id_usuário"
    ),
    "cost_usd": "Kosten coût coût_usd costo coste custo",
    "latency_ms": (
        "Dauer_ms Antwortzeit_ms Latenz Latenz_ms durée_ms latence latence_ms duración_ms latencia"
        " latencia_ms duração_ms latência latência_ms"
    ),
    "latency_s": (
        "Dauer_s Dauer Dauer_in_Sekunden Sekunden Antwortzeit durée_s durée secondes duración"
        " duración_s segundos duração duração_s"
    ),
    "input_tokens": "Eingabetokens Eingabe-Tokens jetons_entrée tokens_entrée tokens_entrada",
    "output_tokens": (
        "Ausgabetokens Ausgabe-Tokens jetons_sortie tokens_sortie tokens_salida tokens_saída"
    ),
    "tags": "Schlagwörter Stichworte étiquettes etiquetas",
    "metadata": "Metadaten métadonnées metadatos metadados",
}
SPEAKERS = {
    "user": (
        "Nutzer Nutzerin Benutzer Benutzerin Kunde Kundin Anrufer Anruferin Gast Mensch Frage"
        " utilisateur utilisatrice client cliente usager visiteur usuario usuaria cliente humano"
        " usuário usuária utente klant gebruiker beller"
    ),
    "assistant": (
        "Assistent Assistentin Agentin Berater Beraterin Mitarbeiter Mitarbeiterin KI Antwort"
        " assistante conseiller conseillère agente asistente asesor asesora IA assistente atendente"
        " robô robot Roboter operatore medewerker"
    ),
    "tool": "Werkzeug Werkzeugergebnis outil herramienta ferramenta strumento hulpmiddel",
    "system": "Systemprompt système sistema",
}


def fold(text: str) -> str:
    """Lower case, without accents: “Rôle” is “role”, “größer” is “grosser”."""
    parts = unicodedata.normalize("NFKD", text.casefold())
    return "".join(letter for letter in parts if not unicodedata.combining(letter))


def simple(name: str) -> str:
    """The letters and digits of a name, folded."""
    return re.sub(r"[\W_]", "", fold(name))


def spellings(words: str) -> tuple[str, ...]:
    """Words between spaces as `simple` writes them."""
    return tuple(
        dict.fromkeys(
            simple(one) for word in words.split() for one in (word, word.translate(UMLAUTS))
        )
    )
