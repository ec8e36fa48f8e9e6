"""Fake engines on the path of this process, and gone from it afterwards."""

import importlib
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fake_engines import PLACES, make_engine

from blockscale.plugins import serving


@pytest.fixture
def install_engine(tmp_path, monkeypatch):
    """Installs a fake engine by name."""
    root = tmp_path / "site-packages"
    root.mkdir()
    monkeypatch.syspath_prepend(root)
    monkeypatch.setattr(serving, "_served", set())
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))

    def make(name, loader=None, place=None):
        made = make_engine(root, name, loader, place)
        importlib.invalidate_caches()
        return made

    yield make
    for module in [each for each in sys.modules if each.partition(".")[0] in PLACES]:
        del sys.modules[module]


@pytest.fixture(params=sorted(PLACES))
def fake(request, install_engine):
    return install_engine(request.param)
