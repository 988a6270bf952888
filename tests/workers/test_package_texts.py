"""The texts in the files of a package, and what is left of them without its own tasks."""

from __future__ import annotations

import base64

import pytest

from workers.lib.environments.packages.texts import texts_of, without_tasks

FERNS = "Water the ferns on the balcony."
FERNS_ZH = "请给阳台上的蕨类植物浇水。"
TASK = {
    "id": "a",
    "messages": [{"role": "user", "content": FERNS}],
    "metadata": {"goal": FERNS.removeprefix("Water ")},  # computed: in no file
}


def texts(files: dict[str, str | bytes]) -> dict[str, list[str]]:
    return texts_of(
        {
            path: base64.b64encode(file if isinstance(file, bytes) else file.encode()).decode()
            for path, file in files.items()
        }
    )


@pytest.mark.parametrize(
    ("path", "content", "found"),
    [
        ("a.py", f'"""Docs."""\nMAIL = "{FERNS[:6]}" + "{FERNS[6:]}"', ["Docs.", FERNS]),
        ("a.py", 'def f(self):\n    return f"Dear {self.name}, water"', ["Dear  , water"]),
        ("a.py", f"X = 1  # {FERNS}\n", [FERNS]),
        ("a.py", f"class A\n# {FERNS}", [f"class A\n# {FERNS}"]),
        ("a.json", f'{{"id": "a", "question": "?", "mail": "{FERNS}"}}', [FERNS]),
        ("a.jsonl", f'{{"id": "a", "prompt": "{FERNS}"}}\n{{"id": "b"}}\n', [FERNS]),
        ("README.md", FERNS, [FERNS]),
        ("prompts/a.toml", f'mail = "{FERNS}"', [f'mail = "{FERNS}"']),
        ("tests/test_a.py", f'X = "{FERNS}"', [FERNS]),
        ("a.txt", f"Grüße! {FERNS}".encode("latin-1"), [f"Grüße! {FERNS}"]),
        ("a.txt", FERNS.encode("utf-16"), [FERNS]),
        ("a.db", b"\x00\x81\xff\n" + FERNS.encode() + b"\x00\x01", [FERNS]),
        ("a.db", b"\x00\x81\xff\n" + FERNS_ZH.encode() + b"\x00\x01", [FERNS_ZH]),
    ],
)
def test_every_text_of_a_file_is_read(path: str, content: str | bytes, found: list[str]) -> None:
    (some,) = texts({path: content}).values()
    assert some[0] == path and set(found) <= set(some)


@pytest.mark.parametrize(
    "files",
    [
        {"tasks.jsonl": f'{{"id": "a", "prompt": "{FERNS}"}}'},
        {"tasks.json": f'[["{FERNS}", "no id"]]'},
        {"tasks.csv": f"id,prompt\na,{FERNS}\n"},
        {"tasks.yaml": f"- id: a\n  prompt: >\n    {FERNS[:16]}\n    {FERNS[16:].strip()}\n"},
        {"tasks/a.txt": f"{FERNS}\n"},
        {"env.py": f"def tasks(self):\n    return [dict(id='a', prompt='{FERNS}')]"},
        {"env.py": f"ROWS = 'a;{FERNS}'"},
    ],
)
def test_a_task_is_left_out_once_however_it_is_written(files: dict[str, str]) -> None:
    alone = without_tasks(texts(files), [TASK])
    assert "ferns" not in str(alone)
    twice = without_tasks(texts(files | {"mail.json": f'["Hi Ida!", "{FERNS} Bye!"]'}), [TASK])
    assert str(twice).count("ferns") == 1


def test_the_file_with_the_most_tasks_is_the_one_of_the_tasks() -> None:
    other = {"id": "b", "messages": [{"role": "user", "content": "Sell the roses in the shop."}]}
    rows = "".join(f'{{"prompt": "{task["messages"][0]["content"]}"}}\n' for task in (TASK, other))
    left = without_tasks(texts({"a.json": f'["{FERNS}"]', "rows.jsonl": rows}), [TASK, other])
    assert FERNS in left["a.json"] and FERNS not in left["rows.jsonl"]
