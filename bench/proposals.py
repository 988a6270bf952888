"""Whether the tasks proposed from tau-bench's failures are usable: a right agent passes, the failed
run does not, and nobody has to know more than is stated.

`python -m bench.proposals [--seed 4711] [--part quoted|tuned|all] [--show]`. Half of the tasks, by
the seed, is for tuning; figures to quote are those of the other half. Each proposed episode is
played in a replay environment with the product's own user (`metadata.user_turns`):

- *the failed run fails*: its recorded turns, from where the task begins, do not score a success.
- *a right agent passes*: an agent that knows the true changes says what it will do, waits for the
  user's answer, makes the changes and tells what is to be told. Where no change is right it refuses
  each time. It follows its user: it is led astray by a turn with a number, date or identifier that
  neither the wish (tau-bench's instruction, which the product never sees), nor the truth, nor what
  was said and looked up before has, and by a turn that refuses its right offer.
- *answerable*: each identifier, date and name of the true changes is said or can be looked up
  there, and the user has asked, in these words or others of the kind, for each change and, where
  the wish names it, for the kind of payment and the cabin.
- *coherent*: no turn agrees to something (“Yes, …”) where a right agent has refused, and none
  agrees to or asks for a change where it has made all of them.

What a rubric asks for depends on the judge, so rubrics are counted and not played.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from bench.failures import tau_inputs

# A number, date or identifier, or an option by its number.
VALUE = re.compile(r"\b(?=[\w/-]*\d)[\w/-]{3,}\b|\boption \w+", re.IGNORECASE)
REFUSES = re.compile(r"\s*(no|nope|not)\b", re.IGNORECASE)
AGREES = re.compile(r"\s*(yes|sure|okay|ok|great|perfect|sounds good)\b(?![^.!?]*\bif\b)", re.I)
WANTS = re.compile(
    r"\b(change|cancel|book|upgrad|downgrad|proceed|updat|add|remov|transfer|switch)\w*",
    re.IGNORECASE,
)
MOST_TURNS = 30


def chosen(runs: list[dict], seed: int, part: str) -> list[dict]:
    """The failures of one half of the tasks."""
    failed = [run for run in runs if run["outcome_status"] == "failure"]
    tasks = sorted({run["metadata"]["task_id"] for run in failed})
    random.Random(seed).shuffle(tasks)
    tuned = set(tasks[: len(tasks) // 2])
    return [
        run
        for run in failed
        if part == "all" or (run["metadata"]["task_id"] in tuned) == (part == "tuned")
    ]


def proposed(run: dict) -> tuple[Any, dict[str, Any]]:
    """The plan of a failure, and the task that it makes."""
    from django.utils import timezone

    from apps.evals.from_failures import metadata_of
    from apps.evals.source_runs import read_run
    from apps.evals.suggestions import plan_of
    from apps.failures.classify import classify
    from apps.failures.models import Failure, FailureMode
    from apps.trajectories.models import Trajectory

    row = Trajectory(
        external_id=run["id"],
        started_at=timezone.now(),
        outcome_status=run["outcome_status"],
        outcome_reason=run["outcome_reason"],
    )
    parts = {name: run[name] for name in ("messages", "tools", "interventions", "metadata")}
    row.content, row.feedback = parts | {"warnings": []}, []
    found = classify(run)
    plan = plan_of(read_run(row, ()), found.blamed_message if found else None)
    failure = Failure(trajectory=row, mode=FailureMode(slug="unexplained"))
    return plan, {
        "id": run["id"],
        "messages": plan.step.prompt,
        "tools": run["tools"],
        "expected": plan.answer.expected if plan.answer else {},
        "metadata": metadata_of(failure, plan.step, plan.answer),
    }


def opened(task: dict[str, Any]) -> Any:
    from workers.lib.environments import load

    spec = {
        "kind": "replay",
        "config": {},
        "harness": {"max_turns": MOST_TURNS},
        "verifier": {"kind": "expected"},
    }
    return load(spec, clients={}).open(task)


async def played(task: dict[str, Any], turns: Iterable[dict]) -> bool:
    episode = opened(task)
    for turn in turns:
        if episode.done:
            break
        await episode.step(turn)
    return bool((await episode.score()).success)


def calls_message(calls: list[dict]) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": f"c{at}",
                "type": "function",
                "function": {"name": call["tool"], "arguments": json.dumps(call["args"])},
            }
            for at, call in enumerate(calls)
        ],
    }


def values(text: str) -> set[str]:
    return {re.sub(r"(?<=\d)(st|nd|rd|th)$", "", found.casefold()) for found in VALUE.findall(text)}


def known_to(task: dict, instruction: str) -> str:
    """All that a right user or agent may name."""
    recorded = "\n".join(item["content"] for item in before(task))
    said = "\n".join(str(message.get("content") or "") for message in task["messages"])
    return "\n".join((instruction, json.dumps(task["expected"]), said, recorded)).casefold()


def before(task: dict) -> list[dict]:
    """What was looked up before the task begins, and what is the user's own: profile, bookings."""
    texts = {str(message.get("content")) for message in task["messages"]}
    return [
        item
        for item in task["metadata"]["recorded_results"]
        if item["content"] in texts or item["tool"].startswith(("get_user", "get_reservation"))
    ]


