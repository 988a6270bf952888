"""Run by the Python of `.venv-engines`: requests that Flywheel sent to an SGLang server, read by
SGLang's own request models.

Its modules need CUDA's packages to be imported, so the classes and the one function that reads
`model` are taken from its source. Standard input: {served_as, requests: [{path, body}]}; prints
what each request means to SGLang.
"""

import ast
import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Optional

home = Path(next(iter(importlib.util.find_spec("sglang").submodule_search_locations))) / "srt"


def classes(file: str) -> dict[str, ast.ClassDef]:
    return {
        node.name: node
        for node in ast.parse((home / file).read_text()).body
        if isinstance(node, ast.ClassDef)
    }


def fields_of(known: dict[str, ast.ClassDef], name: str) -> tuple[set[str], set[str]]:
    """(all, those without a default) of a class and of those that it extends."""
    every: set[str] = set()
    required: set[str] = set()
    for base in known[name].bases:
        if isinstance(base, ast.Name) and base.id in known:
            above, needed = fields_of(known, base.id)
            every, required = every | above, required | needed
    for node in known[name].body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            every.add(node.target.id)
            if node.value is None:
                required.add(node.target.id)
    return every, required


messages, openai = classes("managers/io_struct.py"), classes("entrypoints/openai/protocol.py")
MODELS = {
    "/generate": fields_of(messages, "GenerateReqInput"),
    "/load_lora_adapter": fields_of(messages, "LoadLoRAAdapterReqInput"),
    "/unload_lora_adapter": fields_of(messages, "UnloadLoRAAdapterReqInput"),
    "/v1/chat/completions": fields_of(openai, "ChatCompletionRequest"),
}
serving = classes("entrypoints/openai/serving_base.py")["OpenAIServingBase"]
space: dict = {"Optional": Optional, "Tuple": tuple}
for node in serving.body:
    if isinstance(node, ast.FunctionDef) and node.name == "_parse_model_parameter":
        exec(ast.unparse(node), space)

given = json.load(sys.stdin)
server = SimpleNamespace(tokenizer_manager=SimpleNamespace(served_model_name=given["served_as"]))
said = []
for request in given["requests"]:
    every, required = MODELS[request["path"]]
    sent = set(request["body"])
    assert sent <= every, f"{request['path']} knows no {sorted(sent - every)}"
    assert required <= sent, f"{request['path']} needs {sorted(required - sent)}"
    asked = request["body"].get("model")
    said.append(
        {
            "path": request["path"],
            "asks": list(space["_parse_model_parameter"](server, asked)) if asked else None,
        }
    )
print(json.dumps(said))
