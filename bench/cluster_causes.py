"""How pure clusters are by the causes that were planted in families of traffic that no rule was
written on. `python -m bench.cluster_causes [--data families-dev]`

Facts alone with the outcome unknown and known, and with a scripted judge, which names the planted
cause in one of four sentences, and another cause in 15% of the runs. Purity is the share of the
grouped failures that have their cluster's most common cause. Only figures are printed, and with
`--names` the clusters.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from apps.core.intervals import wilson
from apps.failures.classify import classify
from apps.failures.clusters.cases import Case
from apps.failures.clusters.find import Clustering, cluster
from apps.failures.clusters.records import case_of
from apps.failures.judge.answer import Verdict
from apps.failures.judge.precedence import Label, choose
from bench.families import DATA, families

WRONG, SEED = 0.15, 7
# What a judge might say of each cause, written before any figure was read: the mode, and four ways.
SAID = {
    "tool_error_unrecovered": (
        "incomplete_execution",
        "The tool call failed and the agent never retried it or told the user about the error.",
        "After the tool returned an error, the agent carried on as if the call had worked.",
        "The agent did not recover from a failing tool, so the request was left undone.",
        "An error of the tool was ignored and the task ended without the call ever succeeding.",
    ),
    "policy_broken": (
        "policy_violation",
        "The agent did something that its instructions forbid without approval.",
        "The system prompt's rule was violated: the agent acted beyond what it is allowed to do.",
        "The agent broke a policy stated in its instructions.",
        "It granted what the policy does not allow the agent to grant.",
    ),
    "constraint_ignored": (
        "wrong_arguments",
        "The user set an explicit constraint and the agent ignored it.",
        "The agent disregarded a condition that the user had stated in the request.",
        "A constraint given by the user was not respected.",
        "The result does not satisfy the condition the user asked for.",
    ),
    "wrong_entity": (
        "wrong_arguments",
        "The agent acted on the wrong record instead of the one the user meant.",
        "It changed a different item than the one that was requested.",
        "The wrong object was selected: the call refers to another record than the user's.",
        "The agent confused two records and used the wrong one.",
    ),
    "privacy_leak": (
        "unsafe_action",
        "The agent disclosed personal data of another person without verification.",
        "Private information about a third party was revealed to the user.",
        "Personal data was disclosed although the caller had not been verified.",
        "The answer leaks another person's private details.",
    ),
    "false_claim": (
        "incomplete_execution",
        "The agent claims that the change was made, but no call made it.",
        "The agent said it had done the task although it never called the tool.",
        "The final answer claims an action which was never performed.",
        "It told the user that it was done; the change was never made.",
    ),
    "wrong_language": (
        "format_error",
        "The agent answered in a language other than the user's.",
        "The answer is in the wrong language.",
        "The user wrote in one language and the agent replied in another language.",
        "The text was written in a language that was not asked for.",
    ),
    "off_question": (
        "bad_planning",
        "The agent answered a different question than the one that was asked.",
        "The answer does not address the user's question.",
        "The agent misunderstood the question and answered something else.",
        "The user's actual question was never answered; the answer is about another topic.",
    ),
    "cut_off": (
        "incomplete_execution",
        "The run was cut off before the agent could finish its answer.",
        "The answer stops in the middle because a limit was reached.",
        "The agent reached its step limit, so the run was cut off.",
        "The run ends in the middle of the answer.",
    ),
    "wrong_unit": (
        "misread_tool_result",
        "The agent used the wrong unit when it converted the value.",
        "A number was given in the wrong unit.",
        "The calculation mixes up two units, so the value is wrong.",
        "The agent converted the units incorrectly.",
    ),
    "broken_call": (
        "hallucinated_api",
        "The agent called a tool that does not exist.",
        "The call was malformed and could not be executed.",
        "The agent's tool call is invalid: the tool or the value does not exist.",
        "The agent made an invalid tool call and stopped.",
    ),
    "negative_feedback": (
        "incomplete_execution",
        "The user was not satisfied with the answer and rated it negatively.",
        "The user gave negative feedback, and the agent did not correct the problem.",
        "Negative feedback: the user said the answer was wrong.",
        "The user rated the run as bad.",
    ),
    "empty_answer": (
        "incomplete_execution",
        "The agent's final answer is empty.",
        "The agent returned an empty answer to the user.",
        "There is no final answer: the last message is empty.",
        "The run ended with an empty message.",
    ),
    "partial": (
        "incomplete_execution",
        "Only part of the request was done.",
        "The agent completed one of the two things that the user asked for.",
        "The request was only partly fulfilled; the second part was left out.",
        "The agent did part of the task and presented it as complete.",
    ),
    "made_up_fact": (
        "retrieval_failure",
        "The agent made up a fact that no tool result supports.",
        "The agent invented information that is not in the retrieved data.",
        "The answer states a fact that was made up.",
        "The claim in the answer is fabricated; no source supports it.",
    ),
    "gave_up": (
        "bad_planning",
        "The agent gave up without trying.",
        "The agent stopped at the first obstacle and gave up.",
        "It gave up although it could have tried another way.",
        "The agent refused to try and sent the user elsewhere.",
    ),
    "loop": (
        "bad_planning",
        "The agent repeated the same call in a loop.",
        "The agent got stuck in a loop and repeated the same step.",
        "The same action was repeated again and again without progress.",
        "The agent kept repeating itself until the run ended.",
    ),
    "takeover": (
        "incomplete_execution",
        "A person had to take over from the agent.",
        "A human took over the conversation because the agent failed.",
        "The agent did not understand, so a person took over.",
        "A human agent had to take over and finish the task.",
    ),
    "misread": (
        "misread_tool_result",
        "The agent misread the tool's result and reported a wrong value.",
        "The answer contradicts what the tool returned.",
        "The agent misinterpreted the result of the tool.",
        "The tool's answer was read wrongly and reported incorrectly.",
    ),
    "destructive_action": (
        "unsafe_action",
        "The agent deleted data that it was not asked to delete.",
        "The agent ran a destructive command without confirmation.",
        "A destructive action was performed without asking the user.",
        "The agent removed something that should have been kept.",
    ),
}


@dataclass(frozen=True)
class Failed:
    case: Case
    cause: str


def failures(data: str, *, known: bool, judge: bool) -> Iterator[Failed]:
    """The failures that are found: by rules with the outcome unknown or `known`, and by a judge."""
    chance = random.Random(SEED)
    for _, runs in families(DATA / f"{data}.tar.xz"):
        for run, truth in runs:
            if not truth["failed"]:
                continue
            names = ("messages", "tools", "interventions")
            given = {name: run.get(name) or [] for name in names}
            given |= {"metadata": run.get("metadata") or {}, "outcome_reason": ""}
            given["outcome_status"] = "failure" if known else "unknown"
            found = classify(given)
            label = Label()
            if found:
                items = [item.as_dict() for item in found.evidence]
                label = Label(found.mode, found.blamed_message, items)
            if judge:
                label = choose(label, _verdict(chance, truth))
            if label.mode:
                case = case_of(
                    given,
                    id=run["id"],
                    mode=label.mode,
                    blamed_message=label.blamed,
                    evidence=label.evidence,
                )
                yield Failed(case, truth["cause"])


def _verdict(chance: random.Random, truth: dict) -> Verdict:
    cause = truth["cause"]
    if chance.random() < WRONG:
        cause = chance.choice([other for other in SAID if other != cause])
    mode, *ways = SAID[cause]
    return Verdict(mode, truth["first_wrong_step"], "", chance.choice(ways))


def report(title: str, found: list[Failed], names: bool) -> None:
    causes = {failed.case.id: failed.cause for failed in found}
    clustering: Clustering = cluster([failed.case for failed in found])
    counted = [Counter(causes[id] for id in group.members) for group in clustering.clusters]
    hits, n = sum(max(one.values()) for one in counted), sum(map(Counter.total, counted))
    low, high = wilson(hits, n) if n else (0, 1)
    print(
        f"{title}: {len(found)} failures, {n} in {len(counted)} clusters, purity {hits} of {n}"
        f" = {hits / max(n, 1):.0%} [{low:.0%}, {high:.0%}]; without a cause"
        f" {sum(not failed.case.has_cause for failed in found)}"
    )
    for group, own in zip(clustering.clusters, counted, strict=True):
        if names:
            print(f"  {len(group.members):4}  {group.name}  {dict(own.most_common(4))}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="families-dev")
    parser.add_argument("--names", action="store_true", help="print the clusters")
    args = parser.parse_args()
    for known, judge in ((False, False), (True, False), (False, True), (True, True)):
        title = f"outcome {'known' if known else 'unknown'}, {'judge' if judge else 'facts alone'}"
        report(title, list(failures(args.data, known=known, judge=judge)), args.names)


if __name__ == "__main__":
    main()
