"""The exported folder: the engine's files, the files common to all folders, a short README, and a
manifest of hashes. Pure.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from typing import Any

from apps.training.engines import automodel, nemo_rl, openrlhf, prime_rl, scripts, verl
from apps.training.engines.plan import ExportError, Plan
from apps.training.engines.settings import left_behind

MANIFEST = "manifest.json"
DATED = (2026, 1, 1, 0, 0, 0)  # timestamp of every file, so that the same plan gives the same bytes
CARRIED = "apps.training.engines.carried"


@dataclass(frozen=True)
class Engine:
    """A training engine that runs can be exported to.

    `hooks`: the files from `carried` that it runs, by method. `multi_turn`: it can sample episodes
    of several turns. `renders`: it renders conversations with the base's own chat template instead
    of taking tokens or text. `resumes`: it can continue an adapter. `whole`: methods for which it
    trains all weights, so that no adapter comes back. `with_ray`: it requests GPUs from the Ray
    cluster itself.
    """

    slug: str
    label: str
    version: str
    methods: tuple[str, ...]
    files: Callable[[Plan], dict[str, bytes]]
    install: str
    about: str
    hooks: dict[str, tuple[str, ...]]
    multi_turn: bool = False
    renders: bool = False
    resumes: bool = False
    whole: tuple[str, ...] = ()
    with_ray: bool = False


SCORED = ("flywheel_environment.py",)
SCRIPT = ("train.py", "render.py", "flywheel_environment.py")
SCRIPTED = ("sft", "dpo", "kto", "grpo")
ENGINES = {
    engine.slug: engine
    for engine in (
        Engine(
            "verl",
            "veRL",
            "0.9.1",
            ("grpo",),
            verl.files,
            "pip install 'verl[vllm]==0.9.1'",
            "GRPO on many GPUs, with Ray",
            {"grpo": ("render.py", "verl_reward.py", *SCORED)},
            resumes=True,
            with_ray=True,
        ),
        Engine(
            "prime-rl",
            "prime-rl",
            "0.4.0",
            ("sft", "grpo"),
            prime_rl.files,
            "git clone prime-rl, then export PRIME_RL=/path/to/it",
            "Asynchronous GRPO of agents",
            {"sft": (), "grpo": ()},
            multi_turn=True,
            renders=True,
        ),
        Engine(
            "openrlhf",
            "OpenRLHF",
            "0.11.2",
            ("sft", "dpo", "grpo"),
            openrlhf.files,
            "pip install 'openrlhf[vllm]==0.11.2'",
            "SFT and DPO with LoRA; GRPO of all weights",
            {
                "sft": ("render.py",),
                "dpo": ("render.py",),
                "grpo": ("render.py", "openrlhf_reward.py", *SCORED),
            },
            whole=("grpo",),
        ),
        Engine(
            "nemo-rl",
            "NeMo RL",
            "August 2026",
            ("sft", "dpo", "grpo"),
            nemo_rl.files,
            "git clone NeMo RL, then export NEMO_RL=/path/to/it",
            "GRPO of agents through NeMo Gym; SFT and DPO",
            {"sft": (), "dpo": ("render.py",), "grpo": SCORED},
            multi_turn=True,
            renders=True,
            with_ray=True,
        ),
        Engine(
            "unsloth",
            "Unsloth",
            "2026.10.9",
            SCRIPTED,
            scripts.unsloth,
            "pip install unsloth==2026.10.9",
            "One GPU, little memory",
            dict.fromkeys(SCRIPTED, SCRIPT),
            resumes=True,
        ),
        Engine(
            "nemo-automodel",
            "NeMo AutoModel",
            "0.7.0",
            ("sft",),
            automodel.files,
            "pip install 'nemo-automodel[cuda]==0.7.0'",
            "SFT of large models",
            {"sft": ()},
            renders=True,
        ),
        Engine(
            "trl",
            "TRL",
            "1.16.0",
            SCRIPTED,
            scripts.trl,
            "pip install trl==1.16.0 peft",
            "A plain script, also on a CPU",
            dict.fromkeys(SCRIPTED, SCRIPT),
            resumes=True,
        ),
    )
}

README = """\
# {name}: {method} with {engine} {version}

