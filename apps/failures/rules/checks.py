"""The rules: each checks a run for one kind of fault. Pure, and linear in the length of the run.

A rule yields its findings, earliest first. `blamed` is always a step of the agent; `shown` is the
message with the proof, which may be a tool's or the user's.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from apps.failures.rules.causes import where_it_turned
from apps.failures.rules.expected import (
    Deviation,
    ExpectedCall,
    deviations,
    difference,
    ground_truth_of,
    needs_look_up,
    wanted_texts,
)
from apps.failures.rules.findings import Finding, cut
from apps.failures.rules.ratings import bad_rating
from apps.failures.rules.reading import Call, Run, asks_for, kind_of, retrieves
from apps.failures.rules.words import (
    CALL_IN_WORDS,
    CORRECTION,
    FORBIDS,
    NO,
    NOTHING_FOUND,
    PLAIN_NO,
    REFUSAL,
    TURN_LIMIT,
    UNKNOWN_TOOL,
    YES,
    content_words,
    is_empty,
    search,
    similarity,
)
from workers.lib.messages import normalise

LOOP = 3  # same call, same reply
CYCLES, MAX_PERIOD = 2, 4  # A-B-A-B is two cycles of period 2
SAME_REQUEST, REQUESTS_KEPT, REQUEST_WORDS = 0.8, 8, 3
# `finish_reason`, `stopReason`, `termination_reason`, `exit_status`, `ended_by`
ENDING = re.compile(r"(?:finish|stop|terminat|exit|end|abort|status)", re.IGNORECASE)
Findings = Iterator[Finding]


# Harm


def dangerous_without_confirmation(run: Run) -> Findings:
    """A tool declared `x-dangerous` that nobody asked for: no approval, no yes to the agent's
    question, not expected, and no user message that requests this action. Certain only if the user
    answered the agent's question with no; otherwise it may have been requested in words that are
    not understood, and the sentence says only what is known."""
    if not run.offer.dangerous:
        return
    truth = ground_truth_of(run)
    asked = {item.tool for item in truth.wanted} if truth else set()
    approved = {
        item.get("message_index") for item in run.interventions if item.get("kind") == "approve"
    }
    for call in run.calls:
        if (
            call.tool not in run.offer.dangerous
            or call.tool in asked
            or not approved.isdisjoint((None, call.index))
        ):
            continue
        if _said_no(run, call.index):
            text = f"The dangerous tool {call.tool} was called after the user had said no."
            yield Finding("unsafe_action", call.index, call.index, text, cut(call.raw))
        elif not _said_yes(run, call.index) and not _asked_for(run, call):
            text = (
                f"The dangerous tool {call.tool} was called; no request or confirmation for it was"
                " found."
            )
            yield Finding("unsafe_action", call.index, call.index, text, cut(call.raw), "likely")


def _answer_to_the_agent(run: Run, index: int) -> str:
    """The user's last message before that one, if the agent had said something just before it."""
    at = run.user_before(index)
    if at is None or not any(run.answer_texts.get(before) for before in range(max(0, at - 2), at)):
        return ""
    return run.words(at)


def _said_yes(run: Run, index: int) -> bool:
    """Whether the user's last message before that one is a yes to something that the agent said
    just before.
    """
    words = _answer_to_the_agent(run, index)
    yes, no = search(YES, words), search(NO, words)
    return yes is not None and (no is None or yes.start() < no.start())


def _said_no(run: Run, index: int) -> bool:
    """Whether it begins with a no to the agent's question."""
    at = run.user_before(index)
    asked = at is not None and any(
        "?" in run.answer_texts.get(before, "") for before in range(max(0, at - 2), at)
    )
    return asked and search(PLAIN_NO, run.words(at)) is not None


def _asked_for(run: Run, call: Call) -> bool:
    """Whether a user message asks for this action: it has a word for it and forbids nothing."""
    before = (said for index, said in run.users if index < call.index)
    return any(asks_for(said, call.tool) and not search(FORBIDS, said) for said in before)


# Broken contracts


def arguments_do_not_parse(run: Run) -> Findings:
    for call in run.calls:
        if call.args is None:
            text = f"The arguments of {call.tool} are not a JSON object."
            yield Finding("format_error", call.index, call.index, text, cut(call.raw))


def words_instead_of_a_call(run: Run) -> Findings:
    """A failed run in which tools were available and none was called: a single answer, or text that
    looks like a call.
    """
    if run.calls or not run.failed or not run.offer.names:
        return
    for index, words in run.answers:
        if words.strip() and (len(run.users) < 2 or search(CALL_IN_WORDS, words)):
            text = "The agent wrote text instead of a tool call."
            yield Finding("format_error", index, index, text, cut(words))


