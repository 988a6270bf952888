"""The program of the semantic check: vectors of a real (tiny) model, what makes them tell texts
apart, which pairs it names.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bench.meaning import read
from tests.embeddings_server import running
from tests.workers.conftest import Recorder
from workers import compare_meaning
from workers.lib import meaning
from workers.lib.errors import JobError, SpecError
from workers.lib.program import Stop, StopFlag
from workers.lib.specs.compare_meaning import CompareMeaning
from workers.lib.specs.job import checked
from workers.ml.hidden_states import AGAIN, FIRST, LONGEST, vectors
from workers.ml.models import load_base
from workers.ml.tree import decoder_of

HELD = ("Close ticket 1.", "Bake a cake.")
OTHERS = (("Sing a song.",), ("Please shut number one.", "It is closed."), ("Walk the dog.",))


def spec_of(folder: Path | str, **changes: Any) -> dict:
    return {
        "model": {"base": str(folder), "adapter": None},
        "engine": {"kind": "transformers", "dtype": "float32", "threads": 1, "batch_size": 2},
        "held": [{"id": f"h{at}", "text": text} for at, text in enumerate(HELD)],
        "others": [{"id": f"o{at}", "texts": list(texts)} for at, texts in enumerate(OTHERS)],
    } | changes


def run(spec: dict, events: Recorder, stop: StopFlag | None = None) -> dict:
    compare_meaning.main(checked(spec, CompareMeaning), events, stop or StopFlag())
    return events.rows("result")[-1]


def test_a_text_is_the_mean_of_its_second_reading(tiny_model: Path) -> None:
    model, tokenizer = load_base(tiny_model)
    texts = [
        "Close ticket 1.",
        "a",
        "A much longer text than the two before it, so that rows are padded.",
    ]
    found: dict[int, np.ndarray] = {}
    for positions, some in vectors(model.eval(), tokenizer, texts, 2):
        found |= dict(zip(positions, some, strict=True))
    decoder, _ = decoder_of(model)
    for at, text in enumerate(texts):
        before, own = (
            tokenizer(part, add_special_tokens=False)["input_ids"]
            for part in (FIRST + text + AGAIN, text)
        )
        with torch.no_grad():
            hidden = decoder(input_ids=torch.tensor([before + own])).last_hidden_state[
                0, len(before) :
            ]
        assert hidden.shape[0] == len(own) and np.allclose(found[at], hidden.mean(0), atol=1e-4)
    [(_, long)] = vectors(model, tokenizer, ["ab" * LONGEST], 2)
    [(_, same)] = vectors(model, tokenizer, ["ab" * (LONGEST // 2)], 2)
    assert np.allclose(long, same, atol=1e-4), "only the beginning of a text is read"


def test_a_models_own_states_give_pairs_in_order(tiny_model: Path, events: Recorder) -> None:
    result = run(spec_of(tiny_model, most=4), events)
    scores = [pair["score"] for pair in result["pairs"]]
    assert len(scores) == 4 and scores == sorted(scores, reverse=True) and result["texts"] == 6
    assert {pair["held"] for pair in result["pairs"]} <= {"h0", "h1"} and events.rows("progress")[
        -1
    ]["done"] == 6
    again = run(
        spec_of(
            tiny_model, most=4, known=[[result["pairs"][0]["held"], result["pairs"][0]["other"]]]
        ),
        events,
    )
    left = [(pair["held"], pair["other"]) for pair in again["pairs"]]
    assert (result["pairs"][0]["held"], result["pairs"][0]["other"]) not in left and again[
        "known"
    ] == 1


def test_a_servers_vectors_name_the_text_that_is_alike(events: Recorder) -> None:
    with running() as server:
        server.meanings = {"It is closed.": HELD[0]}
        engine = {"kind": "openai", "base_url": server.url, "model": "m", "allow_private": True}
        result = run(spec_of("m", engine=engine), events)
    best = result["pairs"][0]
    assert (best["held"], best["other"], best["text"]) == ("h0", "o1", 1)


def test_a_stop_ends_it_and_numbers_that_are_none_are_said(
    tiny_model: Path, events: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = StopFlag()
    stop.is_set = True
    with pytest.raises(Stop):
        run(spec_of(tiny_model), events, stop)
    monkeypatch.setattr(
        compare_meaning, "vectors_of", lambda spec, texts: [([0], np.full((1, 4), np.nan))]
    )
    with pytest.raises(JobError, match="not finite"):
        run(spec_of(tiny_model), events)


@pytest.mark.parametrize(
    "changes", [{"held": []}, {"others": []}, {"most": 0}, {"others": [{"id": "o", "texts": []}]}]
)
def test_a_spec_with_one_side_only_is_refused(changes: dict, tiny_model: Path) -> None:
    with pytest.raises(SpecError):
        checked(spec_of(tiny_model, **changes), CompareMeaning)


# The method


@pytest.mark.parametrize("seed", [1, 2])
def test_nearly_parallel_vectors_are_told_apart(seed: int) -> None:
    """A common direction of 20 times the length of what differs: cosines near 1 for any two."""
    rng = np.random.default_rng(seed)
    what = rng.normal(size=(60, 40))
    states = np.concatenate(
        [what, what + rng.normal(scale=0.4, size=what.shape)]
    ) + 20 * rng.normal(size=40)
    assert (meaning.unit(states) @ meaning.unit(states).T).min() > 0.9
    found = meaning.most_alike(
        meaning.discriminating(states), np.zeros((120, 4)), 60, range(60), (), 60
    )
    assert sum(pair.held == pair.other for pair in found) >= 57


def test_two_of_one_wording_are_left_to_the_comparison_of_words() -> None:
    texts = [
        "Book a table at the Blue Heron on Friday.",
        "Book a table at the Golden Carp on Friday.",
        "Reserve seats for dinner.",
    ]
    words = meaning.wording(texts)
    assert words[0] @ words[1] > meaning.SAME_WORDING > words[0] @ words[2]
    same = np.tile(meaning.unit(np.ones((1, 3))), (3, 1))
    assert [
        (pair.held, pair.other) for pair in meaning.most_alike(same, words, 1, [0, 1], (), 9)
    ] == [(0, 1)]


def test_one_crowded_task_does_not_take_all_places() -> None:
    rng = np.random.default_rng(3)
    rows = meaning.unit(
        np.concatenate(
            [
                np.ones((1, 8)),
                rng.normal(size=(4, 8)),
                np.ones((9, 8)) + rng.normal(scale=0.01, size=(9, 8)),
            ]
        )
    )
    found = meaning.most_alike(rows, np.zeros((14, 2)), 5, range(9), (), 100)
    assert max(sum(pair.held == at for pair in found) for at in range(5)) == meaning.EACH


def test_the_best_text_of_a_task_counts_and_nothing_is_no_error() -> None:
    rows = np.eye(4, dtype=np.float32)[[0, 1, 0, 2]]
    [pair] = meaning.most_alike(rows, np.zeros((4, 2)), 1, [0, 0, 0], (), 9)
    assert (pair.other, pair.text) == (0, 1)
    assert meaning.most_alike(rows, np.zeros((4, 2)), 4, [], (), 9) == []
    assert np.isfinite(meaning.discriminating(np.ones((3, 4)))).all(), "all the same"


def test_the_pairs_of_the_benchmark_are_whole() -> None:
    examples = read()
    assert len(examples) == 72 and all(
        len(one.others) == 2 and one.held and one.same for one in examples
    )
    assert [
        sum(one.kind == kind for one in examples) for kind in ("words", "free", "translated")
    ] == [24, 24, 24]
