"""Routes by which a held-out task comes back into training rows: wrappings, places, spellings, its
calls.

A route takes a world (for what it draws) and a task, and gives a training row that holds the task.
"""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable
from typing import Any

from bench.leak_tasks import Invented, World

# Answers


def in_kind(task: Invented) -> str:
    return json.dumps({"tool": task.tool, "args": task.args})


def in_words(task: Invented) -> str:
    return "All right, that is done."


# Routes: (world, task) to a training row that holds the task's request


def chat(w: World, request: str, answer: str) -> dict:
    return {
        "messages": [{"role": "user", "content": request}, {"role": "assistant", "content": answer}]
    }


Route = Callable[[World, Invented], dict]


def spelt(change: Callable[[World, str], str]) -> Route:
    """The request in another spelling or wrapping, as a user's message, with the answer in
    words.
    """
    return lambda w, task: chat(w, change(w, task.request), in_words(task))


def beside(put: Callable[[World, str], dict]) -> Route:
    """The request anywhere but in a user's message; what the row is about is something else."""
    return lambda w, task: put(w, task.request)


OTHER = "How do I change the colour of the chart in the monthly newsletter?"
OTHER_ANSWER = "Open its settings, choose Colours, and pick one."


def row(*before: dict, **more: Any) -> dict:
    return {
        "messages": [
            *before,
            {"role": "user", "content": OTHER},
            {"role": "assistant", "content": OTHER_ANSWER},
        ]
    } | more


def preamble(words: int) -> Callable[[World, str], str]:
    return lambda w, text: f"{w.filling(words)}. {text}"


def typos(w: World, text: str) -> str:
    """One slip in every fourth word that has letters only and three of them or more."""
    words = text.split(" ")
    for at in range(w.rng.randrange(4), len(words), 4):
        words[at] = slip(w.rng, words[at])
    return " ".join(words)


def slip(rng: random.Random, word: str) -> str:
    letters = word.strip(string.punctuation + "“”")
    if len(letters) < 3 or not letters.isalpha():
        return word
    at = rng.randrange(len(letters) - 1)
    made = rng.choice(
        (
            letters[:at] + letters[at + 1] + letters[at] + letters[at + 2 :],
            letters[: at + 1] + letters[at + 2 :],
            letters[: at + 1] + letters[at] + letters[at + 1 :],
            letters[: at + 1] + rng.choice(string.ascii_lowercase) + letters[at + 2 :],
        )
    )
    return word.replace(letters, made)


