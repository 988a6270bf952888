"""What can be said of a program in an output without running it. Pure.

There are many right programs for a task, so an output is not wrong because its text is not that of
the demonstration.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

_FENCED = re.compile(
    r"^[ ]{0,3}(`{3,}|~{3,})[^\n]*\n(.*?)(?:^[ ]{0,3}\1|\Z)", re.DOTALL | re.MULTILINE
)
READS = ("input", "stdin", "open")
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def programs(text: str) -> list[ast.Module]:
    """Every block of an output, and the whole of it, that is Python and does something."""
    sources = [match[2] for match in _FENCED.finditer(text)] + [text]
    return [
        tree
        for source in sources
        if (tree := _parsed(source)) and any(map(_does_something, tree.body))
    ]


def _parsed(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _does_something(node: ast.stmt) -> bool:
    """Prose of one word is Python, too."""
    return not isinstance(node, ast.Expr) or any(
        isinstance(part, ast.Call) for part in ast.walk(node)
    )


def surely_no_solution(text: str, answers: list[str]) -> bool:
    """Whether an output has no program, or only programs that never use their input although all
    right ones do.
    """
    made = programs(text)
    if any(map(_uses_input, made)):
        return False
    right = [programs(answer) for answer in answers]
    if any(_squeezed(answer) in _squeezed(text) for answer in answers):
        return False
    return not made or (bool(right) and all(any(map(_uses_input, trees)) for trees in right))


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _uses_input(tree: ast.Module) -> bool:
    """Whether a function reads one of its parameters, or the program reads a file or the standard
    input.
    """
    for node in ast.walk(tree):
        if (isinstance(node, ast.Name) and node.id in READS) or (
            isinstance(node, ast.Attribute) and node.attr in READS
        ):
            return True
        if isinstance(node, _Function | ast.Lambda):
            names = _parameters(node.args)
            body = node.body if isinstance(node.body, list) else [node.body]
            if any(
                isinstance(part, ast.Name) and part.id in names
                for each in body
                for part in ast.walk(each)
            ):
                return True
    return False


def _parameters(given: ast.arguments) -> set[str]:
    several = [one for one in (given.vararg, given.kwarg) if one]
    return {one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs, *several)} - {
        "self",
        "cls",
    }


def same_program(text: str, answer: str) -> bool:
    """Whether an output defines the same functions as a right answer, however they are laid out."""
    wanted = [found for tree in programs(answer) if (found := dict(_functions(tree)))]
    return any(dict(_functions(tree)) in wanted for tree in programs(text))


def _functions(tree: ast.Module) -> Iterator[tuple[str, list[str]]]:
    for node in tree.body:
        if isinstance(node, _Function):
            yield node.name, [ast.dump(part) for part in map(_plain, node.body) if part]


def _plain(node: ast.stmt) -> ast.stmt | None:
    """The statement; None for a docstring, for “pass” and for a return of nothing."""
    if (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)) or isinstance(
        node, ast.Pass
    ):
        return None
    if isinstance(node, ast.Return) and (
        node.value is None or getattr(node.value, "value", ...) is None
    ):
        return None
    return node
