"""Generation with shared prompts, held against the same model's plain forward pass in the
transformers library.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import LoraLayer
from transformers import AutoConfig, AutoModelForCausalLM

from workers.lib.engines import Output, Prompt, Sampling
from workers.lib.errors import JobError
from workers.lib.policies import seed_of
from workers.lib.specs.training import Lora
from workers.lib.token_rows import TokenRow
from workers.ml import lean, products, transformers_engine
from workers.ml.models import load_base, load_policy, lora, merges_exactly
from workers.ml.transformers_engine import TransformersEngine, nucleus, sample
from workers.ml.tree import decoder_of, logprobs_of, prefill, use_tree

SYSTEM = {
    "role": "system",
    "content": "Answer with one JSON call. tickets.close(id) email.send(to, subject)",
}
CLOSE = 2e-5  # float32, two ways to the same sums


def conversations(*texts: str) -> list[list[dict]]:
    return [[SYSTEM, {"role": "user", "content": text}] for text in texts]


CHATS = conversations(
    "Close 12.", "Send Ana a mail about the very long lunch of last Friday.", "Hi"
)


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> TransformersEngine:
    return TransformersEngine(*load_base(tiny_model), batch_size=64)


@pytest.fixture(scope="module")
def plain(tiny_model: Path) -> torch.nn.Module:
    """The same weights with the library's own attention."""
    return load_base(tiny_model)[0].eval()


