"""Rejection sampling within one run: samples n answers to each training task and learns from those
that pass the verifier. `python -m workers.best_of_n spec.json` (docs/jobs.md).

Sampling comes first, by the initial model (RAFT 2304.06767, one round) or by a teacher, which may
be a model on any OpenAI-compatible server; then `workers.sft` learns from the accepted samples. The
result of each task is written to disk immediately, next to the checkpoints, so that after a stop or
a crash only a few tasks are sampled again, with the same seeds. Once learning has started, its
training data no longer changes.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import structs, to_builtins
from transformers import AutoTokenizer

from workers import sft
from workers.evaluate import emit_sample, limits_of
from workers.lib.chat_policy import ChatPolicy
from workers.lib.control_tokens import control_text_in, control_texts
from workers.lib.engines import Sampling
from workers.lib.environments import Environment, load
from workers.lib.errors import JobError
from workers.lib.events import Emitter
from workers.lib.model_names import MOST_NAMES, Answering
from workers.lib.policies import SPENT, EnginePolicy, Policy, PolicyError, Reply
from workers.lib.program import Stop, StopFlag, run_main
from workers.lib.rollouts import Finished, play
from workers.lib.sampled_tasks import SAMPLED, read
from workers.lib.serving import ADAPTER_PREFIX
from workers.lib.specs.best_of_n import BestOfN, BestOfNConfig
from workers.lib.specs.sft import Sft, SftConfig, SftRow
from workers.lib.teacher_server import NAME, account_of, spent
from workers.lib.training_cost import SAMPLED_TOGETHER
from workers.lib.typed import convert
from workers.ml import checkpoint
from workers.ml.models import stop_token_ids
from workers.ml.ranks import ALONE, Ranks, join
from workers.ml.transformers_engine import TransformersEngine

EMPTY = (
    "Open a rollout. A model that reasons may have answered in its reasoning alone, and a server"
    " may have dropped a call that it could not parse. If it is right to answer nothing, there is"
    " nothing that SFT can learn from it."
)
UNUSABLE = {  # why samples that passed are not learned from
    "cut_off": "Cut off: {n}. Raise max_new_tokens, which is {most}.",
    "filtered": "Withheld by the server’s content filter: {n}. Change the tasks or the teacher.",
    "empty": (
        "Empty: {n}. The model ended them itself, so a higher max_new_tokens does not help."
        f" {EMPTY}"
    ),
    "unfinished": (
        "Empty, without a finish_reason that says why: {n}. Open a rollout, and check what the"
        " server answers."
    ),
    "control": "With a control token of the student as text: {n}. Open a rollout to see which.",
}
COUNTED = ("samples", "passed", "masked", "kept", "all_empty", *UNUSABLE)


class SftOnSamples(Sft, kw_only=True, tag=BestOfN.program()):
    """What the samples teach is watched as best-of-n, not as SFT."""


def main(spec: BestOfN, events: Emitter, stop: StopFlag) -> None:
    rows, answered_as = sampled(spec, events, stop)
    names = [field.name for field in structs.fields(SftConfig)]
    same = {
        name: getattr(spec, name)
        for name in (
            "job_id",
            "attempt",
            "seed",
            "out_dir",
            "model",
            "engine",
            "environment",
        )
    }
    resume = spec.resume_from if checkpoint.step_of(spec.resume_from) else None
    sft.main(
        SftOnSamples(
            **same,
            resume_from=resume,
            rows=rows,
            validation_rows=spec.validation_rows,
            validation_tasks=spec.validation_tasks,
            config=SftConfig(**{name: getattr(spec.config, name) for name in names}),
        ),
        events,
        stop,
        {"teacher_answered_as": answered_as} if answered_as else {},
    )


def sampled(spec: BestOfN, events: Emitter, stop: StopFlag) -> tuple[list[SftRow], dict[str, int]]:
    """The accepted samples, in the order of the tasks; and the model names in a server's answers
    with their counts.
    """
    file, ranks = Path(spec.out_dir) / SAMPLED, join(spec.config.processes)
    found = ranks.from_main(lambda: read(file))
    # once it learns, tasks that a limit has left out stay out
    learning = found and checkpoint.step_of(spec.resume_from)
    if not learning and any(task["id"] not in found for task in spec.tasks):
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            with file.open("w") if ranks.is_main else nullcontext() as lines:
                for one in (
                    found.values() if lines else ()
                ):  # rewrite the file, since its last line may be incomplete
                    lines.write(json.dumps(one) + "\n")
                sample(spec, found, lines, events, stop, ranks)
        except (Stop, TeacherLost):
            if ranks.is_main:
                keep(spec, events)
            raise
    totals = {name: sum(one.get(name, 0) for one in found.values()) for name in COUNTED}
    unmasked = max(1, totals["samples"] - totals["masked"])
    events.metric(
        0,
        {f"rejection/{name}": float(totals[name]) for name in COUNTED[:4]}
        | {
            "rejection/success": totals["passed"] / unmasked,
            "rejection/tasks": float(sum(one["kept"] > 0 for one in found.values())),
        },
    )
    if not totals["kept"]:
        raise JobError(why_nothing(spec, totals))
    # fewer tasks if a limit ended the sampling
    sampled_tasks = [found[task["id"]] for task in spec.tasks if task["id"] in found]
    answered_as = sum((Counter(one.get("models") or {}) for one in sampled_tasks), Counter[str]())
    return [convert(row, SftRow) for one in sampled_tasks for row in one["rows"]], dict(
        answered_as.most_common(MOST_NAMES)
    )


def why_nothing(spec: BestOfN, totals: dict[str, int]) -> str:
    """Why there is nothing to learn from, as a sentence for the page."""
    of = f"None of the {spec.config.samples} samples of any of the {len(spec.tasks)} tasks"
    if totals["masked"] == totals["samples"]:
        return f"{of} could be scored. Open a rollout for the reason."
    if totals["passed"]:
        reasons = " ".join(
            sentence.format(n=f"{totals[name]:,}", most=f"{spec.config.max_new_tokens:,}")
            for name, sentence in UNUSABLE.items()
            if totals[name]
        )
        return (
            f"{totals['passed']:,} of {totals['samples']:,} samples passed, but none of them can be"
            f" learned from. {reasons}".strip()
        )
    if totals["all_empty"] * 2 > totals["samples"] - totals["masked"]:
        return (
            f"{of} passed, and {totals['all_empty']:,} of {totals['samples']:,} are empty answers"
            f" that the model ended itself, so a higher max_new_tokens does not help. {EMPTY}"
        )
    return (
        f"{of} passed, so there is nothing to learn from. Sample more of each, raise the"
        " temperature, or begin with SFT on demonstrations."
    )


def sample(
    spec: BestOfN,
    found: dict[str, dict],
    lines: Any,
    events: Emitter,
    stop: StopFlag,
    ranks: Ranks = ALONE,
) -> None:
    """Sample the missing tasks, adding each result to `found` and to the file.

    Tasks are sampled in fixed chunks, so that their seeds do not depend on where an earlier attempt
    stopped. With several `ranks`, each samples some of the tasks and all get every result. Only the
    first has the file, and only it asks a server, because limit and journal belong to the job.
    """
    events.progress(
        len(found) * spec.config.samples, len(spec.tasks) * spec.config.samples, "loading the model"
    )
    if spec.teacher_server:
        found.update(ranks.from_main(lambda: ask_teacher(spec, found, lines, events, stop)))
        return
    with stop.at_once():
        environment = load(spec.environment)
        sampler = Sampler(spec, environment, events, stop)
    sample_tasks(spec, found, lines, events, stop, environment, sampler, ranks)


def ask_teacher(
    spec: BestOfN, found: dict[str, dict], lines: Any, events: Emitter, stop: StopFlag
) -> dict[str, dict]:
    """Like `sample`, with the teacher on its server; returns `found` including the new results.
    Raises TeacherLost.
    """
    with stop.at_once():
        environment = load(spec.environment)
        sampler = Sampler(spec, environment, events, stop)
    for one in found.values():  # of earlier attempts
        sampler.answering.names.update(one.get("models") or {})
    try:
        sample_tasks(spec, found, lines, events, stop, environment, sampler)
    except PolicyError as error:
        if error.limit != SPENT:
            raise TeacherLost(lost(str(error))) from error
        if not found:
            raise TeacherLost(
                f"{error} No task has all its samples. Start the run again with a higher limit for"
                " its teacher."
            ) from error
        events.log(
            "warning",
            f"{error} {len(found):,} of {len(spec.tasks):,} tasks were sampled; only they are"
            " learned from.",
        )
    finally:
        events.metric(0, spent(sampler.account))
        sampler.journal.close()
    return found


class TeacherLost(JobError):
    """The teacher's server no longer answers. Its answers so far are kept."""


