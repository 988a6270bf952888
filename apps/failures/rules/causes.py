"""Where a failed run went wrong if the correct calls are unknown. Pure, and linear in the length of
the run.

The rules look at what the agent knew at each step: what the user asked for, what tools had
returned, what the system prompt says. They know no tool by name; a tool that changes something is
recognised by the verbs in its name. An error that was recovered in another way is not a cause.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import date
from typing import Any

from apps.failures.rules import words
from apps.failures.rules.claims import claims_a_change
from apps.failures.rules.findings import Finding, cut
from apps.failures.rules.reading import (
    Call,
    Run,
    asked_in_words,
    is_identifier,
    kind_of,
    name_parts,
    scalars,
)

Findings = Iterator[Finding]
MAX_SIBLINGS = 50
STATUSES = 5  # different ones per run
NEVER = float("inf")
ANSWERS = 200  # per run, in which a value is searched
TIMES = frozenset(range(1, 13))  # passengers, months
SEARCHED = 20  # values that are searched in all replies
NOT_OF_THE_EVENT = words.word_set(
    "created updated modified birth dob booked ordered purchased paid sent issued registered joined"
    " since"
)
DAYS_OF_EVENTS = words.word_set(
    "date start begin departure checkin appointment event due scheduled day"
)


# A refused change, and what was done instead


def refused_change(run: Run) -> Findings:
    """A change that its tool refused, that was retried with other arguments, and never succeeded,
    not even with one value corrected.
    """
    changes = run.changes
    for at, call in enumerate(changes):
        again = [
            other
            for other in changes[at + 1 :]
            if other.tool == call.tool and other.raw != call.raw
        ]
        if call.error and again and not any(_mends(other, call) for other in again):
            text = (
                f"{call.tool} was refused, then called with different arguments; the refused change"
                " was never made."
            )
            yield Finding(
                "wrong_arguments", call.index, call.reply_index, text, cut(call.reply or "")
            )
            return


def _mends(other: Call, call: Call) -> bool:
    """Whether a later call did what the refused one should have done: the same except for one
    value.
    """
    if not other.worked:
        return False
    before, after = (
        Counter((name, str(value)) for name, value in scalars(one.args)) for one in (call, other)
    )
    return (before - after).total() <= 1 and (after - before).total() <= 1


# A choice that was the user's


def choice_not_asked(run: Run) -> Findings:
    """A change that uses one of several things a tool had listed, which neither the user nor the
    agent ever mentioned.
    """
    known: set[str] = set()
    searched = 0
    for call, named in run.named_changes:
        for name, value in named:
            if value in known:
                continue
            known.add(value)
            if _was_named(run, call, value):
                continue
            searched += 1
            if searched > SEARCHED or not (listed := _listing(run, call.index, value)):
                continue
            if not _was_described(run, call, listed[1]):
                text = (
                    f"{call.tool} used {name} {value}, one of {listed[0]} that {listed[2]} had"
                    " listed; the user was not asked which one."
                )
                yield Finding("ambiguous_request", call.index, call.index, text, cut(call.raw))
                break


def _listing(run: Run, index: int, value: str) -> tuple[int, Any, str] | None:
    """(how many there were, the description of this one, the tool) of the first reply that lists a
    value among others.
    """
    for call in run.calls:
        if call.index >= index:
            return None
        if (
            call.worked
            and call.reply
            and value in call.reply
            and (found := _among(run.record(call), value))
        ):
            return found[0], found[1], call.tool
    return None


def _among(value: Any, wanted: str) -> tuple[int, Any] | None:
    """(how many, the description) if a value is the key or an item of a collection of similar
    things.
    """
    left, seen = [value], 0
    while left and seen < 200:
        item, seen = left.pop(), seen + 1
        if isinstance(item, dict):
            if isinstance(item.get(wanted), dict) and len(item) > 1:
                return len(item), item[wanted]
            left += item.values()
        elif isinstance(item, list):
            if wanted in item and len(item) > 1:
                return len(item), None
            left += item[:MAX_SIBLINGS]
    return None


def _was_named(run: Run, call: Call, value: str) -> bool:
    """Mentioned by anybody, or looked up individually."""
    if words.mentions(run.said_before(call.index), value):
        return True
    return any(other.index < call.index for other in run.looked_up.get(value, ()))


def _was_described(run: Run, call: Call, about: Any) -> bool:
    """By anything in the tool's description of it: “the Visa card ending in 6437”."""
    said = run.said_before(call.index)
    names = (str(item) for _, item in scalars(about) if isinstance(item, str | int | float))
    return any(len(name) > 1 and words.mentions(said, name) for name in names)