LOOK_ALIKE = str.maketrans("aeopcxyAEOPCXBHKMT", "аеорсхуАЕОРСХВНКМТ")
NAMES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
    " sixteen seventeen eighteen nineteen"
)
ONES = NAMES.split()
TENS = ["zero", "ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def number_words(n: int) -> str:
    if n < 20:
        return ONES[n]
    if n < 100:
        return TENS[n // 10] + (f"-{ONES[n % 10]}" if n % 10 else "")
    if n < 1000:
        return f"{ONES[n // 100]} hundred" + (f" and {number_words(n % 100)}" if n % 100 else "")
    return f"{number_words(n // 1000)} thousand" + (
        f" {number_words(n % 1000)}" if n % 1000 else ""
    )


def numbers_in_words(w: World, text: str) -> str:
    words = text.split(" ")
    for at, word in enumerate(words):
        bare = word.rstrip(".,?!")
        if bare.isdigit() and bare[0] != "0":
            words[at] = number_words(int(bare)) + word[len(bare) :]
    return " ".join(words)


def zero_width(w: World, text: str) -> str:
    return "".join(
        char + (w.rng.choice("\u200b\u200d\u2060\ufeff") if w.rng.random() < 0.2 else "")
        for char in text
    )


def broken(w: World, text: str) -> str:
    return "".join("\n> " if char == " " and w.rng.random() < 0.25 else char for char in text)


def hyphenated(w: World, text: str) -> str:
    words = text.split(" ")
    at = max(
        range(len(words)), key=lambda index: len(words[index]) if words[index].isalpha() else 0
    )
    if words[at].isalpha() and len(words[at]) > 3:
        words[at] = f"{words[at][:2]}-\n{words[at][2:]}"
    return " ".join(words)


def punctuated(w: World, text: str) -> str:
    return "".join(
        w.rng.choice((" ", " ... ", ", ", " — ", "\t", "\u00a0", "  ")) if char == " " else char
        for char in text
    )


def escaped(times: int) -> Callable[[World, str], str]:
    def change(w: World, text: str) -> str:
        value: Any = {"event": "request", "id": w.rng.randrange(999), "body": text, "ok": True}
        for _ in range(times):
            value = {"payload": json.dumps(value)}
        return f"Incoming:\n{json.dumps(value)}\nEnd"

    return change


def linked(w: World, text: str, form: str) -> str:
    """Two or three words of the request as a link."""
    words = text.split(" ")
    at = w.rng.randrange(len(words) - 1)
    upto = at + w.rng.randint(2, 3)
    return " ".join([*words[:at], form % " ".join(words[at:upto]), *words[upto:]])


def each_word(form: str, between: str = " ") -> Callable[[World, str], str]:
    return lambda w, text: (
        w.filling(9) + " " + between.join(form % word for word in text.split(" "))
    )


def each_line(start: Callable[[World, int], str], words: int = 4) -> Callable[[World, str], str]:
    """The request a few words a line, each line behind what `start` gives for its number."""

    def change(w: World, text: str) -> str:
        given = text.split(" ")
        lines = [" ".join(given[at : at + words]) for at in range(0, len(given), words)]
        return "\n".join(
            start(w, number) + line
            for number, line in enumerate([w.filling(4), *lines, w.filling(3)], 1)
        )

    return change


MARKUP: dict[str, Route] = {
    "Markdown link": spelt(
        lambda w, text: linked(w, text, "[%s](https://shop.example/p/88?ref=mail)")
    ),
    "Markdown link by reference": spelt(lambda w, text: linked(w, text, "[%s][12]")),
    "HTML link": spelt(
        lambda w, text: linked(
            w, text, '<a href="https://shop.example/p/88" target="_blank">%s</a>'
        )
    ),
    "bold words": spelt(
        lambda w, text: linked(w, linked(w, text, "<b>%s</b>"), "<strong class='x'>%s</strong>")
    ),
    "a span for each word": spelt(each_word('<span class="tok">%s</span>')),
    "a table's cell for each word": spelt(each_word("<tr><td>%s</td></tr>", "")),
    "HTML in entities": spelt(each_word("&lt;em class=&quot;a&quot;&gt;%s&lt;/em&gt;")),
    "line numbers": spelt(each_line(lambda w, n: f"{n:6}\t")),
    "a numbered list": spelt(each_line(lambda w, n: f"{n}. ", 6)),
    "an editor's margin": spelt(each_line(lambda w, n: f"  {n + 9} | ")),
    "a chat's log": spelt(each_line(lambda w, n: f"[10:{n + 30}] anna: ")),
    "a service's log": spelt(
        each_line(lambda w, n: f"2026-03-0{n % 9 + 1} 10:41:0{n % 9},123 INFO app.mail: ")
    ),
    "subtitles": spelt(each_line(lambda w, n: f"{n}\n00:00:{n:02},000 --> 00:00:{n + 1:02},500\n")),
    "colours of a terminal": spelt(each_word("\x1b[1;31m%s\x1b[0m")),
}


def halves(text: str) -> tuple[str, str]:
    words = text.split(" ")
    return " ".join(words[: len(words) // 2]), " ".join(words[len(words) // 2 :])


def two_messages(w: World, request: str) -> dict:
    one, other = halves(request)
    turns = [
        ("user", one),
        ("assistant", "Go on, I am listening."),
        ("user", other),
        ("assistant", "Done."),
    ]
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


def adjacent_messages(w: World, request: str) -> dict:
    one, other = halves(request)
    return {
        "messages": [
            {"role": "user", "content": one},
            {"role": "user", "content": other},
            {"role": "assistant", "content": "Done."},
        ]
    }


def tool(w: World, text: str, at: str) -> dict:
    parameters = {
        "type": "object",
        "properties": {"query": {"type": "string", "description": "what is looked for"}},
    }
    made = {"name": "search", "description": "Looks something up.", "parameters": parameters}
    if at == "description":
        made["description"] += f" Example: {text}"
    elif at == "parameter":
        parameters["properties"]["query"]["description"] += f", such as '{text}'"
    else:
        parameters["properties"]["query"]["examples"] = [text]
    return row(tools=[{"type": "function", "function": made}])


def tool_result(w: World, text: str) -> dict:
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "inbox.read", "arguments": '{"folder": "new"}'},
    }
    result = {"items": [{"subject": "hello", "body": text, "read": False}], "next": None}
    return {
        "messages": [
            {"role": "user", "content": OTHER},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": json.dumps(result)},
            {"role": "assistant", "content": OTHER_ANSWER},
        ]
    }


def tool_arguments(w: World, text: str) -> dict:
    arguments = json.dumps({"note": text, "urgent": True})
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "notes.add", "arguments": arguments},
    }
    return {
        "messages": [
            {"role": "user", "content": OTHER},
            {"role": "assistant", "content": None, "tool_calls": [call]},
        ]
    }


