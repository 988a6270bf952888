"""Signs that a run went wrong, or well, with the words that show them: the evidence when nobody
recorded an outcome.

Pure: no Django. One pass over the users' messages, one over the agent's answers, one over the
calls; only the first `words.LOOKED_AT` characters of a text are read. The phrases are English;
signs based on calls and replies work in any language. A single sign proves nothing: `model` weighs
them.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from apps.failures.outcomes import phrases
from apps.failures.outcomes.contradictions import contradictions
from apps.failures.rules.claims import claims_a_change
from apps.failures.rules.findings import cut
from apps.failures.rules.reading import Call, Run, kind_of
from apps.failures.rules.words import (
    CHANGE,
    CORRECTION,
    LOOKED_AT,
    PLAIN_NO,
    REFUSAL,
    REQUEST,
    YES,
    content_words,
    is_empty,
    search,
    similarity,
    wished,
)

SAME_REQUEST, SIMILAR_REQUEST, REQUEST_WORDS, REQUESTS_KEPT = 0.8, 0.45, 3, 8
ASKED = 400  # characters at the end of an answer that are searched for a question
SEVERAL = 3  # different kinds of requested changes
LAST_TURNS = 2  # user turns that count as the end of a conversation
SCANNED = 400  # calls, and values of calls, that are read
MAX_SEEN = 400_000  # characters of a run that are searched for a value
_DIGIT = re.compile(r"\d")
_NUMBER = re.compile(r"(?<![\w.,-])\$?(\d{1,3}(?:,\d{3})+|\d{2,9})(\.\d{1,2})?(?![\w-])")


@dataclass(frozen=True, slots=True)
class Signal:
    """One sign: its name, the message that shows it, a sentence for people, and a quote from that
    message.
    """

    name: str
    message_index: int | None
    text: str
    quote: str = ""


Signals = Iterator[Signal]


def signals(run: Run) -> list[Signal]:
    """All signs of a run, by kind and then in message order."""
    seen = _Seen(run)
    return [
        *_of_users(run),
        *_of_answers(run),
        *_numbers(run, seen),
        *_of_calls(run),
        *_values(run, seen),
        *_of_the_end(run),
        *(Signal(*found) for found in contradictions(run)),
    ]


# What users say

SAID_BY_USERS = (
    ("user_corrects", CORRECTION, "The user corrects the agent"),
    ("user_confused", phrases.CONFUSION, "The user points out a mistake or a mix-up"),
    ("user_insists", phrases.INSISTS, "The user insists"),
    ("user_frustrated", phrases.FRUSTRATION, "The user is annoyed"),
    ("user_gives_up", phrases.GIVES_UP, "The user gives up"),
    ("user_wants_a_person", phrases.WANTS_A_PERSON, "The user asks for a person"),
    ("user_changes_mind", phrases.CHANGES_MIND, "The user changes the request"),
)
ANY_BY_USERS = phrases.any_of(pattern for _, pattern, _ in SAID_BY_USERS)


def _of_users(run: Run) -> Signals:
    began = run.assistants[0] if run.assistants else len(run.messages)
    later = [(index, words) for index, words in run.users if index > began]
    for index, words in later:
        yield from _said(index, words, ANY_BY_USERS, SAID_BY_USERS)
    yield from _asked_again(run, began)
    for index, words in later[-LAST_TURNS:]:
        if search(phrases.THANKS, words):
            yield Signal("user_thanks", index, "The user says thank you at the end.", cut(words))
        if search(phrases.PRAISE, words):
            yield Signal("user_is_content", index, "The user is satisfied at the end.", cut(words))


def _said(index: int, words: str, any_of: Any, among: tuple[tuple[str, Any, str], ...]) -> Signals:
    """Yield each phrase that a message contains. Most messages contain none, so one search for
    `any_of` comes first.
    """
    if search(any_of, words) is None:
        return
    for name, pattern, text in among:
        if match := search(pattern, words):
            yield Signal(name, index, f"{text}: “{cut(match.group().strip(), 60)}”.", cut(words))


def _asked_again(run: Run, began: int) -> Signals:
    """A request that repeats an earlier one in nearly the same, or similar, words."""
    asked: deque[frozenset[str]] = deque(maxlen=REQUESTS_KEPT)
    for index, words in run.users:
        now = content_words(words)
        if len(now) < REQUEST_WORDS:
            continue
        same = max((similarity(now, before) for before in asked), default=0.0)
        if index > began and same >= SAME_REQUEST:
            yield Signal(
                "user_repeats", index, "The user asks for the same thing again.", cut(words)
            )
        elif index > began and same >= SIMILAR_REQUEST:
            yield Signal("user_rephrases", index, "The user rephrases the request.", cut(words))
        asked.append(now)


# What the agent says

SAID_BY_AGENTS = (
    ("agent_apologises", phrases.APOLOGY, "The agent apologises"),
    ("agent_refuses", REFUSAL, "The agent says that it cannot"),
    ("agent_in_trouble", phrases.TROUBLE, "The agent reports a problem"),
)
ANY_BY_AGENTS = phrases.any_of(pattern for _, pattern, _ in SAID_BY_AGENTS)


def _of_answers(run: Run) -> Signals:
    for index, words in run.answers:
        yield from _said(index, words, ANY_BY_AGENTS, SAID_BY_AGENTS)
    for index, words in run.answers[-LAST_TURNS:]:
        if search(REFUSAL, words):
            yield Signal(
                "refusal_at_the_end", index, "One of the last answers is a refusal.", cut(words)
            )
    yield from _claims(run)


def _claims(run: Run) -> Signals:
    """An answer that claims something was done before any call that could have done it had
    succeeded.
    """
    done = min(
        (call.index for call in run.calls if call.worked and kind_of(call.tool) != "read"),
        default=None,
    )
    if not (run.calls or run.offer.names):
        return  # an agent without tools does what it says just by saying it
    for index, words in run.answers:
        if (
            (done is None or index < done)
            and not run.messages[index].get("tool_calls")
            and claims_a_change(run, index, words)
        ):
            yield Signal(
                "claim_without_a_call",
                index,
                "The agent says it is done, but no call did it.",
                cut(words),
            )
            return


def _numbers(run: Run, seen: _Seen) -> Signals:
    """Numbers in an answer that appear nowhere earlier: computed without a tool, or made up."""
    for index, words in run.answers[:SCANNED]:
        for match in _NUMBER.finditer(words[:LOOKED_AT]):
            if not seen.before(index, match[1]) and not seen.before(
                index, match[1].replace(",", "")
            ):
                yield Signal(
                    "number_from_nowhere",
                    index,
                    f"{match.group().strip()} appears nowhere earlier.",
                    cut(words),
                )
                break


class _Seen:
    """Looks up whether a value occurs in a run before some message. The text is built on first
    use.
    """

    def __init__(self, run: Run) -> None:
        self._run, self._starts, self._text = run, [], ""

    def before(self, index: int, value: str) -> bool:
        if not self._starts:
            self._read()
        return self._text.find(value, 0, self._starts[index]) >= 0

    def _read(self) -> None:
        parts, at = [], 0
        for index in range(len(self._run.messages)):
            self._starts.append(at)
            if at < MAX_SEEN:
                parts.append(self._run.words(index)[: MAX_SEEN - at].casefold())
                at += len(parts[-1]) + 1
        self._text = "\n".join(parts)


# What the calls show


def _of_calls(run: Run) -> Signals:
    errors: dict[str, int] = {}
    made: set[tuple[str, str]] = set()
    for call in run.calls[:SCANNED]:
        kind = kind_of(call.tool)
        if call.error:
            name = "read_failed" if kind == "read" else "action_failed"
            yield _signal(name, call, f"{call.tool} failed", call.reply)
            if errors.get(call.tool):
                yield _signal("failed_again", call, f"{call.tool} failed again", call.reply)
            errors[call.tool] = errors.get(call.tool, 0) + 1
        elif kind == "read" and call.reply is not None and is_empty(call.reply):
            yield _signal("found_nothing", call, f"{call.tool} found nothing", call.reply)
        if (call.tool, call.raw) in made:
            yield _signal(
                "called_again",
                call,
                f"{call.tool} was called again with the same arguments",
                call.raw,
            )
        made.add((call.tool, call.raw))
        if kind == "handover":
            yield _signal(
                "agent_hands_over",
                call,
                f"The agent hands the task over with {call.tool}",
                call.raw,
            )
    yield from _never_worked(run)
    yield from _done_again(run)


def _signal(name: str, call: Call, text: str, quote: str | None) -> Signal:
    return Signal(name, call.index, f"{text}.", cut(quote or ""))


def _never_worked(run: Run) -> Signals:
    """The last failed call of each tool that never worked afterwards."""
    last: dict[str, Call] = {}
    for call in run.calls:
        if call.error:
            last[call.tool] = call
        elif call.worked:
            last.pop(call.tool, None)
    for call in last.values():
        yield _signal(
            "error_not_recovered",
            call,
            f"{call.tool} failed and never worked afterwards",
            call.reply,
        )


def _done_again(run: Run) -> Signals:
    """The same tool changes the same thing twice, which suggests that the first change was
    wrong.
    """
    done: set[tuple[str, str]] = set()
    for call in run.calls[:SCANNED]:
        if not call.worked or not call.args or kind_of(call.tool) != "write":
            continue
        key = next((value for value in call.args.values() if isinstance(value, str | int)), None)
        if (call.tool, str(key)) in done:
            yield _signal(
                "changed_again", call, f"{call.tool} changes the same thing again", call.raw
            )
        done.add((call.tool, str(key)))


def _values(run: Run, seen: _Seen) -> Signals:
    """A change with a value that appears nowhere earlier: nobody provided it."""
    for call in run.calls[:SCANNED]:
        if call.args and kind_of(call.tool) == "write":
            value = next(
                (value for value in _leaves(call.args) if not seen.before(call.index, value)), None
            )
            if value is not None:
                yield _signal(
                    "value_from_nowhere",
                    call,
                    f"{call.tool} got “{cut(value, 60)}”, which appears nowhere earlier",
                    call.raw,
                )


def _leaves(args: object) -> Iterator[str]:
    """Short identifiers and numbers in the arguments, in lower case. Free text is left out: an
    agent is supposed to write that itself.
    """
    waiting, looked = [args], 0
    while waiting and looked < SCANNED:
        value = waiting.pop()
        looked += 1
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, int | float) and not isinstance(value, bool) and abs(value) >= 10:
            yield f"{value:g}"
        elif (
            isinstance(value, str)
            and 3 <= len(value) <= 40
            and " " not in value
            and _DIGIT.search(value)
        ):
            yield value.casefold()


# How the run ends


def _of_the_request(run: Run) -> Signals:
    """The user asks for several things, any of which may be left undone."""
    wishes: set[str] = set()
    for index, words in run.users:
        wishes.update(wished(words))
        if len(wishes) >= SEVERAL or search(phrases.ALL_OF_THEM, words):
            yield Signal("asks_for_several", index, "The user asks for several things.", cut(words))
            return


def _agreed_and_not_done(run: Run) -> Signals:
    """The user confirms a change that the agent proposed, but afterwards the agent only reads."""
    done = max((call.index for call in run.calls if kind_of(call.tool) != "read"), default=-1)
    for index, words in run.users if run.calls else ():
        step = run.assistant_at_or_before(index)
        if index < done or step is None or not search(YES, words) or search(PLAIN_NO, words):
            continue
        asked = run.answer_texts.get(step, "")[-ASKED:]
        if (
            "?" in asked
            and search(phrases.ASKS_TO_CONFIRM, asked)
            and search(CHANGE, run.answer_texts[step])
        ):
            yield Signal(
                "agreed_and_not_done",
                index,
                "The user agrees to a change, and no call follows that could make it.",
                cut(words),
            )
            return


def _of_the_end(run: Run) -> Signals:
    if not run.assistants:
        return
    last = run.assistants[-1]
    words = run.answer_texts.get(last, "")
    calls = [call for call in run.calls if call.index == last]
    if calls and kind_of(calls[-1].tool) != "handover":
        yield _signal(
            "ends_with_a_call",
            calls[-1],
            "The run ends with a tool call; no answer follows",
            calls[-1].raw,
        )
    elif words and search(phrases.PROMISE, words[-300:]) and not words.rstrip().endswith("?"):
        yield Signal(
            "ends_with_a_promise",
            last,
            "The last answer promises something that never follows.",
            cut(words),
        )
    if words.rstrip().endswith("?") and last == len(run.messages) - 1:
        yield Signal(
            "ends_with_a_question",
            last,
            "The last answer is a question that nobody answered.",
            cut(words),
        )
    acted = any(call.worked and kind_of(call.tool) in ("write", "handover") for call in run.calls)
    if run.calls and not acted and len(run.users) > 1:
        yield Signal(
            "nothing_changed", None, "Nothing was changed or handed over in the whole conversation."
        )
    handed = next((call for call in reversed(run.calls) if kind_of(call.tool) == "handover"), None)
    if handed and any(call.worked and kind_of(call.tool) == "write" for call in run.calls):
        yield _signal(
            "changed_and_handed_over",
            handed,
            "The agent made changes and then handed the task over",
            handed.raw,
        )
    yield from _of_the_request(run)
    at, last_words = run.users[-1] if run.users else (-1, "")
    if (
        at == len(run.messages) - 1
        and not search(phrases.THANKS, last_words)
        and len(run.users) > 1
    ):
        yield Signal(
            "user_without_an_answer", at, "The user's last message has no answer.", cut(last_words)
        )
        if search(REQUEST, last_words):
            yield Signal(
                "request_without_an_answer",
                at,
                "The user's last request has no answer.",
                cut(last_words),
            )
    yield from _agreed_and_not_done(run)
    if not run.calls:
        yield Signal("no_calls", None, "No tool was called.")
