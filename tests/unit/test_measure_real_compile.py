"""The compile pool with the real compiler and no GPU; what it leaves is found by the next process."""

from pathlib import Path

from blockscale.hardware import H200
from blockscale.measure.compile_pool import CompileOptions, CompilePool, PoolSettings
from blockscale.problem import Candidate, GemmShape, Kernel, Problem, TileConfig, TrialStatus

WAIT_S = 120.0
PROBLEM = Problem(GemmShape(16, 2112, 7168))
SPLIT = Candidate(Kernel.FP8_HOPPER, TileConfig(16, 64, 128, num_stages=4, swap_ab=True, split_k=8))
TOO_LARGE = Candidate(Kernel.FP8, TileConfig(128, 256, 128, num_warps=8, num_stages=5))
WRONG_BLOCK = Candidate(Kernel.FP8, TileConfig(16, 64, 256))


def cached_kernels(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*.cubin")}


def test_kernels_are_compiled_to_the_cache_and_a_second_pool_finds_them(tmp_path: Path) -> None:
    options = CompileOptions(H200, tmp_path)
    pool = CompilePool(options, PoolSettings(workers=1, time_limit_s=WAIT_S))
    try:
        futures = [pool.submit(PROBLEM, c) for c in (SPLIT, TOO_LARGE, WRONG_BLOCK)]
        split, too_large, wrong = (future.result(WAIT_S) for future in futures)
    finally:
        pool.close()
    assert split.status is TrialStatus.OK
    assert too_large.status is TrialStatus.OUT_OF_RESOURCES
    assert too_large.message.startswith("shared memory: ")
    assert f"{H200.shared_memory_bytes} on NVIDIA H200" in too_large.message
    assert wrong.status is TrialStatus.ILLEGAL
    assert "does not divide" in wrong.message

    made = cached_kernels(tmp_path)
    assert len(made) == 3  # the GEMM and its reduction, and the kernel that is too large

    again = CompilePool(options, PoolSettings(workers=1, time_limit_s=WAIT_S))
    try:
        # Another M of the same class, which the pool's own memory does not know yet.
        assert again.submit(Problem(GemmShape(4096, 2112, 7168)), SPLIT).result(WAIT_S).status is TrialStatus.OK
    finally:
        again.close()
    assert cached_kernels(tmp_path) == made
