"""On a real GPU: compiled ahead and found, right and repeatable, and no worse for a candidate that cannot run."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from blockscale.executor.base import SAME_CODE
from blockscale.executor.gpus import visible_gpus
from blockscale.executor.local import LocalDevice, LocalSettings
from blockscale.measure.compile_pool import CompileOptions, CompilePool, CompileRequest
from blockscale.problem import Candidate, GemmShape, Kernel, Phase, Problem, QuantFormat, QuantScheme, TileConfig, Trial
from blockscale.problem import TrialStatus as S

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")]

Try = Callable[[LocalDevice, Problem, list[Candidate]], list[Trial]]
CONFIG = TileConfig(16, 64, 128, num_stages=2)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("triton")


@pytest.fixture(scope="module")
def device(cache: Path) -> Iterator[LocalDevice]:
    local = LocalDevice(LocalSettings(cache_dir=cache))
    yield local
    local.close()


def problem_for(device: LocalDevice, m: int, n: int = 2112, k: int = 7168) -> tuple[Problem, Kernel]:
    if device.spec.supports_fp8:
        return Problem(GemmShape(m, n, k)), Kernel.FP8
    return Problem(GemmShape(m, n, k), QuantScheme(QuantFormat.INT8)), Kernel.INT8


def entries(cache: Path) -> set[str]:
    return {path.parent.name for path in cache.rglob("*.json")}


def test_the_gpus_of_this_machine_are_listed() -> None:
    assert [gpu.name for gpu in visible_gpus()] == [
        torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())
    ]


@pytest.mark.parametrize("m", [1, 16, 3])
def test_what_the_pool_compiled_is_not_compiled_again(device: LocalDevice, screen: Try, cache: Path, m: int) -> None:
    problem, kernel = problem_for(device, m)
    pool = CompilePool(CompileOptions(cache))
    assert pool.submit(CompileRequest(device.spec, problem, Candidate(kernel, CONFIG))).result(180).status is S.OK
    pool.close()
    before = entries(cache)
    (trial,) = screen(device, problem, [Candidate(kernel, CONFIG)])
    assert trial.status is S.OK, trial.message
    assert entries(cache) == before


def test_ragged_sizes_are_right(device: LocalDevice, screen: Try) -> None:
    for m, n, k in ((1, 576, 7168), (3, 130, 384), (24, 2112, 1000)):
        problem, kernel = problem_for(device, m, n, k)
        (trial,) = screen(device, problem, [Candidate(kernel, CONFIG)])
        assert trial.status is S.OK, f"{problem}: {trial.message}"


def test_equal_comparisons_come_out_equal(device: LocalDevice, compare: Try) -> None:
    problem, kernel = problem_for(device, 1024)
    candidates = [Candidate(kernel, TileConfig(64, 128, 128, group_m=g, num_stages=2)) for g in (1, 8)]
    first, second = (compare(device, problem, candidates) for _ in range(2))
    assert {t.phase for t in (*first, *second)} == {Phase.FINAL}
    for a, b in zip(first, second, strict=True):
        assert a.time_us is not None
        assert a.time_us == pytest.approx(b.time_us, rel=0.05)


def test_the_same_code_is_measured_once(device: LocalDevice, screen: Try) -> None:
    problem, kernel = problem_for(device, 512)
    (first,), (again,) = (screen(device, problem, [Candidate(kernel, CONFIG)]) for _ in range(2))
    assert again.labels == (*first.labels, SAME_CODE)
    assert again.samples_us == first.samples_us
    assert again.elapsed_s == 0


def test_a_candidate_beyond_the_gpus_limits_costs_its_own_trial(device: LocalDevice, screen: Try) -> None:
    problem, kernel = problem_for(device, 256)
    too_large = Candidate(kernel, TileConfig(256, 256, 128, num_warps=8, num_stages=5))
    good = Candidate(kernel, CONFIG)
    assert [t.status for t in screen(device, problem, [too_large, good])][1] is S.OK