def lost(problem: str) -> str:
    return (
        f"The teacher is lost. {problem} Fix its server, then resume this run: the tasks sampled so"
        " far are kept."
    )


class Sampler:
    """The model that answers: in this process, or on a server, whose usage counts over all attempts
    (close its journal at the end).
    """

    def __init__(
        self, spec: BestOfN, environment: Environment, events: Emitter, stop: StopFlag
    ) -> None:
        self.sampling = Sampling(
            spec.config.temperature, spec.config.top_p, spec.config.max_new_tokens
        )
        self.goes_on, self.served = environment.multi_turn, spec.teacher_server
        tokenizer = AutoTokenizer.from_pretrained(spec.model.base, local_files_only=True)
        self.control_texts = control_texts(tokenizer, stop_token_ids(tokenizer))
        if self.served:
            self.journal, self.account = account_of(self.served, Path(spec.out_dir))
            self.answering = Answering(
                self.served.model,
                spec.config.teacher_answers_as,
                exact=self.served.model.rpartition(":")[2].startswith(ADAPTER_PREFIX),
                note=partial(events.log, "warning"),
            )
            return
        self.engine = TransformersEngine.load(spec.engine, spec.teacher or spec.model)
        self.engine.check = stop.check

    def policy(self) -> Policy:
        if self.served:
            return ChatPolicy(
                self.served, self.sampling, self.account, answering=self.answering, name=NAME
            )
        return EnginePolicy(self.engine, self.sampling, goes_on=self.goes_on)

    def at_once(self, episodes: int) -> int:
        return min(episodes, self.served.concurrency) if self.served else episodes

    def require_answers(self, problem: str) -> None:
        """Raises TeacherLost if the server does not answer a trivial question either."""
        assert self.served
        policy = ChatPolicy(self.served, self.sampling, self.account, name=NAME)

        async def ask() -> bool:
            async with policy:
                return await policy.responds()

        if not asyncio.run(ask()):
            raise TeacherLost(lost(problem))


