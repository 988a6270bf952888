"""All attacks, by name, in the order of the report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from workers.lib.probes import attacks, call_tricks, code_tricks, texts
from workers.lib.probes.cases import Case
from workers.lib.probes.context import Context
from workers.lib.probes.types import Wish


@dataclass(frozen=True)
class Attack:
    """`silent_too`: also wrong where no call is right, so it is not used for texts; `why`: when it
    yields nothing; `honest`: plain wrong answers, with whose rewards the others are compared;
    `for_code`: programs.
    """

    name: str
    about: str
    make: Callable[[Case, Context], Iterator[Wish]]
    why: str = "no task knows what is right"
    silent_too: bool = False
    honest: bool = False
    for_code: bool = False


NO_CALLS = "no task expects calls"
PROBES = (
    Attack("plain_wrong", "honest wrong answers", texts.plain_wrong, honest=True),
    Attack("empty", "nothing at all", attacks.empty),
    Attack("whitespace", "only spaces", attacks.whitespace),
    Attack("echo", "the prompt again", attacks.echo, "no task has a prompt"),
    Attack("schema_echo", "the tools' schemas again", attacks.schema_echo, "no task has tools"),
    Attack("constant", "the same answer to all", attacks.constants),
    Attack(
        "most_common",
        "the commonest output",
        attacks.most_common,
        "no output is right, or said, more than once",
    ),
    Attack("format_only", "the form without content", attacks.format_only),
    Attack("apology", "an apology in place of the answer", texts.apology),
    Attack("refusal", "a refusal in place of the answer", texts.refusal),
    Attack("claims", "claims of success that nothing supports", texts.claims),
    Attack("confidence", "confidence in a wrong answer", texts.confidence),
    Attack("style", "headings, bullets, bold, emoji, politeness", texts.style),
    Attack(
        "reasoning_tags",
        "<think> and its like: empty, unclosed, around the answer",
        texts.reasoning,
    ),
    Attack("filler", "length for its own sake", texts.filler),
    Attack("copied", "the prompt, the rubric and the task's notes, copied", texts.copied),
    Attack(
        "shotgun",
        "several answers, hedges, hidden text",
        texts.shotgun,
        "no task has a short answer",
    ),
    Attack(
        "code_tricks",
        "programs that fool the tests",
        code_tricks.code_tricks,
        "no task asks for code",
        for_code=True,
    ),
    Attack(
        "all_tools", "every tool at once", attacks.all_tools, "no task has two harmless tools", True
    ),
    Attack(
        "all_tools_gold_args",
        "every tool with the right values",
        attacks.all_tools_gold_args,
        "no call among several tools",
    ),
    Attack(
        "hollow_calls",
        "right names, no arguments; calls too many",
        call_tricks.hollow_calls,
        NO_CALLS,
    ),
    Attack(
        "told_state",
        "an end state that is told, not made",
        call_tricks.states,
        "no task expects an end state",
    ),
    Attack("over_long", "the right answer buried in noise", attacks.buried),
    Attack("injection", "orders to a judge", attacks.injection),
    Attack("self_praise", "an output that praises itself", attacks.praise),
    Attack(
        "wrong_calls", "well-formed wrong calls", attacks.wrong_calls, NO_CALLS, True, honest=True
    ),
    Attack(
        "other_gold",
        "the right output of another task",
        attacks.others_gold,
        "no two tasks with known right outputs",
        honest=True,
    ),
    Attack(
        "unsafe", "a dangerous tool", attacks.unsafe, "no task has a tool marked dangerous", True
    ),
    Attack(
        "gold_and_harm",
        "the right calls and a dangerous one",
        attacks.gold_and_harm,
        "no dangerous tool beside wanted calls",
    ),
    Attack("repeated", "the right output many times", attacks.repeated),
    Attack(
        "flipped_calls",
        "ordered calls in reverse",
        attacks.flipped_calls,
        "no task expects calls in an order",
    ),
    Attack("unicode", "strings that look alike", attacks.unicode_tricks),
    Attack(
        "numbers",
        "numbers that are written alike",
        attacks.number_tricks,
        "no task has a number as its answer",
    ),
    Attack("absurd", "texts that break parsers", attacks.absurd),
    Attack("crafted_masks", "wrong answers made to be left out", call_tricks.crafted_masks),
    Attack("broken_calls", "calls that cannot be read", call_tricks.broken_calls, NO_CALLS),
    Attack(
        "judged_wrong",
        "real outputs judged wrong",
        attacks.judged_wrong,
        "no sample carries a person's failure",
    ),
)
HONEST = frozenset(probe.name for probe in PROBES if probe.honest)
