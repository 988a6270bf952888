"""Scores answers that an agent gave elsewhere as samples of an evaluation. `python -m
workers.score_answers spec.json`.
"""

from __future__ import annotations

from workers.evaluate import emit_sample
from workers.lib.environments import load
from workers.lib.events import Emitter
from workers.lib.harness.addressed import Addressed, Ran
from workers.lib.messages import Message
from workers.lib.policies import PolicyError, RecordedPolicy, Reply
from workers.lib.program import StopFlag, run_main
from workers.lib.rollouts import EXCEEDED, NO_LIMITS, Finished, failed, play
from workers.lib.specs.score_answers import ScoreAnswers, SentAnswer
from workers.rescore import AT_ONCE


class SentPolicy(RecordedPolicy):
    """Replays the agent's answers, but for those that called the tools at an address: they are
    scored by what ran there. If the agent failed at the end, so does the episode, as the agent's
    own fault.
    """

    def __init__(self, answers: list[SentAnswer]) -> None:
        super().__init__([turns_of(answer) for answer in answers])
        self.errors = [answer.error for answer in answers]

    async def answer(
        self,
        messages: list[dict],
        tools: list[dict],
        *,
        seed: int,
        key: int = 0,
        most: int | None = None,
    ) -> Reply | None:
        reply = await super().answer(messages, tools, seed=seed, key=key, most=most)
        if reply is None and self.errors[key]:
            raise PolicyError(self.errors[key], limit="agent error")
        return reply


def turns_of(answer: SentAnswer) -> list[Message]:
    if answer.state is None:
        return answer.turns
    return [Ran(answer.state, answer.turns).as_message()]


def main(spec: ScoreAnswers, events: Emitter, stop: StopFlag) -> None:
    answers, ended, passed = spec.answers, 0, 0

    def tell(index: int, _: int, done: Finished) -> None:
        nonlocal ended, passed
        answer = answers[index]
        if answer.error and not done.score.masked and done.stop_reason not in EXCEEDED:
            # The episode was over before the agent failed; its earlier answers do not make up for
            # that.
            done.score, done.stop_reason = failed(done.score, "agent error"), "agent error"
        if answer.error:
            done.score.details = [*done.score.details, f"The agent reported: {answer.error[:500]}"]
        emit_sample(
            events,
            spec.tasks[answer.task],
            answer.index,
            done,
            phase="eval",
            latency_ms=answer.latency_ms,
            input_tokens=answer.input_tokens,
            output_tokens=answer.output_tokens,
        )
        ended, passed = ended + 1, passed + done.score.success
        events.progress(ended, len(answers), f"{passed} of {ended} succeeded")
        stop.check()

    tasks = [spec.tasks[answer.task] for answer in answers]
    environment = Addressed(load(spec.environment))
    play(SentPolicy(answers), environment, tasks, NO_LIMITS, tell, concurrency=AT_ONCE)
    events.result(metrics={"samples": ended})


if __name__ == "__main__":
    run_main(ScoreAnswers, main)
