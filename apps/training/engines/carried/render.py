"""`python render.py IN OUT FORM`: prompts as the text that the model's chat template makes of them, tools and all.

Engines that take messages without tools, or text alone, then see the very tokens that Flywheel's own trainer shows the model.
"""

import json
import sys
from pathlib import Path

from transformers import AutoTokenizer


def rendered(tokenizer, row):
    options = {"tokenize": False, "add_generation_prompt": True}
    return tokenizer.apply_chat_template(row["messages"], tools=row["tools"] or None, **options)


def ended(tokenizer, completion):
    """A completion as it is trained: with the token that ends a turn."""
    known = tokenizer.get_vocab()
    return completion + ("<|im_end|>" if "<|im_end|>" in known else tokenizer.eos_token or "")


def verl(tokenizer, row):
    """One message of the whole prompt; launch.sh gives veRL a chat template that adds nothing to it."""
    prompt = [{"role": "user", "content": rendered(tokenizer, row)}]
    truth = {"style": "rule", "ground_truth": row["row"]}
    return {"data_source": "flywheel", "prompt": prompt, "ability": "agent", "reward_model": truth,
            "extra_info": {"index": row["index"], "key": row["key"]}}  # fmt: skip


def openrlhf(tokenizer, row):
    return {"input": rendered(tokenizer, row), "label": row["row"]}


def openrlhf_sft(tokenizer, row):
    return {"input": rendered(tokenizer, row), "output": ended(tokenizer, row["completion"])}


def main(source, target, form):
    tokenizer = AutoTokenizer.from_pretrained("model")
    rows = [json.loads(line) for line in Path(source).read_text(encoding="utf-8").splitlines()]
    lines = [
        json.dumps({"verl": verl, "openrlhf": openrlhf, "openrlhf_sft": openrlhf_sft}[form](tokenizer, row))
        for row in rows
    ]
    Path(target).write_text("".join(line + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
