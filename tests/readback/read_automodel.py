"""Run in an exported folder by the Python of `.venv-engines`: NeMo AutoModel's own loader of configurations, its PEFT settings and
its chat data set read it."""

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
taught = sum(label != -100 for label in rows[0]["labels"])
completion = json.loads(Path("data/train.jsonl").read_text().splitlines()[0])["messages"][-1]["content"]
assert 0 < taught < len(rows[0]["labels"]) and completion
print("READ", len(rows))
