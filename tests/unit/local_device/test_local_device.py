"""`LocalDevice` on one GPU: what is measured, in which order, and what is refused."""

from pathlib import Path

import pytest
from fakes_local import Does
from lanes import PROBLEM, Make, Notes, Try, candidate

from blockscale.errors import InputError
from blockscale.executor import local
from blockscale.executor.base import SAME_CODE, Screening
from blockscale.problem import GemmShape, Problem, QuantFormat, QuantScheme, TrialStatus


def test_the_best_time_so_far_goes_with_each_candidate(make: Make, notes: Notes, screen: Try) -> None:
    device = make()
    for group, time in ((1, 5), (2, 4), (3, 9), (4, 3)):
        screen(device, PROBLEM, [candidate(group, time)])
    screen(device, Problem(GemmShape(1, 2112, 7168)), [candidate(5)])
    device.start(Screening(PROBLEM, candidate(6), best_us=2.5), 0)
    device.next_done()
    assert notes("screen") == ["1 None", "2 5.0", "3 4.0", "4 4.0", "5 None", "6 2.5"]


def test_of_what_is_compiled_the_lowest_rank_is_measured_first(make: Make, notes: Notes, screen: Try) -> None:
    device = make(limit_s=2.0)
    screen(device, PROBLEM, [candidate(g) for g in (1, 2, 3, 4)])
    other = Problem(GemmShape(4096, 2112, 7168))  # compiles alike, so all are compiled at once
    device.start(Screening(PROBLEM, candidate(Does.HANG)), 0)
    for group, rank in ((1, 4), (2, 3), (3, 1), (4, 1)):
        device.start(Screening(other, candidate(group)), rank)
    for _ in range(5):
        device.next_done()
    measured = [note.split()[0] for note in notes("screen")][4:]
    assert sorted(measured) == sorted(["1", "2", "3", "4", str(Does.HANG)])
    assert measured.index("3") < measured.index("4")


def test_the_same_code_is_measured_once(make: Make, notes: Notes, screen: Try) -> None:
    device = make()
    twins = [candidate(g, 3 + g, num_warps=8) for g in (1, 2, 3)]
    first, second = screen(device, PROBLEM, twins[:2])
    (third,) = screen(device, PROBLEM, twins[2:])
    assert first.samples_us == second.samples_us == third.samples_us == (4.0,) * 5
    assert [t.labels for t in (first, second, third)] == [(), (SAME_CODE,), (SAME_CODE,)]
    assert first.elapsed_s > 0
    assert second.elapsed_s == third.elapsed_s == 0
    assert len(notes("screen")) == 1


def test_the_same_code_on_another_grid_or_problem_is_another_launch(make: Make, notes: Notes, screen: Try) -> None:
    device = make()
    screen(device, PROBLEM, [candidate(1, num_warps=8), candidate(1, num_warps=8, block_n=32)])
    screen(device, Problem(GemmShape(4096, 2112, 7168)), [candidate(1, num_warps=8)])
    assert len(notes("screen")) == 3


def test_finalists_of_the_same_code_share_their_samples(make: Make, notes: Notes, compare: Try) -> None:
    twins = [candidate(g, num_warps=8) for g in (1, 3)]
    trials = compare(make(), PROBLEM, [candidate(4, 9), *twins, candidate(Does.NO_COMPILE)])
    assert notes("finals") == ["4 1"]
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


def test_labels_become_warnings(make: Make, screen: Try) -> None:
    device = make()
    (trial,) = screen(device, PROBLEM, [candidate(2)])
    assert trial.labels == ("power_capped",)
    assert device.warnings() == [
        "1 other process uses this GPU",
        "the GPU ran into its power limit while timing: times hold for this limit.",
    ]


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
    (tmp_path / "old0").touch()
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


def test_the_process_sees_one_gpu(make: Make, notes: Notes) -> None:
    make()
    assert notes("start") == ["0"]


def test_closing_twice_is_safe(make: Make) -> None:
    device = make()
    device.close()
    device.close()
    assert device.warnings() == []
