"""What the files of a package may show to an agent."""

from __future__ import annotations

import base64

import pytest

from workers.lib.environments.packages.texts import shown_texts

TASK = '{"id": "a", "prompt": "Water the ferns.", "metadata": {"inbox": "hello"}}'


@pytest.mark.parametrize(
    ("path", "content", "texts"),
    [
        ("env/__init__.py", '"""Docs."""\nMAIL = "Water " + "the ferns."\n', ["Water the ferns."]),
        (
            "env/__init__.py",
            (
                'def read(self):\n    """Reads."""\n    return {"body": f"Dear {self.name}, water'
                ' them"}'
            ),
            ["body", "Dear  , water them"],
        ),
        (
            "env/__init__.py",
            'def tasks(self):\n    return [{"id": "a", "prompt": "Water the ferns."}]',
            [],
        ),
        ("env/__init__.py", 'TASKS = [{"id": "a", "prompt": "Water the ferns."}]', []),
        ("env/tasks.jsonl", f"{TASK}\n{TASK}\n", []),
        (
            "env/inbox.json",
            '{"mails": [{"from": "Ida", "body": "Water the ferns."}]}',
            ["Ida", "Water the ferns."],
        ),
        ("env/notes.txt", "Water the ferns.", ["Water the ferns."]),
        ("README.md", "Water the ferns.", []),
        ("tests/test_env.py", 'X = "Water the ferns."', []),
    ],
)
def test_texts_of_code_and_data_without_tasks(path: str, content: str, texts: list[str]) -> None:
    found = dict(shown_texts({path: base64.b64encode(content.encode()).decode()}))
    assert [text for some in found.values() for text in some] == texts