def sample_tasks(
    spec: BestOfN,
    found: dict[str, dict],
    lines: Any,
    events: Emitter,
    stop: StopFlag,
    environment: Environment,
    sampler: Sampler,
    ranks: Ranks = ALONE,
) -> None:
    config, n = spec.config, spec.config.samples
    total, played, passed = (
        len(spec.tasks) * n,
        len(found) * n,
        sum(one["passed"] for one in found.values()),
    )
    events.progress(played, total, f"sampling {played:,} of {total:,}")

    def sampling() -> str:
        return f"sampling {played:,} of {total:,}" + (
            f": {passed:,} of {len(found) * n:,} passed" if found else ""
        )

    for start in range(0, len(spec.tasks), SAMPLED_TOGETHER):
        tasks = spec.tasks[start : start + SAMPLED_TOGETHER]
        if all(task["id"] in found for task in tasks):
            continue
        waiting: list[dict[int, Finished]] = [{} for _ in tasks]
        unanswered: list[int] = []

        def tell(
            index: int, number: int, done: Finished, tasks: Any = tasks, waiting: Any = waiting
        ) -> None:
            nonlocal played
            waiting[index][number] = done
            if tasks[index]["id"] not in found:
                played += 1
                events.progress(played, total, sampling())
            if len(waiting[index]) < n or tasks[index]["id"] in found:
                return
            if sampler.served and any(
                one.stop_reason == "policy error" for one in waiting[index].values()
            ):
                unanswered.append(index)  # noqa: B023 - of this round
            else:
                record(index, tasks, waiting)

        def record(index: int, tasks: Any = tasks, waiting: Any = waiting) -> None:
            nonlocal passed
            task = tasks[index]
            found[task["id"]] = result = result_of(
                environment,
                task,
                [waiting[index][at] for at in range(n)],
                config,
                sampler.control_texts,
            )
            passed += result["passed"]
            for at in range(n):
                emit_sample(events, task, at, waiting[index][at], phase="train", step=0)
            if lines:
                lines.write(json.dumps(result) + "\n")
                lines.flush()
            events.progress(played, total, sampling())

        def play_some(
            some: range, tell: Any, tasks: Any = tasks, seed: int = spec.seed * 100_003 + start
        ) -> None:
            try:
                play(
                    sampler.policy(),
                    environment,
                    tasks,
                    limits_of(environment.harness),
                    tell,
                    n=n,
                    concurrency=sampler.at_once(len(some) * n),
                    seed=seed,
                    only=some,
                    check=stop.check,
                )
            except PolicyError:
                stop.check()  # a stop also ends the generation
                raise

        ranks.share(len(tasks), play_some, tell)
        if unanswered:  # the server is down, or refused just these requests
            sampler.require_answers(waiting[unanswered[0]][0].score.mask_reason)
        for index in unanswered:
            record(index)


