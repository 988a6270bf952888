"""People, places and other entities, by Presidio and a spaCy model. Both are optional, and have to
be on this machine: nothing is downloaded. Pure.

`FOLDER` may hold models of the operator's own, each in a folder as `nlp.to_disk` writes it.
"""

from __future__ import annotations

import importlib.util
import logging
import re
from collections.abc import Iterator
from functools import lru_cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import msgspec

from apps.trajectories.redaction.rules import RuleError
from apps.trajectories.redaction.walk import sound

PATTERNS = "patterns"  # instead of a model
PIECE, OVERLAP = 20_000, 200  # characters that are analysed at once, of a longer text
LARGEST = 1_000_000  # characters of one row
# texts of at most `SHORT` characters: the same system prompts and tools come with every run
CACHED = 1_024
SHORT = 20_000
INSTALL = "Run “pip install -r requirements/presidio.txt” and restart."
FOLDER: Path | None = None
# What people can choose. Keys, e-mail addresses, cards, IBAN, phone numbers and IP addresses have
# built-in rules.
ENTITIES = {
    "PERSON": "People",
    "LOCATION": "Places",
    "NRP": "Nationalities, religious and political groups",
    "ORGANIZATION": "Organizations",
    "DATE_TIME": "Dates and times",
    "MEDICAL_LICENSE": "US medical licenses",
    "US_DRIVER_LICENSE": "US driver licenses",
    "US_PASSPORT": "US passports",
    "US_ITIN": "US taxpayer numbers (ITIN)",
    "US_BANK_NUMBER": "US bank accounts",
    "UK_NHS": "UK NHS numbers",
    "ES_NIF": "Spanish NIF",
    "IT_FISCAL_CODE": "Italian fiscal codes",
}
OF_A_MODEL = ("PERSON", "LOCATION", "NRP", "ORGANIZATION")
LANGUAGES = {
    "en": "English",
    "de": "German",
    "es": "Spanish",
    "fr": "French",
    "it": "Italian",
    "nl": "Dutch",
    "pl": "Polish",
    "pt": "Portuguese",
}


class TooLong(RuleError):
    """A row has more text than Presidio is asked about."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is looked for. No model: the largest installed one of the language."""

    entities: tuple[str, ...] = ("PERSON", "LOCATION", "NRP")
    language: str = "en"
    score: float = 0.5
    model: str = ""


def settings_of(pattern: str) -> Settings:
    """From a rule's pattern: JSON, or the names of entities."""
    if pattern.startswith("{"):
        try:
            return msgspec.json.decode(pattern, type=Settings)
        except msgspec.MsgspecError as error:
            raise RuleError(f"The settings of Presidio cannot be read: {error}.") from error
    return Settings(entities=tuple(re.findall(r"\w+", pattern))) if pattern else Settings()


def pattern_of(settings: Settings) -> str:
    return msgspec.json.encode(settings).decode()


def is_installed() -> bool:
    return importlib.util.find_spec("presidio_analyzer") is not None


def models() -> dict[str, str]:
    """The language of each model on this machine, by name: packages, then folders in `FOLDER`."""
    found = {point.name: point.name[:2] for point in entry_points(group="spacy_models")}
    for path in sorted(FOLDER.iterdir()) if FOLDER and FOLDER.is_dir() else ():
        try:
            found[path.name] = str(msgspec.json.decode((path / "meta.json").read_bytes())["lang"])
        except (OSError, msgspec.MsgspecError, KeyError, TypeError):
            continue
    return found


def model_of(settings: Settings) -> str:
    """The model that is used. Raises RuleError where there is none."""
    there = models()
    if settings.model == PATTERNS:
        return PATTERNS
    if settings.model:
        if there.get(settings.model) == settings.language:
            return settings.model
        raise RuleError(
            f"The model “{settings.model}” for the language “{settings.language}” is not on this"
            f" machine.{_hint(settings)}"
        )
    fitting = [name for name, language in there.items() if language == settings.language]
    if not fitting:
        raise RuleError(
            f"Presidio needs a spaCy model for the language “{settings.language}”.{_hint(settings)}"
        )
    sizes = {size: place for place, size in enumerate(("sm", "md", "lg"))}
    return max(fitting, key=lambda name: (sizes.get(name[-2:], -1), name))