@torch.inference_mode()
def plain_logprobs(
    plain: torch.nn.Module, prompt: list[int], completion: list[int], temperature: float
) -> list[float]:
    """One conversation alone, everything computed anew."""
    logits = plain(input_ids=torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
    logprobs = (logits / temperature).log_softmax(-1)
    return logprobs.gather(-1, torch.tensor(completion)[:, None])[:, 0].tolist()


def answers(
    engine: TransformersEngine, sampling: Sampling, n: int, chats: list | None = None, seed: int = 3
) -> list[list[Output]]:
    asked = [
        Prompt(chat, [seed_of(seed, index, sample) for sample in range(n)])
        for index, chat in enumerate(CHATS if chats is None else chats)
    ]
    found = dict(engine.generate(asked, sampling))
    return [found[index] for index in range(len(found))]


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_are_those_of_the_plain_model(
    temperature: float, engine: TransformersEngine, plain: torch.nn.Module
) -> None:
    for chat, outputs in zip(
        CHATS, answers(engine, Sampling(temperature, 1.0, 24), 4), strict=True
    ):
        for output in outputs:
            expected = plain_logprobs(plain, engine.prompt_ids(chat), output.token_ids, temperature)
            assert output.logprobs == pytest.approx(expected, abs=CLOSE)


@pytest.mark.proof
@pytest.mark.parametrize(
    "options",
    [
        {"target_modules": ["q_proj", "down_proj"]},
        None,
        {},
        {"use_dora": True},
    ],
)
def test_packed_weights_with_the_adapter_merged_say_the_same(
    options: dict | None, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In each batch they are those of the adapter as it is then; a batch not worth it, and a model
    too large, go without.
    """
    monkeypatch.setattr(products, "SMALLEST", 1)
    base, tokenizer = load_base(tiny_model)
    model = base if options is None else lora(base, Lora(lora_rank=4, **options), None)
    engine, sampling = TransformersEngine(model.eval(), tokenizer), Sampling(1.0, 1.0, 24)
    used, compute = [], products.Packed.__call__
    monkeypatch.setattr(
        products.Packed, "__call__", lambda self, x: used.append(len(x)) or compute(self, x)
    )
    torch.manual_seed(0)
    for _ in range(2):
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.data.copy_(torch.randn_like(parameter) * 0.1)
        found = answers(engine, sampling, 4)
        assert used and not any("packed" in vars(module) for module in model.modules())
        used.clear()
        rows = [
            row(engine.prompt_ids(chat), one.token_ids)
            for chat, some in zip(CHATS, found, strict=True)
            for one in some
        ]
        expected = logprobs_of(model, rows)
        for one, scores in zip(
            [one for some in found for one in some], expected.tolist(), strict=True
        ):
            assert one.logprobs == pytest.approx(scores[: len(one.logprobs)], abs=CLOSE)
    answers(engine, Sampling(1.0, 1.0, 2), 1)
    monkeypatch.setattr(lean, "MOST_PACKED", 1)
    answers(engine, sampling, 4)
    assert not used


def test_greedy_is_what_the_library_generates(
    engine: TransformersEngine, plain: torch.nn.Module
) -> None:
    for chat, [output] in zip(CHATS, answers(engine, Sampling(0.0, 1.0, 20), 1), strict=True):
        prompt = torch.tensor([engine.prompt_ids(chat)])
        expected = plain.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=20,
            do_sample=False,
            pad_token_id=0,
        )
        assert output.token_ids == expected[0, prompt.shape[1] :].tolist()
        assert output.prompt_tokens == prompt.shape[1]


def test_an_answer_does_not_depend_on_what_stands_beside_it(
    tiny_model: Path, engine: TransformersEngine
) -> None:
    sampling = Sampling(1.0, 1.0, 16)
    together = answers(engine, sampling, 3)
    small = TransformersEngine(*load_base(tiny_model), batch_size=3)
    one_by_one = answers(small, sampling, 3)
    assert [[o.token_ids for o in row] for row in together] == [
        [o.token_ids for o in row] for row in one_by_one
    ]
    fewer = answers(engine, sampling, 2)
    assert [[o.token_ids for o in row[:2]] for row in together] == [
        [o.token_ids for o in row] for row in fewer
    ]


@pytest.mark.proof
def test_prompts_with_more_and_fewer_answers_go_together(engine: TransformersEngine) -> None:
    """And a prompt's answers are those it has alone: a seed decides, not the neighbours."""
    sampling, seeds = Sampling(1.0, 1.0, 12), [[11, 12, 13], [14], [15, 16]]
    together = dict(
        engine.generate(
            [Prompt(chat, row) for chat, row in zip(CHATS, seeds, strict=True)], sampling
        )
    )
    for index, (chat, row) in enumerate(zip(CHATS, seeds, strict=True)):
        alone = [dict(engine.generate([Prompt(chat, [seed])], sampling))[0][0] for seed in row]
        assert [o.token_ids for o in together[index]] == [o.token_ids for o in alone]
        assert all(o.prompt_token_ids == engine.prompt_ids(chat) for o in alone)


def test_answers_are_shown_while_they_are_written(
    engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As far as they are by then; whoever watches changes none of them."""
    monkeypatch.setattr(transformers_engine, "SHOWN_EVERY_S", 0.0)
    sampling, seeds, shown = (
        Sampling(1.0, 1.0, 12),
        [[11, 12, 13], [14], [15, 16]],
        list[tuple[int, int, str]](),
    )
    prompts = [Prompt(chat, row) for chat, row in zip(CHATS, seeds, strict=True)]
    watched = dict(engine.generate(prompts, sampling, lambda *one: shown.append(one)))
    plain = dict(engine.generate(prompts, sampling))
    assert {i: [o.token_ids for o in row] for i, row in watched.items()} == {
        i: [o.token_ids for o in row] for i, row in plain.items()
    }
    assert {(index, place) for index, place, _ in shown} == {
        (i, n) for i, row in enumerate(seeds) for n in range(len(row))
    }
    for index, row in watched.items():
        for place, output in enumerate(row):
            texts = [text for one, at, text in shown if (one, at) == (index, place)]
            assert texts[0] != texts[-1] or len(output.token_ids) < 3
            whole = [
                engine.tokenizer.decode(output.token_ids[:n], skip_special_tokens=True)
                for n in range(13)
            ]
            assert set(texts) <= {text.removesuffix("\ufffd") for text in whole}


TOOL = {"type": "function", "function": {"name": "close", "parameters": {"type": "object"}}}
WITH_TOOLS = (
    "{% for tool in tools or [] %}[{{ tool.function.name }}]{% endfor %}"
    + "{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.arguments.n }}{% endfor %};{% endfor %}"
)


def test_tools_are_in_the_prompt_by_the_chat_template_or_as_text(tiny_model: Path) -> None:
    engine = TransformersEngine(*load_base(tiny_model))
    asked = [{"role": "user", "content": "Close 12."}]
    call = {"id": "c", "type": "function", "function": {"name": "close", "arguments": '{"n": 7}'}}
    said = [*asked, {"role": "assistant", "content": None, "tool_calls": [call]}]
    written = engine.tokenizer.decode(engine.prompt_ids(asked, [TOOL]))
    assert '"name": "close"' in written and '{"tool": name' in written
    assert "tool" not in engine.tokenizer.decode(engine.prompt_ids(asked))
    engine.tokenizer.chat_template = WITH_TOOLS
    assert (
        engine.tokenizer.decode(engine.prompt_ids(said, [TOOL]))
        == "[close]user:Close 12.;assistant:7;"
    )
    assert engine.tokenizer.decode(engine.prompt_ids(asked)) == "user:Close 12.;"


def test_a_seed_repeats_and_samples_differ(engine: TransformersEngine) -> None:
    sampling = Sampling(1.0, 1.0, 12)
    first, second = (
        answers(engine, sampling, 4, seed=2**40),
        answers(engine, sampling, 4, seed=2**40),
    )
    assert [[o.token_ids for o in row] for row in first] == [
        [o.token_ids for o in row] for row in second
    ]
    assert len({tuple(o.token_ids) for row in first for o in row}) >= 10  # some may end at once


class Forced(torch.nn.Module):
    """An output projection after which chosen rows end at chosen steps, as a trained model's do."""

    def __init__(self, head: torch.nn.Module, stop: int) -> None:
        super().__init__()
        self.head, self.stop, self.calls, self.rows = head, stop, 0, []

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = self.head(hidden)
        logits[:, self.stop] = -1e9
        self.rows.append(len(hidden))
        if self.calls in (2, 5):
            logits[0, self.stop] = 1e9
        self.calls += 1
        return logits


def test_finished_rows_leave_the_batch_and_the_others_go_on(
    tiny_model: Path, plain: torch.nn.Module
) -> None:
    engine = TransformersEngine(*load_base(tiny_model), batch_size=64)
    engine.head = head = Forced(engine.head, 2)
    [outputs] = answers(engine, Sampling(1.0, 1.0, 9), 3, CHATS[:1], seed=1)
    assert [len(output.token_ids) for output in outputs] == [3, 6, 9]
    assert [output.truncated for output in outputs] == [False, False, True]
    assert head.rows == [3, 3, 3, 2, 2, 2, 1, 1, 1]
    assert outputs[0].latency_ms < outputs[1].latency_ms < outputs[2].latency_ms
    prompt = engine.prompt_ids(CHATS[0])
    # The stop's own logits were changed everywhere: compare with the plain model changed alike.
    for output in outputs:
        own = [token for token in output.token_ids if token != 2]
        logits = (
            plain(input_ids=torch.tensor([prompt + own])).logits[0, len(prompt) - 1 : -1].detach()
        )
        logits[:, 2] = -1e9
        expected = logits.log_softmax(-1).gather(-1, torch.tensor(own)[:, None])[:, 0].tolist()
        assert output.logprobs[: len(own)] == pytest.approx(expected, abs=CLOSE)


def row(prompt: list[int], tokens: list[int]) -> TokenRow:
    return TokenRow([*prompt, *tokens], [False] * len(prompt) + [True] * len(tokens))


def test_completions_do_not_see_each_other(
    engine: TransformersEngine, plain: torch.nn.Module
) -> None:
    """Changing one completion changes nothing of another; each is what the plain model says
    alone.
    """
    generator = random.Random(0)
    prompts = [engine.prompt_ids(chat) for chat in CHATS]
    groups = [
        [[generator.randrange(3, 250) for _ in range(length)] for length in (5, 1, 9)]
        for _ in prompts
    ]

    def logprobs() -> torch.Tensor:
        return logprobs_of(engine.model, [row(*pair) for pair in pairs()])

    def pairs() -> list[tuple[list[int], list[int]]]:
        return [
            (prompt, tokens)
            for prompt, group in zip(prompts, groups, strict=True)
            for tokens in group
        ]

    before = logprobs()
    for found, (prompt, tokens) in zip(before.tolist(), pairs(), strict=True):
        assert found[: len(tokens)] == pytest.approx(
            plain_logprobs(plain, prompt, tokens, 1.0), abs=CLOSE
        )
    groups[1][2] = [7] * 9
    after = logprobs()
    assert (before[5] - after[5]).abs().max() > 0.01
    others = [number for number in range(9) if number != 5]
    assert torch.allclose(before[others], after[others], atol=1e-6)


@pytest.mark.parametrize(
    "texts",
    [["Same."], ["Same.", "Same."], ["a", "b"]],
    ids=["alone", "twice the same", "one letter apart"],
)
def test_prompts_that_share_all_or_nearly_all(
    texts: list[str], engine: TransformersEngine, plain: torch.nn.Module
) -> None:
    chats = conversations(*texts)
    for chat, [output] in zip(chats, answers(engine, Sampling(1.0, 1.0, 6), 1, chats), strict=True):
        expected = plain_logprobs(plain, engine.prompt_ids(chat), output.token_ids, 1.0)
        assert output.logprobs == pytest.approx(expected, abs=CLOSE)


def test_nothing_shared_at_all_works(engine: TransformersEngine, plain: torch.nn.Module) -> None:
    prompts, completions = [[10, 11, 12], [20]], [[30, 31], [40]]
    found = logprobs_of(
        engine.model, [row(*pair) for pair in zip(prompts, completions, strict=True)]
    )
    assert found[0].tolist() == pytest.approx(
        plain_logprobs(plain, prompts[0], [30, 31], 1.0), abs=CLOSE
    )
    assert found[1].tolist() == [
        pytest.approx(plain_logprobs(plain, prompts[1], [40], 1.0)[0], abs=CLOSE),
        0,
    ]


def test_sampling_follows_the_distribution() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    noise = torch.linspace(0, 1, 20_001)[:-1]
    chosen, logprobs = sample(logits.expand(20_000, 4), Sampling(temperature=0.5), noise)
    expected = (logits / 0.5).softmax(-1)
    share = torch.bincount(chosen, minlength=4) / 20_000
    assert torch.allclose(share, expected, atol=1e-3)
    assert torch.allclose(logprobs, expected.log()[chosen])


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    probabilities = torch.tensor([[0.1, 0.5, 0.15, 0.25]])
    assert nucleus(probabilities, 0.5).tolist() == [pytest.approx([0, 0.5, 0, 0])]
    assert nucleus(probabilities, 0.6).tolist() == [pytest.approx([0, 0.5, 0, 0.25])]
    noise = torch.linspace(0, 1, 1001)[:-1]
    chosen, _ = sample(probabilities.log().expand(1000, 4), Sampling(top_p=0.6), noise)
    assert set(chosen.tolist()) == {1, 3}


SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}


def small(kind: str, **fields: object) -> torch.nn.Module:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SMALL, **fields))