async def right_agent(task: dict, instruction: str) -> tuple[bool, bool, list[str]]:
    """(whether it passes, whether the user is coherent, what it heard)."""
    calls, tell = task["expected"]["calls"], task["expected"].get("tell") or []
    told = "; ".join(words[0] for words in tell)
    known, episode, heard, led = known_to(task, instruction), opened(task), [], False
    coherent, is_made = True, False
    while not episode.done:
        if calls and not is_made and heard:
            await episode.step(calls_message(calls))
            is_made = True
            continue
        offer = (
            f"I will do this: {json.dumps(calls)}. Do you agree?" if calls else "I may not do it."
        )
        at = len(episode.messages)
        await episode.step(
            {"role": "assistant", "content": f"{'Done.' if is_made else offer} {told}"}
        )
        for message in episode.messages[at + 1 :]:
            text = message["content"]
            heard.append(text)
            led = led or any(value not in known for value in values(text))
            led = led or bool(calls and not is_made and REFUSES.match(text))
            agrees = bool(AGREES.match(text))
            coherent = coherent and not (agrees and (is_made or not calls))
            coherent = coherent and not (is_made and WANTS.search(text))
    success = bool((await episode.score()).success)
    return success and not led, coherent, heard


ASKED = {
    "cancel_reservation": "cancel|refund",
    "book_reservation": "book|fly|flight",
    "update_reservation_flights": "chang|modif|(up|down)grad|switch|move|resched|later|earlier",
    "update_reservation_baggages": "bag|suitcase|luggage",
    "update_reservation_passengers": "passenger|name",
    "send_certificate": "compensat|certificate|refund|delay|cancel",
}
KINDS = {"gift_card": "gift", "credit_card": "credit|card|original", "certificate": "certificate"}
CABINS = {"business": "business", "economy": "economy", "basic_economy": "basic"}


def asked_for(task: dict, heard: list[str], instruction: str) -> bool:
    """Whether the user's own words name each change, payment and cabin of the wish."""
    users = [str(m.get("content") or "") for m in task["messages"] if m.get("role") == "user"]
    said, wish = "\n".join((*users, *heard)), instruction.casefold()
    calls = task["expected"]["calls"]
    needed = [ASKED[call["tool"]] for call in calls if call["tool"] in ASKED]
    for leaf in leaves(calls):
        kind = KINDS.get(leaf.rsplit("_", 1)[0]) or CABINS.get(leaf)
        if kind and re.search(kind, wish):
            needed.append(kind)
    return all(re.search(words, said, re.IGNORECASE) for words in needed)


def answerable(task: dict, heard: list[str], instruction: str) -> bool:
    if not asked_for(task, heard, instruction):
        return False
    said = [str(message.get("content") or "") for message in task["messages"]]
    recorded = [item["content"] for item in task["metadata"]["recorded_results"]]
    known = "\n".join((*said, *heard, *recorded)).casefold()
    words = set(re.findall(r"\w+", known))
    return all(_is_known(leaf, known, words) for leaf in leaves(task["expected"]["calls"]))


