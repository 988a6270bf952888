"""Whether reformatting changed the program: `python -m bench.same_code COMMIT`.

Every Python file of the work tree must have the syntax tree that it had in that commit; of
docstrings, only the words count, not how their lines are broken. Prints the files that differ;
exit status 1 if there are any.
"""

import ast
import subprocess
import sys
from pathlib import Path


def git(*args: str) -> str:
    return subprocess.run(["git", *args], capture_output=True, text=True, check=False).stdout


def tree(source: str) -> str:
    module = ast.parse(source)
    for node in ast.walk(module):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            text = node.value.value
            node.value.value = " ".join(text.split()) if isinstance(text, str) else text
    return ast.dump(module)


def main() -> int:
    paths = git("ls-files", "*.py").split()
    differ = [
        path
        for path in paths
        if path != "bench/same_code.py"
        and tree(git("show", f"{sys.argv[1]}:{path}")) != tree(Path(path).read_text())
    ]
    print(*differ, f"{len(differ)} of {len(paths)} files differ", sep="\n")
    return bool(differ)


if __name__ == "__main__":
    sys.exit(main())
