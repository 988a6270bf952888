"""Answers that claim a change that one of the agent's tools makes. Pure. English only.

A claim accuses the agent, so only one form counts: a whole sentence in the first person perfect
with nothing but the verb and the object of a tool's name. With `close_ticket`, “I've closed your
ticket 12.” is one. Questions, conditions, quotations, drafts and reports are none, nor is the
passive, which also states what others did, nor what an answer does by its own words: “I've reviewed
the contract.”
"""

from __future__ import annotations

import re

from apps.failures.rules.reading import WRITE_VERBS, Run, kind_of, name_parts
from apps.failures.rules.words import DENIAL, LOOKED_AT, search, word_set
from workers.lib.messages import calls_in_text, is_prompt

_QUOTED = re.compile(
    r"```.*?(?:```|$)|`[^`]*`|\"[^\"]*\"?|“[^”]*”?|«[^»]*»?|(?<!\w)'[^']*'", re.DOTALL
)
_INTRODUCED = re.compile(r":\s*\n.*", re.DOTALL)  # a list, a letter, a log
_LISTED = re.compile(r"^\s*(?:[-*•>]|\w{1,2}[.)])\s.*", re.MULTILINE)
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n")
_CLAIM = re.compile(
    r"(?:(?:done|ok|okay|sure|great|perfect|alright|thanks|thank you)[,:!.]? )?"
    r"i(?:'ve| have)(?: (?:now|just|successfully|also))* ([a-z]+)"
    r" (?:you )?(?:your|the|this|that|these|those|both|an?|all)(?: (?!of\b)[a-z-]+){0,2}? ([a-z]+)"
    r"(?: (?:number )?#?[\w-]*\d[\w-]*)?"
    r"(?: (?:for you|now|today|too|successfully|as (?:you )?(?:asked|requested)))*[.!]*"
)
# words that show that an answer writes a text or plays something through
_DRAFT = re.compile(
    r"\b(?:draft|example|sample|template|wording|script|option|plan|simulat\w*|test|demo|mock\w*"
    r"|pretend\w*|imagin\w*|hypothe\w*|theory|below|above|follow\w*|dear|subject|regards|joke"
    r"|kidding|role-?play\w*|story|game|poem|sentence|phrase|translat\w*|(?:say|write|reply|answer)s?)\b"
)
# a user who wants words, which then may be a claim that nobody makes
_WORDS_WANTED = re.compile(
    r"\b(?:translat|rephras|paraphras|rewrit|reword|proofread|draft|templat|pretend|imagin"
    r"|role-?play|rehears|practi[cs]e|simulat|hypothe|dialog|joke|stor(?:y|ies)\b|poem|sentence"
    r"|phrase|grammar|wording|scripts?\b|(?:write|compose) (?:me|us|an?|the|my)\b"
    r"|what would you (?:say|reply|write)\b|übersetz|tradu[cizs]|vertaal|oversæt|översätt"
    r"|перев[её]д)"
    r"|翻[译譯訳]|번역|ترجم|अनुवाद"
)
_SHOWN = re.compile(r"```|^\s*\|.*\|\s*$", re.MULTILINE)  # what was changed may be in the answer
# verbs of what only a tool does; others, such as review, fix or convert, an answer may do by words
_CHANGING = WRITE_VERBS | word_set(
    "activate apply block configure confirm connect deactivate disable disconnect discard downgrade"
    " enable enroll extend install increase decrease invoice launch lock merge mute pause print"
    " register release renew reset restore resume rotate start stop subscribe suspend sync"
    " terminate unblock uninstall unlock unmute unsubscribe upgrade void waive withdraw"
)
# texts, which an answer may make, and parts of one, which it may change
_MAKING = word_set("add create edit extend insert make merge modify put set update write")
_TEXTS = word_set(
    "answer article chart checklist code description diagram document email essay explanation"
    " formula function graph guide headline image itinerary letter list number outline paragraph"
    " password poem query recipe recommendation report response schema script section sentence"
    " snippet story suggestion summary table text title translation version"
)
_PARTS = word_set(
    "bracket character comma duplicate grammar heading letter line paragraph phrase punctuation"
    " quote sentence space spelling tense typo word"
)
_IRREGULAR = {"send": "sent", "make": "made", "buy": "bought", "pay": "paid", "write": "written"}


def claims_a_change(run: Run, index: int, text: str) -> bool:
    """Whether the answer at an index of a run says that the agent made a change which one of its
    tools makes, and nothing in the run shows it made before.
    """
    text = text[:LOOKED_AT].replace("’", "'").casefold()
    if "i have " not in text and "i've " not in text:
        return False
    if search(DENIAL, text) or _DRAFT.search(text) or _SHOWN.search(text):
        return False
    if any(
        _WORDS_WANTED.search(said[:LOOKED_AT].casefold()) for at, said in run.users if at < index
    ):
        return False
    tools = [
        name_parts(tool)
        for tool in {*run.offer.names, *(call.tool for call in run.calls)}
        if kind_of(tool) != "read"
    ]
    return any(
        _names(tool, *claim) and not _was_made(run, index, claim[0])
        for claim in _claims(text)
        for tool in tools
    )


def _claims(text: str) -> list[tuple[str, str]]:
    """(participle, object) of each sentence that claims something."""
    plain = _LISTED.sub("", _INTRODUCED.sub("", _QUOTED.sub(" … ", text)))
    matches = (_CLAIM.fullmatch(sentence.strip()) for sentence in _SENTENCE.split(plain))
    return [(match[1], match[2]) for match in matches if match]


def _names(tool: tuple[str, ...], participle: str, noun: str) -> bool:
    """Whether a tool's name has the verb of the participle, which is one of a change, and the noun
    as the last other word.
    """
    verb = next((part for part in tool if participle in _participles(part)), "")
    last = next((part for part in reversed(tool) if part != verb), "")
    texts = _TEXTS | _PARTS if verb in _MAKING else _PARTS
    is_text = noun in texts or noun.rstrip("s") in texts
    return verb in _CHANGING and not is_text and last.rstrip("s") == noun.rstrip("s")


def _participles(verb: str) -> set[str]:
    """The forms that a verb may have after “have”."""
    if verb in _IRREGULAR or verb in ("set", "reset", "put", "cut"):
        return {_IRREGULAR.get(verb, verb)}
    if verb.endswith("y") and verb[-2:-1] not in "aeiou":
        return {f"{verb[:-1]}ied"}
    stem = verb.removesuffix("e")
    return {f"{stem}ed", f"{stem}{stem[-1:]}ed"}


def _was_made(run: Run, index: int, participle: str) -> bool:
    """Whether an earlier message may show the change: a user or a tool says the participle, or the
    agent's own words are a call.
    """
    return any(
        calls_in_text(run.words(at))
        if message.get("role") == "assistant"
        else participle in run.words(at).casefold()
        for at, message in enumerate(run.messages[: index + 1])
        if not is_prompt(message)
    )
