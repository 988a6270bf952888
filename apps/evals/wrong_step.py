"""The step of a failed run at which the agent went wrong, as far as the run shows it. Pure.

A wrong call is often the end of a mistake: the agent looked at the wrong thing or offered it, the
user agreed, and the call followed. A task that begins at the call would hold the user to that.
"""

from __future__ import annotations

from collections.abc import Iterator

from apps.evals.near_duplicates.calls import leaves_of
from apps.failures.rules.expected import Deviation, KnownAnswers
from apps.failures.rules.reading import PEOPLE, Call, Run, name_parts

SHORTEST = 3  # characters of a value that is looked for in a text


def went_wrong(run: Run, answers: KnownAnswers, blamed: int | None) -> int | None:
    """The first message at which the agent went wrong; None if nothing shows it. `blamed` is the
    failure's step, which counts unless it is only the wrong call itself.
    """
    made = {item.made.index for item in answers.deviations if item.made}
    shown = [_origin(run, item) for item in answers.deviations if item.made]
    shown += [] if made else _given_up(run, answers)
    if blamed is not None and blamed not in made:
        return min([blamed, *made])
    return min(shown, default=blamed)


def _origin(run: Run, deviation: Deviation) -> int:
    """The agent's first message with a value that only the wrong call has, and none that only the
    right one has. Where no message tells the two apart, the offer that the user agreed to.
    """
    call, wanted = deviation.made, deviation.wanted
    assert call
    ours, right = _values(call.args), _values(wanted.args if wanted else None)
    for at, text in _agents_words(run, call) if wanted else ():
        said = text.casefold()
        if any(value in said for value in ours - right) and not any(
            value in said for value in right - ours
        ):
            return at
    return _offer(run, call)


def _offer(run: Run, call: Call) -> int:
    """The agent's text that the user answered directly before a call; the call itself if the agent
    did something else in between.
    """
    user = run.user_before(call.index)
    if user is None or run.assistant_after(user) != call.index:
        return call.index
    return max((at for at, _ in run.answers if at < user), default=call.index)


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


def _agents_words(run: Run, until: Call) -> Iterator[tuple[int, str]]:
    texts = dict(run.answers)
    for at in run.assistants:
        if at > until.index:
            return
        calls = (call.raw for call in run.calls if call.index == at)
        yield at, "\n".join((texts.get(at, ""), *calls))


def _values(args: dict | None) -> set[str]:
    """Values of one word; what prose says can be written in many ways."""
    texts = (str(leaf).casefold() for _, leaf in leaves_of(args) if not isinstance(leaf, bool))
    return {text for text in texts if len(text) >= SHORTEST and len(text.split()) == 1}
