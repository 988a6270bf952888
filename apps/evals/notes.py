"""What an evaluation's counts say about how far its numbers can be trusted: the sentences of its
page, of the API and of `flywheel-eval`. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

MANY = 0.5  # of the samples
SOME = 0.1


def notes_of(counts: Mapping[str, int], *, agent: bool) -> list[str]:
    """Sentences; none if there is nothing to say. `counts`: as `stats.summarise` returns them.
    `agent`: a whole agent was evaluated, and not a model with the environment's own loop.
    """
    sentences = (_other_results(counts), _no_answer(counts, agent), _lack_calls(counts, agent))
    return [sentence for sentence in sentences if sentence]


def _other_results(counts: Mapping[str, int]) -> str:
    if not (other := counts.get("other_results", 0)):
        return ""
    return (
        f"{other:,} of {counts['samples']:,} runs saw other results than the environment's: the"
        " agent ran tools of its own. They are masked. Let the agent return its calls without"
        " running them (docs/agents.md)."
    )


def _no_answer(counts: Mapping[str, int], agent: bool) -> str:
    silent = counts.get("no_answer", 0)
    if not silent or silent < MANY * counts["samples"]:
        return ""
    return (
        f"The {'agent' if agent else 'model'} failed to answer {silent:,} of"
        f" {counts['samples']:,} samples: it crashed, took too long or said nothing. They count as"
        " failed, so the rates say little else."
    )


def _lack_calls(counts: Mapping[str, int], agent: bool) -> str:
    lacking, called = counts.get("lack_calls", 0), counts.get("called", 0)
    if not lacking or (called and lacking < SOME * counts["samples"]):
        return ""
    runs = (
        f"{lacking:,} of {counts['samples']:,} runs failed without calling a tool"
        if called
        else "No run called a tool"
    )
    ending = (
        "Only calls that the agent returns are seen here, not those that it runs on a backend of"
        " its own or describes in its answer. Let it return its calls without running them"
        " (docs/agents.md)."
        if agent
        else "See whether the model is offered the tools in a form that it was trained on (its"
        " server's dialect, docs/servers.md) and what its prompt says about them."
    )
    return f"{runs}; {_need(counts, lacking, called)}. {ending}"


def _need(counts: Mapping[str, int], lacking: int, called: int) -> str:
    tasks = counts.get("tasks_need_calls", 0)
    if tasks:
        needs = "1 task needs calls" if tasks == 1 else f"{tasks:,} tasks need calls"
        return f"{needs}, or a state that only calls change"
    others = "" if called else f"{lacking:,} of {counts['samples']:,} failed, and "
    return f"{others}whether their tasks need calls is up to the environment's own scoring"