@pytest.mark.parametrize("kind", ["llama", "qwen2", "gpt2", "mistral"])
def test_models_of_other_makes_share_prompts_too(kind: str) -> None:
    fields = {"mistral": {"sliding_window": 64}, "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4}}
    use_tree(small(kind, **fields.get(kind, {})))


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("bloom", {}),  # ALiBi, and no way to replace its attention
        ("mamba", {}),  # no attention
        ("granite", {"logits_scaling": 8.0}),
        ("gemma2", {"head_dim": 8, "query_pre_attn_scalar": 8}),  # capped logits
        ("mistral", {"sliding_window": 6}),
    ],
)
def test_a_model_that_would_be_computed_wrong_is_refused(kind: str, fields: dict) -> None:
    model = small(kind, **fields)
    with pytest.raises(JobError, match=r"cannot be run with shared prompts.*openai engine"):
        use_tree(model)
    assert model.training


def test_a_prompt_beyond_the_attention_window_is_refused() -> None:
    model = small("mistral", sliding_window=20).eval()
    use_tree(model)
    with torch.inference_mode(), pytest.raises(JobError, match="window of 20 tokens"):
        prefill(decoder_of(model)[0], [list(range(3, 25)), [3, 4]])


def adapted(folder: Path, dtype: str = "float32") -> torch.nn.Module:
    """With an adapter that does something."""
    return shaken(lora(load_base(folder, dtype)[0], Lora(lora_rank=4), None))


