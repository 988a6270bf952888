"""Bridges from one turn to the next, written by hand in the PyPI package `renderers`, if it is
installed (requirements/renderers.txt).

They are needed if a template alone does not determine how a conversation continues
(`chat_templates.text_after`): Nemotron 3 opens a thought before each answer and later renders that
beginning differently. A renderer for the model's family then says whether the sampled answer may
stay unchanged. It is never trusted alone: its tokens must be those of the template's own text after
the answer.

Light: no torch. The package takes a second to import, and is only imported by processes that need
it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from workers.lib.chat_templates import NotJoined, Render, template_tail
from workers.lib.engines import SoFar
from workers.lib.prompting import for_template

SECONDS, BYTES = 30, 4 * 2**30
NO_BRIDGE = "no bridge of the package renderers fits"
HARMONY = "gpt-oss"
# Names of families in config.json, and the renderers that may fit. Which one does is decided by its
# tokens.
FAMILIES: dict[str, tuple[str, ...]] = {
    "deepseek_v3": ("deepseek-v3", "deepseek-r1"),
    "gemma4": ("gemma4",),
    "gemma4_text": ("gemma4",),
    "glm4_moe": ("glm-4.5",),
    "glm4_moe_lite": ("glm-5",),
    "glm_moe_dsa": ("glm-5", "glm-5.1", "glm-5.3"),
    "gpt_oss": (HARMONY,),
    "hy_v3": ("hy3",),
    "kimi_k2": ("kimi-k2",),
    "laguna": ("laguna-xs.2", "laguna-xs-2.1", "laguna-s-2.1", "laguna-m.1"),
    "llama": ("llama-3",),
    "minimax_m2": ("minimax-m2",),
    "nemotron_h": ("nemotron-3", "nemotron-3.5", "nemotron-3-ultra"),
    "qwen3": ("qwen3", "prime-qwen3"),
    "qwen3_moe": ("qwen3",),
    "qwen3_5": ("qwen3.5", "qwen3.6", "qwen3.8"),
    "qwen3_5_moe": ("qwen3.5", "qwen3.6", "qwen3.8"),
    "qwen3_5_moe_text": ("qwen3.5", "qwen3.6", "qwen3.8"),
    "qwen3_5_text": ("qwen3.5", "qwen3.6", "qwen3.8"),
}


class Tokenizer(Protocol):
    """The parts of a tokenizer that a renderer needs."""

    name_or_path: str
    unk_token_id: int | None
    eos_token_id: int | None

    def encode(self, text: str, *args: Any, **options: Any) -> list[int]: ...

    def decode(self, token_ids: Any, *args: Any, **options: Any) -> str: ...

    def convert_tokens_to_ids(self, tokens: Any) -> Any: ...


def installed() -> bool:
    return find_spec("renderers") is not None


class Bridge:
    """A bridge for one model's tokenizer, by the renderer `name`."""

    def __init__(self, name: str, renderer: Any) -> None:
        self.name, self.renderer = name, renderer

    def ids_after(
        self,
        render: Render,
        ids: Callable[[str], list[int]],
        so_far: SoFar,
        messages: list[dict],
        stops: Sequence[str],
        stop_ids: Sequence[int],
    ) -> list[int]:
        """The ids that follow those so far, up to the beginning of the next answer. Raises
        NotJoined if the package returns nothing, or something other than the template.
        """
        tail = ids(template_tail(render, so_far.messages, messages, stops))
        after = messages[len(so_far.messages) + 1 :]
        before, answer = so_far.ids[: so_far.asked], so_far.ids[so_far.asked :]
        try:
            found = self.renderer.bridge_to_next_turn(
                before, answer, for_template(after), tools=so_far.tools or None
            )
        except Exception as error:  # the renderer may not support such a conversation
            raise NotJoined(NO_BRIDGE) from error
        whole = [] if found is None else list(getattr(found, "token_ids", found))
        more, ended = whole[len(so_far.ids) :], so_far.ids[-1] in stop_ids
        if whole[: len(so_far.ids)] != so_far.ids or (so_far.ids[-1:] * ended + more) != tail:
            raise NotJoined(NO_BRIDGE)
        return more


def bridges_for(tokenizer: Tokenizer, family: str) -> list[Bridge]:
    """Bridges of the family's (`model_type`) renderers that know this tokenizer's special tokens;
    [] if the package is missing.
    """
    if family not in FAMILIES or not installed():
        return []
    try:
        from renderers import config_from_name, create_renderer
    except ImportError:  # renderers 0.1.12 imports httpx without depending on it
        logging.getLogger(__name__).warning(
            "The package renderers cannot be imported.", exc_info=True
        )
        return []
    found = []
    for name in FAMILIES[family]:
        try:
            found.append(Bridge(name, create_renderer(tokenizer, config_from_name(name))))
        except Exception:
            continue
    return found


class PlainTokenizer:
    """A tokenizer.json without the transformers library."""

    def __init__(self, file: Path, end: str) -> None:
        from tokenizers import Tokenizer as Fast

        self.fast, self.name_or_path, self.unk_token_id = Fast.from_file(str(file)), "", None
        self.fast.no_truncation()
        self.eos_token_id = self.fast.token_to_id(end) if end else None

    def encode(self, text: str, *args: Any, **options: Any) -> list[int]:
        return self.fast.encode(text, add_special_tokens=False).ids

    def decode(self, token_ids: Any, *args: Any, **options: Any) -> str:
        return self.fast.decode(
            [token_ids] if isinstance(token_ids, int) else list(token_ids),
            skip_special_tokens=False,
        )

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        return (
            self.fast.token_to_id(tokens)
            if isinstance(tokens, str)
            else list(map(self.fast.token_to_id, tokens))
        )
