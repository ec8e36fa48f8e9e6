"""The compile pool: any end that a compiler can come to is one candidate's outcome."""

import gc
import os
import signal
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockscale.errors import IncompleteRunError, InputError
from blockscale.hardware import H200
from blockscale.measure.compile_pool import CompileOptions, CompilePool, CompileRequest, PoolSettings, compile_key
from blockscale.problem import Candidate, GemmShape, Kernel, OutDtype, Problem, TileConfig, TrialStatus

WAIT_S = 60.0

# What a fake compiler does with a candidate is coded in its num_stages.
FAKES = """
import os, signal
from pathlib import Path
from blockscale.measure.compile_pool import CompileOutcome
from blockscale.problem import TrialStatus

def open_fake(options):
    def compile_one(request):
        candidate = request.candidate
        with open(options.cache_dir / "compiled", "a") as log:
            log.write(f"{os.getpid()} {candidate.config}\\n")
        match candidate.config.num_stages:
            case 10:
                os.read(os.pipe()[0], 1)
            case 11:
                os.kill(os.getpid(), signal.SIGSEGV)
            case 12:
                raise KeyError("a mistake of ours")
            case 13:
                return CompileOutcome(TrialStatus.OUT_OF_RESOURCES, "shared memory")
            case 15:
                raise OSError(28, "No space left on device")
            case 14:
                (options.cache_dir / "visible").write_text(repr(os.environ["CUDA_VISIBLE_DEVICES"]))
        return CompileOutcome(TrialStatus.OK, "", 0.5)
    return compile_one

def open_without_torch(options):
    import torch_that_is_not_installed

def open_noting(options):
    with open(options.cache_dir / "started", "a") as log:
        log.write("started\\n")
    return open_fake(options)

def open_dying(options):
    os._exit(3)
"""

HANGS, DIES, RAISES, TOO_LARGE, REPORTS, NO_SPACE = 10, 11, 12, 13, 14, 15
PROBLEM = Problem(GemmShape(16, 2112, 7168))


def candidate(stages: int, group: int = 1) -> Candidate:
    return Candidate(Kernel.FP8, TileConfig(16, 64, 128, group_m=group, num_stages=stages))


def asked(stages: int, group: int = 1, problem: Problem = PROBLEM) -> CompileRequest:
    return CompileRequest(H200, problem, candidate(stages, group))


@pytest.fixture
def pool_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    (tmp_path / "fakes.py").write_text(FAKES)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    pools: list[CompilePool] = []

    def make(function: str = "open_fake", **settings: object) -> CompilePool:
        chosen = PoolSettings(**{"workers": 1, "function": f"fakes:{function}", **settings})  # type: ignore[arg-type]
        pools.append(CompilePool(CompileOptions(tmp_path), chosen))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


def compiled(folder: Path) -> list[str]:
    return (folder / "compiled").read_text().splitlines()


def test_every_end_of_a_compiler_is_an_outcome_and_the_rest_goes_on(pool_of, tmp_path: Path) -> None:
    pool = pool_of(time_limit_s=2.0)
    stages = [3, HANGS, 4, DIES, 5, TOO_LARGE, 6]
    outcomes = [future.result(WAIT_S) for future in [pool.submit(asked(n)) for n in stages]]
    ok = TrialStatus.OK
    assert [outcome.status for outcome in outcomes] == [
        ok, TrialStatus.COMPILE_TIMEOUT, ok, TrialStatus.COMPILE_ERROR, ok, TrialStatus.OUT_OF_RESOURCES, ok
    ]  # fmt: skip
    assert outcomes[1].message == "not compiled within 2 s"
    assert "died with signal 11" in outcomes[3].message
    assert outcomes[0].compile_s == 0.5


def test_a_process_killed_while_idle_costs_no_candidate(pool_of, tmp_path: Path) -> None:
    pool = pool_of()
    assert pool.submit(asked(3)).result(WAIT_S).status is TrialStatus.OK
    pid = int(compiled(tmp_path)[0].split()[0])
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert pool.submit(asked(4)).result(WAIT_S).status is TrialStatus.OK
    assert int(compiled(tmp_path)[1].split()[0]) != pid


def test_a_mistake_of_ours_in_a_compile_process_is_not_hidden(pool_of) -> None:
    pool = pool_of()
    with pytest.raises(RuntimeError, match="a mistake of ours"):
        pool.submit(asked(RAISES)).result(WAIT_S)
    assert pool.submit(asked(3)).result(WAIT_S).status is TrialStatus.OK


def test_a_full_disk_is_no_candidates_fault(pool_of) -> None:
    with pytest.raises(IncompleteRunError, match=r"No space left on device.*XDG_CACHE_HOME.*goes on from here"):
        pool_of().submit(asked(NO_SPACE)).result(WAIT_S)


def test_a_config_is_compiled_once_for_all_problems_of_its_class(pool_of, tmp_path: Path) -> None:
    pool = pool_of()
    first = pool.submit(asked(3)).result(WAIT_S)
    again = pool.submit(asked(3, problem=Problem(GemmShape(4096, 2112, 7168)))).result(WAIT_S)
    assert (first.compile_s, again.compile_s) == (0.5, 0.0)
    assert len(compiled(tmp_path)) == 1
    pool.submit(asked(3, problem=Problem(GemmShape(1, 2112, 7168)))).result(WAIT_S)
    assert len(compiled(tmp_path)) == 2