def shaken(model: torch.nn.Module) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def test_a_loaded_adapter_is_in_the_weights(tiny_model: Path, tmp_path: Path) -> None:
    model = adapted(tiny_model)
    model.save_pretrained(tmp_path)
    policy, tokenizer = load_policy(tiny_model, tmp_path)
    assert not any(isinstance(module, LoraLayer) for module in policy.modules())
    sampling = Sampling(0.0, 1.0, 20)
    apart, together = (
        answers(TransformersEngine(each, tokenizer), sampling, 1) for each in (model, policy)
    )
    for [one], [other] in zip(apart, together, strict=True):
        assert one.token_ids == other.token_ids and one.logprobs == pytest.approx(
            other.logprobs, abs=1e-5
        )


def test_an_adapter_stays_beside_weights_in_which_it_would_be_rounded(tiny_model: Path) -> None:
    assert merges_exactly(adapted(tiny_model)) and not merges_exactly(
        adapted(tiny_model, "bfloat16")
    )


def test_an_adapter_stays_beside_an_output_that_shares_its_weights(tiny_model: Path) -> None:
    base = load_base(tiny_model)[0]
    assert base.get_output_embeddings().weight is base.get_input_embeddings().weight
    model = shaken(
        get_peft_model(
            base, LoraConfig(r=4, target_modules=["lm_head", "q_proj"], task_type="CAUSAL_LM")
        )
    )
    assert not merges_exactly(model)
