"""What speakers are called in German, French, Spanish, Portuguese, Italian and Dutch."""

from __future__ import annotations

import re
import unicodedata

UMLAUTS = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "Ä": "ae", "Ö": "oe", "Ü": "ue"})

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
