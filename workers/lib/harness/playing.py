"""Episodes that an agent plays in its own harness: it finds the model in training and the
environment's tools at its rollout's address, and what was sampled there is what is learned. Light:
no torch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from workers.lib.clocks import Clock, Overtime
from workers.lib.environments import Episode
from workers.lib.harness.addressed import as_it_ran
from workers.lib.harness.gateway import Gateway
from workers.lib.harness.launchers import (
    AgentAway,
    CalledLauncher,
    CommandLauncher,
    Launcher,
    Outcome,
    Work,
)
from workers.lib.harness.open_rollout import Captured, OpenRollout, Settings
from workers.lib.harness.pulled import PulledLauncher
from workers.lib.messages import Message, calls_of
from workers.lib.policies import PolicyError, RecordedPolicy, Reply, Sampler
from workers.lib.rollouts import LOST, NO_LIMITS, Ended, Limits, take_turns
from workers.lib.specs.harness import AgentHarness
from workers.lib.transcripts import agent_turns

OTHER_USER = (
    "This task has a user who answers, and an agent in its own harness is started once. Choose"
    " tasks without one."
)

STOPPED = (
    "The agent ended after the model wrote a call, without running it. Let it call the tools at its"
    " rollout's address."
)


class HarnessPlayer:
    """Plays episodes with an agent. Open it with `start`, close it with `close`. `learns`: what is
    sampled is trained on; where it is not, an agent that fails before it asks the model fails the
    episode, too. `notify` is called with what the job should say about an agent that waits for
    work.
    """

    def __init__(
        self,
        harness: AgentHarness,
        launcher: Launcher | None = None,
        *,
        learns: bool = True,
        notify: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.harness, self.learns = harness, learns
        self.launcher = launcher or launcher_of(harness, notify)
        self.gateway = Gateway(harness.host, harness.port, harness.url)
        if isinstance(self.launcher, PulledLauncher):
            self.gateway.work = self.launcher

    def start(self) -> None:
        """Raises JobError."""
        self.gateway.start()

    def close(self) -> None:
        self.gateway.close()

    async def converse(
        self,
        sampler: Sampler,
        episode: Episode,
        limits: Limits,
        replies: list[Reply],
        *,
        seed: int,
        key: int,
    ) -> Ended:
        """How the episode ended; `replies` are the answers that were sampled."""
        clock = _Paused(Clock(limits.seconds))
        settings = Settings(
            self.harness.model, self.harness.calls, limits.tokens, self.harness.own_code
        )
        rollout = OpenRollout(sampler, episode, settings, seed=seed, key=key, busy=clock.set)
        prompt, outcome, stop, is_lost = list(episode.messages), Outcome(), "", False
        address = self.gateway.open(rollout)
        task_id = str(getattr(episode, "task", {}).get("id", ""))
        work = Work(
            task_id,
            prompt,
            list(episode.tools),
            address,
            rollout.token,
            self.harness.model,
            seed,
            lambda: not rollout.tree.calls,
        )
        try:
            async with clock.running():
                outcome = await self.launcher.run(work)
            stop = rollout.exceeded or outcome.stop_reason
        except Overtime:
            stop = "time"
        except AgentAway as error:
            if error.final:
                raise PolicyError(str(error), final=True) from error
            is_lost = error.again
            if rollout.tree.calls and not (self.learns or is_lost):
                # Once it has seen what the model says, it may not choose what counts.
                outcome = Outcome(problem=str(error), stop_reason="agent error")
                stop = outcome.stop_reason
            else:
                rollout.distrust(str(error))
        finally:
            self.gateway.end(rollout)
            captured = rollout.freeze(outcome.turns, has_failed=bool(stop), problem=outcome.problem)
        if rollout.final is not None:
            raise rollout.final
        replies[:] = captured.replies
        end = await _apply(rollout, episode, captured)
        failed_alone = bool(stop) and not captured.replies and not self.learns
        if captured.mask and not failed_alone:
            end = Ended(LOST if is_lost else "policy error", captured.mask)
        elif stop:
            end = Ended(stop, problem=outcome.problem)
        end.facts = {
            "branches": captured.branches,
            "ignored": sum(captured.notes.values()),
            "bypassed": captured.bypassed,
            "altered": captured.altered,
        }
        return end


async def _apply(rollout: OpenRollout, episode: Episode, captured: Captured) -> Ended:
    """Gives the episode what the agent said. If it ran no tool at its address, its calls are run
    now, like those of any other agent that returns them.
    """
    said: Sequence[Message] = captured.conversation
    if made := rollout.episode_calls:
        has_results = any(message.get("role") == "tool" for message in said)
        episode.add_messages(list(said) if has_results else as_it_ran(said, made))
        return Ended("")
    if any(message.get("role") == "tool" for message in said):
        said = agent_turns(list(said), [])  # with the results that the model was given
    turns = [message for message in said if message.get("role") == "assistant"]
    try:
        await take_turns(RecordedPolicy([turns]), episode, NO_LIMITS, [], 0, 0)
    except Ended as end:
        return end
    if episode.done:
        return Ended("")
    return Ended("policy error", STOPPED if turns and calls_of(turns[-1]) else OTHER_USER)


def launcher_of(harness: AgentHarness, notify: Callable[[str], None]) -> Launcher:
    if harness.pull is not None:
        return PulledLauncher(harness.pull, f"{harness.name}@{harness.version}", notify)
    if harness.endpoint is not None:
        return CalledLauncher(harness.endpoint)
    assert harness.command is not None
    return CommandLauncher(harness.command)


class _Paused:
    """The agent's clock, which stops while the model answers it."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.count = clock, 0
        self.stopped = contextlib.ExitStack()

    def running(self) -> contextlib.AbstractAsyncContextManager[None]:
        return self.clock.running()

    def set(self, is_busy: bool) -> None:
        before, self.count = self.count, self.count + (1 if is_busy else -1)
        if before == 0 and is_busy:
            self.stopped.enter_context(self.clock.stopped())
        elif self.count == 0:
            self.stopped.close()