def result_of(
    environment: Environment,
    task: dict,
    episodes: list[Finished],
    config: BestOfNConfig,
    control: Sequence[str] = (),
) -> dict[str, Any]:
    """The result of a task. The component `kept` of each score says whether the sample is learned
    from.
    """
    chosen = kept_of(episodes, config, control)
    reasons = [unusable(one, control) for one in episodes]
    for at, one in enumerate(episodes):
        one.score.components = one.score.components | {"kept": float(at in chosen)}
        if reasons[at] == "control":
            one.score.details = [
                *one.score.details,
                (
                    f"Not learned from: it contains {control_text_of(one, control)} as text, which"
                    " is a control token."
                ),
            ]
    passed = [
        reason
        for one, reason in zip(episodes, reasons, strict=True)
        if one.score.success and not one.score.masked
    ]
    return {
        "task": task["id"],
        "samples": len(episodes),
        "passed": len(passed),
        "masked": sum(one.score.masked for one in episodes),
        "kept": len(chosen),
        "all_empty": sum(
            reason == "empty" and not one.score.masked
            for one, reason in zip(episodes, reasons, strict=True)
        ),
        **{name: passed.count(name) for name in UNUSABLE if name in passed},
        "models": Counter(reply.model for one in episodes for reply in one.replies if reply.model),
        "rows": [to_builtins(row_of(environment, task, episodes[at])) for at in chosen],
    }


def unusable(done: Finished, control: Sequence[str]) -> str:
    """Why a sample cannot be learned from even if it passed (UNUSABLE); "" where it can."""
    if done.truncated:
        return "cut_off"
    if any(reply.finish_reason == "content_filter" for reply in done.replies):
        return "filtered"
    if not any(written(reply) for reply in done.replies):
        return (
            "empty"
            if done.replies and all(reply.finish_reason for reply in done.replies)
            else "unfinished"
        )
    return "control" if control_text_of(done, control) else ""


def control_text_of(done: Finished, texts: Sequence[str]) -> str:
    return next(
        (
            found
            for reply in done.replies
            if (found := control_text_in(reply.message or reply.text, texts))
        ),
        "",
    )


def kept_of(
    episodes: list[Finished], config: BestOfNConfig, control: Sequence[str] = ()
) -> list[int]:
    """The indices of the samples to learn from: the best, or all, of those that passed and are
    distinct, best first.
    """
    good = [
        at
        for at, done in enumerate(episodes)
        if done.score.success and not done.score.masked and not unusable(done, control)
    ]
    good.sort(key=lambda at: -float(episodes[at].score.reward or 0))
    different = {said(episodes[at]): at for at in reversed(good)}
    chosen = [at for at in good if different[said(episodes[at])] == at]
    return chosen[:1] if config.keep == "best" else chosen


def said(done: Finished) -> str:
    return json.dumps([written(reply) for reply in done.replies])


def written(reply: Reply) -> list[Any]:
    """The reply's text and, from a server, its calls without their ids; [] if it is empty."""
    calls = [
        [call["function"]["name"], call["function"]["arguments"]]
        for call in reply.message.get("tool_calls") or ()
    ]
    return [part for part in (reply.text.strip(), calls) if part]


def row_of(environment: Environment, task: dict, done: Finished) -> SftRow:
    episode = environment.open(task)
    given: dict[str, Any] = {"messages": episode.messages, "tools": episode.offered}
    calls = any(reply.message.get("tool_calls") for reply in done.replies)
    if len(done.replies) == 1 and len(done.rollout.messages) <= 1 and not calls:
        return SftRow(**given, completion=done.replies[0].text)
    return SftRow(**given, turns=done.rollout.messages)


def keep(spec: BestOfN, events: Emitter) -> None:
    """Save a checkpoint of step 0, so that the run can be resumed during sampling."""
    folder = Path(spec.out_dir) / "checkpoint-0"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / checkpoint.STATE).write_text(json.dumps({"step": 0, "optimizer": {}}))
    events.checkpoint(0, str(folder))


if __name__ == "__main__":
    run_main(BestOfN, main)
