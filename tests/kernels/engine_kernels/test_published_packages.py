"""The engines' kernels in their published packages, which are not ours to ship: the tests skip without them.

``BLOCKSCALE_ENGINE_PACKAGES`` names a folder in which each subfolder is what ``pip install --no-deps --target`` makes
of one release.
"""

import os
from pathlib import Path

import pytest

from blockscale.engines import engine, installed_engines
from blockscale.engines.kernels import KernelChoice, choose_kernels
from blockscale.hardware import H200
from blockscale.kernels.installed import KernelSource, find_kernels
from blockscale.measure.compile_pool import CompileOptions, CompilePool, CompileRequest, PoolSettings
from blockscale.problem import Candidate, GemmShape, Problem, QuantFormat, TileConfig, TrialStatus

VARIABLE = "BLOCKSCALE_ENGINE_PACKAGES"
RELEASES = sorted(path for path in Path(os.environ.get(VARIABLE, os.devnull)).glob("*") if path.is_dir())
WAIT_S = 120.0

pytestmark = pytest.mark.skipif(not RELEASES, reason=f"no published packages of engines here ({VARIABLE})")


@pytest.fixture(params=RELEASES, ids=lambda path: path.name)
def source(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> KernelSource:
    """The FP8 kernels of one release, which is the only one installed."""
    monkeypatch.syspath_prepend(request.param)
    monkeypatch.setenv("PYTHONPATH", str(request.param), prepend=os.pathsep)
    (here,) = installed_engines()
    return choose_kernels(KernelChoice.ENGINE, [engine(here.name, here.version)], QuantFormat.FP8)[0]


def test_a_release_has_the_kernels_that_its_contract_says_and_they_compile(source, tmp_path):
    found = [kernel for kernel in find_kernels(source) if kernel.arch is None]
    assert found
    problem = Problem(GemmShape(16, 576, 1160))
    pool = CompilePool(CompileOptions(tmp_path, source), PoolSettings(workers=1, time_limit_s=WAIT_S))
    try:
        for kernel in found:
            candidate = Candidate(kernel.kernel, TileConfig(16, 64, 128, split_k=1 if kernel.reduction is None else 4))
            outcome = pool.submit(CompileRequest(H200, problem, candidate)).result(WAIT_S)
            assert (outcome.status, outcome.message) == (TrialStatus.OK, "")
    finally:
        pool.close()
    functions = {each.taken.name for kernel in found for each in (kernel.gemm, kernel.reduction) if each is not None}
    assert {path.stem for path in tmp_path.rglob("*.cubin")} == functions