def few_shot_text(w: World, text: str) -> dict:
    prompt = (
        f"You are helpful. Some examples follow.\n\nExample 1\nUser: {OTHER}\nAgent: ok\n\nExample"
        f" 2 (here is one that often comes): User: {text}\nAgent: done\n\nNow answer."
    )
    return row({"role": "system", "content": prompt})


def names(w: World, text: str, at: str) -> dict:
    """The request as names of a tool's schema or of a call's arguments."""
    given = text.split(" ")
    words = (
        [word + "," * given[:at].count(word) for at, word in enumerate(given)]
        if at == "words"
        else [text.replace(" ", "_") if at == "snake" else text]
    )
    if at == "argument":
        call = {
            "id": "c1",
            "type": "function",
            "function": {"name": "f", "arguments": json.dumps({text: True, "x": 1})},
        }
        return row(
            {"role": "user", "content": OTHER},
            {"role": "assistant", "content": "", "tool_calls": [call]},
        )
    if at == "halves":
        one, other = halves(text)
        return row(metadata={"recorded_results": [{"tool": "read", "content": {one: other}}]})
    properties = {word: {"type": "string"} for word in words}
    parameters = {"type": "object", "properties": properties}
    return row(
        tools=[
            {
                "type": "function",
                "function": {"name": "f", "description": "?", "parameters": parameters},
            }
        ]
    )


def half_demonstrated(w: World, text: str) -> dict:
    """As a task comes from the database: the answer stands far from the messages."""
    one, other = halves(text)
    return {
        "key": "a",
        "messages": [{"role": "user", "content": one}],
        "expected": {"answer": "done"},
        "tools": [],
        "metadata": {"source": w.filling(8)},
        "demonstration": other,
    }


def preference(w: World, text: str) -> dict:
    return {
        "prompt": [{"role": "user", "content": f"{w.filling(12)}: {text}"}],
        "chosen": "Yes.",
        "rejected": "No.",
    }


VERBATIM: dict[str, Route] = {
    "as it is, other answer": spelt(lambda w, text: text),
    **{f"preamble of {n} words": spelt(preamble(n)) for n in (3, 10, 50, 150, 500)},
    "suffix of 3 words": spelt(lambda w, text: f"{text} {w.filling(3)}"),
    "suffix of 50 words": spelt(lambda w, text: f"{text} {w.filling(50)}"),
    "both, 200 words each": spelt(lambda w, text: f"{w.filling(200)} {text} {w.filling(200)}"),
    "JSON": spelt(escaped(0)),
    "JSON in JSON": spelt(escaped(1)),
    "JSON in JSON in JSON in JSON": spelt(escaped(3)),
    "JSON alone": spelt(lambda w, text: json.dumps({"request": {"text": text, "lang": "en"}})),
    "code fence": spelt(lambda w, text: f"Please look at this:\n```text\n{text}\n```\nThanks."),
    "Markdown": spelt(lambda w, text: f"## Task\n\n- **{text}**\n- _nothing else_"),
    "comment in code": spelt(lambda w, text: f"def run():\n    # TODO: {text}\n    pass"),
    "quoted": spelt(lambda w, text: f"My boss wrote: “{text}” What did she mean?"),
    "XML": spelt(lambda w, text: f'<msg id="{w.rng.randrange(99)}"><body>{text}</body></msg>'),
    "HTML entities": spelt(
        lambda w, text: "<p>" + text.replace(" ", "&nbsp;").replace("'", "&#39;") + "</p>"
    ),
    "URL-encoded": spelt(
        lambda w, text: "GET /ask?q=" + text.replace("%", "%25").replace(" ", "%20") + "&lang=en"
    ),
    "upper case": spelt(lambda w, text: f"{w.filling(20)} {text.upper()}"),
    "lower case": spelt(lambda w, text: f"{w.filling(20)} {text.lower()}"),
    "other punctuation and spaces": spelt(
        lambda w, text: f"{w.filling(20)}: {punctuated(w, text)}"
    ),
    "look-alike letters": spelt(lambda w, text: f"{w.filling(20)} {text.translate(LOOK_ALIKE)}"),
    "full-width letters": spelt(
        lambda w, text: (
            w.filling(9)
            + " "
            + "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in text)
        )
    ),
    "zero-width characters": spelt(lambda w, text: f"{w.filling(20)} {zero_width(w, text)}"),
    "numbers in words": spelt(lambda w, text: f"{w.filling(20)}. {numbers_in_words(w, text)}"),
    "line breaks": spelt(lambda w, text: f"{w.filling(20)}\n> {broken(w, text)}"),
    "word broken over lines": spelt(lambda w, text: f"{w.filling(20)}. {hyphenated(w, text)}"),
    "two messages, an answer between": beside(two_messages),
    "two messages in a row": beside(adjacent_messages),
    "system prompt": beside(
        lambda w, text: row(
            {
                "role": "system",
                "content": f"You are an agent. {w.filling(30)}. {text}. {w.filling(9)}.",
            }
        )
    ),
    "developer message": beside(
        lambda w, text: row({"role": "developer", "content": f"Requests are like this: {text}"})
    ),
    "few-shot in the prompt's text": beside(few_shot_text),
    "few-shot examples": beside(
        lambda w, text: {
            "examples": [
                {"role": "user", "content": f"Look: {text}"},
                {"role": "assistant", "content": "ok"},
            ]
        }
    ),
    "demonstration": beside(
        lambda w, text: {
            "messages": [{"role": "user", "content": OTHER}],
            "expected": {"answer": "x"},
            "demonstration": f"You may also ask me this: {text}",
        }
    ),
    "assistant's turn": beside(
        lambda w, text: {
            "messages": [
                {"role": "user", "content": OTHER},
                {"role": "assistant", "content": f"You mean: {text}"},
            ]
        }
    ),
    "tool result": beside(tool_result),
    "tool call's arguments": beside(tool_arguments),
    "tool description": beside(lambda w, text: tool(w, text, "description")),
    "parameter description": beside(lambda w, text: tool(w, text, "parameter")),
    "schema's examples": beside(lambda w, text: tool(w, text, "examples")),
    "prompt and completion": beside(
        lambda w, text: {"prompt": f"{w.filling(8)} {text}", "completion": "ok"}
    ),
    "preference pair": beside(preference),
    "plain text": beside(lambda w, text: {"text": f"{w.filling(40)} {text} {w.filling(40)}"}),
    "name of a property": beside(lambda w, text: names(w, text, "property")),
    "name of a property, joined": beside(lambda w, text: names(w, text, "snake")),
    "a property for each word": beside(lambda w, text: names(w, text, "words")),
    "name of an argument": beside(lambda w, text: names(w, text, "argument")),
    "half a name, half its value": beside(lambda w, text: names(w, text, "halves")),
    "half message, half demonstration": beside(half_demonstrated),
    "recorded tool result of a task": beside(
        lambda w, text: {
            "messages": [{"role": "user", "content": OTHER}],
            "expected": {"answer": "x"},
            "metadata": {"recorded_results": [{"tool": "read", "content": text}]},
        }
    ),
}