def value_from_nowhere(run: Run) -> Findings:
    """A change with a value that nobody mentioned, no tool returned, and that is not a simple
    calculation from such values.
    """
    for call in run.changes:
        named = [(name, value) for name, value in scalars(call.args) if _needs_a_source(value)]
        said = run.said_before(call.index) if named else ""
        unsaid = [
            item
            for item in named
            if not _stands_in(said, item[1]) and not _was_answered(run, call, item[1])
        ]
        if not unsaid:
            continue
        known = run.known_before(call.index)
        for name, value in unsaid:
            if not _stands_in(known, value) and not _is_computed(value, known):
                text = (
                    f"{call.tool}: {name} is {cut(str(value), 60)}, which appears in no earlier"
                    " message or tool result."
                )
                yield Finding("wrong_arguments", call.index, call.index, text, cut(call.raw))
                return


def _was_answered(run: Run, call: Call, value: Any) -> bool:
    written = str(value)
    return any(
        written in (other.reply or "") for other in run.calls[:ANSWERS] if other.index < call.index
    )


def _stands_in(text: str, value: Any) -> bool:
    return words.mentions(text, f"{value:g}" if type(value) is float else str(value))


def _needs_a_source(value: Any) -> bool:
    """Numbers beyond small counts, and identifiers; not text that the agent writes itself."""
    return (
        is_identifier(value)
        if type(value) is str
        else type(value) in (int, float) and abs(value) >= 10
    )


def _is_computed(value: Any, known: str) -> bool:
    if type(value) is str:
        return False
    numbers = words.numbers_in(known)
    return any(
        value - one in numbers or one - value in numbers or value / one in TIMES
        for one in numbers
        if one
    )


# What a tool had returned, and the agent ignored


def acted_on_the_past(run: Run) -> Findings:
    """A change to something whose dates had passed, according to the record that was looked up and
    the date in the system prompt.
    """
    if run.today is None:
        return
    for call, named in run.named_changes:
        for value in dict.fromkeys(value for _, value in named) if call.worked else ():
            day = _last_day(run, call.index, value)
            if day and day < run.today:
                text = (
                    f"{call.tool} changed {value}, although its last date was {day} and the run's"
                    f" date is {run.today}."
                )
                yield Finding("unsafe_action", call.index, call.index, text, cut(call.raw))
                break


def _last_day(run: Run, index: int, value: str) -> date | None:
    """The last day of what a value identifies, from the last look-up before a step."""
    before = [call for call in run.looked_up.get(value, ()) if call.index < index]
    if not before:
        return None
    days = (
        _event_day(name, item)
        for name, item in scalars(run.record(before[-1]))
        if type(item) is str
    )
    return max(filter(None, days), default=None)


def _event_day(name: str, value: str) -> date | None:
    """The day of the event, not the day on which it was created."""
    if (day := words.day_of(value)) is None:
        return None
    parts = name_parts(name)
    return (
        None if DAYS_OF_EVENTS.isdisjoint(parts) or not NOT_OF_THE_EVENT.isdisjoint(parts) else day
    )


def miscounted_time(run: Run) -> Findings:
    """“Within 24 hours” said about an earlier day, by the date in the system prompt."""
    today = run.today
    if today is None:
        return
    for index, text in run.answers:
        for sentence, hours, day in words.time_windows(text):
            if (today - day).days * 24 > hours + 24:
                said = (
                    f"The agent counts {day} as within {hours} hours, but the run's date is"
                    f" {today}."
                )
                yield Finding("misread_tool_result", index, index, said, cut(sentence))


def contradicts_a_tool(run: Run) -> Findings:
    """“Field: value” in an answer whose record has another value in that field."""
    last = None
    calls = iter(run.calls)
    ahead = next(calls, None)
    for index, text in run.answers:
        while ahead is not None and ahead.index < index:
            last, ahead = (ahead if ahead.worked else last), next(calls, None)
        if last is None or "\n" not in text or words.speaks_of_a_change(text):
            continue
        yield from _contradictions(run, last, index, text)


def _contradictions(run: Run, call: Call, index: int, text: str) -> Findings:
    labelled = words.labelled_values(text)
    record = run.record(call) if labelled else None
    if not isinstance(record, dict):
        return
    if not any(
        isinstance(item, str) and is_identifier(item) and item in text for item in record.values()
    ):
        return
    wished = "\n".join(said.casefold() for at, said in run.users if at < index)
    for label, value in labelled:
        stored = record.get("_".join(name_parts(label)))
        if (
            isinstance(stored, str)
            and words.differ(value, stored)
            and not words.mentions(wished, value)
        ):
            said = (
                f"The answer says {label.strip()}: {value}, but {call.tool} returned"
                f" {cut(stored, 60)}."
            )
            yield Finding("misread_tool_result", index, call.reply_index, said, cut(text))
            return