def _hint(settings: Settings) -> str:
    where = f", or put a model's folder into {FOLDER}" if FOLDER else ""
    example = "en_core_web_sm" if settings.language == "en" else f"{settings.language}_core_news_sm"
    return f" Run `python -m spacy download {example}`{where}, and restart."


def check(settings: Settings) -> None:
    """Raises RuleError if these settings cannot be used on this machine. Loads nothing."""
    if not settings.entities:
        raise RuleError("Choose at least one entity for Presidio to look for.")
    if not 0 < settings.score <= 1:
        raise RuleError("The minimum score must be above 0 and at most 1.")
    if settings.language not in LANGUAGES:
        raise RuleError(f"The language must be one of {', '.join(LANGUAGES)}.")
    if unknown := [name for name in settings.entities if name not in ENTITIES]:
        raise RuleError(f"Unknown entity “{unknown[0]}”.")
    if not is_installed():
        raise RuleError(f"Presidio is not installed. {INSTALL}")
    if settings.model == PATTERNS and (
        of_model := [name for name in settings.entities if name in OF_A_MODEL]
    ):
        names = ", ".join(ENTITIES[name].lower() for name in of_model)
        raise RuleError(f"Patterns alone cannot find {names}: choose a model, or leave them out.")
    model_of(settings)


@lru_cache(maxsize=4)
def analyzer(language: str, model: str) -> Any:
    """Presidio's analyzer over a model that is on this machine."""
    import spacy
    from presidio_analyzer import AnalyzerEngine
    from presidio_analyzer.nlp_engine import SpacyNlpEngine

    engine = SpacyNlpEngine(models=[{"lang_code": language, "model_name": model}])
    # Loaded here: Presidio would download a model that it does not find. The parser takes half of
    # the time and finds no entity.
    path = FOLDER / model if FOLDER and (FOLDER / model / "meta.json").exists() else model
    engine.nlp = {
        language: (
            spacy.blank(language) if model == PATTERNS else spacy.load(path, exclude=["parser"])
        )
    }
    logging.getLogger("presidio-analyzer").setLevel(logging.ERROR)
    return AnalyzerEngine(nlp_engine=engine, supported_languages=[language])


@lru_cache(maxsize=8)
def engine_of(settings: Settings) -> Any:
    """The analyzer for these settings. Raises RuleError."""
    check(settings)
    try:
        found = analyzer(settings.language, model_of(settings))
        supported = found.get_supported_entities(settings.language)
    except Exception as error:
        raise RuleError(f"Presidio cannot be loaded: {type(error).__name__}: {error}") from error
    if missing := [name for name in settings.entities if name not in supported]:
        raise RuleError(
            f"Presidio finds no {ENTITIES[missing[0]]} in {LANGUAGES[settings.language]}. Leave"
            f" {missing[0]} out."
        )
    return found


def find(settings: Settings, text: str) -> list[tuple[int, int]]:
    """The spans, in characters, of what is found in a text. One that Presidio cannot read goes
    whole: better a lost text than a leaked one."""
    return list(_find_cached(settings, text) if len(text) <= SHORT else _find(settings, text))


@lru_cache(maxsize=CACHED)
def _find_cached(settings: Settings, text: str) -> tuple[tuple[int, int], ...]:
    return tuple(_find(settings, text))


def _find(settings: Settings, text: str) -> Iterator[tuple[int, int]]:
    engine = engine_of(settings)
    asked = {
        "language": settings.language,
        "entities": list(settings.entities),
        "score_threshold": settings.score,
    }
    for start, end in _pieces(text):
        try:
            found = [
                (start + one.start, start + one.end)
                for one in engine.analyze(text=sound(text[start:end]), **asked)
            ]
        except Exception:
            found = [(start, end)]
        yield from found


def _pieces(text: str) -> Iterator[tuple[int, int]]:
    """Where a text is cut; what stands at a cut is in two pieces, so that it is found in one of
    them.
    """
    start = 0
    while len(text) - start > PIECE:
        end = text.rfind(" ", start + PIECE // 2, start + PIECE) + 1 or start + PIECE
        yield start, end
        start = end - OVERLAP
    yield start, len(text)
