"""Run in an exported folder by the Python of `.venv-engines`: NeMo AutoModel's own loader of
configurations, its PEFT settings and its chat data set read it."""

import json
from pathlib import Path

from nemo_automodel.cli.utils import load_yaml, resolve_recipe_name
from nemo_automodel.components._peft.lora import PeftConfig
from nemo_automodel.components.datasets.llm.chat_dataset import ChatDatasetConfig
from transformers import AutoTokenizer

raw = load_yaml("run.yaml")
assert resolve_recipe_name(raw["recipe"]).startswith("nemo_automodel.recipes.llm.train_ft.")
PeftConfig(**{name: value for name, value in raw["peft"].items() if name != "_target_"})
given = {name: value for name, value in raw["dataset"].items() if name != "_target_"}
rows = ChatDatasetConfig(**given).build(tokenizer=AutoTokenizer.from_pretrained("model"))
assert len(rows) == len(Path("data/train.jsonl").read_text().splitlines())
given = [json.loads(line) for line in Path("data/train.jsonl").read_text().splitlines()]
labels = rows[0]["labels"]
learned = [label for label in labels if label != -100]
said = [one["content"] for one in given[0]["messages"] if one["role"] == "assistant"]
assert 0 < len(learned) < len(labels) and said
if raw["dataset"]["mask_history"]:
    said = said[-1:]
text = rows.tokenizer.decode(learned)
assert [one in text for one in said] == [True] * len(said) and text.count("<|im_end|>") == len(
    said
), text
assert "Closed 12." not in text
print("READ", len(rows))
