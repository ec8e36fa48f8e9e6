"""`LocalDevice` with measuring processes that hang, die and raise: each costs one trial and nothing else."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from blockscale.errors import IncompleteRunError, InputError
from blockscale.executor import local
from blockscale.executor.base import SAME_CODE, Comparison, Screening
from blockscale.executor.local import LocalDevice, LocalSettings
from blockscale.measure.child import Child
from blockscale.measure.compile_pool import PoolSettings
from blockscale.measure.process import Limits
from blockscale.problem import (
    Candidate,
    GemmShape,
    Kernel,
    Phase,
    Problem,
    QuantFormat,
    QuantScheme,
    TileConfig,
    Trial,
    TrialStatus,
)

# What a fake process does with a candidate is coded in its GROUP_SIZE_M, its time in num_stages; with 8 warps all have
# the same code.
FAKES = """
import os
from dataclasses import replace
from pathlib import Path

from blockscale.errors import InputError
from blockscale.hardware import H200
from blockscale.measure.compile_pool import CompileOutcome
from blockscale.measure.protocol import Describe, Description, Finals, Measured, Prepare, Screen, Warnings
from blockscale.problem import Environment, TrialStatus

FOLDER = Path(os.environ["FAKE_FOLDER"])
NOTES = FOLDER / "notes"


def note(text):
    with NOTES.open("a") as file:
        file.write(text + "\\n")


def open_compiler(options):
    def compile_one(request):
        config = request.candidate.config
        if config.group_m == 40:
            return CompileOutcome(TrialStatus.COMPILE_ERROR, "PassManager::run failed", 1.5)
        code = "twins" if config.num_warps == 8 else str(config)
        return CompileOutcome(TrialStatus.OK, "", 0.25, code)
    return compile_one


def measure(candidate):
    match candidate.config.group_m:
        case 10:
            os.read(os.pipe()[0], 1)
        case 11:
            os.abort()
        case 12:
            return Measured(TrialStatus.ILLEGAL_ACCESS, message="illegal memory access", poisoned=True)
        case 13:
            raise KeyError("a mistake of ours")
        case 14:
            return Measured(TrialStatus.WRONG_RESULT, message="wrong")
    samples = tuple(float(candidate.config.num_stages) for _ in range(5))
    return Measured(TrialStatus.OK, samples, labels=("power_capped",) if candidate.config.group_m == 2 else ())


def open_worker(options):
    if (FOLDER / "gone").exists():
        raise RuntimeError("CUDA error: GPU is lost: it has fallen off the bus")
    note("start " + os.environ["CUDA_VISIBLE_DEVICES"])
    (FOLDER / "pid").write_text(str(os.getpid()))

    def handle(request):
        match request:
            case Describe():
                environment = Environment(H200.name, H200.arch, "driver", "torch", "triton", "hash", "version")
                spec = replace(H200, arch="sm_80") if (FOLDER / "old").exists() else H200
                return Description(spec, environment, 1)
            case Prepare(problems):
                note(f"prepare {len(problems)}")
                if any(p.shape.M > 100_000 for p in problems):
                    raise InputError("needs 99 GiB and 1 GiB are free")
            case Screen(problem, candidate, best_us):
                note(f"screen {candidate.config.group_m} {best_us}")
                if candidate.config.group_m == 15:
                    (FOLDER / "gone").touch()
                    os.abort()
                return measure(candidate)
            case Finals(problem, candidates):
                note("finals " + " ".join(str(c.config.group_m) for c in candidates))
                results = []
                for candidate in candidates:
                    results.append(measure(candidate))
                    if results[-1].poisoned:
                        return [r if r.poisoned else None for r in results] + [None] * (len(candidates) - len(results))
                return results
            case Warnings():
                return ["1 other process uses this GPU"]
    return handle


def open_without_gpu(options):
    raise RuntimeError("no GPU is visible to torch")


def open_without_torch(options):
    import torch_that_is_not_installed