1. Install: `{install}`.
2. Base model: {base} (digest {digest}). Link its folder: `export MODEL=/path/to/it`.
3. Rewards come from {address}: `export FLYWHEEL_API_KEY=…`, a key of the project with the scope \
`evaluate`.
4. `bash launch.sh` trains on {rows} {what} of {eval_set}, split train; {validation} of the split \
validation. No held-out task is in this folder.
5. `{configuration}` is the engine's configuration; words after `launch.sh` override it where the \
engine lets them.{left}
6. {comes_back}
7. `manifest.json` names every file with its SHA-256, and what the run was made from. It is \
signed: send it back unchanged.
"""
ADAPTER = (
    "`python3 send_result.py FOLDER` sends the LoRA adapter and `metrics.jsonl` to Flywheel (key"
    " with the scope `manage`)."
)
WHOLE = (
    "The result is a whole model, not an adapter. Copy it to the server and register it: `manage.py"
    " register_model FOLDER`."
)


def check(engine: Engine, plan: Plan) -> None:
    """Raises ExportError for a plan that the engine cannot train."""
    if plan.method not in engine.methods:
        others = [other.label for other in ENGINES.values() if plan.method in other.methods]
        where = f"Choose {' or '.join(others)}." if others else "No engine does."
        raise ExportError(
            f"{engine.label} does not train {plan.method.upper()} in this export. {where}"
        )
    if plan.method == "grpo" and plan.multi_turn and not engine.multi_turn:
        others = [
            other.label
            for other in ENGINES.values()
            if other.multi_turn and plan.method in other.methods
        ]
        raise ExportError(
            f"{engine.label} scores single answers here, and this environment has several turns."
            f" Choose {' or '.join(others)}."
        )
    if getattr(plan.config, "advantages", "") == "gae":
        raise ExportError("PPO’s critic is not part of the exports. Choose another algorithm.")
    if plan.method == "sft" and plan.episodes and engine.renders:
        check_episodes(engine, plan)
    if plan.adapter and not engine.resumes:
        others = [
            other.label
            for other in ENGINES.values()
            if other.resumes and plan.method in other.methods
        ]
        raise ExportError(
            f"{engine.label} cannot continue an adapter in this export. Start from the base model,"
            f" or choose {' or '.join(others)}."
        )


def check_episodes(engine: Engine, plan: Plan) -> None:
    """Raises ExportError if an engine that renders conversations itself would train on other tokens
    than an agent sees.
    """
    others = " or ".join(
        other.label for other in ENGINES.values() if "sft" in other.methods and not other.renders
    )
    if (
        plan.changes_turns and engine.slug != "prime-rl"
    ):  # its renderers write each answer as it was sampled
        raise ExportError(
            f"{engine.label} writes an episode by the base model’s chat template, and there"
            f" {plan.changes_turns}. Choose {others}, which get its turns as separate rows."
        )
    if engine.slug == "nemo-automodel" and not plan.text_arguments:
        raise ExportError(
            f"{engine.label} gives the arguments of tool calls to the chat template as text, which"
            f" this base model’s template would quote again. Choose {others}, or NeMo RL."
        )


def files_of(engine: Engine, plan: Plan, sign: Callable[[dict[str, Any]], str]) -> dict[str, bytes]:
    """{path: content} of the whole folder. `sign` returns a signature of the facts that only this
    installation can make.

    Raises ExportError.
    """
    check(engine, plan)
    made = dict(engine.files(plan))
    home = resources.files(CARRIED)
    carried = ("send_result.py", *engine.hooks[plan.method])
    made |= {name: home.joinpath(name).read_bytes() for name in dict.fromkeys(carried)}
    made["environment.json"] = _json({"server": plan.server, "path": plan.path})
    if plan.adapter:
        made |= {f"adapter/{name}": content for name, content in plan.adapter.files.items()}
    made["README.md"] = readme(engine, plan, made).encode("utf-8", "replace")
    facts = (
        {"method": plan.method}
        | plan.facts
        | {"engine": engine.slug, "engine_version": engine.version}
    )
    listed = {path: hashlib.sha256(content).hexdigest() for path, content in sorted(made.items())}
    made[MANIFEST] = _json({"facts": facts, "signature": sign(facts), "files": listed})
    return made


def readme(engine: Engine, plan: Plan, made: dict[str, bytes]) -> str:
    names = ("config/run.yaml", "rl.toml", "sft.toml", "run.yaml", "settings.json")
    left = left_behind(engine.slug, plan.method, plan.config)
    comes_back = WHOLE if plan.method in engine.whole else ADAPTER
    return README.format(
        name=plan.name,
        method=plan.method.upper(),
        engine=engine.label,
        version=engine.version,
        install=engine.install,
        base=plan.facts["base"],
        digest=plan.facts["base_digest"][:12],
        address=plan.server + plan.path,
        rows=len(plan.rows),
        what={"dpo": "preference pairs", "kto": "labelled answers"}.get(plan.method, "tasks"),
        eval_set=plan.facts["eval_set"],
        validation=len(plan.validation),
        configuration=next((name for name in names if name in made), "launch.sh"),
        comes_back=comes_back,
        left=f" Not in it: {', '.join(left)}." if left else "",
    )


def packed(name: str, files: dict[str, bytes]) -> bytes:
    """A zip archive with one folder `name`, or only its files if there is no name. The same files
    give the same bytes.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in sorted(files.items()):
            info = zipfile.ZipInfo(f"{name}/{path}" if name else path, DATED)
            info.external_attr = (0o755 if path.endswith(".sh") else 0o644) << 16
            archive.writestr(info, content, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


__all__ = ["ENGINES", "MANIFEST", "Engine", "ExportError", "check", "files_of", "packed", "readme"]
