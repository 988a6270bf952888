from __future__ import annotations

from pathlib import Path

import pytest

from apps.core.models import Project
from apps.registry.models import ModelVersion
from tests.factories import make_adapter


@pytest.fixture
def adapter(project: Project, base: ModelVersion, data_dir: Path) -> ModelVersion:
    """A candidate."""
    return make_adapter(project, base, data_dir)
