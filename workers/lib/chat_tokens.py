"""Tokenizes conversations without the transformers library, with a model folder's tokenizer.json
and chat template.

`counted_apart` does it in a separate process, with limits on time and memory, since a template is
an untrusted program (workers.lib.template_check). Light: no torch.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from jinja2 import TemplateError
from msgspec import Struct, convert, to_builtins

from workers.lib.errors import JobError
from workers.lib.messages import text_of
from workers.lib.prompting import as_text, written_for
from workers.lib.template_check import compiled, template_of

SECONDS, BYTES = 20, 4 * 2**30
NO_TOKENIZER = "Tokens cannot be counted before the run: the model’s folder has no tokenizer.json."


class Conversation(Struct, omit_defaults=True):
    """A prompt, and the answers to tokenize; `turns` are all messages that follow in an episode."""

    messages: list[dict]
    tools: list[dict] = []
    answers: list[str] = []
    turns: list[dict] = []


class Tokenized(Struct):
    """Ids of the prompt and of each answer including its end; for an episode, those after the
    prompt, and how many the agent wrote.
    """

    prompt: list[int]
    answers: list[list[int]] = []
    after: list[int] = []
    written: int = 0


class ChatTokens:
    """Raises JobError for a folder without a tokenizer.json or a chat template."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer

        if not (folder / "tokenizer.json").is_file():
            raise JobError(NO_TOKENIZER)
        found = template_of(folder)
        if found is None:
            raise JobError(f"The tokenizer in {folder} has no chat template.")
        self.template, self.special, stops = found
        self.made = compiled(self.template)
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_truncation()
        self.end = self.ids(stops[0]) if stops else []

    def ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def text(self, messages: list[dict], tools: list[dict], answer: bool) -> str:
        chat, native = written_for(self.template, messages, tools)
        try:
            return self._written(chat, native, answer)
        except TemplateError:
            return self._written(as_text(messages, tools, self.template), None, answer)

    def _written(self, chat: list[dict], tools: list[dict] | None, answer: bool) -> str:
        return self.made.render(
            messages=chat, tools=tools, add_generation_prompt=answer, **self.special
        )

    def of(self, asked: Conversation) -> Tokenized:
        prompt = self.ids(self.text(asked.messages, asked.tools, True))
        found = Tokenized(prompt, [self.ids(answer) + self.end for answer in asked.answers])
        if asked.turns:
            whole = self.ids(self.text([*asked.messages, *asked.turns], asked.tools, False))
            said = [turn for turn in asked.turns if turn["role"] == "assistant"]
            found.after = whole[len(prompt) :]
            found.written = min(
                len(found.after),
                sum(len(self.ids(self._said(turn))) + len(self.end) for turn in said),
            )
        return found

    def _said(self, turn: dict) -> str:
        return text_of(turn) + "".join(
            json.dumps(call.get("function", {})) for call in turn.get("tool_calls") or []
        )


def counted_apart(folder: str, asked: Sequence[Conversation]) -> list[Tokenized]:
    """Raises JobError with a sentence if a folder's tokenizer cannot be used."""
    if not (Path(folder) / "tokenizer.json").is_file():
        raise JobError(NO_TOKENIZER)
    given = json.dumps({"folder": folder, "asked": to_builtins(list(asked))})
    command = [sys.executable, "-m", "workers.lib.chat_tokens"]
    root = Path(__file__).resolve().parents[2]
    try:
        done = subprocess.run(
            command,
            input=given.encode(),
            capture_output=True,
            timeout=2 * SECONDS,
            check=False,
            cwd=root,
        )
        found = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError) as error:
        raise JobError(
            "The prompts could not be tokenized: the model’s chat template takes too long, or its"
            " files cannot be read."
        ) from error
    if isinstance(found, str):
        raise JobError(found)
    return convert(found, list[Tokenized])


def main() -> None:
    given = json.load(sys.stdin)
    try:
        tokens = ChatTokens(Path(given["folder"]))
        print(
            json.dumps(
                to_builtins([tokens.of(one) for one in convert(given["asked"], list[Conversation])])
            )
        )
    except JobError as error:
        print(json.dumps(str(error)))
    except TemplateError as error:
        print(json.dumps(f"The model’s chat template cannot write these prompts: {error}"[:500]))


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    main()
