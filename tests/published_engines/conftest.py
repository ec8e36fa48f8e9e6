"""Published releases of the engines, which are not ours to ship: tests skip where `make test-engines` has not put them.

``BLOCKSCALE_ENGINE_PACKAGES`` names their folder.
"""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from published import Published, Release

VARIABLE = "BLOCKSCALE_ENGINE_PACKAGES"
PACKAGES = sorted(path for path in Path(os.environ.get(VARIABLE, os.devnull)).glob("*-*") if path.is_dir())


@pytest.fixture(
    params=PACKAGES or [pytest.param(None, marks=pytest.mark.skip(f"no published engines here ({VARIABLE})"))],
    ids=lambda path: path.name if path else "none",
    scope="session",
)
def release(request):
    return Release(request.param)


@pytest.fixture
def publish(release, tmp_path, monkeypatch):
    """The release's module with the GEMM of a format; its config folder lies below a folder of the test's."""

    def make(*arguments, **options):
        published = Published(release, tmp_path / "site-packages", *arguments, **options)
        for name, module in published.stand_ins.items():
            monkeypatch.setitem(sys.modules, name, module)
        return published

    return make
