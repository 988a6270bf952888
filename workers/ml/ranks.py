"""The processes that train one adapter together (data parallel). Heavy: imports torch.

Each has the whole model and does a share of the work; what they learn is added up, so that all take the same step. They end
together: what ends one of them while it works is known to all before anything is exchanged.
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
PATIENCE = timedelta(days=7)  # one may wait for what another samples; a process that ends is noticed at once
NOT_SHARDED = (
    "accelerate's sharding (FSDP, DeepSpeed) cannot be used here. Start it without; each process then has the whole model. SFT, DPO, KTO "
    "and reward models divide the base's layers themselves with “config.shard”."
)


@dataclass(frozen=True)
class Ranks:
    """This process is `number` of `size`. Alone, everything is done at once and nothing is sent."""

    number: int = 0
    size: int = 1
    in_lockstep: bool = False  # a model in parts: one that fails cannot reach the others, which notice when it ends

    @property
    def is_main(self) -> bool:
        """Whether it is the one that reports, and writes checkpoints."""
        return self.number == 0

    def gather(self, work: Callable[[], T]) -> list[T]:
        """What `work` gives in each process, in their order. Where it is stopped in one of them it is in all, and where it fails in
        one, the others raise PeerEnded. `work` may gather itself: what ends it there is known to all and not sent again."""
        if self.size == 1:
            return [work()]
        found, error = None, None
        try:
            found = work()
        except Exception as raised:
            if getattr(raised, "known_to_all", False) or (self.in_lockstep and not isinstance(raised, Stop)):
                raise
            error = raised
        everybody = self._exchanged(("stopped" if isinstance(error, Stop) else "failed" if error else "", found))
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
        return shares(rows, self.size)[self.number] if self.size > 1 else list(range(len(rows)))

    def part_of_each(self, batch_size: int, rows: Sequence[T]) -> list[T]:
        """The rows that this process computes of batches that follow one another: as many of each batch as the others do."""
        each = batch_size // self.size
        return [row for at, row in enumerate(rows) if at % batch_size // each == self.number]

    def joined(self, values: Tensor) -> Tensor:
        """The values of all processes one after the other, [n] or a single one in each."""
        return torch.cat(self.gather(lambda: values.detach().cpu().reshape(-1))).to(values.device)

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

    def average_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Of losses that are each the mean of as many rows: the gradient of the mean of all."""
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        self.add_gradients(trained)
        for parameter in trained:
            if self.size > 1 and parameter.grad is not None:
                parameter.grad /= self.size

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


def join(count: int, *, in_lockstep: bool = False) -> Ranks:
    """The processes of this job, `count` of them by its spec. Raises SpecError."""
    if not processes.are_started() or processes.count() == count == 1:
        return ALONE
    if processes.count() != count:
        raise SpecError(
            f"“config.processes” must be {processes.count()}, the number of processes that were started, not {count}."
        )
    if any(os.environ.get(f"ACCELERATE_USE_{name}", "").lower() == "true" for name in ("FSDP", "DEEPSPEED")):
        raise SpecError(NOT_SHARDED)
    found = Ranks(processes.number(), count, in_lockstep)
    if torch.distributed.is_initialized():
        return found
    gpus = torch.cuda.device_count()
    if 0 < gpus < count:
        raise SpecError(f"“config.processes” must be at most {gpus}, the number of GPUs here, not {count}.")
    if gpus:
        show_own_gpu(gpus)
    torch.distributed.init_process_group("nccl" if gpus else "gloo", timeout=PATIENCE)
    show_trl_one_process(cpu=not gpus)
    return found


def show_own_gpu(gpus: int) -> None:
    """Hides the others from this process, before it has used any: transformers would train on the first, or on all."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))
    os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[int(os.environ.get("LOCAL_RANK", processes.number()))]


def show_trl_one_process(*, cpu: bool) -> None:
    """transformers and TRL ask accelerate how many processes there are. They are to see one: which rows each computes, what is added
    up and how all end together is decided here (`arguments` of workers.ml.trl_runs asks for this state)."""
    from accelerate import PartialState

    with without("LOCAL_RANK", "WORLD_SIZE"):
        PartialState(cpu=cpu)


@contextmanager
def without(*names: str) -> Iterator[None]:
    """These environment variables for a while."""
    were = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(were)
