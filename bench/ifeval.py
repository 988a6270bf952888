"""IFEval's instructions: our verdicts and lm-eval's on generated edge cases. See README.md.

`python -m bench.ifeval [--cases 40] [--seed 1] [--differences]`: lm-eval runs in a virtual
environment of its own, made on first use.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from workers.lib.verifiers import Rollout, build

HOME = Path(__file__).resolve().parent.parent / "var" / "bench" / "ifeval"
PINS = ["nltk==3.10.4", "langdetect==1.0.9", "immutabledict==4.3.1", "packaging"]
ALONE = ["lm_eval==0.4.13"]  # without what it needs to run models
PUNKT = (  # its wheel carries nltk's punkt_tab, which nltk itself would download
    "llama-index-core==0.14.25"
)
REFERENCE = r"""
import json, sys, types
from importlib.util import find_spec
root = find_spec("lm_eval").submodule_search_locations[0]
for name in ("lm_eval.tasks", "lm_eval.tasks.ifeval"):  # their __init__ would load datasets and torch
    sys.modules[name] = module = types.ModuleType(name)
    module.__path__ = [root + name.removeprefix("lm_eval").replace(".", "/")]
import langdetect
langdetect.DetectorFactory.seed = 0
from lm_eval.tasks.ifeval import utils
for line in sys.stdin:
    case = json.loads(line)
    given = utils.InputExample(0, [case["type"]], "", [case["kwargs"]])
    verdicts = []
    for judge in (utils.test_instruction_following_strict, utils.test_instruction_following_loose):
        try:
            verdicts.append(judge(given, case["text"]).follow_all_instructions)
        except Exception as error:
            verdicts.append(type(error).__name__)
    print(json.dumps(verdicts), flush=True)
