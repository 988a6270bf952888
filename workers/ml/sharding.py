"""A base model whose layers are divided among the processes of a run (FSDP, torch's fully_shard).
Heavy: imports torch.

Each process holds a part of every layer's frozen weights, and all of the adapter, the embeddings
and the output layer. A layer is assembled when all processes reach it, in the forward and the
backward pass, so all of them must run the layers equally often. Rows are therefore computed side by
side with padding, equally many in each process, without the prefix tree, whose parts would differ.
Adapter and optimizer work as without sharding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from workers.lib.errors import SpecError
from workers.ml.losses import token_logprobs
from workers.ml.models import device
from workers.ml.ranks import Ranks
from workers.ml.tree import Row, Scored, decoder_of, pad


def shard_layers(model: Any, ranks: Ranks) -> Any:
    """Shard the model and move it to its device. Raises SpecError for a model whose layers are not
    known.
    """
    decoder = model.get_base_model().base_model
    if not isinstance(layers := getattr(decoder, "layers", None), torch.nn.ModuleList):
        raise SpecError(
            f"“config.shard” must be false: the layers of {type(decoder).__name__} are not known"
            " here."
        )
    mesh = init_device_mesh(device(), (ranks.size,))
    for layer in layers:  # one at a time, so that a GPU never holds more than one whole layer
        layer.to(device())
        fully_shard(
            layer,
            mesh=mesh,
            ignored_params={one for one in layer.parameters() if one.requires_grad},
        )
    for tensor in (*whole(model), *model.buffers()):
        tensor.data = tensor.data.to(device())
    fully_shard(decoder, mesh=mesh, ignored_params=set(whole(model)))
    return model


def whole(model: Any) -> list[torch.nn.Parameter]:
    """The parameters that each process holds completely."""
    return [parameter for parameter in model.parameters() if not isinstance(parameter, DTensor)]


def scored_rows(model: Any, rows: Sequence[Row], at_once: int) -> Iterator[Scored]:
    """Like `workers.ml.tree.scored_parts`, but `at_once` complete rows at a time."""
    decoder, head = decoder_of(model)
    where = head.weight.device
    for start in range(0, len(rows), at_once):
        some = rows[start : start + at_once]
        ids, real = pad([row.ids for row in some], 0)
        learnt = pad([[int(one) for one in row.learnt] for row in some], 0)[0].bool()[:, 1:]
        hidden = decoder(
            input_ids=ids.to(where), attention_mask=real.to(where), use_cache=False
        ).last_hidden_state
        found = token_logprobs(
            head, hidden[:, :-1][learnt.to(where)], ids[:, 1:][learnt].to(where), 1.0
        )
        _, used = pad([[0] * int(row.sum()) for row in learnt], 0)
        used = used.to(where)
        tokens = type(found)(
            *(
                torch.zeros(used.shape, dtype=one.dtype, device=where).masked_scatter(used, one)
                for one in found
            )
        )
        yield Scored(torch.arange(start, start + len(some), device=where), tokens, used)
