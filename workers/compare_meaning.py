"""Finds the tasks that could train and are closest in meaning to a held-out one. `python -m
workers.compare_meaning spec.json` (docs/jobs.md).

Every text becomes a vector: the mean of the model's own last hidden states, or the result of a
server's `/v1/embeddings`. The pairs that stand out most are the result; a person reviews them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from workers.lib import meaning
from workers.lib.clients import chat_server
from workers.lib.embeddings import EmbeddingClient
from workers.lib.errors import JobError
from workers.lib.events import Emitter
from workers.lib.program import StopFlag, run_main
from workers.lib.specs.compare_meaning import CompareMeaning
from workers.lib.specs.engines import InProcess, Model, Server

Batches = Iterator[tuple[list[int], np.ndarray]]


def main(spec: CompareMeaning, events: Emitter, stop: StopFlag) -> None:
    texts = [task.text for task in spec.held] + [
        text for task in spec.others for text in task.texts
    ]
    own = isinstance(spec.engine, InProcess)
    events.progress(0, len(texts), "loading the model" if own else "asking the server")
    found: np.ndarray | None = None
    done = 0
    for positions, vectors in vectors_of(spec, texts):
        if found is None:
            found = np.zeros((len(texts), vectors.shape[1]), dtype=np.float32)
        found[positions] = vectors
        done += len(positions)
        events.progress(done, len(texts), "texts read")
        stop.check()
    assert found is not None, "there are texts of both sides"
    if not np.isfinite(found).all():
        raise JobError(
            "The model's hidden states hold numbers that are not finite. Choose another model"
            " version."
        )
    events.progress(done, len(texts), "comparing")
    pairs = most_alike(spec, meaning.discriminating(found), meaning.wording(texts))
    events.result(pairs=pairs, texts=len(texts), known=len(spec.known))


def most_alike(spec: CompareMeaning, vectors: np.ndarray, words: np.ndarray) -> list[dict]:
    """[{held, other, text, score}]: ids of the two tasks, and which text of the second one is
    similar.
    """
    owners = [at for at, task in enumerate(spec.others) for _ in task.texts]
    places = [place for task in spec.others for place in range(len(task.texts))]
    held_ids = {task.id: at for at, task in enumerate(spec.held)}
    other_ids = {task.id: at for at, task in enumerate(spec.others)}
    known = {
        (held_ids[one], other_ids[two])
        for one, two in spec.known
        if one in held_ids and two in other_ids
    }
    found = meaning.most_alike(vectors, words, len(spec.held), owners, known, spec.most)
    return [
        {
            "held": spec.held[pair.held].id,
            "other": spec.others[pair.other].id,
            "text": places[pair.text],
            "score": pair.score,
        }
        for pair in found
    ]


def vectors_of(spec: CompareMeaning, texts: list[str]) -> Batches:
    """Yield (positions, vectors) until every text has a vector. Raises JobError."""
    return (
        of_server(spec.engine, texts)
        if isinstance(spec.engine, Server)
        else of_model(spec.model, spec.engine, texts)
    )


def of_server(engine: Server, texts: list[str]) -> Batches:
    with EmbeddingClient(chat_server(engine, "engine", name="embeddings server")) as client:
        at = 0
        for vectors in client.vectors(texts):
            yield list(range(at, at + len(vectors))), vectors
            at += len(vectors)


def of_model(model: Model, engine: InProcess, texts: list[str]) -> Batches:
    from workers.ml.hidden_states import vectors
    from workers.ml.models import device, load_policy, set_threads

    set_threads(engine.threads)
    loaded, tokenizer = load_policy(model.base, model.adapter, engine.dtype)
    yield from vectors(loaded.to(device()), tokenizer, texts, engine.batch_size)


if __name__ == "__main__":
    run_main(CompareMeaning, main)
