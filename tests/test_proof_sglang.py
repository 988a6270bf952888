"""What Flywheel sends to SGLang is what its own request models take, read from its package (`make
engines`); run by `make proof`.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.promotion.serving_peer import IDS, SglangPeer, peer_serving
from workers.lib.chat_client import ChatServer
from workers.lib.serving import Adapters, Address
from workers.lib.weights_proof import Asked, measure

pytestmark = pytest.mark.proof
ROOT = Path(__file__).resolve().parent.parent
PYTHON = ROOT / ".venv-engines" / "bin" / "python"
SERVED_AS = "base"


@pytest.mark.skipif(not PYTHON.exists(), reason="no .venv-engines: run `make engines`")
def test_sglangs_own_models_take_what_a_deployment_sends(tmp_path: Path) -> None:
    (tmp_path / "adapter_model.safetensors").write_bytes(b"weights")
    sent: list[dict] = []
    peer = SglangPeer()
    peer.spoil = lambda path, body, answer: sent.append({"path": path, "body": body}) or answer
    with peer_serving(peer) as (_, http):
        there = Adapters(Address(f"{http.base}", allow_private=True), "sglang")
        there.load("live-1", str(tmp_path))
        server = ChatServer(http.base, f"{SERVED_AS}:live-1", allow_private=True)
        for ids in (None, IDS):
            found = measure(Asked(server, "sglang", SERVED_AS, "live-1"), ids)
            assert found.logprobs and found.base, found.why_not
        there.unload("live-1")
    done = subprocess.run(
        [str(PYTHON), str(ROOT / "tests" / "readback" / "read_sglang.py")],
        check=False,
        capture_output=True,
        text=True,
        input=json.dumps(
            {
                "served_as": SERVED_AS,
                "requests": [one for one in sent if one["path"] != "/v1/models"],
            }
        ),
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout)
    assert {one["path"] for one in said} == {
        "/load_lora_adapter",
        "/unload_lora_adapter",
        "/generate",
        "/v1/chat/completions",
    }
    assert {tuple(one["asks"]) for one in said if one["asks"]} == {(SERVED_AS, "live-1")}, (
        "the adapter, not the bare base"
    )
