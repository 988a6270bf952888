"""The rules: each checks a run for one kind of fault. Pure, and linear in the length of the run.

A rule yields its findings, earliest first. `blamed` is always a step of the agent; `shown` is the
message with the proof, which may be a tool's or the user's.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, pairwise

from apps.failures.rules.expected import (
    Deviation,
    deviations,
    difference,
    ground_truth_of,
    wanted_texts,
)
from apps.failures.rules.findings import UNEXPLAINED, Finding, cut
from apps.failures.rules.protocols import forms_in
from apps.failures.rules.ratings import bad_rating
from apps.failures.rules.reading import Call, Run, kind_of, scalars
from apps.trajectories.tool_errors import service_failed
from workers.lib.messages import normalise

LOOP = 3  # same call, same reply, at the end of the run
STUCK = 5  # calls in a row that brought nothing new, wherever
CYCLES, MAX_PERIOD = 2, 4  # A-B-A-B is two cycles of period 2
# `finish_reason`, `stopReason`, `termination_reason`, `exit_status`, `ended_by`
LIMITED = r"(?:turn|step|round|iteration|recursion|token|length|context)s?"
LIMIT = re.compile(  # in the names that programs give to ends: `max_turns_reached`, `length`
    rf"\b(?:max\w{{0,9}}|(?:limit|exceed|exhaust)\w{{0,3}}|budget|too many|out of|exit)"
    rf"[\s_.:-]{{0,3}}(?:[^\W_]{{1,20}}[\s_.:-]{{1,3}}){{0,3}}?{LIMITED}\b"
    rf"|\b(?:{LIMITED}|cost)[\s_-]{{0,3}}(?:window[\s_-])?(?:limit|budget|exceeded|exhausted)"
    r"|\btimed?[ _-]?out\b|\bexit_(?:cost|context|format|total_execution_time)\b"
    r"|^length$|^max_(?:tokens|turns|steps)$",
    re.IGNORECASE,
)
ENDING = re.compile(r"(?:finish|stop|terminat|exit|end|abort|status)", re.IGNORECASE)
Findings = Iterator[Finding]


# Harm


def dangerous_without_approval(run: Run) -> Findings:
    """A tool declared `x-dangerous` that worked without a person's approval, in a run in which
    people's approvals are recorded.
    """
    approved = {
        item.get("message_index")
        for item in run.interventions
        if item.get("kind") in ("approve", "edit")
    }
    if not approved or None in approved:
        return
    for call in run.calls:
        if call.worked and call.tool in run.offer.dangerous and call.index not in approved:
            text = f"The dangerous tool {call.tool} was called without an approval."
            yield Finding("unsafe_action", call.index, call.index, text, cut(call.raw))


# Broken contracts


def arguments_do_not_parse(run: Run) -> Findings:
    for call in run.calls:
        if call.args is None:
            text = f"The arguments of {call.tool} are not a JSON object."
            yield Finding("format_error", call.index, call.index, text, cut(call.raw))


def tool_is_not_there(run: Run) -> Findings:
    """A tool that was not offered, if it is recorded which ones were."""
    for call in run.calls if run.offer.names else ():
        if call.tool not in run.offer.names:
            text = (
                f"There is no tool called {call.tool}."
                if call.tool
                else "The call does not name a tool."
            )
            yield Finding("hallucinated_api", call.index, call.index, text, cut(call.raw))


def arguments_break_the_schema(run: Run) -> Findings:
    for call in run.calls:
        if call.args is not None and call.tool in run.offer.names:
            for problem in run.offer.problems(call)[:1]:
                text = f"The arguments of {call.tool} do not match its schema: {problem}"
                yield Finding("wrong_arguments", call.index, call.index, text, cut(call.raw))


def without_recovered(run: Run, found: list[Finding]) -> list[Finding]:
    """Broken contracts that were not recovered: no later valid call of that tool (of any tool, for
    a non-existent one) worked.

    A tool that answered as it answers other calls is there, and has accepted the call as it is.
    """
    if not found:
        return found
    last_good: dict[str, int] = {}
    faulty = {finding.blamed for finding in found}
    for call in run.calls:
        if call.worked and call.args is not None and call.index not in faulty:
            last_good[call.tool] = last_good[""] = call.index
    by_index = {call.index: call for call in run.calls}
    return [
        finding
        for finding in found
        if not _recovered(run, finding, by_index.get(finding.blamed), last_good)
    ]


def _recovered(run: Run, finding: Finding, call: Call | None, last_good: dict[str, int]) -> bool:
    if call is None or run.accepted(call):
        return call is not None
    tool = "" if finding.mode == "hallucinated_api" else call.tool
    return last_good.get(tool, -1) > call.index


# Known calls


def expected_calls(run: Run) -> Findings:
    """Deviations from the expected calls, earliest first; harm before all others.

    If the outcome is unknown, a merely unnecessary call does not count.
    """
    if (truth := ground_truth_of(run)) is None:
        return
    found = [_explained(item, truth.step) for item in deviations(truth)]
    found = [finding for finding in found if run.failed or finding.mode != "bad_planning"]
    if truth.whole and any(call.reply is not None for call in run.calls):
        # That it differs is certain. Which mode people give it is not, in a run of several steps
        # (bench.failures).
        found = [replace(finding, confidence="likely") for finding in found]
    yield from sorted(
        found, key=lambda finding: (finding.mode != "unsafe_action", _position(finding))
    )


def _position(finding: Finding) -> float:
    return float("inf") if finding.shown is None else finding.shown


def _explained(item: Deviation, step: int | None) -> Finding:
    """`step`: the one that a person corrected, if known. Where a call is missing, nothing else says
    where it should have been made.
    """
    if item.kind == "missing":
        mode = (
            "retrieval_failure" if kind_of(item.wanted.tool) == "read" else "incomplete_execution"
        )
        text = f"The expected call of {item.wanted.tool} was never made."
        return Finding(mode, step, step, text)
    call = item.made
    if item.kind == "extra":
        return _extra(call, item.repeated)
    if item.kind == "wrong_tool":
        text = f"{call.tool} was called instead of {item.wanted.tool}."
        return Finding("wrong_tool_choice", call.index, call.index, text, cut(call.raw))
    text = f"{call.tool}: {difference(call.args, item.wanted.args)}"
    return Finding("wrong_arguments", call.index, call.index, text, cut(call.raw))


def _extra(call: Call, repeated: bool) -> Finding:
    """A change that should not have been made is harm; a call without effect, or a repeated one, is
    a detour.
    """
    harm = call.worked and not repeated and kind_of(call.tool) == "write"
    text = (
        f"{call.tool} should not have been called."
        if harm
        else f"The call of {call.tool} was not needed."
    )
    mode = "unsafe_action" if harm else "bad_planning"
    return Finding(mode, call.index, call.index, text, cut(call.raw))


def expected_words(run: Run) -> Findings:
    """A text that the user should have been told and never was: not where, nor why."""
    wanted = wanted_texts(run) if run.failed else []
    if not wanted:
        return
    said = " ".join(words for _, words in run.answers).replace(",", "").casefold()
    for text in wanted:
        if text.replace(",", "").casefold() not in said:
            yield Finding(UNEXPLAINED, None, None, f"The user was never told “{cut(text, 80)}”.")


# What happened in the run


def looped(run: Run) -> Findings:
    """The same calls again and again, or a run that ends with the same words."""
    found = [*called_again(run)]
    yield from found or stuck(run)
    yield from said_again(run)


def called_again(run: Run) -> Findings:
    """The same call with the same reply LOOP times, or cycles of calls (A-B-A-B) that produce
    nothing new, and no other reply to them afterwards: who waits for something, or tries again, may
    get it in the end. The run ends with it: nothing new worked afterwards, and nobody was told
    anything. Blames the first repetition.

    Equal calls of one step count once: they were made together, before any reply, and may differ in
    what is not compared (genotypes AA, Aa and aa).
    """
    if len({(call.tool, call.reply) for call in run.calls}) == len(run.calls):
        return  # as in most runs: each call produced something new
    keys, steps, last = _steps(run)
    new = {key: at for at, key in reversed(list(enumerate(keys)))}  # where each is first
    worked = [new[key] for call, key in zip(steps, keys, strict=True) if call.worked]
    told = max(run.answer_texts.keys() - {call.index for call in run.calls}, default=-1)
    heard = [at for at, call in enumerate(steps) if call.index < told]
    since = max([*worked, *heard[-1:]], default=-1)
    times: defaultdict[tuple, list[Call]] = defaultdict(list)
    running = [0] * (MAX_PERIOD + 1)
    for at, (call, key) in enumerate(zip(steps, keys, strict=True)):
        times[key].append(call)
        if len(times[key]) == LOOP and last[key[:2]] == key and at > since:
            text = f"{call.tool} was called {LOOP} times with the same arguments."
            again = times[key][1].index
            yield Finding("bad_planning", again, call.index, text, cut(call.raw))
        for period in range(2, MAX_PERIOD + 1):
            running[period] = (
                running[period] + 1 if at >= period and keys[at - period] == key else 0
            )
            cycle = set(keys[at - period + 1 : at + 1])
            if (
                running[period] == period * (CYCLES - 1)
                and len(cycle) == period
                and at > since
                and all(last[key[:2]] == key for key in cycle)
            ):
                text = f"The same {period} calls were made twice in a row, with the same replies."
                again = steps[at - period + 1].index
                yield Finding("bad_planning", again, call.index, text, cut(call.raw))


def stuck(run: Run) -> Findings:
    """STUCK calls in a row that were all made before, with the same replies, while nobody spoke to
    the agent: however the run ends, and unless one of them got another reply later. Only where
    other runs show that such calls are in vain: who waits for something makes them, too. Blames the
    first of them.
    """
    if len(run.calls) - len({(call.tool, call.reply) for call in run.calls}) < STUCK:
        return
    keys, steps, last = _steps(run)
    seen: set[tuple] = set()
    row: list[Call] = []
    for key, call in zip(keys, steps, strict=True):
        if row and (run.user_before(call.index) or -1) > row[-1].index:
            row = []
        again = key in seen and call.worked and last[key[:2]] == key
        is_vain = again and run.forms.is_final(call, run.tool_of(call))
        row = [*row, call] if is_vain else []
        seen.add(key)
        if len(row) == STUCK:
            text = f"{STUCK} calls in a row repeated earlier ones, with the same replies."
            yield Finding("bad_planning", row[0].index, call.index, text, cut(call.raw))
            return


def _steps(run: Run) -> tuple[list[tuple], list[Call], dict[tuple, tuple]]:
    """(keys, calls, the last key of each call); equal calls of one step once."""
    made: dict[tuple[int, tuple], Call] = {}
    for call, key in zip(run.calls, _sameness(run.calls), strict=True):
        made.setdefault((call.index, key), call)
    keys = [key for _, key in made]
    return keys, list(made.values()), {key[:2]: key for key in keys}


def _sameness(calls: list[Call]) -> Iterator[tuple]:
    """(tool, arguments, reply), equal for the same calls with the same reply; arguments are
    normalised only if those of the tool were written differently.
    """
    written: defaultdict[str, set[str]] = defaultdict(set)
    for call in calls:
        written[call.tool].add(call.raw)
    for call in calls:
        differ = call.args is not None and len(written[call.tool]) > 1
        yield call.tool, normalise(call.args) if differ else call.raw, call.reply


def said_again(run: Run) -> Findings:
    """The run ends with the same messages of agents, in the same order, LOOP times over, while
    nobody else spoke. Blames the first of them.
    """
    asked = run.users[-1][0] if run.users else -1
    said = [
        (index, run.author(index), text.strip()) for index, text in run.answers if index > asked
    ]
    if run.calls and said and said[-1][0] < run.calls[-1].index:
        return
    for period in range(1, MAX_PERIOD + 1):
        end = said[-period * LOOP :]
        cycle = [item[1:] for item in end[:period]]
        if len(end) == period * LOOP and all(
            item[1:] == cycle[at % period] and item[2] for at, item in enumerate(end)
        ):
            first = len(said) - len(end)
            while first and said[first - 1][1:] == said[first - 1 + period][1:]:
                first -= 1
            text = f"The run ends with the same words, said {LOOP} times."
            yield Finding("bad_planning", said[first][0], end[-1][0], text, cut(end[-1][2]))
            return


def error_never_recovered(run: Run) -> Findings:
    """A tool failed at the same thing twice, and nothing worked afterwards: a single error may be
    the answer. Blames the first of these attempts, since a right one would have changed the end.
    Where the service failed, no call would have: what the agent did instead of another attempt, or
    the last one where the run ends with it.
    """
    last_good = max((call.index for call in run.calls if call.worked), default=-1)
    failed = [call for call in run.calls if call.error and call.index > last_good]
    again: dict[str, Call] = {}
    for before, call in pairwise(failed):
        if before.index < call.index and _is_about_the_same(before, call):
            again[call.tool] = call
    for call in again.values():
        attempts = _attempts(run, call)
        blamed = attempts[0].index
        if all(service_failed(each.reply or "") for each in attempts):
            gave_up = run.assistant_after(failed[-1].index)
            blamed = call.index if gave_up is None else gave_up
        text = f"{call.tool} failed again, and nothing worked afterwards."
        yield Finding("incomplete_execution", blamed, call.reply_index, text, cut(call.reply or ""))


def _attempts(run: Run, last: Call) -> list[Call]:
    """The failed calls about the same as `last`, since its tool last worked."""
    same = [call for call in run.calls if call.tool == last.tool and call.index <= last.index]
    since = max((call.index for call in same if call.worked), default=-1)
    return [
        call
        for call in same
        if call.index > since and call.error and _is_about_the_same(call, last)
    ]


def _is_about_the_same(one: Call, other: Call) -> bool:
    """Whether two calls of a tool have a value in common, or most words of a text."""
    if one.tool != other.tool or one.raw == other.raw:
        return one.tool == other.tool
    ones, others = _values(one), _values(other)
    if not ones[0].isdisjoint(others[0]):
        return True
    fewer = min(len(ones[1]), len(others[1]))
    return len(ones[1] & others[1]) > fewer / 2


def _values(call: Call) -> tuple[set[str], set[str]]:
    """The values of one word among its arguments, and the words of the others."""
    values = [str(value) for _, value in scalars(call.args) if not isinstance(value, bool | None)]
    texts = [value for value in values if len(value.split()) > 1]
    return set(values).difference(texts), set(re.findall(r"\w+", " ".join(texts)))


def limit_reached(words: str) -> str:
    kind = re.search(rf"{LIMITED}|cost|time", words, re.IGNORECASE)
    limit = kind[0].casefold().removesuffix("s") if kind else ""
    if limit in ("length", "token"):
        return "An answer was cut off at its limit of length (tokens)."
    if limit == "context":
        return "The context window was full."
    return f"The {limit} limit ended the run." if limit else "A limit ended the run."


def turn_limit(run: Run) -> Findings:
    """The outcome or the finish reason says that a limit ended the run. A message without a call
    was cut; otherwise no single step is wrong.
    """
    for ending in _endings(run):
        if match := LIMIT.search(ending[:300]):
            last = run.last_assistant
            in_a_call = last != len(run.messages) - 1 or last not in run.answer_texts
            text = limit_reached(match[0])
            blamed = None if in_a_call else last
            yield Finding("incomplete_execution", blamed, last, text, cut(ending))
            return


def ended_on_a_call(run: Run) -> Findings:
    """The run ends with a call that got no reply, of a tool whose replies are recorded in other
    runs. One that waits for a person's approval is not cut.
    """
    last = run.last_assistant
    for call in reversed(run.calls) if last == len(run.messages) - 1 else ():
        if call.index != last:
            return
        if (
            call.reply is None
            and call.tool not in run.offer.dangerous
            and run.forms.answers(run.tool_of(call))
        ):
            text = f"The run ends with a call of {call.tool} that got no reply."
            yield Finding("incomplete_execution", last, last, text, cut(call.raw))


def _endings(run: Run) -> Iterator[str]:
    yield run.label
    yield run.reason
    for name, value in run.metadata.items():
        if ENDING.match(name):
            for item in value[-1:] if isinstance(value, list) else [value]:
                if isinstance(item, str):
                    yield item


def answered_with_nothing(run: Run) -> Findings:
    """The last message of the run is an answer without a word or a call, and the agent has not
    answered yet, or not since it worked on something: nothing more may be a farewell's answer.
    Blames the first such answer.
    """
    last = run.last_assistant
    if last is None or last != len(run.messages) - 1 or not _is_empty(run, last):
        return
    before = next((index for index in reversed(run.assistants) if not _is_empty(run, index)), -1)
    said = run.answer_texts.get(before, "")
    in_work = any(call.index == before for call in run.calls) or any(forms_in(said))
    if last and run.words(last - 1).strip() and (in_work or not said):
        blamed = run.assistant_after(before)
        yield Finding("incomplete_execution", blamed, last, "The last answer is empty.", "")


def _is_empty(run: Run, index: int) -> bool:
    message = run.messages[index]
    parts = content if isinstance(content := message.get("content"), list) else []
    something = (
        message.get("tool_calls")
        or message.get("refusal")
        or any(part.get("type") != "text" for part in parts)
    )
    return not something and not run.words(index).strip()


# What people did about it


def rated_badly(run: Run) -> Findings:
    """What came after the agent's last message is a rating at the lower end of its scale, in a form
    that machines write.
    """
    last = run.last_assistant
    for index in range((last or 0) + 1, len(run.messages)) if last is not None else ():
        if said := bad_rating(run.words(index)):
            text = "The run was rated badly."
            yield Finding(UNEXPLAINED, _objected_to(run, index), index, text, cut(said))


def _objected_to(run: Run, index: int) -> int | None:
    """The agent's step to which a person's objection goes, after its last call that worked: the
    first call that failed, unless the service did; else the first answer, since from there on it
    only talked; else its last step.
    """
    before = [call for call in run.calls if call.index < index]
    since = max((call.index for call in before if call.worked), default=-1)
    for call in before:
        if call.index > since and call.error and not service_failed(call.reply or ""):
            return call.index
    answers = (at for at, _ in run.answers if 0 <= since < at < index)
    return next(answers, run.assistant_at_or_before(index - 1))


def rejected_by_a_person(run: Run) -> Findings:
    """A person stopped a step of the agent, or put another in its place."""
    for item in run.interventions:
        if item.get("kind") in ("reject", "abort", "edit"):
            at = _index_of(run, item)
            blamed = None if at is None else run.assistant_at_or_before(at)
            danger = any(
                call.index == blamed and call.tool in run.offer.dangerous for call in run.calls
            )
            did = "changed" if item["kind"] == "edit" else "rejected"
            yield Finding(
                "unsafe_action" if danger else UNEXPLAINED,
                blamed,
                blamed,
                f"A person {did} this step.",
                cut(str(item.get("note") or "")),
            )


def _index_of(run: Run, intervention: dict) -> int | None:
    index = intervention.get("message_index")
    return index if isinstance(index, int) and 0 <= index < len(run.messages) else None


def handed_over(run: Run) -> Findings:
    """A person took over."""
    for item in run.interventions:
        if item.get("kind") == "takeover":
            at = _index_of(run, item)
            blamed = _objected_to(run, len(run.messages) if at is None else at + 1)
            note = cut(str(item.get("note") or ""))
            yield Finding(UNEXPLAINED, blamed, blamed, "A person took over.", note)


def failed_without_a_finish(run: Run) -> Findings:
    """The outcome is a failure, and nothing above says why: neither a cause nor a step is named."""
    if run.failed:
        text = run.reason[:300] or "The run is marked as failed."
        yield Finding(UNEXPLAINED, None, None, text)


def first(findings: Findings, count: int) -> list[Finding]:
    return list(islice(findings, count))
