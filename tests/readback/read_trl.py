"""Run in an exported folder by the Python of `.venv-engines`: TRL's own trainer takes the rows that
train.py makes, and its tokens are those of the chat template. Nothing is trained."""

import json
from pathlib import Path

import train
from render import rendered

model, tokenizer = train.load()
made = train.trainer(model, tokenizer)
rows = list(made.train_dataset)
given = train.rows("train.jsonl")
ids = lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]  # noqa: E731


def text(tokens):
    return tokenizer.decode(tokens)


first, row = given[0], rows[0]
prompt = ids(rendered(tokenizer, first))
if "turns" in first:
    whole = tokenizer.apply_chat_template(
        [*first["messages"], *first["turns"]], tools=first["tools"] or None, tokenize=False
    )
    assert text(row["input_ids"]) == whole.rstrip("\n"), text(row["input_ids"])
    learned = [label for label in row["labels"] if label != -100]
    said = [turn for turn in first["turns"] if turn["role"] == "assistant"]
    assert text(learned).count("<|im_end|>") == len(said) and text(learned).endswith(
        "Done.<|im_end|>"
    ), text(learned)
    assert "Closed 12." in whole and "Closed 12." not in text(learned)
elif train.SETTINGS["method"] == "dpo":
    assert row["prompt_ids"] == prompt
    for name in ("chosen", "rejected"):
        assert text(row[f"{name}_ids"]) == f"{first[name]}<|im_end|>"
elif train.SETTINGS["method"] == "kto":
    assert (
        row["prompt_ids"] == prompt
        and text(row["completion_ids"]) == f"{first['completion']}<|im_end|>"
    )
    assert [one["label"] for one in rows] == [
        one["label"] for one in given
    ] and "KL_completion_ids" in row
    assert (
        made.args.undesirable_weight
        == json.loads(Path("settings.json").read_text())["trl"]["undesirable_weight"]
    )
print("READ", len(rows))
