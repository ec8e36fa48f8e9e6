"""The compile pool with the real compiler and no GPU; what it leaves is found by the next process."""

from pathlib import Path

from blockscale.hardware import H200
from blockscale.measure.compile_pool import (
    CompileOptions,
    CompileOutcome,
    CompilePool,
    CompileRequest,
    PoolSettings,
)
from blockscale.problem import Candidate, GemmShape, Kernel, Problem, TileConfig, TrialStatus

WAIT_S = 120.0
PROBLEM = Problem(GemmShape(16, 2112, 7168))
SPLIT = Candidate(Kernel.FP8_HOPPER, TileConfig(16, 64, 128, num_stages=4, swap_ab=True, split_k=8))
TOO_LARGE = Candidate(Kernel.FP8, TileConfig(128, 256, 128, num_warps=8, num_stages=5))
WRONG_BLOCK = Candidate(Kernel.FP8, TileConfig(16, 64, 256))


def cached_kernels(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*.cubin")}


def compile_in_new_process(folder: Path, problem: Problem, *candidates: Candidate) -> list[CompileOutcome]:
    pool = CompilePool(CompileOptions(folder), PoolSettings(workers=1, time_limit_s=WAIT_S))
    try:
        return [future.result(WAIT_S) for future in [pool.submit(CompileRequest(H200, problem, c)) for c in candidates]]
    finally:
        pool.close()


def test_kernels_reach_the_cache_where_a_later_process_finds_them(tmp_path: Path) -> None:
    split, too_large, wrong = compile_in_new_process(tmp_path, PROBLEM, SPLIT, TOO_LARGE, WRONG_BLOCK)
    assert split.status is TrialStatus.OK
    assert too_large.status is TrialStatus.OUT_OF_RESOURCES
    assert too_large.message.startswith("shared memory: ")
    assert f"{H200.shared_memory_bytes} on NVIDIA H200" in too_large.message
    assert wrong.status is TrialStatus.ILLEGAL
    assert "does not divide" in wrong.message
    made = cached_kernels(tmp_path)
    assert len(made) == 3  # the GEMM and its reduction, and the kernel that is too large

    # Another M of the same class, in a process that knows nothing of the first.
    (found,) = compile_in_new_process(tmp_path, Problem(GemmShape(4096, 2112, 7168)), SPLIT)
    assert found.status is TrialStatus.OK
    assert found.code == split.code != ""
    assert cached_kernels(tmp_path) == made

    for index in tmp_path.rglob("*.json"):  # as a full disk leaves it
        index.write_text("")
    (mended,) = compile_in_new_process(tmp_path, PROBLEM, SPLIT)
    assert mended.status is TrialStatus.OK
    assert all(index.read_text() for index in tmp_path.rglob("*hopper*.json"))