"""  # noqa: E501

SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "Dr. Smith met Mrs. Jones at 5 p.m. on Jan. 3.",
    "It costs $3.50, i.e. not much.",
    "Is it so?",
    "No! Never.",
    "He lives in the U.S. and works for Acme Inc. The company is old.",
    "Wait... what happened here?",
    'She said "Go home." Then she left.',
    "See e.g. the list, etc. This is all.",
    "J. R. Smith wrote it vs. nobody.",
    "My answer is yes.",
    "my answer is no.",
    "NASA and the EU agree; I'M sure.",
    "We CAN'T do THAT, A-OK?",
    "one two three four",
    "The results are on www.example.com today.",
    "Über die Brücke gehen wir nach Hause und essen zu Abend.",
    "C++ is fun. (Really.) Yes.",
    "La vida es sueño y los sueños sueños son para todos nosotros.",
    "今日は天気がいいですね。散歩に行きましょう。",
    "Version 2.0 is out.",
]
PIECES = [
    "* one",
    "*two*",
    "**bold**",
    "- three",
    "  - four",
    "*no space",
    "**",
    "***",
    "* * *",
    "******",
    "<<Title>>",
    "<< >>",
    "<<a>> <<b>>",
    "<b>>>",
    "[name]",
    "[]",
    "[a [b] c]",
    "[two\nlines]",
    "P.S. bye",
    "p. s. bye",
    "P.P.S more",
    "Section 1",
    "SECTION 2 text",
    "Section3",
    "Part 1",
    "Section X",
    "\n\n",
    "\n",
    " \n \n",
    "\n\n\n",
    "* \n",
    "-",
    "--- rule",
    "''quoted'' word",
    '"Hello',
    "'tis",
    "word,",
    "Word",
    "words",
    "keyword",
    "swordfish",
    "x_word",
    '```json\n{"a": 1}\n```',
    '{"a": NaN}',
    "[1, 2]",
    "null",
    "'single'",
    "***\n***",
    "•",
    "1. first",
    "、",
    "，",
    "\u00a0word\u00a0",
    "\ttab",
]


def text_of(chance: random.Random, focus: list[str]) -> str:
    """Sentences, odd pieces and the kind's own, sometimes in one case, quoted, padded, or with
    stars between.
    """
    pools = chance.choices(
        [SENTENCES, PIECES, focus or SENTENCES], [5, 3, 4], k=chance.randint(1, 9)
    )
    parts = [chance.choice(pool) for pool in pools]
    text = chance.choice([" ", " ", "\n", "\n\n", " *** ", "\n***\n", "******", "\n******\n"]).join(
        parts
    )
    change: list[Callable[[str], str]] = [
        str,
        str,
        str,
        str.upper,
        str.lower,
        lambda t: f'"{t}"',
        lambda t: f"\n {t} \n",
        lambda t: f"Sure, here it is:\n{t}\n\nBye.",
    ]
    return chance.choice(change)(text)


def arguments(kind: str, chance: random.Random, text: str) -> dict:
    """Arguments near to what the text has, so that verdicts go either way."""
    relation = chance.choice(["at least", "less than"])
    few, word = (
        chance.randint(1, 4),
        chance.choice(
            ["word", "keyword", "The", "no", "U.S.", "C++", "it", "über", "a.b", "answer"]
        ),
    )
    part = text.strip()[:12] if chance.random() < 0.5 else "Sure"
    given: dict[str, dict] = {
        "number_words": {
            "num_words": max(1, len(text.split()) + chance.randint(-2, 2)),
            "relation": relation,
        },
        "number_sentences": {
            "num_sentences": max(1, text.count(". ") + chance.randint(0, 2)),
            "relation": relation,
        },
        "number_paragraphs": {"num_paragraphs": max(1, text.count("***") + chance.randint(0, 1))},
        "nth_paragraph_first_word": {
            "num_paragraphs": (count := max(1, text.count("\n\n") + chance.randint(0, 1))),
            "nth_paragraph": chance.randint(1, count),
            "first_word": (text.split() or ["x"])[0].strip(".,!?*'\"") or "The",
        },
        "existence": {"keywords": [word, chance.choice(["is", "dog", "<<"])]},
        "forbidden_words": {"forbidden_words": [word, "sword"]},
        "frequency": {"keyword": word, "frequency": few, "relation": relation},
        "letter_frequency": {
            "letter": chance.choice("aeITx"),
            "let_frequency": chance.randint(1, 12),
            "let_relation": relation,
        },
        "response_language": {"language": chance.choice(["en", "en", "de", "es", "ja"])},
        "capital_word_frequency": {
            "capital_frequency": few + chance.choice([0, 5, 20]),
            "capital_relation": relation,
        },
        "number_bullet_lists": {
            "num_bullets": max(
                1,
                sum(line.strip()[:1] in ("*", "-") for line in text.split("\n"))
                + chance.choice([0, 0, 1]),
            )
        },
        "number_highlighted_sections": {"num_highlights": few},
        "number_placeholders": {"num_placeholders": few},
        "multiple_sections": {
            "section_spliter": chance.choice(["Section", "SECTION", "Part"]),
            "num_sections": chance.randint(1, 2),
        },
        "postscript": {"postscript_marker": chance.choice(["P.S.", "P.P.S", "Note:"])},
        "end_checker": {"end_phrase": text.strip()[-9:] if chance.random() < 0.6 else "Bye."},
        "repeat_prompt": {"prompt_to_repeat": part or "Sure"},
    }
    return given.get(kind, {})


KINDS = {
    "keywords": ["existence", "frequency", "forbidden_words", "letter_frequency"],
    "language": ["response_language"],
    "length_constraints": [
        "number_sentences",
        "number_paragraphs",
        "number_words",
        "nth_paragraph_first_word",
    ],
    "detectable_content": ["number_placeholders", "postscript"],
    "detectable_format": [
        "number_bullet_lists",
        "constrained_response",
        "number_highlighted_sections",
        "multiple_sections",
        "json_format",
        "title",
    ],
    "combination": ["two_responses", "repeat_prompt"],
    "startend": ["end_checker", "quotation"],
    "change_case": ["capital_word_frequency", "english_capital", "english_lowercase"],
    "punctuation": ["no_comma"],
}
WHOLE = {  # whole texts of a kind among those made of pieces
    "json_format": [
        '{"a": 1}',
        "```json\n[1]\n```",
        "```JSON\n{}```",
        "``` \nnull\n```",
        "{'a': 1}",
        '{"a": NaN}',
        "```json{}",
        "12",
        "[" * 60 + "]" * 60,
    ],
    "two_responses": [
        "a******b",
        "******a******b",
        "a******a",
        "a******b******",
        "a****** ******b",
        "a*******b",
        "a************b",
    ],
    "quotation": ['"a"', '"', '"a" b', ' "a" \n', "“a”", '""'],
    "english_capital": [
        "HELLO, THIS IS ALL IN CAPITAL LETTERS.",
        "DIES IST EIN GANZ DEUTSCHER SATZ, NICHT WAHR?",
        "1234",
        "ÉTÉ",
        "ALMOST ALL IN CAPITALs",
    ],
    "english_lowercase": [
        "this is all in small letters, as it should be.",
        "dies ist ein ganz deutscher satz, nicht wahr?",
        "!!!",
        "almost All",
    ],
    "response_language": [
        "12 34",
        "...",
        "https://example.com",
        "Hello",
        "Das ist gut.",
        "好的",
        "Bien sûr, je vous réponds en français.",
    ],
    "constrained_response": [
        "My answer is no.",
        "my answer is no.",
        "I think: My answer is maybe. Bye",
        "My answer is yes",
    ],
}
FOCUS = {  # pieces of a kind
    "number_placeholders": [
        "[name]",
        "[]",
        "[a [b] c]",
        "[two\nlines]",
        "[a] [b] [c]",
        "]x[",
        "[a]b]",
        "[[x]]",
    ],
    "postscript": [
        "P.S. bye",
        "p. s. bye",
        "P.P.S more",
        "p.p.s",
        "P. P. S",
        "PS: no",
        "note: this",
        "xp.s.x",
        "P.  S.",
    ],
    "number_bullet_lists": [
        "\n* one",
        "\n- two",
        "\n  * in",
        "\n*bold* no",
        "\n** no",
        "\n*",
        "\n\n\n* far",
        "\n• dot",
        "\n-",
        "\n---",
    ],
    "number_highlighted_sections": [
        "*a*",
        "**b**",
        "* *",
        "****",
        "***c***",
        "*d\ne*",
        "*f*g*h*",
        "**i",
        "*j **k** l*",
    ],
    "multiple_sections": [
        "Section 1",
        "Section 2",
        "SECTION 3",
        "Section4",
        "Part 1",
        "Sections 5",
        "Section  6",
        "section 7",
        "Section\n8",
    ],
    "title": ["<<a>>", "<< >>", "<<>>", "<<b\nc>>", "<<<d>>>", "<<e> >", "<< f", "g >>"],
    "number_paragraphs": ["***", "\n***\n", " *** ", "****", "a", "* * *"],
    "capital_word_frequency": ["NASA", "I", "U.S.", "A-B", "IT'S", "ÜBER", "A1", "O.K., YES"],
    "number_sentences": [
        "e.g. this",
        "i.e. That",
        "Mr. X",
        "A. B. C.",
        "Hm... So",
        "Yes!! No??",
        '"End." He',
        "(End.) He",
        "at 3 p.m. The",
        "5. Five",
        "U.S. He",
        "No. 5",
    ],
    "nth_paragraph_first_word": [
        "\n\n",
        "\n\n\n",
        "\n \n",
        "'Word'",
        '"Word"',
        "Word's",
        "Word!",
        "\n\nword",
    ],
    "no_comma": ["a, b", "a b", "、"],
    "existence": ["dog is", "answering", "U_S.", "C", "<< is"],
    "frequency": ["it it", "bit", "U.S.U.S.", "nonono", "aXb", "The"],
    "forbidden_words": ["swords", "a sword.", "no", "no_", "über", "überall", "C", "it-is"],
}


def cases(count: int, seed: int) -> Iterator[dict]:
    """`count` of each kind."""
    for group, kinds in KINDS.items():
        for kind in kinds:
            chance = random.Random(f"{seed} {kind}")
            for _ in range(count):
                is_whole = kind in WHOLE and chance.random() < 0.5
                text = (
                    chance.choice(WHOLE[kind]) if is_whole else text_of(chance, FOCUS.get(kind, []))
                )
                yield {
                    "type": f"{group}:{kind}",
                    "kwargs": arguments(kind, chance, text),
                    "text": text,
                }


def ours(case: dict, *, loose: bool) -> bool | str:
    spec = {
        "kind": "constraints",
        "loose": loose,
        "constraints": [case["kwargs"] | {"type": case["type"]}],
    }
    score = build(spec).score(Rollout.of_text({"expected": {}}, case["text"]))
    return score.mask_reason or score.success


def install() -> Path:
    """lm-eval's virtual environment, made once; its Python."""
    python = HOME / "bin" / "python"
    if not (HOME / "installed").exists():
        print(f"Installing {', '.join(ALONE + PINS)} …", flush=True)
        subprocess.run([sys.executable, "-m", "venv", HOME], check=True)
        pip = [python, "-m", "pip", "--disable-pip-version-check", "-q"]
        subprocess.run([*pip, "install", *PINS], check=True)
        subprocess.run([*pip, "install", "--no-deps", *ALONE], check=True)
        subprocess.run([*pip, "download", "--no-deps", "-d", HOME, PUNKT], check=True)
        with zipfile.ZipFile(next(HOME.glob("llama_index_core-*.whl"))) as wheel:
            wheel.extractall(
                HOME, [name for name in wheel.namelist() if "/punkt_tab/english/" in name]
            )
        (HOME / "installed").touch()
    return python