"""

HANGS, DIES, POISONS, RAISES, WRONG, LOSES_GPU, NO_COMPILE = 10, 11, 12, 13, 14, 15, 40
PROBLEM = Problem(GemmShape(16, 2112, 7168))
S = TrialStatus
Make = Callable[..., LocalDevice]
Try = Callable[[LocalDevice, Problem, list[Candidate]], list[Trial]]


def candidate(group_m: int, time: int = 3, **more: int) -> Candidate:
    return Candidate(Kernel.FP8, TileConfig(16, 64, 128, group_m=group_m, num_stages=time).with_(**more))


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    (tmp_path / "fakes_local.py").write_text(FAKES)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("FAKE_FOLDER", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.delenv("HIP_VISIBLE_DEVICES", raising=False)
    devices: list[LocalDevice] = []

    def build(worker: str = "open_worker", limit_s: float = 60.0, gpu_index: int = 0) -> LocalDevice:
        limits = Limits(request_s=limit_s, first_of_problem_s=limit_s, final_s=0.0, starts=2)
        pool = PoolSettings(workers=1, function="fakes_local:open_compiler")
        settings = LocalSettings(gpu_index, tmp_path / "cache", limits, pool, f"fakes_local:{worker}")
        devices.append(LocalDevice(settings))
        return devices[-1]

    yield build
    for device in devices:
        device.close()


def notes(folder: Path, word: str) -> list[str]:
    lines = (folder / "notes").read_text().splitlines()
    return [line.removeprefix(word).strip() for line in lines if line.startswith(word)]


def test_whatever_a_candidate_does_costs_its_own_trial_only(make: Make, tmp_path: Path, screen: Try) -> None:
    device = make(limit_s=2.0)
    groups = [1, HANGS, 2, DIES, 3, POISONS, 4, WRONG, NO_COMPILE, 5]
    trials = screen(device, PROBLEM, [candidate(g) for g in groups])
    assert [t.candidate.config.group_m for t in trials] == groups
    assert [t.status for t in trials] == [
        S.OK, S.TIMEOUT, S.OK, S.WORKER_DIED, S.OK, S.ILLEGAL_ACCESS, S.OK, S.WRONG_RESULT, S.COMPILE_ERROR, S.OK
    ]  # fmt: skip
    assert all(t.phase is Phase.SCREEN for t in trials)
    assert "died with signal 6" in trials[3].message
    assert trials[1].message == "no result within 2 s; the process was replaced"
    assert trials[8].compile_s == 1.5
    assert all((t.elapsed_s > 0) == (t.status is not S.COMPILE_ERROR) for t in trials)
    assert len(notes(tmp_path, "start")) == 4  # the first, and one after each loss


def test_a_replaced_process_learns_again_what_will_be_tuned(make: Make, tmp_path: Path, screen: Try) -> None:
    device = make()
    device.prepare([PROBLEM, Problem(GemmShape(1, 2112, 7168))])
    screen(device, PROBLEM, [candidate(DIES), candidate(1)])
    assert notes(tmp_path, "prepare") == ["2", "2"]


def test_the_best_time_so_far_goes_with_each_candidate(make: Make, tmp_path: Path, screen: Try) -> None:
    device = make()
    for group, time in ((1, 5), (2, 4), (3, 9), (4, 3)):
        screen(device, PROBLEM, [candidate(group, time)])
    screen(device, Problem(GemmShape(1, 2112, 7168)), [candidate(5)])
    device.start(Screening(PROBLEM, candidate(6), best_us=2.5), 0)
    device.next_done()
    assert notes(tmp_path, "screen") == ["1 None", "2 5.0", "3 4.0", "4 4.0", "5 None", "6 2.5"]


def test_a_poisoned_final_is_run_again_without_the_culprit(make: Make, tmp_path: Path, compare: Try) -> None:
    trials = compare(make(), PROBLEM, [candidate(g) for g in (1, POISONS, 2)])
    assert [t.status for t in trials] == [S.OK, S.ILLEGAL_ACCESS, S.OK]
    assert all(t.phase is Phase.FINAL for t in trials)
    assert notes(tmp_path, "finals") == [f"1 {POISONS} 2", "1 2"]


def test_finals_that_die_find_the_culprit_and_interleave_the_rest_again(
    make: Make, tmp_path: Path, compare: Try
) -> None:
    trials = compare(make(), PROBLEM, [candidate(g) for g in (1, DIES, NO_COMPILE, 2)])
    assert [t.status for t in trials] == [S.OK, S.WORKER_DIED, S.COMPILE_ERROR, S.OK]
    assert notes(tmp_path, "finals") == [f"1 {DIES} 2", "1", str(DIES), "2", "1 2"]


def test_a_gpu_that_is_gone_ends_the_run_and_keeps_what_was_measured(make: Make) -> None:
    device = make()
    for group in (1, LOSES_GPU, 2):
        device.start(Screening(PROBLEM, candidate(group)), 0)
    assert [device.next_done().trials[0].status for _ in range(2)] == [S.OK, S.WORKER_DIED]
    with pytest.raises(IncompleteRunError, match=r"2 times in a row.*fallen off the bus.*goes on from here"):
        device.next_done()


def test_requests_sent_ahead_of_one_that_breaks_the_process_are_measured_by_the_next(make: Make, screen: Try) -> None:
    for culprit in (DIES, POISONS):
        trials = screen(make(), PROBLEM, [candidate(g, t) for g, t in ((1, 4), (culprit, 5), (2, 6), (3, 7))])
        assert [t.samples_us[:1] for t in trials] == [(4.0,), (), (6.0,), (7.0,)]


def test_screens_of_other_problems_come_through_finals_that_die(make: Make) -> None:
    device = make()
    other = Problem(GemmShape(1, 2112, 7168))
    works = [
        Screening(other, candidate(4, 4)),
        Comparison(PROBLEM, tuple(candidate(g) for g in (1, DIES, 2))),
        Screening(other, candidate(5, 5)),
        Screening(other, candidate(6, 6)),
    ]
    for work in works:
        device.start(work, 0)
    done = {d.work: d.trials for d in (device.next_done() for _ in works)}
    assert [t.status for t in done[works[1]]] == [S.OK, S.WORKER_DIED, S.OK]
    assert [done[w][0].samples_us[0] for w in works if isinstance(w, Screening)] == [4.0, 5.0, 6.0]


def test_of_what_is_compiled_the_lowest_rank_is_measured_first(make: Make, tmp_path: Path, screen: Try) -> None:
    device = make(limit_s=2.0)
    screen(device, PROBLEM, [candidate(g) for g in (1, 2, 3, 4)])
    other = Problem(GemmShape(4096, 2112, 7168))  # compiles alike, so all are compiled at once
    device.start(Screening(PROBLEM, candidate(HANGS)), 0)
    for group, rank in ((1, 4), (2, 3), (3, 1), (4, 1)):
        device.start(Screening(other, candidate(group)), rank)
    for _ in range(5):
        device.next_done()
    measured = [note.split()[0] for note in notes(tmp_path, "screen")][4:]
    assert sorted(measured) == sorted(["1", "2", "3", "4", str(HANGS)])
    assert measured.index("3") < measured.index("4")


def test_the_same_code_is_measured_once(make: Make, tmp_path: Path, screen: Try) -> None:
    device = make()
    twins = [candidate(g, 3 + g, num_warps=8) for g in (1, 2, 3)]
    first, second = screen(device, PROBLEM, twins[:2])
    (third,) = screen(device, PROBLEM, twins[2:])
    assert first.samples_us == second.samples_us == third.samples_us == (4.0,) * 5
    assert [t.labels for t in (first, second, third)] == [(), (SAME_CODE,), (SAME_CODE,)]
    assert first.elapsed_s > 0
    assert second.elapsed_s == third.elapsed_s == 0
    assert len(notes(tmp_path, "screen")) == 1


def test_the_same_code_on_another_grid_or_problem_is_another_launch(make: Make, tmp_path: Path, screen: Try) -> None:
    device = make()
    screen(device, PROBLEM, [candidate(1, num_warps=8), candidate(1, num_warps=8, block_n=32)])
    screen(device, Problem(GemmShape(4096, 2112, 7168)), [candidate(1, num_warps=8)])
    assert len(notes(tmp_path, "screen")) == 3


def test_finalists_of_the_same_code_share_their_samples(make: Make, tmp_path: Path, compare: Try) -> None:
    twins = [candidate(g, num_warps=8) for g in (1, 3)]
    trials = compare(make(), PROBLEM, [candidate(4, 9), *twins, candidate(NO_COMPILE)])
    assert notes(tmp_path, "finals") == ["4 1"]
    assert [t.samples_us[:1] for t in trials] == [(9.0,), (3.0,), (3.0,), ()]
    assert [SAME_CODE in t.labels for t in trials] == [False, False, True, False]


def test_the_clock_tells_where_the_time_went(make: Make, screen: Try, compare: Try) -> None:
    device = make()
    screen(device, PROBLEM, [candidate(1), candidate(2)])
    compare(device, PROBLEM, [candidate(1), candidate(2)])
    clock = device.clock()
    for seconds in (clock.start_s, clock.screening_s, clock.finals_s, clock.idle_s, clock.compiling_s):
        assert seconds > 0
    assert (clock.compilations, clock.compile_workers, clock.recorded) == (2, 1, False)


def test_closing_ends_a_measurement_that_hangs(make: Make, tmp_path: Path) -> None:
    device = make()
    device.start(Screening(PROBLEM, candidate(HANGS)), 0)
    while "screen" not in (tmp_path / "notes").read_text():
        os.sched_yield()
    device.close()
    assert not [t for t in threading.enumerate() if t.name == "blockscale-measuring"]


def test_ctrl_c_ends_the_wait_for_a_measurement_that_hangs(make: Make, tmp_path: Path) -> None:
    device = make()
    device.start(Screening(PROBLEM, candidate(HANGS)), 0)

    def interrupt() -> None:
        while "screen" not in (tmp_path / "notes").read_text():
            os.sched_yield()
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        device.next_done()
    assert device.warnings() == [], "what hangs is not asked"


def test_a_mistake_of_ours_is_raised_not_recorded(make: Make, screen: Try) -> None:
    with pytest.raises(RuntimeError, match="KeyError: 'a mistake of ours'"):
        screen(make(), PROBLEM, [candidate(RAISES)])


def test_labels_become_warnings(make: Make, screen: Try) -> None:
    device = make()
    (trial,) = screen(device, PROBLEM, [candidate(2)])
    assert trial.labels == ("power_capped",)
    assert device.warnings() == [
        "1 other process uses this GPU",
        "the GPU ran into its power limit while timing: times hold for this limit.",
    ]


def test_a_process_killed_while_idle_costs_no_candidate(make: Make, tmp_path: Path, screen: Try) -> None:
    device = make()
    device.prepare([PROBLEM])
    assert [t.status for t in screen(device, PROBLEM, [candidate(1)])] == [S.OK]
    pid = int((tmp_path / "pid").read_text())
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert [t.status for t in screen(device, PROBLEM, [candidate(2)])] == [S.OK]
    assert len(notes(tmp_path, "start")) == 2


def test_problems_are_not_announced_while_work_is_under_way(make: Make, screen: Try) -> None:
    device = make()
    device.prepare([PROBLEM])
    device.start(Screening(PROBLEM, candidate(1)), 0)
    with pytest.raises(RuntimeError, match="before any work"):
        device.prepare([PROBLEM])
    assert device.next_done().trials[0].status is TrialStatus.OK
    device.prepare([PROBLEM])


def test_too_little_memory_is_the_users_to_mend(make: Make) -> None:
    with pytest.raises(InputError, match="needs 99 GiB and 1 GiB are free"):
        make().prepare([Problem(GemmShape(200_000, 2112, 7168))])


def test_fp8_is_refused_where_the_gpu_has_none_and_int8_is_not(make: Make, tmp_path: Path) -> None:
    (tmp_path / "old").touch()
    device = make()
    with pytest.raises(InputError, match=r"\(sm_80\) has no FP8 type .*--input-type int8"):
        device.prepare([PROBLEM])
    device.prepare([Problem(PROBLEM.shape, QuantScheme(QuantFormat.INT8))])


def test_sizes_beyond_the_kernels_offsets_are_refused(make: Make) -> None:
    with pytest.raises(InputError, match="kernels index with 32 bits"):
        make().prepare([Problem(GemmShape(1, 1 << 20, 1 << 12))])


def test_no_gpu_and_no_torch_are_one_message_each(make: Make) -> None:
    with pytest.raises(InputError, match=r"no GPU is visible.*--device recorded:h200"):
        make("open_without_gpu")
    with pytest.raises(InputError, match=r"pip install \"blockscale\[gpu\]\".*--device recorded:h200"):
        make("open_without_torch")


def test_a_cache_that_cannot_be_made_is_refused(make: Make, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(InputError, match=r"cache, cannot be made .*XDG_CACHE_HOME"):
        make()


def test_the_compilers_cache_is_trimmed_when_a_device_opens_and_closes(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trimmed: list[Path] = []
    monkeypatch.setattr(local, "prune", trimmed.append)
    device = make()
    assert trimmed == [tmp_path / "cache"]
    device.close()
    assert trimmed == [tmp_path / "cache"] * 2


def test_the_process_sees_one_gpu(make: Make, tmp_path: Path) -> None:
    make()
    assert notes(tmp_path, "start") == ["0"]


def test_closing_twice_is_safe(make: Make) -> None:
    device = make()
    device.close()
    device.close()
    assert device.warnings() == []


def test_an_interrupted_request_leaves_no_answer_for_the_next_one(
    make: Make, monkeypatch: pytest.MonkeyPatch, screen: Try
) -> None:
    device = make()
    real = Child.receive

    def interrupted(self: Child, timeout_s: float) -> object:
        monkeypatch.setattr(Child, "receive", real)
        raise KeyboardInterrupt

    monkeypatch.setattr(Child, "receive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        device.prepare([PROBLEM])
    assert device.warnings() == []  # its process is gone; the next request starts another
    (trial,) = screen(device, PROBLEM, [candidate(1)])
    assert trial.samples_us == (3.0,) * 5
