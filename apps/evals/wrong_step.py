"""The step of a failed run at which the agent went wrong, as far as the run shows it. Pure.

A wrong call is often the end of a mistake: the agent looked at the wrong thing or offered it, the
user agreed, and the call followed. A task that begins at the call would hold the user to that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from apps.evals.near_duplicates.calls import leaves_of
from apps.failures.rules.expected import Deviation, ExpectedCall, KnownAnswers
from apps.failures.rules.reading import PEOPLE, Call, Run, name_parts
from workers.lib.messages import call_key

SHORTEST = 3  # characters of a value that is looked for in a text


def went_wrong(run: Run, answers: KnownAnswers, blamed: int | None) -> int | None:
    """The first message at which the agent went wrong; None if nothing shows it. `blamed` is the
    failure's step, which counts unless it is only the wrong call itself.
    """
    made = {item.made.index for item in answers.deviations if item.made}
    expected = answers.truth.wanted if answers.truth else []
    shown = [_origin(run, item, expected) for item in answers.deviations if item.made]
    shown += [] if made else _given_up(run, answers)
    if blamed is not None and blamed not in made:
        return min([blamed, *made])
    return min(shown, default=blamed)


def _origin(run: Run, deviation: Deviation, expected: Sequence[ExpectedCall]) -> int:
    """The agent's first message with a value that only the wrong call has, and none that only the
    right one has; calls that are `expected` are no mistake. Where no message tells the two apart,
    the offer that the user agreed to.
    """
    call, wanted = deviation.made, deviation.wanted
    assert call
    ours, right = _values(call.args), _values(wanted.args if wanted else None)
    for at, text in _agents_words(run, call, expected) if wanted else ():
        said = text.casefold()
        if any(value in said for value in ours - right) and not any(
            value in said for value in right - ours
        ):
            return at
    return _offer(run, call)


def _offer(run: Run, call: Call) -> int:
    """The agent's text that the user answered directly before a call, or an earlier one that offers
    the same; the call itself if the agent looked something up in between.
    """
    user = agreed_at(run, call)
    if user is None:
        return call.index
    offers = [at for at, _ in run.answers if at < user]
    if not offers:
        return call.index
    named = {value for value in _values(call.args) if any(map(str.isdigit, value))}
    while len(offers) > 1:
        asked = run.user_before(offers[-1])
        said = run.words(asked).casefold() if asked is not None else ""
        before = run.words(offers[-2]).casefold()
        if any(value in said for value in named) or not any(value in before for value in named):
            break
        offers.pop()
    return offers[-1]


def agreed_at(run: Run, call: Call) -> int | None:
    """The user's turn to which a call is the agent's reaction: nothing was looked up in between,
    only other calls of the same tool were made.
    """
    user = run.user_before(call.index)
    if user is None:
        return None
    between = [at for at in run.assistants if user < at < call.index]
    tools = {other.tool for other in run.calls if other.index in between}
    spoke = any(user < at < call.index for at, _ in run.answers)
    return None if spoke or tools - {call.tool} else user


def _given_up(run: Run, answers: KnownAnswers) -> list[int]:
    """Where the agent handed over to a person instead of making the expected calls."""
    wanted = {item.tool for item in answers.truth.wanted} if answers.truth else set()
    if not wanted:
        return []
    return [
        call.index
        for call in run.calls
        if call.tool not in wanted and not PEOPLE.isdisjoint(name_parts(call.tool))
    ]


def _agents_words(
    run: Run, until: Call, expected: Sequence[ExpectedCall]
) -> Iterator[tuple[int, str]]:
    texts, right = dict(run.answers), {call_key(item.tool, item.args) for item in expected}
    for at in run.assistants:
        if at > until.index:
            return
        calls = (
            call.raw
            for call in run.calls
            if call.index == at and call_key(call.tool, call.args) not in right
        )
        yield at, "\n".join((texts.get(at, ""), *calls))


def _values(args: dict | None) -> set[str]:
    """Values of one word; what prose says can be written in many ways."""
    texts = (str(leaf).casefold() for _, leaf in leaves_of(args) if not isinstance(leaf, bool))
    return {text for text in texts if len(text) >= SHORTEST and len(text.split()) == 1}
