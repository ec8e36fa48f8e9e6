"""In which order several GPUs finish work of known seconds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockscale.executor.base import Done, Screening
from blockscale.executor.virtual import VirtualGpus
from blockscale.problem import Candidate, GemmShape, Kernel, Problem, TileConfig


def done(problem: int, number: int = 0) -> Done:
    config = TileConfig(16, 64, 128, group_m=number + 1)
    return Done(Screening(Problem(GemmShape(problem, 512, 1024)), Candidate(Kernel.FP8, config)), ())


def finished(gpus: VirtualGpus, count: int) -> list[tuple[int, float]]:
    """The problems in the order in which they finish, and when."""
    return [(gpus.next_done().work.problem.shape.M, gpus.now_s) for _ in range(count)]


def test_one_gpu_takes_the_lowest_rank_first() -> None:
    gpus = VirtualGpus(1, 0)
    for problem, rank in ((1, 3), (2, 1), (3, 2)):
        gpus.start(done(problem), rank, 9.0, 1.0)
    assert finished(gpus, 3) == [(2, 1.0), (3, 2.0), (1, 3.0)]
    assert gpus.idle_s == 0


def test_each_gpu_that_is_free_takes_a_problem_and_keeps_it() -> None:
    gpus = VirtualGpus(2, 0)
    for number in range(3):
        gpus.start(done(1, number), 1, 0.0, 2.0)
    gpus.start(done(2), 2, 0.0, 1.0)
    assert finished(gpus, 4) == [(2, 1.0), (1, 2.0), (1, 4.0), (1, 6.0)]
    assert gpus.idle_s == 5.0, "the second GPU had nothing to do from 1 to 6"


def test_work_of_a_bound_problem_waits_for_its_gpu() -> None:
    gpus = VirtualGpus(2, 0)
    gpus.start(done(1), 1, 0.0, 3.0)
    gpus.start(done(2), 2, 0.0, 1.0)
    assert finished(gpus, 1) == [(2, 1.0)]
    gpus.start(done(1, 1), 1, 0.0, 1.0)
    gpus.start(done(3), 3, 0.0, 1.0)
    assert finished(gpus, 3) == [(3, 2.0), (1, 3.0), (1, 4.0)]


def test_a_gpu_waits_for_the_compilers() -> None:
    gpus = VirtualGpus(2, 1)
    gpus.start(done(1), 1, 5.0, 1.0)
    gpus.start(done(2), 2, 2.0, 1.0)
    gpus.start(done(3), 3, 0.0, 1.0)
    assert finished(gpus, 3) == [(3, 1.0), (1, 6.0), (2, 8.0)]
    assert gpus.idle_s == 2 * 8.0 - 3.0


def test_what_is_compiled_first_is_measured_first_whatever_its_rank() -> None:
    gpus = VirtualGpus(1, 2)
    gpus.start(done(1), 1, 5.0, 1.0)
    gpus.start(done(2), 2, 2.0, 1.0)
    assert finished(gpus, 2) == [(2, 3.0), (1, 6.0)]


def test_waiting_for_nothing_is_a_mistake() -> None:
    with pytest.raises(RuntimeError, match="nothing was started"):
        VirtualGpus(2, 2).next_done()


work = st.tuples(st.integers(1, 4), st.integers(0, 3), st.integers(0, 3), st.integers(0, 5))


@given(st.lists(work, min_size=1, max_size=30), st.integers(1, 5), st.integers(0, 3))
def test_everything_finishes_once_and_no_gpu_idles_while_it_could_work(works, count, compilers) -> None:
    gpus = VirtualGpus(count, compilers)
    started = [done(problem, number) for number, (problem, *_) in enumerate(works)]
    for each, (_, rank, compile_s, measure_s) in zip(started, works, strict=True):
        gpus.start(each, rank, compile_s, measure_s)
    times = []
    found = []
    for _ in works:
        found.append(gpus.next_done())
        times.append(gpus.now_s)
    assert sorted(map(repr, found)) == sorted(map(repr, started))
    assert times == sorted(times)
    measuring_s = sum(measure_s for *_, measure_s in works)
    assert gpus.idle_s == pytest.approx(count * gpus.now_s - measuring_s)
    longest_s = max(sum(w[3] for w in works if w[0] == problem) for problem in range(1, 5))
    assert gpus.now_s >= max(longest_s, measuring_s / count)
    if not compilers:
        assert gpus.now_s <= measuring_s / count + longest_s, "as any list schedule"