def test_of_what_waits_the_lowest_rank_is_compiled_first(pool_of, tmp_path: Path) -> None:
    pool = pool_of(time_limit_s=2.0)
    other = Problem(GemmShape(4096, 2112, 7168))  # compiles to the same code
    futures = [pool.submit(asked(HANGS), -1)]  # whatever comes meanwhile waits
    futures += [pool.submit(asked(stages), rank) for stages, rank in ((3, 2), (4, 1), (5, 1), (6, 3))]
    futures.append(pool.submit(asked(6, problem=other), 0))
    assert [future.result(WAIT_S).status is TrialStatus.OK for future in futures] == [False, *[True] * 5]
    order = [next(n for n in (3, 4, 5, 6, HANGS) if f"s{n}" in line) for line in compiled(tmp_path)]
    assert order == [HANGS, 6, 4, 5, 3]


def test_what_two_problems_wait_for_costs_one_of_them(pool_of, tmp_path: Path) -> None:
    pool = pool_of()
    other = Problem(GemmShape(4096, 2112, 7168))
    both = [pool.submit(asked(3)), pool.submit(asked(3, problem=other))]
    assert [future.result(WAIT_S).compile_s for future in both] == [0.5, 0.0]
    assert len(compiled(tmp_path)) == 1
    assert pool.clock().compilations == 1
    assert pool.clock().busy_s > 0


def test_a_warm_pool_has_started_all_its_processes_before_the_first_job(pool_of, tmp_path: Path) -> None:
    pool = pool_of("open_noting", workers=3)
    pool.warm()
    started = tmp_path / "started"
    while not started.exists() or len(started.read_text().splitlines()) < 3:
        os.sched_yield()
    assert pool.submit(asked(3)).result(WAIT_S).status is TrialStatus.OK
    assert len(started.read_text().splitlines()) == 3


def test_processes_are_recycled(pool_of, tmp_path: Path) -> None:
    pool = pool_of(recycle_after=2)
    for group in range(1, 6):
        assert pool.submit(asked(3, group)).result(WAIT_S).status is TrialStatus.OK
    assert len({line.split()[0] for line in compiled(tmp_path)}) == 3


def test_of_a_finished_compilation_only_the_outcome_is_kept(pool_of) -> None:
    pool = pool_of()
    future = pool.submit(asked(3))
    outcome, finished = future.result(WAIT_S), weakref.ref(future)
    del future
    pool.submit(asked(4)).result(WAIT_S)  # by now the pool's thread is done with the first
    gc.collect()
    assert finished() is None
    assert pool.submit(asked(3)).result(WAIT_S) == replace(outcome, compile_s=0.0)


def test_a_cancelled_compilation_is_never_made(pool_of, tmp_path: Path) -> None:
    pool = pool_of(time_limit_s=2.0)
    blocked = pool.submit(asked(HANGS))
    queued = pool.submit(asked(4))
    assert queued.cancel()
    assert blocked.result(WAIT_S).status is TrialStatus.COMPILE_TIMEOUT
    assert pool.submit(asked(5)).result(WAIT_S).status is TrialStatus.OK
    assert not [line for line in compiled(tmp_path) if "s4" in line]
    assert pool.submit(asked(4)).result(WAIT_S).status is TrialStatus.OK  # asked for again: made


def test_closing_kills_what_runs_and_leaves_no_one_waiting(pool_of) -> None:
    pool = pool_of()
    running, queued = pool.submit(asked(HANGS)), pool.submit(asked(4))
    pool.close()
    pool.close()
    assert running.done()
    assert queued.cancelled()


def test_no_gpu_is_visible_to_a_compile_process(pool_of, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    pool_of().submit(asked(REPORTS)).result(WAIT_S)
    assert (tmp_path / "visible").read_text() == "''"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"


def test_missing_packages_are_one_message_with_the_command_that_installs_them(pool_of) -> None:
    with pytest.raises(InputError, match=r"torch_that_is_not_installed.*pip install \"blockscale\[gpu\]\""):
        pool_of("open_without_torch").submit(asked(3)).result(WAIT_S)


def test_compile_processes_that_never_start_end_the_run(pool_of) -> None:
    with pytest.raises(IncompleteRunError, match="do not start: ended with exit code 3"):
        pool_of("open_dying").submit(asked(3)).result(WAIT_S)


def test_a_pool_that_cannot_start_processes_any_more_keeps_no_one_waiting(
    pool_of, monkeypatch: pytest.MonkeyPatch
) -> None:
    def out_of_processes(target: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("blockscale.measure.compile_pool.Child", out_of_processes)
    pool = pool_of()
    for group in (1, 16):  # the second comes when the manager's thread has ended
        with pytest.raises(IncompleteRunError, match="Resource temporarily unavailable"):
            pool.submit(asked(3, group)).result(WAIT_S)


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_sizes_share_code_exactly_when_triton_would_share_it(a: int, b: int) -> None:
    def kind(m: int) -> tuple[bool, bool]:
        return m == 1, m % 16 == 0

    # N·M is a multiple of 16 here whatever M is, and K likewise.
    keys = [compile_key(Problem(GemmShape(m, 2112, 7168)), candidate(3)) for m in (a, b)]
    assert (keys[0] == keys[1]) == (kind(a) == kind(b))


def test_what_changes_the_code_is_told_apart() -> None:
    base = compile_key(PROBLEM, candidate(3))
    assert compile_key(PROBLEM, candidate(4)) != base
    assert compile_key(Problem(PROBLEM.shape, out_dtype=OutDtype.FLOAT16), candidate(3)) != base
    assert compile_key(Problem(GemmShape(16, 2112, 7168 + 64)), candidate(3)) != base  # the K tail is masked
    assert compile_key(PROBLEM, Candidate(Kernel.FP8_MASKED, candidate(3).config)) != base
    option = candidate(3).config.with_(extra=(("maxnreg", "128"),))  # handed on to the compiler
    assert compile_key(PROBLEM, Candidate(Kernel.FP8, option)) != base