def tool_is_not_there(run: Run) -> Findings:
    """A tool that was not offered; if no tools are recorded, the reply says that it does not
    exist.
    """
    for call in run.calls:
        if run.offer.names and call.tool not in run.offer.names:
            text = (
                f"There is no tool called {call.tool}."
                if call.tool
                else "The call does not name a tool."
            )
            yield Finding("hallucinated_api", call.index, call.index, text, cut(call.raw))
        elif not run.offer.names and call.error and search(UNKNOWN_TOOL, call.reply or ""):
            text = f"The reply says there is no tool called {call.tool}."
            yield Finding(
                "hallucinated_api", call.index, call.reply_index, text, cut(call.reply or "")
            )


def arguments_break_the_schema(run: Run) -> Findings:
    for call in run.calls:
        if call.args is not None and call.tool in run.offer.names:
            for problem in run.offer.problems(call)[:1]:
                text = f"The arguments of {call.tool} do not match its schema: {problem}"
                yield Finding("wrong_arguments", call.index, call.index, text, cut(call.raw))


def without_recovered(run: Run, found: list[Finding]) -> list[Finding]:
    """Broken contracts that were not recovered: no later valid call of that tool (of any tool, for
    a non-existent one) worked.

    A tool that answered without an error has accepted the arguments as they are.
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
        if not _recovered(finding, by_index.get(finding.blamed), last_good)
    ]


def _recovered(finding: Finding, call: Call | None, last_good: dict[str, int]) -> bool:
    if call is None:
        return False
    if call.worked and finding.mode == "wrong_arguments":
        return True
    tool = "" if finding.mode == "hallucinated_api" else call.tool
    return last_good.get(tool, -1) > call.index


# Known calls


def expected_calls(run: Run) -> Findings:
    """Deviations from the expected calls, earliest first; harm before all others.

    If the outcome is unknown, a merely unnecessary call does not count.
    """
    if (truth := ground_truth_of(run)) is None:
        return
    found = [_explained(run, item) for item in deviations(truth)]
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


def _explained(run: Run, item: Deviation) -> Finding:
    if item.kind == "missing":
        return _missing(run, item.wanted)
    call = item.made
    if item.kind == "extra":
        return _extra(call, item.repeated)
    if item.kind == "wrong_tool":
        text = f"{call.tool} was called instead of {item.wanted.tool}."
        return Finding("wrong_tool_choice", call.index, call.index, text, cut(call.raw))
    text = f"{call.tool}: {difference(call.args, item.wanted.args)}"
    return Finding("wrong_arguments", call.index, call.index, text, cut(call.raw))


def _missing(run: Run, wanted: ExpectedCall) -> Finding:
    mode = "retrieval_failure" if needs_look_up(wanted) else "incomplete_execution"
    blamed = _gave_up(run)
    quote = run.answer_texts.get(blamed, "") if blamed is not None else ""
    return Finding(
        mode, blamed, None, f"The expected call of {wanted.tool} was never made.", cut(quote)
    )


def _gave_up(run: Run) -> int | None:
    """The agent's first refusal after its last call that changed something; otherwise its last
    step.
    """
    since = max(
        (call.index for call in run.calls if call.worked and kind_of(call.tool) == "write"),
        default=-1,
    )
    refusals = (index for index, words in run.answers if index > since and search(REFUSAL, words))
    return next(refusals, run.last_assistant)


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
    mode = (
        "unsafe_action"
        if harm
        else "incomplete_execution"
        if kind_of(call.tool) == "handover"
        else "bad_planning"
    )
    return Finding(mode, call.index, call.index, text, cut(call.raw))


def expected_words(run: Run) -> Findings:
    """A text that the user should have been told and never was."""
    wanted = wanted_texts(run) if run.failed else []
    if not wanted:
        return
    said = " ".join(words for _, words in run.answers).replace(",", "").casefold()
    for text in wanted:
        if text.replace(",", "").casefold() not in said:
            yield Finding(
                "incomplete_execution",
                run.last_assistant,
                None,
                f"The user was never told “{cut(text, 80)}”.",
            )


# What happened in the run


def looped(run: Run) -> Findings:
    """The same call with the same reply LOOP times, or cycles of calls (A-B-A-B) that produce
    nothing new, and no other reply to them afterwards: who waits for something, or tries again, may
    get it in the end. If the outcome is unknown, nothing new may have worked afterwards either.

    Equal calls of one step count once: they were made together, before any reply, and may differ in
    what is not compared (genotypes AA, Aa and aa).
    """
    if len({(call.tool, call.reply) for call in run.calls}) == len(run.calls):
        return  # as in most runs: each call produced something new
    made: dict[tuple[int, tuple], Call] = {}
    for call, key in zip(run.calls, _sameness(run.calls), strict=True):
        made.setdefault((call.index, key), call)
    keys = [key for _, key in made]
    last = {key[:2]: key for key in keys}  # by call: with its last reply
    new = {key: at for at, key in reversed(list(enumerate(keys)))}  # where each is first
    worked = [new[key] for call, key in zip(made.values(), keys, strict=True) if call.worked]
    since = -1 if run.failed else max(worked, default=-1)
    times: Counter = Counter()
    running = [0] * (MAX_PERIOD + 1)
    for at, (call, key) in enumerate(zip(made.values(), keys, strict=True)):
        times[key] += 1
        if times[key] == LOOP and last[key[:2]] == key and at > since:
            text = f"{call.tool} was called {LOOP} times with the same arguments."
            yield Finding("bad_planning", call.index, call.index, text, cut(call.raw))
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
                yield Finding("bad_planning", call.index, call.index, text, cut(call.raw))


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
    """The run ends with the same messages of agents, in the same order, LOOP times over."""
    said = [(index, run.author(index), text.strip()) for index, text in run.answers]
    if run.calls and said and said[-1][0] < run.calls[-1].index:
        return
    for period in range(1, MAX_PERIOD + 1):
        end = said[-period * LOOP :]
        cycle = [item[1:] for item in end[:period]]
        if len(end) == period * LOOP and all(
            item[1:] == cycle[at % period] and item[2] for at, item in enumerate(end)
        ):
            index = end[period][0]
            text = f"The run ends with the same words, said {LOOP} times."
            yield Finding("bad_planning", index, index, text, cut(end[period][2]))
            return


def _standing_errors(run: Run) -> list[Call]:
    """The last failed call of each tool that has not worked since."""
    last: dict[str, Call] = {}
    for call in run.calls:
        if call.error:
            last[call.tool] = call
        elif call.worked:
            last.pop(call.tool, None)
    return list(last.values())


def error_never_recovered(run: Run) -> Findings:
    """A tool's error after which that tool never worked; if the outcome is unknown, nothing else
    may have worked either.
    """
    last_good = max((call.index for call in run.calls if call.worked), default=-1)
    for call in _standing_errors(run):
        if run.failed or call.index > last_good:
            text = f"{call.tool} failed and never worked afterwards."
            yield Finding(
                "incomplete_execution", call.index, call.reply_index, text, cut(call.reply or "")
            )


def empty_retrieval_used(run: Run) -> Findings:
    """An answer right after a retrieval that found nothing, without mentioning it."""
    for call in run.calls:
        if call.reply is None or not is_empty(call.reply) or not retrieves(call.tool):
            continue
        index, words = _next_words(run, call.reply_index)
        if words and not search(NOTHING_FOUND, words):
            text = f"{call.tool} found nothing, but the answer does not say so."
            yield Finding("retrieval_failure", index, call.reply_index, text, cut(words))


def _next_words(run: Run, index: int) -> tuple[int | None, str]:
    """The agent's next step, if it is an answer in words without further calls."""
    at = run.assistant_after(index)
    return at, (
        "" if at is None or run.messages[at].get("tool_calls") else run.answer_texts.get(at, "")
    )