def reference(made: list[dict]) -> list[list[bool | str]]:
    """lm-eval's verdicts, strict and loose; the name of the error where it raises one."""
    data = HOME / "llama_index" / "core" / "_static" / "nltk_cache"
    ran = subprocess.run(
        [install(), "-c", REFERENCE],
        input="".join(json.dumps(case) + "\n" for case in made),
        text=True,
        env={"NLTK_DATA": str(data)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    return [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("[")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=40, help="of each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--differences", action="store_true", help="print them")
    chosen = parser.parse_args()
    made = list(cases(chosen.cases, chosen.seed))
    counts: Counter = Counter()
    for case, theirs in zip(made, reference(made), strict=True):
        kind = case["type"].rpartition(":")[2]
        for loose, their in zip((False, True), theirs, strict=True):
            mine = ours(case, loose=loose)
            if isinstance(their, str):
                counts[kind, "raised"] += 1
                continue
            counts[kind, "n"] += 1
            counts[kind, "held"] += their
            counts[kind, "same"] += mine is their
            if mine is not their and chosen.differences:
                print(
                    f"{kind} loose={loose} ours={mine} theirs={their} {case['kwargs']}"
                    f" {case['text']!r}"
                )
    print("| kind | verdicts | held by lm-eval | equal | lm-eval raised |\n|---|---|---|---|---|")
    kinds = [kind for group in KINDS.values() for kind in group]
    for kind in [*kinds, "all"]:
        of = kinds if kind == "all" else [kind]
        print(
            f"| {kind} | "
            + " | ".join(
                str(sum(counts[k, what] for k in of)) for what in ("n", "held", "same", "raised")
            )
            + " |"
        )


if __name__ == "__main__":
    main()
