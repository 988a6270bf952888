"""The processes that train one adapter together (data parallel). Heavy: imports torch.

Each process has the whole model and does a share of the work; gradients are summed, so that all
take the same step. They also end together: an error or a stop in one of them is known to all before
anything is exchanged.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor

from workers.lib import processes
from workers.lib.errors import SpecError
from workers.lib.prefixes import shares
from workers.lib.program import PeerEnded, Stop

T = TypeVar("T")
# One process may wait long for another's sampling; a process that has ended is noticed at once.
PATIENCE = timedelta(days=7)
NOT_SHARDED = (
    "accelerate's sharding (FSDP, DeepSpeed) cannot be used here. Start it without; each process"
    " then has the whole model. SFT, DPO, KTO and reward models divide the base's layers themselves"
    " with “config.shard”."
)


@dataclass(frozen=True)
class Ranks:
    """This process is `number` of `size`. With a single process, everything is done locally and
    nothing is sent.
    """

    number: int = 0
    size: int = 1
    # For a sharded model: a process that fails cannot tell the others, which notice once it has
    # ended.
    in_lockstep: bool = False

    @property
    def is_main(self) -> bool:
        """Whether this process reports and writes checkpoints."""
        return self.number == 0

    def gather(self, work: Callable[[], T]) -> list[T]:
        """The results of `work` in all processes, in order. If it is stopped in one process, it is
        stopped in all; if it fails in one, the others raise PeerEnded. `work` may itself call
        `gather`: an error that is already known to all is not sent again.
        """
        if self.size == 1:
            return [work()]
        found, error = None, None
        try:
            found = work()
        except Exception as raised:
            if getattr(raised, "known_to_all", False) or (
                self.in_lockstep and not isinstance(raised, Stop)
            ):
                raise
            error = raised
        everybody = self._exchanged(
            ("stopped" if isinstance(error, Stop) else "failed" if error else "", found)
        )
        endings = [ending for ending, _ in everybody]
        if error is None and "failed" in endings:
            error = PeerEnded()
        if error is None and "stopped" in endings:
            error = Stop()
        if error:
            error.known_to_all = True  # type: ignore[attr-defined]
            raise error
        return [result for _, result in everybody]

    def from_main(self, work: Callable[[], T]) -> T:
        """The result of `work`, which only runs in the main process."""
        return self.gather(work if self.is_main else lambda: None)[0]  # type: ignore[arg-type,return-value]

    def share(
        self,
        count: int,
        work: Callable[[range, Callable[..., None]], None],
        tell: Callable[..., None],
    ) -> None:
        """Call `work` with the indices, out of `count`, that this process does; it calls its second
        argument with each result. `tell` is called for the results of all processes, for this one's
        own immediately.
        """
        results: list[tuple] = []

        def own(*result: Any) -> None:
            results.append(result)
            tell(*result)

        everybody = self.gather(lambda: work(range(self.number, count, self.size), own) or results)
        for number, others in enumerate(everybody):
            for result in others if number != self.number else ():
                tell(*result)

    def check(self, stop: Callable[[], None]) -> None:
        """Raises Stop in all processes if `stop` raises it in one."""
        self.gather(stop)

    def mine(self, rows: Sequence[Sequence[int]]) -> list[int]:
        """The indices of the rows that this process computes. Rows with a common beginning stay
        together.
        """
        return shares(rows, self.size)[self.number] if self.size > 1 else list(range(len(rows)))

    def part_of_each(self, batch_size: int, rows: Sequence[T]) -> list[T]:
        """This process's rows of consecutive batches: the same number from each batch as every
        other process.
        """
        each = batch_size // self.size
        return [row for at, row in enumerate(rows) if at % batch_size // each == self.number]

    def joined(self, values: Tensor) -> Tensor:
        """The values of all processes, concatenated; [n] or a single one in each."""
        return torch.cat(self.gather(lambda: values.detach().cpu().reshape(-1))).to(values.device)

    def add(self, *tensors: Tensor) -> None:
        """Replace each tensor by its sum over the processes. Raises PeerEnded."""
        if self.size == 1 or not tensors:
            return
        whole = torch.cat([tensor.reshape(-1) for tensor in tensors])
        try:
            torch.distributed.all_reduce(whole)
        except RuntimeError as error:
            raise PeerEnded from error
        for tensor, summed in zip(
            tensors, whole.split([tensor.numel() for tensor in tensors]), strict=True
        ):
            tensor.copy_(summed.view_as(tensor))

    def add_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Sum the gradients of the trained parameters over the processes; those of a process
        without rows are zero.
        """
        if self.size == 1:
            return
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        for parameter in trained:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self.add(*(parameter.grad for parameter in trained if parameter.grad is not None))

    def average_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Average gradients of losses that are means over equally many rows: the result is the
        gradient of the mean over all.
        """
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        self.add_gradients(trained)
        for parameter in trained:
            if self.size > 1 and parameter.grad is not None:
                parameter.grad /= self.size

    def totals(self, work: Callable[[], dict[str, float]]) -> dict[str, float]:
        """The sums of the metrics that `work` returns in each process."""
        total = Counter[str]()
        for found in self.gather(work):
            total.update(found)
        return dict(total)

    def _exchanged(self, mine: Any) -> list[Any]:
        """Exchanged with pickle by torch, but only between processes of one job."""
        found: list[Any] = [None] * self.size
        try:
            torch.distributed.all_gather_object(found, mine)
        except RuntimeError as error:
            raise PeerEnded from error
        return found


ALONE = Ranks()


def join(count: int, *, in_lockstep: bool = False) -> Ranks:
    """Join the other processes of this job, `count` according to its spec. Raises SpecError."""
    if not processes.are_started() or processes.count() == count == 1:
        return ALONE
    if processes.count() != count:
        raise SpecError(
            f"“config.processes” must be {processes.count()}, the number of processes that were"
            f" started, not {count}."
        )
    if any(
        os.environ.get(f"ACCELERATE_USE_{name}", "").lower() == "true"
        for name in ("FSDP", "DEEPSPEED")
    ):
        raise SpecError(NOT_SHARDED)
    found = Ranks(processes.number(), count, in_lockstep)
    if torch.distributed.is_initialized():
        return found
    gpus = torch.cuda.device_count()
    if 0 < gpus < count:
        raise SpecError(
            f"“config.processes” must be at most {gpus}, the number of GPUs here, not {count}."
        )
    if gpus:
        show_own_gpu(gpus)
    torch.distributed.init_process_group("nccl" if gpus else "gloo", timeout=PATIENCE)
    show_trl_one_process(cpu=not gpus)
    return found


def show_own_gpu(gpus: int) -> None:
    """Hide the other GPUs from this process before it has used any: otherwise transformers would
    train on the first, or on all.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))
    os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[
        int(os.environ.get("LOCAL_RANK", processes.number()))
    ]


def show_trl_one_process(*, cpu: bool) -> None:
    """transformers and TRL ask accelerate for the number of processes. They have to see a single
    one, because the distribution of rows, the summing of gradients and the common end are handled
    here (`arguments` in workers.ml.trl_runs requests this state).
    """
    from accelerate import PartialState

    with without("LOCAL_RANK", "WORLD_SIZE"):
        PartialState(cpu=cpu)


@contextmanager
def without(*names: str) -> Iterator[None]:
    """Remove these environment variables within the block."""
    were = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(were)
