"""The wheel says of which commit it was built (flywheel/commit.py)."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CommitHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        sys.path.insert(0, self.root)
        from flywheel.commit import of_checkout

        with tempfile.NamedTemporaryFile("w", delete=False) as file:
            file.write(of_checkout(Path(self.root)))
        self._file = Path(file.name)
        build_data["force_include"][file.name] = "flywheel/carried/commit"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        self._file.unlink()