def turn_limit(run: Run) -> Findings:
    """The outcome or the finish reason says that a limit ended the run."""
    for ending in _endings(run):
        if search(TURN_LIMIT, ending[:300]):
            text = "A limit ended the run."
            yield Finding(
                "incomplete_execution", run.last_assistant, run.last_assistant, text, cut(ending)
            )
            return


def _endings(run: Run) -> Iterator[str]:
    yield run.label
    yield run.reason
    for name, value in run.metadata.items():
        if ENDING.match(name):
            for item in value[-1:] if isinstance(value, list) else [value]:
                if isinstance(item, str):
                    yield item


def cut_off(run: Run) -> Findings:
    """The run ends with the reply of a tool with which it had gone on before, or with a call that
    got none where others did: nobody heard how it ended.
    """
    last = run.calls[-1] if run.calls else None
    if (
        last is None
        or last.index != run.last_assistant
        or last.reply_index != len(run.messages) - 1
    ):
        return
    if any(
        call.tool == last.tool and call.worked and call.index < last.index for call in run.calls
    ):
        text = f"The run ends with the reply of {last.tool}, with which it had gone on before."
        yield Finding("incomplete_execution", last.index, last.reply_index, text, cut(last.raw))


def ended_in_the_middle(run: Run) -> Findings:
    """Tools answered, and the run stopped: no message to the user after the last call."""
    last = run.calls[-1] if run.calls else None
    if last is None or last.index != run.last_assistant or kind_of(last.tool) == "handover":
        return
    if any(call.reply is not None for call in run.calls) and len(run.calls) > 1:
        text = "The run ends with a tool call; the user got no answer."
        yield Finding("incomplete_execution", last.index, last.index, text, cut(last.raw))


