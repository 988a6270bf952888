"""Exported folders read back by the engines' own code, run by `make proof` in `.venv-engines` (`make engines`): no CUDA."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from apps.training.engines.folder import ENGINES, files_of
from tests.training.test_engine_exports import plan, sign

pytestmark = pytest.mark.proof
ROOT = Path(__file__).resolve().parent.parent
PYTHON, MODEL = ROOT / ".venv-engines" / "bin" / "python", ROOT / "var" / "models" / "SmolLM2-135M-Instruct"
HAS_ENGINES = pytest.mark.skipif(not PYTHON.exists(), reason="no .venv-engines: run `make engines`")


@pytest.fixture(scope="module", autouse=True)
def model() -> None:
    subprocess.run([sys.executable, "-m", "workers.prepare_demo_model", str(MODEL)], cwd=ROOT, check=True)


@HAS_ENGINES
@pytest.mark.parametrize(
    ("engine", "method", "program", "words"),
    [
        ("verl", "grpo", "read_verl.py", []),
        ("openrlhf", "sft", "read_openrlhf.py", ["openrlhf_sft"]),
        ("openrlhf", "grpo", "read_openrlhf.py", ["openrlhf"]),
        ("nemo-automodel", "sft", "read_automodel.py", []),
    ],
)
def test_an_engine_reads_its_folder(engine: str, method: str, program: str, words: list[str], tmp_path: Path) -> None:
    for path, content in files_of(ENGINES[engine], plan(method), sign).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    (tmp_path / "model").symlink_to(MODEL)
    done = subprocess.run(
        [str(PYTHON), str(ROOT / "tests" / "readback" / program), *words], cwd=tmp_path, capture_output=True, text=True,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""}, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and "READ" in done.stdout, done.stderr[-3000:]
