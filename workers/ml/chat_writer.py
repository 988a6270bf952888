"""Renders conversations as token ids with a model's chat template. Heavy: imports transformers'
tokenizers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from jinja2 import TemplateError

from workers.lib.bridges import Bridge, bridges_for
from workers.lib.chat_templates import NotJoined, Render, text_after
from workers.lib.engines import SoFar
from workers.lib.errors import SpecError
from workers.lib.events import Emitter
from workers.lib.messages import text_of
from workers.lib.policies import Reply
from workers.lib.prompting import as_text
from workers.lib.token_rows import TokenRow, rows_of_replies
from workers.ml.models import chat_with_tools, stop_token_ids

ANCHOR = "\n"


def end_of_answer(said: str, begin: int, text: str, stops: Sequence[str]) -> tuple[int, str]:
    """(place, mark) of the end of the answer `text` in what a template writes from `begin` on: the
    first mark after the text, since some templates end the conversation with another one; (-1, "")
    if there is none.
    """
    at = said.find(text.strip(), begin) if begin else said.rfind(text.strip())
    after = [(said.find(stop, at + len(text.strip())), stop) for stop in stops] if at >= 0 else []
    if marks := [mark for mark in after if mark[0] >= 0]:
        return min(marks)
    last = max(((said.rfind(stop, begin), stop) for stop in stops), default=(-1, ""))
    return last if last[0] >= 0 else (-1, "")


class ChatWriter:
    """`stop_ids` are the tokens that end an answer; `unmarked` counts the answers whose end the
    template did not mark.
    """

    def __init__(self, tokenizer: Any, model: Any = None) -> None:
        self.tokenizer, self.stop_ids = tokenizer, stop_token_ids(tokenizer, model)
        self.family = str(getattr(getattr(model, "config", None), "model_type", ""))
        self.unmarked = 0
        self.stop_texts = [text for text in tokenizer.convert_ids_to_tokens(self.stop_ids) if text]

    def text(self, messages: list[dict], tools: list[dict], answer: bool) -> str:
        """The text that the template renders. `answer`: up to where the next answer begins."""
        chat, native = chat_with_tools(self.tokenizer, messages, tools)
        try:
            return self._written(chat, native, answer)
        except (
            TemplateError
        ):  # e.g. several calls in one message, which some templates do not support
            return self._written(
                as_text(messages, tools, self.tokenizer.get_chat_template()), None, answer
            )

    def problem(self, messages: list[dict], tools: list[dict]) -> str:
        """Why the template does not render a conversation as it is; "" if it does."""
        try:
            self._written(*chat_with_tools(self.tokenizer, messages, tools), True)
        except TemplateError as error:
            return str(error)
        return ""

    def _written(self, chat: list[dict], tools: list[dict] | None, answer: bool) -> str:
        return self.tokenizer.apply_chat_template(
            chat, tools=tools, tokenize=False, add_generation_prompt=answer
        )

    def ids(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def prompt_ids(
        self, messages: list[dict], tools: list[dict], so_far: SoFar | None = None
    ) -> list[int]:
        """The ids so far, followed by the template's own ids for what came after the last answer.
        If neither the template nor a bridge allows that, the whole conversation is rendered again.
        """

        def render(messages: list[dict], answer: bool) -> str:
            return self.text(messages, tools, answer)

        if so_far is None or so_far.tools != tools:
            return self.ids(render(messages, True))
        last = so_far.ids[-1]
        ended_by = self.tokenizer.convert_ids_to_tokens(last) if last in self.stop_ids else ""
        try:
            after = self.ids(
                text_after(render, so_far.messages, messages, self.stop_texts, ended_by).text
            )
        except NotJoined:
            bridged = self.bridged(render, messages, so_far)
            return self.ids(render(messages, True)) if bridged is None else so_far.ids + bridged
        return (
            so_far.ids + after[after[0] == last :]
        )  # adds the end token where an answer was cut off

    @cached_property
    def bridges(self) -> list[Bridge]:
        return bridges_for(self.tokenizer, self.family)

    def bridged(self, render: Render, messages: list[dict], so_far: SoFar) -> list[int] | None:
        """The ids so far, followed by those that a bridge for the model's family renders; None if
        there is no bridge.
        """
        for bridge in self.bridges:
            try:
                return bridge.ids_after(
                    render, self.ids, so_far, messages, self.stop_texts, self.stop_ids
                )
            except NotJoined:
                continue
        return None

    def answer_ids(self, messages: list[dict], tools: list[dict], answer: dict) -> list[int]:
        """The tokens that the model would have to generate for an answer, including the one that
        ends it, and nothing after it. Raises SpecError.
        """
        asked, said = self.text(messages, tools, True), self.text([*messages, answer], tools, False)
        begin = len(asked) if said.startswith(asked) else 0
        end, stop = end_of_answer(said, begin, text_of(answer), self.stop_texts)
        if said.startswith(asked):
            text = said[len(asked) : end + len(stop)] if end >= 0 else said[len(asked) :].rstrip()
        elif answer.get("tool_calls"):
            raise SpecError(
                "The model's chat template writes a tool call in another way than the prompt for it"
                " begins, so it cannot be learnt from. Train with GRPO, or use another chat"
                " template."
            )
        # the prompt opens the answer by itself, for instance with a thought: the model goes on from
        # there
        else:
            text = text_of(answer) + (stop if end >= 0 else "")
        return self.following(asked, text) + ([] if end >= 0 else [self._end_of_answer()])

    def following(self, asked: str, text: str) -> list[int]:
        """The tokens of a text after the prompt `asked`, which is tokenized alone, as it is when
        the model answers: a space at its end stays a token of its own instead of becoming the
        beginning of the answer's first word.
        """
        before, together = self.ids(asked), self.ids(asked + text)
        if together[: len(before)] == before:
            return together[len(before) :]
        anchor = self.ids(ANCHOR)  # for tokenizers that put a space before any text
        anchored = self.ids(ANCHOR + text)
        return anchored[len(anchor) :] if anchored[: len(anchor)] == anchor else self.ids(text)

    def _end_of_answer(self) -> int:
        """The token that ends an answer whose end the template does not mark. Raises SpecError."""
        if self.tokenizer.eos_token_id is None:
            raise SpecError(
                "The model's chat template does not mark the end of an answer, and its tokenizer"
                " has no end token (eos_token), so a model would learn never to stop. Set one of"
                " them."
            )
        self.unmarked += 1
        return self.tokenizer.eos_token_id

    def warn(self, events: Emitter) -> None:
        """Say in the job's log if answers were given an end that the template does not write."""
        if self.unmarked:
            events.log(
                "warning",
                "The model's chat template does not mark the end of an answer. Each answer is"
                f" learnt with the end token {self.tokenizer.eos_token}, so that the model learns"
                " to stop there. Serve it with this tokenizer.",
            )

    def rows(
        self, messages: list[dict], turns: Sequence[dict], tools: list[dict]
    ) -> list[TokenRow]:
        """A conversation written by somebody else, as rows in which its answers are learned.
        `turns` are the messages after `messages`. One row if the template keeps earlier turns
        unchanged, as with rollouts. Raises SpecError.
        """
        replies, so_far = list[Reply](), None
        for at, turn in enumerate(turns):
            if turn["role"] != "assistant":
                continue
            history = [*messages, *turns[:at]]
            prompt, tokens = (
                self.prompt_ids(history, tools, so_far),
                self.answer_ids(history, tools, turn),
            )
            replies.append(
                Reply(turn, prompt_token_ids=prompt, token_ids=tokens, logprobs=[0.0] * len(tokens))
            )
            so_far = SoFar(history, tools, prompt + tokens, asked=len(prompt))
        return rows_of_replies(replies)
