"""Packages that look like installed engines, for this process and its children."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fake_engine import write_package

Install = Callable[[str, str, dict[str, str]], Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a package (name, version, modules by path) where imports find it, before those of earlier calls."""
    count = iter(range(100))

    def installed(name: str, version: str, modules: dict[str, str]) -> Path:
        folder = write_package(tmp_path / f"packages{next(count)}", name, version, modules)
        monkeypatch.syspath_prepend(folder)
        monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        return folder

    return installed
