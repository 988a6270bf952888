"""Run in an exported folder by the Python of `.venv-engines`: the words of launch.sh go through
OpenRLHF's own argument parser.

Its programs parse below `if __name__ == "__main__"`, where they also train: that part is run up to
the training.
"""

import ast
import importlib.util
import json
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

form = sys.argv[1]
sys.path.insert(0, ".")
Path("data/rendered").mkdir(exist_ok=True)
subprocess.run(
    [sys.executable, "render.py", "data/train.jsonl", "data/rendered/train.jsonl", form], check=True
)
lines = Path("launch.sh").read_text().replace("\\\n", " ").splitlines()
words = shlex.split(next(line for line in lines if "openrlhf.cli." in line))
at = next(number for number, word in enumerate(words) if word.startswith("openrlhf.cli."))
home = Path(next(iter(importlib.util.find_spec("openrlhf").submodule_search_locations)))
tree = ast.parse((home / "cli" / f"{words[at].rpartition('.')[2]}.py").read_text())
main = next(node for node in tree.body if isinstance(node, ast.If)).body
ends = next(number for number, node in enumerate(main) if ast.unparse(node) == "train(args)")
sys.argv = [words[at], *(word for word in words[at + 1 :] if word != "$@")]
space: dict = {}
exec(
    "import argparse, os\nfrom datetime import datetime\n"
    + "\n".join(map(ast.unparse, main[:ends])),
    space,
)
args = space["args"]
row = json.loads(Path("data/rendered/train.jsonl").read_text().splitlines()[0])
if form in ("openrlhf_sft", "openrlhf"):
    assert (
        row[args.data.input_key]
        and row[args.data.output_key if form == "openrlhf_sft" else args.data.label_key]
    )
else:
    from datasets import load_dataset
    from transformers import AutoTokenizer

    tokenizer, strategy = AutoTokenizer.from_pretrained("model"), SimpleNamespace(args=args)
    source = load_dataset("json", data_dir=args.data.dataset.partition("@")[2], split="train")
    given = json.loads(Path("data/train.jsonl").read_text().splitlines()[0])
if form == "pieces":
    from openrlhf.datasets.sft_dataset import SFTDataset

    rows = SFTDataset(
        source,
        tokenizer,
        args.data.max_len,
        strategy,
        input_template=args.data.input_template,
        num_processors=1,
        multiturn=args.data.multiturn,
    )
    ids, _, mask = rows[0]
    whole, plain = (
        tokenizer.decode(ids[0]),
        AutoTokenizer.from_pretrained("model"),
    )  # the data set gave the first another template
    learned = tokenizer.decode(
        [token for token, mine in zip(ids[0][1:], mask[0][:-1], strict=True) if mine]
    )
    asked = [*given["messages"], *given["turns"]]
    assert whole == plain.apply_chat_template(asked, tokenize=False).rstrip("\n"), whole
    said = [turn["content"] for turn in given["turns"] if turn["role"] == "assistant"]
    assert learned == "".join(f"{one}<|im_end|>" for one in said), learned
elif form == "pair":
    from openrlhf.datasets.reward_dataset import RewardDataset
    from render import rendered

    rows = RewardDataset(
        source,
        tokenizer,
        args.data.max_len,
        strategy,
        input_template=args.data.input_template,
        is_dpo=True,
        num_processors=1,
    )
    chosen, _, rejected, _, start = rows[0]
    for ids, name in ((chosen, "chosen"), (rejected, "rejected")):
        assert tokenizer.decode(ids[0]) == rendered(tokenizer, given) + given[name] + "<|im_end|>"
        assert tokenizer.decode(ids[0][start:]) == given[name] + "<|im_end|>"
print("READ", form)