TYPOS: dict[str, Route] = {
    "a typo in every fourth word": spelt(typos),
    "the same behind 20 words": spelt(lambda w, text: f"{w.filling(20)}. {typos(w, text)}"),
    "the same in a tool result": beside(lambda w, text: tool_result(w, typos(w, text))),
}


def same_calls(w: World, task: Invented) -> dict:
    """Another request, the same calls."""
    return chat(w, f"{w.filling(w.rng.randint(6, 20))}?", in_kind(task))


def same_calls_in_tools(w: World, task: Invented) -> dict:
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": task.tool, "arguments": json.dumps(task.args)},
    }
    return {
        "messages": [
            {"role": "user", "content": w.filling(12)},
            {"role": "assistant", "tool_calls": [call]},
        ]
    }


def paraphrase(w: World, task: Invented) -> dict:
    """The same words in another order, with fillers."""
    words = task.request.rstrip(".?").split(" ")
    cut = w.rng.randrange(1, len(words))
    return chat(
        w,
        "Hey, could you please: " + " ".join(words[cut:] + words[:cut]) + " — thanks!",
        in_words(task),
    )


def accepted(w: World, task: Invented) -> dict:
    """Another call is wanted, and the held-out one is accepted: each of its values is one of many,
    in no order.
    """
    accept = {name: [*(w.filling(2) for _ in range(9)), value] for name, value in task.args.items()}
    expected = {"tool": task.tool, "args": dict.fromkeys(task.args, "zz"), "accept": accept}
    return {"messages": [{"role": "user", "content": f"{w.filling(9)}?"}], "expected": expected}


def demonstrated(form: str) -> Route:
    """An answer is expected, and the demonstration makes the call."""

    def change(w: World, task: Invented) -> dict:
        asked = {
            "messages": [{"role": "user", "content": f"{w.filling(9)}?"}],
            "expected": {"answer": "done"},
        }
        return asked | {
            "demonstration": form % json.dumps({"name": task.tool, "arguments": task.args})
        }

    return change


CALLS: dict[str, Route] = {
    "the same calls, another request": same_calls,
    "as native tool calls": same_calls_in_tools,
    "among accepted values": accepted,
    "in a demonstration": demonstrated("%s"),
    "in a demonstration, tagged": demonstrated("<tool_call>%s</tool_call>"),
}
