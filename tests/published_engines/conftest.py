"""Published releases of the engines, which are not ours to ship: tests skip where `make test-engines` has not put them.

``BLOCKSCALE_ENGINE_PACKAGES`` names their folder.
"""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from published import Published, Release

from blockscale.engines.kernels import kernels_of
from blockscale.problem import QuantFormat, QuantScheme

VARIABLE = "BLOCKSCALE_ENGINE_PACKAGES"
PACKAGES = sorted(path for path in Path(os.environ.get(VARIABLE, os.devnull)).glob("*-*") if path.is_dir())


def pytest_generate_tests(metafunc):
    """Every release for ``release``; for ``release`` and ``quant`` each with every format that it has a GEMM for."""
    if "release" not in metafunc.fixturenames:
        return
    releases = [Release(path) for path in PACKAGES]
    if "quant" in metafunc.fixturenames:
        names = ["release", "quant"]
        cases = [
            pytest.param(each, QuantScheme(quant_format), id=f"{each}-{quant_format}")
            for each in releases
            for quant_format in QuantFormat
            if kernels_of(each.engine, quant_format).kernels
        ]
    else:
        names, cases = ["release"], [pytest.param(each, id=str(each)) for each in releases]
    absent = pytest.mark.skip(f"no published engines here ({VARIABLE})")
    metafunc.parametrize(names, cases or [pytest.param(*[None for _ in names], marks=absent, id="none")])


@pytest.fixture
def publish(release, tmp_path, monkeypatch):
    """The release's module with the GEMM of a format; its config folder lies below a folder of the test's."""

    def make(*arguments, **options):
        published = Published(release, tmp_path / "site-packages", *arguments, **options)
        for name, module in published.stand_ins.items():
            monkeypatch.setitem(sys.modules, name, module)
        return published

    return make
