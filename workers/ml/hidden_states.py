"""A text as one vector: the mean of a causal model's last hidden states over the text's tokens.
Heavy: imports torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from workers.ml.tree import decoder_of

# tokens per text, so that reading it twice fits into the 1,024 positions of the smallest models
LONGEST = 500
# In a causal model, early tokens do not see later ones. So the text is read twice and only the
# second reading is pooled: “Repetition Improves Language Model Embeddings” (Springer et al. 2024).
FIRST, AGAIN = "Rewrite the request: ", "\nThe rewritten request: "


@torch.inference_mode()
def vectors(
    model: Any, tokenizer: Any, texts: Sequence[str], batch_size: int
) -> Iterator[tuple[list[int], np.ndarray]]:
    """Yield (positions of texts, [texts, hidden] float32) for batches of texts of similar length. A
    text without any tokens gets a vector of zeros. The model must be on its device, in evaluation
    mode.
    """
    decoder, _ = decoder_of(model)
    where = next(model.parameters()).device
    first, again = (
        tokenizer(part, add_special_tokens=False)["input_ids"] for part in (FIRST, AGAIN)
    )
    tokens = [tokenizer(text, add_special_tokens=False)["input_ids"][:LONGEST] for text in texts]
    order = sorted(range(len(tokens)), key=lambda at: len(tokens[at]))
    for begin in range(0, len(order), batch_size):
        some = order[begin : begin + batch_size]
        rows = [[*first, *tokens[at], *again, *tokens[at]] for at in some]
        width = max(map(len, rows))
        ids = torch.zeros(len(rows), width, dtype=torch.long)
        real, pooled = torch.zeros_like(ids), torch.zeros_like(ids)
        for number, (at, row) in enumerate(zip(some, rows, strict=True)):
            ids[number, : len(row)] = torch.tensor(row)
            real[number, : len(row)] = 1
            pooled[number, len(row) - len(tokens[at]) : len(row)] = 1
        hidden = decoder(
            input_ids=ids.to(where), attention_mask=real.to(where), use_cache=False
        ).last_hidden_state
        weights = pooled.to(where)[..., None].float()
        sums = (hidden.float() * weights).sum(1) / weights.sum(1).clamp(min=1)
        yield some, sums.cpu().numpy()
