"""Several LoRA adapters on one model, loaded and removed while it generates; one is active at a
time. Heavy: imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peft import LoraConfig, PeftModel

from workers.lib.errors import JobError
from workers.lib.lora_files import check_files
from workers.ml.lean import keep_less

MOST = 64  # the largest number of LoRA slots that an installation may configure


@dataclass(frozen=True, eq=False)
class Loaded:
    """`key` is the adapter's name within PEFT. It is new for each load, so that nothing computed
    with an earlier load is reused.
    """

    name: str
    path: str
    key: str


class Refused(JobError):
    """The adapter cannot be loaded; `status` is the HTTP status that vLLM answers with."""

    def __init__(self, sentence: str, status: int = 400) -> None:
        super().__init__(sentence)
        self.status = status


class HotAdapters:
    """Use it only in the thread that generates. The model's own weights do not change: adapters are
    not merged, and one that holds anything but LoRA is refused before anything is loaded.
    """

    def __init__(self, model: Any, most_rank: int) -> None:
        self.model, self.most_rank = model, most_rank
        self.peft: PeftModel | None = None
        self.loads = 0
        self.active: Loaded | None = None

    def load(self, name: str, path: str) -> Loaded:
        """Raises Refused."""
        config = self._config(name, path)
        self.loads += 1
        loaded = Loaded(name, path, f"load-{self.loads}")
        try:
            if self.peft is None:
                self.peft = PeftModel(self.model, config, loaded.key)
            found = self.peft.load_adapter(path, loaded.key, torch_device=str(self.model.device))
            missing = [key for key in found.missing_keys if f".{loaded.key}." in key]
            if odd := [*found.unexpected_keys, *missing]:
                raise ValueError(f"its layers are not those of the base ({odd[0]})")
        except Exception as error:  # PEFT raises many kinds of errors for external files
            self.remove(loaded)
            raise Refused(f"Loading lora {name} failed: {str(error)[:300]}") from error
        self.peft.eval()
        keep_less(self.peft)
        self.active = None
        return loaded

    def _config(self, name: str, path: str) -> LoraConfig:
        folder = Path(path)
        if (
            not (folder / "adapter_config.json").is_file()
            or not (folder / "adapter_model.safetensors").is_file()
        ):
            raise Refused(f"Loading lora {name} failed: No adapter found for {path}", 404)
        try:
            rank = check_files(folder)[0]["r"]
            config = LoraConfig.from_pretrained(str(folder), local_files_only=True)
        except Exception as error:
            raise Refused(f"Loading lora {name} failed: {str(error)[:300]}") from error
        if rank > self.most_rank:
            raise Refused(f"LoRA rank {rank} is greater than max_lora_rank {self.most_rank}.")
        config.inference_mode = True
        return config

    def remove(self, loaded: Loaded) -> None:
        if self.peft is not None and loaded.key in self.peft.peft_config:
            self.peft.delete_adapter(loaded.key)
        self.active = None

    def use(self, loaded: Loaded | None) -> None:
        """Use this adapter, or the bare base, in the following forward passes."""
        if self.peft is None or (loaded is not None and self.active is loaded):
            return
        if loaded is None:
            self.peft.base_model.disable_adapter_layers()
        else:
            self.peft.base_model.enable_adapter_layers()
            self.peft.set_adapter(loaded.key, inference_mode=True)
        self.active = loaded