def taken_on_trust(run: Run) -> Findings:
    """A status that the agent attributes to the user (“as a gold member”) although only the user
    claimed it and tools could have checked."""
    if not run.calls:
        return
    first_reply = min(
        (call.reply_index for call in run.calls if call.worked), default=len(run.messages)
    )
    known: dict[str, tuple[float, float]] = {}
    held: list[tuple[int, str, str]] = []
    for index, text in run.answers:
        if not (found := words.search(words.STATUS, text)):
            continue
        status = found[1].casefold()
        if status not in known and len(known) < STATUSES:
            known[status] = _first_mentions(run, status)
        by_user, by_tool = known.get(status, (NEVER, NEVER))
        if by_user < index < by_tool:
            held.append((index, status, text))
    if held:
        # the step at which a tool could have been called, if there was one
        index, status, text = next((item for item in held if item[0] > first_reply), held[0])
        said = f"The agent takes the user's word for “{status}” without checking it with a tool."
        yield Finding("retrieval_failure", index, index, said, cut(text))


def _first_mentions(run: Run, status: str) -> tuple[float, float]:
    """The messages in which the user, and a tool, first mentioned something."""
    by_user = (at for at, text in run.users if words.mentions(text.casefold(), status))
    by_tool = (call.reply_index for call in run.calls if status in (call.reply or "").casefold())
    return next(by_user, NEVER), next(by_tool, NEVER)


def changed_unseen(run: Run) -> Findings:
    """A change to something that was never looked up, although a tool of this run looks up such
    things.
    """
    looked_up = {
        name
        for call in run.calls
        if call.args and kind_of(call.tool) == "read"
        for name in call.args
    }
    if not looked_up:
        return
    seen: dict[int, None] = {}
    for call, named in run.named_changes:
        for name, value in named if call.worked else ():
            if (
                name in looked_up
                and call.index not in seen
                and not _seen_before(run, call.index, value)
            ):
                seen[call.index] = None
                text = f"{call.tool} changed {name} {value}, which was never looked up."
                yield Finding("retrieval_failure", call.index, call.index, text, cut(call.raw))


def _seen_before(run: Run, index: int, value: str) -> bool:
    earlier = (call for call in run.calls if call.index < index)
    return any(value in call.raw or value in (call.reply or "") for call in earlier)


# What was said but not done


def claimed_without_a_call(run: Run) -> Findings:
    """An answer that says something was changed, before any call that could have changed it."""
    if not run.offer.names and not run.calls:
        return
    tried = next(
        (call.index for call in run.calls if kind_of(call.tool) != "read"), len(run.messages)
    )
    for index, text in run.answers:
        if index >= tried:
            return
        if claims_a_change(run, index, text):
            said = "The answer says it is done, but no call that could have done it was made."
            yield Finding("incomplete_execution", index, index, said, cut(text))
            return


def turned_away(run: Run) -> Findings:
    """A refusal, or asking again for something the user does not have, after which nothing was
    changed.
    """
    since = max((call.index for call in run.changes_made), default=-1)
    for index, text in run.answers:
        if index > since and (did := _turns_away(run, index, text)):
            looked = any(call.index < index for call in run.calls)
            said = f"The agent {did}{'' if looked else ', without looking anything up'}."
            yield Finding("incomplete_execution", index, index, said, cut(text))
            return


def _turns_away(run: Run, index: int, text: str) -> str:
    if words.search(words.REFUSED, text):
        return "seems to refuse"
    user = run.user_before(index)
    if (
        user is None
        or run.messages[index].get("tool_calls")
        or not words.search(words.DEMAND, text)
    ):
        return ""
    return (
        "seems to ask again for something the user does not have"
        if words.search(words.DO_NOT_HAVE, run.words(user))
        else ""
    )


def never_done(run: Run) -> Findings:
    """The user asks for a kind of change (cancel, book, send …) and nothing of that kind was ever
    done.
    """
    if not run.calls or run.last_assistant is None:
        return
    done = frozenset().union(*(asked_in_words(call.tool) for call in run.calls if call.worked))
    for index, text in run.users:
        for verb in words.wished(text):
            kind = words.SAME_ACTION.get(verb)
            if kind and kind.isdisjoint(done):
                said = f"The user asked to {verb} something, but nothing of that kind was done."
                yield Finding("incomplete_execution", run.last_assistant, index, said, cut(text))
                return


def offer_dropped(run: Run) -> Findings:
    """The agent offers to do something, and nothing is ever changed."""
    if run.changes_made or run.last_assistant is None:
        return
    for index, text in run.answers:
        if found := words.search(words.OFFER, text):
            said = "The agent offered to do something and never did it."
            yield Finding(
                "incomplete_execution", run.last_assistant, index, said, cut(text[found.start() :])
            )
            return


def left_unanswered(run: Run) -> Findings:
    """The run ends with a user's request or question."""
    if not run.users or run.last_assistant is None or run.users[-1][0] < run.last_assistant:
        return
    index, text = run.users[-1]
    if words.search(words.REQUEST, text) and run.last_assistant >= index - 1:
        said = "The user's last request was never answered."
        yield Finding("incomplete_execution", run.last_assistant, index, said, cut(text))


def where_it_turned(run: Run) -> int | None:
    """If nothing else is known: the first attempted change, or the last step if there was none."""
    changes = run.changes
    return changes[0].index if changes else run.last_assistant
