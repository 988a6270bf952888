"""The processes that train one adapter together (data parallel, through accelerate). Heavy: imports torch.

Each has the whole model and does a share of the work; what they learn is added up, so that all take the same step. They end
together: what ends one of them while it works is known to all before anything is exchanged.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
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
PATIENCE = timedelta(days=7)  # one may wait for what another samples; a process that ends is noticed at once
NOT_SHARDED = (
    "A model that is sharded over processes (FSDP, DeepSpeed) cannot be trained here: each process computes other parts of the prefix "
    "tree, and a sharded layer needs all of them at the same time. Start it without; each process then has the whole model."
)


@dataclass(frozen=True)
class Ranks:
    """This process is `number` of `size`. Alone, everything is done at once and nothing is sent."""

    number: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether it is the one that reports, and writes checkpoints."""
        return self.number == 0

    def gather(self, work: Callable[[], T]) -> list[T]:
        """What `work` gives in each process, in their order. Where it is stopped in one of them it is in all, and where it fails in
        one, the others raise PeerEnded."""
        if self.size == 1:
            return [work()]
        found, error = None, None
        try:
            found = work()
        except Exception as raised:
            error = raised
        everybody = self._exchanged(("stopped" if isinstance(error, Stop) else "failed" if error else "", found))
        if error:
            raise error
        endings = [ending for ending, _ in everybody]
        if "failed" in endings:
            raise PeerEnded
        if "stopped" in endings:
            raise Stop
        return [result for _, result in everybody]

    def from_main(self, work: Callable[[], T]) -> T:
        """What `work` gives in the main process, where alone it is done."""
        return self.gather(work if self.is_main else lambda: None)[0]  # type: ignore[arg-type,return-value]

    def share(self, count: int, work: Callable[[range, Callable[..., None]], None], tell: Callable[..., None]) -> None:
        """`work` is given the numbers, of `count`, that this process does and calls what it is given for each result; `tell` is
        called for the results of all processes, this one's at once."""
        results: list[tuple] = []

        def own(*result: Any) -> None:
            results.append(result)
            tell(*result)

        everybody = self.gather(lambda: work(range(self.number, count, self.size), own) or results)
        for number, others in enumerate(everybody):
            for result in others if number != self.number else ():
                tell(*result)

    def check(self, stop: Callable[[], None]) -> None:
        """Raises Stop in all processes where `stop` does so in one."""
        self.gather(stop)

    def mine(self, rows: Sequence[Sequence[int]]) -> list[int]:
        """The numbers of the rows that this process computes: those that begin alike stay together."""
        return shares(rows, self.size)[self.number]

    def add(self, *tensors: Tensor) -> None:
        """Each becomes the sum over the processes. Raises PeerEnded."""
        if self.size == 1 or not tensors:
            return
        whole = torch.cat([tensor.reshape(-1) for tensor in tensors])
        try:
            torch.distributed.all_reduce(whole)
        except RuntimeError as error:
            raise PeerEnded from error
        for tensor, summed in zip(tensors, whole.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(summed.view_as(tensor))

    def add_gradients(self, parameters: Iterable[Tensor]) -> None:
        """`add` of those of the trained parameters; one that had no row has zeros."""
        if self.size == 1:
            return
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        for parameter in trained:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self.add(*(parameter.grad for parameter in trained if parameter.grad is not None))

    def totals(self, work: Callable[[], dict[str, float]]) -> dict[str, float]:
        """The sums of the metrics that `work` gives in each process."""
        total = Counter[str]()
        for found in self.gather(work):
            total.update(found)
        return dict(total)

    def _exchanged(self, mine: Any) -> list[Any]:
        """Pickled by torch, between processes of one job."""
        found: list[Any] = [None] * self.size
        try:
            torch.distributed.all_gather_object(found, mine)
        except RuntimeError as error:
            raise PeerEnded from error
        return found


ALONE = Ranks()


def join(count: int) -> Ranks:
    """The processes of this job, `count` of them by its spec. Raises SpecError."""
    if not processes.are_started() or processes.count() == count == 1:
        return ALONE
    if processes.count() != count:
        raise SpecError(
            f"“config.processes” must be {processes.count()}, the number of processes that were started, not {count}."
        )
    if any(os.environ.get(f"ACCELERATE_USE_{name}", "").lower() == "true" for name in ("FSDP", "DEEPSPEED")):
        raise SpecError(NOT_SHARDED)
    gpus = torch.cuda.device_count()
    if 0 < gpus < count:
        raise SpecError(f"“config.processes” must be at most {gpus}, the number of GPUs here, not {count}.")
    from accelerate import PartialState

    state = PartialState(cpu=not gpus, timeout=PATIENCE)
    return Ranks(state.process_index, state.num_processes)
