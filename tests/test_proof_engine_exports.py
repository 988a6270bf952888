"""Exported folders read back by the engines' own code, run by `make proof` in `.venv-engines`
(`make engines`): no CUDA.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from apps.training.engines.exporting import row_of_example
from apps.training.engines.folder import ENGINES, files_of
from apps.training.engines.plan import Plan
from tests.training.test_engine_exports import CALL, TURNS, plan, sign

pytestmark = pytest.mark.proof
ROOT = Path(__file__).resolve().parent.parent
PYTHON, MODEL = (
    ROOT / ".venv-engines" / "bin" / "python",
    ROOT / "var" / "models" / "SmolLM2-135M-Instruct",
)
HAS_ENGINES = pytest.mark.skipif(not PYTHON.exists(), reason="no .venv-engines: run `make engines`")


@pytest.fixture(scope="module", autouse=True)
def model() -> None:
    subprocess.run(
        [sys.executable, "-m", "workers.prepare_demo_model", str(MODEL)], cwd=ROOT, check=True
    )


def plan_of(method: str) -> Plan:
    """SmolLM2's template knows no tools, so its conversations leave with them as text: a pair's
    with an earlier call, too.
    """
    if method in ("grpo", "sft"):
        return plan(method)
    tool = plan().rows[0].tools
    asked = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Close ticket 12."},
    ]
    if method == "episodes":
        rows = [
            row_of_example(f"e{n}", {"messages": asked, "tools": tool, "turns": TURNS}, False)
            for n in range(3)
        ]
        return plan("sft", multi_turn=True, rows=rows)
    answered = [*asked, {"role": "assistant", "content": None, "tool_calls": [CALL]}, TURNS[1]]
    said = {"dpo": {"chosen": "Done.", "rejected": "No."}, "kto": {"completion": "Done."}}[method]
    rows = [
        row_of_example(
            f"e{n}",
            {"messages": answered, "tools": tool}
            | said
            | ({"good": n > 0} if method == "kto" else {}),
            False,
        )
        for n in range(3)
    ]
    return plan(method, rows=rows)


@HAS_ENGINES
@pytest.mark.parametrize(
    ("engine", "method", "program", "words"),
    [
        ("verl", "grpo", "read_verl.py", []),
        ("openrlhf", "sft", "read_openrlhf.py", ["openrlhf_sft"]),
        ("openrlhf", "grpo", "read_openrlhf.py", ["openrlhf"]),
        ("nemo-automodel", "sft", "read_automodel.py", []),
        ("openrlhf", "dpo", "read_openrlhf.py", ["pair"]),
        ("trl", "dpo", "read_trl.py", []),
        ("trl", "kto", "read_trl.py", []),
        ("openrlhf", "episodes", "read_openrlhf.py", ["pieces"]),
        ("nemo-automodel", "episodes", "read_automodel.py", []),
        ("trl", "episodes", "read_trl.py", []),
    ],
)
def test_an_engine_reads_its_folder(
    engine: str, method: str, program: str, words: list[str], tmp_path: Path
) -> None:
    for path, content in files_of(ENGINES[engine], plan_of(method), sign).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    (tmp_path / "model").symlink_to(MODEL)
    done = subprocess.run(
        [str(PYTHON), str(ROOT / "tests" / "readback" / program), *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(tmp_path)},
        timeout=600,
        check=False,
    )
    assert done.returncode == 0 and "READ" in done.stdout, done.stderr[-3000:]
