"""Run in an exported folder by the Python of `.venv-engines`: the words of launch.sh go through OpenRLHF's own argument parser.

Its programs parse below `if __name__ == "__main__"`, where they also train: that part is run up to the training.
"""

import ast
import importlib.util
import json
import shlex
import subprocess
import sys
from pathlib import Path

form = sys.argv[1]
sys.path.insert(0, ".")
Path("data/rendered").mkdir(exist_ok=True)
subprocess.run([sys.executable, "render.py", "data/train.jsonl", "data/rendered/train.jsonl", form], check=True)
lines = Path("launch.sh").read_text().replace("\\\n", " ").splitlines()
words = shlex.split(next(line for line in lines if "openrlhf.cli." in line))
at = next(number for number, word in enumerate(words) if word.startswith("openrlhf.cli."))
home = Path(next(iter(importlib.util.find_spec("openrlhf").submodule_search_locations)))
tree = ast.parse((home / "cli" / f"{words[at].rpartition('.')[2]}.py").read_text())
main = next(node for node in tree.body if isinstance(node, ast.If)).body
ends = next(number for number, node in enumerate(main) if ast.unparse(node) == "train(args)")
sys.argv = [words[at], *(word for word in words[at + 1 :] if word != "$@")]
space: dict = {}
exec("import argparse, os\nfrom datetime import datetime\n" + "\n".join(map(ast.unparse, main[:ends])), space)
args = space["args"]
row = json.loads(Path("data/rendered/train.jsonl").read_text().splitlines()[0])
assert row[args.data.input_key] and row[args.data.output_key if form == "openrlhf_sft" else args.data.label_key]
print("READ", args.data.input_key)
