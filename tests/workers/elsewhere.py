"""A pretended GPU: tensors that compute on the processor, but say that they lie elsewhere and
refuse to be mixed.

It finds what only a GPU shows otherwise: a tensor made on the wrong device, and each wait for the
device. It says nothing of the GPU's own arithmetic or speed. The name of the device is torch's
"meta": the one besides "cpu" whose gradients need no threads of a real device.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

ELSEWHERE = "meta"
COPIES = ("_to_copy", "copy_")  # what carries values from one device to another
INDEXING = ("index", "index_put_", "_index_put_impl_")  # takes indices from the processor
WAITS = (
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
)  # the host needs a value, or a shape that depends on values


class Far(Tensor):
    """A tensor that lies elsewhere; `near` are its values."""

    near: Tensor

    @staticmethod
    def __new__(cls, near: Tensor) -> Far:
        made = Tensor._make_wrapper_subclass(
            cls,
            near.shape,
            strides=near.stride(),
            storage_offset=near.storage_offset(),
            dtype=near.dtype,
            device=ELSEWHERE,
        )
        made.near = near
        return made

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if function is Tensor.tolist:
            Elsewhere.waits += 1
            return args[0].detach().near.tolist()
        if (
            function is Tensor.t and torch.is_inference_mode_enabled()
        ):  # of a parameter: no view can be made of such a wrapper there
            with torch.inference_mode(False), torch.no_grad():
                return super().__torch_function__(function, types, args, kwargs or {})
        return super().__torch_function__(function, types, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        return parts_or_whole(function, args, kwargs or {})


class Elsewhere(TorchDispatchMode):
    """Also catches what has no tensor among its arguments (`torch.zeros(…, device=…)`), and what is
    moved.
    """

    waits: ClassVar[int] = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        with self:
            return parts_or_whole(function, args, kwargs or {})


class Literals(TorchFunctionMode):
    """`torch.tensor([…], device=…)` fills its tensor below the dispatcher, where nothing else here
    would see it.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is torch.tensor and str(kwargs.get("device")) == ELSEWHERE:
            return function(*args, **kwargs | {"device": "cpu"}).to(ELSEWHERE)
        return function(*args, **kwargs)


def parts_or_whole(function: Any, args: tuple, kwargs: dict) -> Any:
    """Without gradients, operations that are made of others arrive whole: `to` in place of
    `_to_copy`.
    """
    made = function.decompose(*args, **kwargs)
    if made is not NotImplemented:
        return made
    with _disable_current_modes():
        return computed(function, args, kwargs)


def computed(function: Any, args: tuple, kwargs: dict) -> Any:
    """The operation on the values; its result lies where it would on a GPU. Raises AssertionError
    for a mixture.
    """
    name, leaves = function.overloadpacket.__name__, tree_leaves((args, kwargs))
    far = [leaf for leaf in leaves if isinstance(leaf, Far)]
    if far and name not in (*COPIES, *INDEXING):
        near = [
            leaf
            for leaf in leaves
            if isinstance(leaf, Tensor) and not isinstance(leaf, Far) and leaf.dim()
        ]
        assert not near, (
            f"{function} mixes devices: shapes {[tuple(leaf.shape) for leaf in near]} are on the"
            " processor"
        )
    asked = kwargs.get("device")
    goes_far = torch.device(asked).type == ELSEWHERE if asked is not None else bool(far)
    if name == "copy_":
        goes_far = isinstance(args[0], Far)
    Elsewhere.waits += bool(far) and (
        name in WAITS or (name in COPIES and not goes_far) or masks(name, args)
    )
    if goes_far and asked is not None:
        kwargs = kwargs | {"device": "cpu"}
    out = function(*unwrapped(args), **unwrapped(kwargs))
    if not goes_far or name == "_local_scalar_dense":
        return out
    if name.endswith("_"):
        return args[0]
    return tree_map(lambda leaf: Far(leaf) if isinstance(leaf, Tensor) else leaf, out)


def masks(name: str, args: tuple) -> bool:
    """Reading by a mask gives a shape that depends on its values."""
    return name == "index" and any(
        isinstance(one, Tensor) and one.dtype == torch.bool for one in args[1]
    )


def unwrapped(tree: Any) -> Any:
    return tree_map(lambda leaf: leaf.near if isinstance(leaf, Far) else leaf, tree)


@contextmanager
def elsewhere() -> Iterator[type[Elsewhere]]:
    """Within it the device ELSEWHERE holds values; yields the counter of waits."""
    Elsewhere.waits = 0
    with Elsewhere(), Literals():
        yield Elsewhere
