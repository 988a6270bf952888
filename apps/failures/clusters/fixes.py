"""The lightest fix that a cluster's fact, or its mode, suggests. Pure.

From light to heavy: a limit, a tool or its schema, facts, the prompt, SFT on corrections, DPO on
them, GRPO. What was tried and did not hold is not suggested again.
"""

from __future__ import annotations

from dataclasses import dataclass

TITLES = {
    "limit": "Limit",
    "tool": "Tool or schema",
    "facts": "Facts",
    "prompt": "Prompt",
    "sft": "SFT on corrections",
    "dpo": "DPO on corrections",
    "grpo": "GRPO on its tasks",
}
DEMONSTRATIONS, PAIRS = 20, 50  # corrected runs, as for the advisor of training
# By fact, or else by mode: the fix, and why. `{names}` are the tool and arguments concerned.
OF_FACT = {
    "turn_limit": ("limit", "The run was ended by its limit."),
    "arguments_break_the_schema": (
        "tool",
        "The arguments do not fit the schema{names}: describe each argument and its values there.",
    ),
    "arguments_do_not_parse": (
        "tool",
        "The arguments are not valid JSON{names}: a simpler schema, or constrained decoding.",
    ),
    "tool_is_not_there": ("tool", "The agent calls a tool that is not offered{names}."),
    "error_never_recovered": (
        "tool",
        "The tool fails{names} and never works again: mend it, or let its error say what to do.",
    ),
    "dangerous_without_approval": (
        "tool",
        "A dangerous tool was called without approval{names}: let it require one.",
    ),
    "looped": ("prompt", "The same step was repeated{names}: say when to stop."),
    "answered_with_nothing": ("prompt", "The answer is empty: say what an answer must contain."),
    "confirmed_rule_broken": ("prompt", "A rule of the prompt was broken{names}: state it first."),
}
OF_MODE = {
    "wrong_arguments": ("tool", "The tool is right and its arguments are wrong{names}."),
    "wrong_tool_choice": ("tool", "The wrong tool was chosen{names}: say in each when to use it."),
    "hallucinated_api": ("tool", "The agent calls what does not exist{names}."),
    "unsafe_action": ("tool", "An unsafe action was possible{names}: let the tool forbid it."),
    "misread_tool_result": ("tool", "The tool's result was misread{names}: make it plainer."),
    "retrieval_failure": ("facts", "What the agent had to know was not looked up{names}."),
    "format_error": ("prompt", "The form of the answer is wrong: show it in the prompt."),
    "bad_planning": ("prompt", "The steps do not lead to the goal: say which do."),
    "incomplete_execution": ("prompt", "The request was left undone: say when it is done."),
    "policy_violation": ("prompt", "A rule of the prompt was broken: state it first."),
    "ambiguous_request": ("prompt", "The request was ambiguous: say what to ask."),
}
UNKNOWN = ("prompt", "Nothing points at a tool or a limit, so the prompt is the lightest change.")


@dataclass(frozen=True)
class LikelyFix:
    kind: str
    why: str

    @property
    def title(self) -> str:
        return TITLES[self.kind]


def likely_fix(
    *,
    fact: str,
    mode: str,
    names: tuple[str, ...] = (),
    corrected: int = 0,
    failed_after: str = "",
) -> LikelyFix:
    """`fact` and `mode` are those of most members, `corrected` the number of runs that a person
    corrected, and `failed_after` the version in which it was fixed and came back.
    """
    kind, why = OF_FACT.get(fact) or OF_MODE.get(mode) or UNKNOWN
    why = why.replace("{names}", f" ({', '.join(names)})" if names else "")
    if not failed_after:
        return LikelyFix(kind, why)
    tried = f"The fix in {failed_after} did not hold, so a heavier one is next."
    runs = f"{corrected:,} corrected run{'' if corrected == 1 else 's'}"
    if corrected >= PAIRS:
        return LikelyFix("dpo", f"{tried} There are {runs}, each a better and a worse answer.")
    if corrected >= DEMONSTRATIONS:
        return LikelyFix("sft", f"{tried} There are {runs} to learn from.")
    few = f"only {runs}" if corrected else "no corrected runs"
    return LikelyFix("grpo", f"{tried} There are {few}: too few to learn from directly.")