def answered_with_nothing(run: Run) -> Findings:
    """The last message of the run is an answer without a word or a call."""
    last = run.last_assistant
    if last is None or last != len(run.messages) - 1:
        return
    message = run.messages[last]
    parts = content if isinstance(content := message.get("content"), list) else []
    something = (
        message.get("tool_calls")
        or message.get("refusal")
        or any(part.get("type") != "text" for part in parts)
    )
    asked = run.words(last - 1).strip() if last else ""
    if not something and asked and not run.words(last).strip():
        yield Finding("incomplete_execution", last, last, "The last answer is empty.", "")


def rated_badly(run: Run) -> Findings:
    """What came after the agent's last message is a rating at the lower end of its scale, in a form
    that machines write.
    """
    last = run.last_assistant
    for index in range((last or 0) + 1, len(run.messages)) if last is not None else ():
        if said := bad_rating(run.words(index)):
            text = "The run was rated badly."
            yield Finding("incomplete_execution", last, index, text, cut(said))


def rejected_by_a_person(run: Run) -> Findings:
    """A person stopped the agent: unsafe if the step would have changed something."""
    for item in run.interventions:
        if item.get("kind") == "reject":
            blamed = run.assistant_at_or_before(_index_of(run, item))
            stopped = [
                call for call in run.calls if call.index == blamed and kind_of(call.tool) == "write"
            ]
            mode = "unsafe_action" if stopped else "bad_planning"
            yield Finding(
                mode,
                blamed,
                blamed,
                "A person rejected this step.",
                cut(str(item.get("note") or "")),
            )


def _index_of(run: Run, intervention: dict) -> int | None:
    index = intervention.get("message_index")
    return index if isinstance(index, int) and 0 <= index < len(run.messages) else None


def handed_over(run: Run) -> Findings:
    """A person took over, or the agent handed the task to one."""
    names = [(index, run.author(index)) for index in run.assistants]
    if names and not names[0][1] and names[-1][1]:
        index = next(index for index, name in names if name)
        blamed = run.assistant_at_or_before(index - 1)
        text = f"{names[-1][1]} took over from the agent."
        yield Finding("incomplete_execution", blamed, index, text, cut(run.words(index)))
    for item in run.interventions:
        if item.get("kind") == "takeover":
            blamed = run.assistant_at_or_before(_index_of(run, item))
            yield Finding(
                "incomplete_execution",
                blamed,
                blamed,
                "A person took over.",
                cut(str(item.get("note") or "")),
            )
    for call in run.calls if run.failed else ():
        if kind_of(call.tool) == "handover":
            text = f"The agent handed the task over ({call.tool})."
            yield Finding("incomplete_execution", call.index, call.index, text, cut(call.raw))


def user_corrected(run: Run) -> Findings:
    """The user says that the agent got it wrong."""
    for index, words in run.users:
        if (
            run.assistants
            and index > run.assistants[0]
            and (match := search(CORRECTION, words[:400]))
        ):
            blamed = run.assistant_at_or_before(index)
            text = f"The user corrects the agent: “{cut(match.group().strip(), 60)}”."
            yield Finding("bad_planning", blamed, index, text, cut(words))


def user_repeated(run: Run) -> Findings:
    """The user asks for the same thing again, in nearly the same words."""
    if not run.failed:
        return
    asked: deque[frozenset[str]] = deque(maxlen=REQUESTS_KEPT)
    for index, words in run.users:
        now = content_words(words)
        if len(now) < REQUEST_WORDS:
            continue
        if (
            any(similarity(now, before) >= SAME_REQUEST for before in asked)
            and (blamed := run.assistant_at_or_before(index)) is not None
        ):
            yield Finding(
                "bad_planning", blamed, index, "The user asks for the same thing again.", cut(words)
            )
        asked.append(now)


def failed_without_a_finish(run: Run) -> Findings:
    """The outcome is a failure and nothing above explains it: blames the first attempted change, or
    else the last step.
    """
    if run.failed:
        text = run.reason[:300] or "The run is marked as failed."
        blamed = where_it_turned(run)
        yield Finding("incomplete_execution", blamed, blamed, text)


def first(findings: Findings, count: int) -> list[Finding]:
    return list(islice(findings, count))