def _is_known(leaf: str, known: str, words: set[str]) -> bool:
    text = leaf.casefold()
    if text in known:
        return True
    if date := re.fullmatch(r"\d{4}-(\d\d)-(\d\d)", text):
        return str(int(date[2])) in words or f"{int(date[2])}th" in words
    return not any(map(str.isdigit, text))


def leaves(calls: list[dict]) -> Iterator[str]:
    from apps.evals.near_duplicates.calls import leaves_of

    for call in calls:
        free = call.get("any") or ()
        for _, leaf in leaves_of({k: v for k, v in call["args"].items() if k not in free}):
            if isinstance(leaf, str):
                yield leaf


def measured(run: dict) -> dict[str, Any]:
    from apps.evals.models import TaskKind

    plan, task = proposed(run)
    found: dict[str, Any] = {"id": run["id"], "kind": plan.kind, "warned": bool(plan.warnings)}
    if plan.kind != TaskKind.EPISODE:
        return found
    instruction = run["metadata"]["info"]["task"]["instruction"]
    recorded = [item for item in run["messages"][plan.step.cut :] if item["role"] == "assistant"]
    passes, coherent, heard = asyncio.run(right_agent(task, instruction))
    found |= {
        "right passes": passes,
        "wrong fails": not asyncio.run(played(task, recorded)),
        "answerable": answerable(task, heard, instruction),
        "coherent": coherent,
        "heard": heard,
        "cut": plan.step.cut,
    }
    found["usable"] = all(found[name] for name in CRITERIA)
    return found


CRITERIA = ("right passes", "wrong fails", "answerable", "coherent")


def repeats(runs: list[dict], *, is_known: bool) -> Counter[str]:
    """How the second failure of a tau-bench task is recognised among all before it, and how often
    another one is taken for it. With unknown changes it is as a rubric.
    """
    from apps.evals.proposals.alike import likest
    from apps.evals.proposals.same import Request

    seen: dict[str, tuple[int, Request]] = {}
    tally: Counter[str] = Counter()
    for run in runs:
        number = run["metadata"]["task_id"]
        _, task = proposed(run)
        expected = task["expected"] if is_known else {}
        request = Request(run["id"], task["messages"], expected, task["metadata"])
        earlier = [other for other, _ in seen.values()]
        same = [of for of, other in seen.values() if request.is_same(other)]
        like = None if same else likest(request.wish, ((of, r.wish) for of, r in seen.values()))
        kind = "repeat" if number in earlier else "new"
        found = "nothing"
        if same:
            found = "merged" if number in same else "merged with another"
        elif like:
            found = "suggested" if like[0] == number else "another suggested"
        tally[f"{kind}: {found}"] += 1
        seen[run["id"]] = (number, request)
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=4711)
    parser.add_argument("--part", choices=["quoted", "tuned", "all"], default="quoted")
    parser.add_argument("--show", action="store_true", help="each episode of the tuned half")
    options = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "flywheel.settings")
    import django

    django.setup()
    runs = chosen(tau_inputs(), options.seed, options.part)
    found = [measured(run) for run in runs]
    episodes = [item for item in found if "usable" in item]
    print(f"{len(runs)} failures: {dict(Counter(item['kind'] for item in found))}")
    for warned in (False, True):
        part = [item for item in episodes if item["warned"] == warned]
        counts = ", ".join(f"{name} {sum(i[name] for i in part)}" for name in (*CRITERIA, "usable"))
        print(f"{'with' if warned else 'without'} a warning: {len(part)} episodes: {counts}")
    for is_known in (True, False):
        tally = repeats(runs, is_known=is_known)
        print(
            f"repeats, changes {'known' if is_known else 'unknown'}: {dict(sorted(tally.items()))}"
        )
    if options.show and options.part == "tuned":
        for item in episodes:
            print(
                item["id"][:22],
                item["cut"],
                *(n for n in CRITERIA if not item[n]),
                "warned" * item["warned"],
            )
            for text in item["heard"]:
                print("    >", " ".join(text.split())[:200])


if __name__ == "__main__":
    main()
