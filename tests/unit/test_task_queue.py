"""Which GPU gets which task: by rank, a problem on one GPU, new ones where least is left, and nobody idle for it."""

import os
from collections import Counter
from threading import Event, Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockscale.executor.balance import Balance
from blockscale.executor.base import SAME_CODE, Comparison, Done, Screening
from blockscale.executor.cost import MeasuredCost, measuring_s
from blockscale.executor.queue import TaskQueue
from blockscale.executor.tasks import Task
from blockscale.measure.compile_pool import CompileOutcome
from blockscale.measure.protocol import Measured
from blockscale.problem import Candidate, GemmShape, Kernel, Problem, TileConfig, Trial, TrialStatus

PROBLEMS = [Problem(GemmShape(16, n, 7168)) for n in range(128, 128 * 9, 128)]
DAY_S = 86400.0


def candidate(number: int, problem: Problem = PROBLEMS[0]) -> Candidate:
    return Candidate(Kernel.FP8, TileConfig(16, 64, 128, group_m=number))


def task(problem: Problem, number: int = 1, rank: int = 0, code: str = "") -> Task:
    """One candidate that is compiled; without a ``code`` of its own no two are the same."""
    return Task(Screening(problem, candidate(number)), rank, [CompileOutcome(TrialStatus.OK, code=code)])


def ok(time_us: float = 3.0) -> list[Measured]:
    return [Measured(TrialStatus.OK, (time_us,))]


class Gpus:
    """A queue and its GPUs, of which a test decides who asks when."""

    def __init__(self, number: int) -> None:
        self.done: list[Done] = []
        self.queue = TaskQueue(number, self.done.append)

    def add(self, *tasks: Task) -> None:
        for one in tasks:
            self.queue.add(one)

    def take(self, gpu: int, *, at_work: bool = False) -> Task | None:
        """What a GPU gets that would wait for it, or one that is still at work; never waits."""
        if at_work:
            return self.queue.take(gpu, wait=False)
        got: list[Task | None] = []
        thread = Thread(target=lambda: got.append(self.queue.take(gpu, wait=True)), daemon=True)
        thread.start()
        thread.join(10)
        assert got, f"GPU {gpu} waits while there is something to do"
        return got[0]

    def measure(self, gpu: int, seconds: float = 0.006) -> Problem:
        """Take and finish one task; its problem."""
        taken = self.take(gpu)
        assert taken is not None
        self.queue.finish(taken, ok(), seconds)
        return taken.work.problem


def test_the_lowest_rank_goes_first_of_equal_ranks_the_first_added() -> None:
    gpus = Gpus(1)
    gpus.add(*(task(problem, rank=rank) for problem, rank in zip(PROBLEMS, (3, 1, 2, 1), strict=False)))
    assert [gpus.measure(0) for _ in range(4)] == [PROBLEMS[i] for i in (1, 3, 2, 0)]


def test_a_problem_stays_on_the_gpu_that_took_its_first_task() -> None:
    gpus = Gpus(2)
    gpus.add(task(PROBLEMS[0], 1, rank=5), task(PROBLEMS[0], 2, rank=5), task(PROBLEMS[1], 1, rank=9))
    assert gpus.measure(0) == PROBLEMS[0]
    assert gpus.measure(1) == PROBLEMS[1], "the lower rank is the other's"
    gpus.add(task(PROBLEMS[1], 2, rank=1))
    assert gpus.measure(0) == PROBLEMS[0]


def test_a_gpu_with_work_leaves_new_problems_to_one_that_has_less_left() -> None:
    gpus = Gpus(2)
    gpus.add(task(PROBLEMS[0], 1, rank=5), task(PROBLEMS[0], 2, rank=5))
    gpus.measure(0)
    gpus.add(task(PROBLEMS[1], rank=1))
    assert gpus.measure(0) == PROBLEMS[0], "though the new one has a lower rank"
    assert gpus.measure(1) == PROBLEMS[1]


def test_a_gpu_without_work_takes_a_new_problem_however_much_it_has_left() -> None:
    gpus = Gpus(2)
    gpus.add(task(PROBLEMS[0]))
    gpus.measure(0, seconds=60.0)
    gpus.add(task(PROBLEMS[1]))
    assert gpus.measure(0) == PROBLEMS[1]


def test_who_is_still_at_work_takes_nothing_new_that_is_anothers_turn() -> None:
    gpus = Gpus(2)
    gpus.add(task(PROBLEMS[0]), task(PROBLEMS[1], rank=1))
    first = gpus.take(0)
    assert first is not None
    assert gpus.take(0, at_work=True) is None
    assert gpus.take(1, at_work=True) is not None


def test_of_two_that_wait_the_one_with_less_left_gets_the_new_problem() -> None:
    gpus = Gpus(2)
    gpus.add(task(PROBLEMS[0]), task(PROBLEMS[1], rank=1))
    taken = [gpus.take(0), gpus.take(1)]
    for one, seconds in zip(taken, (60.0, 0.006), strict=True):
        assert one is not None
        gpus.queue.finish(one, ok(), seconds)
    got: dict[int, Task | None] = {}
    taker = Event()

    def wait_for_work(gpu: int) -> None:
        got[gpu] = gpus.queue.take(gpu, wait=True)
        taker.set()

    threads = [Thread(target=wait_for_work, args=(gpu,)) for gpu in range(2)]
    for thread in threads:
        thread.start()
    while len(gpus.queue._idle) < 2:
        os.sched_yield()
    gpus.add(task(PROBLEMS[2]))
    assert taker.wait(10)
    assert list(got) == [1]
    gpus.queue.close()
    for thread in threads:
        thread.join()
    assert got[0] is None


@given(
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 3)), min_size=1, max_size=40),
    st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=80),
)
def test_every_task_is_handed_out_once_and_problems_never_move(tasks, takes) -> None:
    gpus = Gpus(3)
    gpus.add(*(task(PROBLEMS[p], number, rank) for number, (p, rank) in enumerate(tasks, 1)))
    where: dict[Problem, set[int]] = {}
    for gpu, finished in [*takes, *((gpu, True) for gpu in (0, 1, 2) for _ in tasks)]:
        taken = gpus.queue.take(gpu, wait=False)
        if taken is not None:
            where.setdefault(taken.work.problem, set()).add(gpu)
            if finished:
                gpus.queue.finish(taken, ok(), 0.006)
            else:
                gpus.queue.finish(taken, [Measured(TrialStatus.WRONG_RESULT, message="wrong")], 0.006)
    assert all(len(on) == 1 for on in where.values())
    counted = Counter((d.work.problem, d.work.candidates) for d in gpus.done)
    assert set(counted.values()) == {1}


@pytest.mark.parametrize("gpus", [1, 2, 4, 8])
def test_equal_problems_are_spread_evenly(gpus: int) -> None:
    """They ask in turn, as equal GPUs do that take as long for each candidate."""
    here = Gpus(gpus)
    for number in range(1, 4):
        here.add(*(task(problem, number, rank) for rank, problem in enumerate(PROBLEMS)))
    measured = {(i % gpus, here.measure(i % gpus)) for i in range(3 * len(PROBLEMS))}
    assert set(Counter(gpu for gpu, _ in measured).values()) == {len(PROBLEMS) // gpus}


def test_a_longer_problem_counts_for_more() -> None:
    large = Problem(GemmShape(16384, 7168, 18432))
    assert measuring_s(large) > 5 * measuring_s(PROBLEMS[0])
    gpus = Gpus(2)
    gpus.add(task(large, rank=0), *(task(p, number, rank=1) for number in range(1, 4) for p in PROBLEMS[:4]))
    assert gpus.measure(0) == large
    assert gpus.measure(1) == PROBLEMS[0]
    taken = [gpus.take(1, at_work=True) for _ in range(8)]
    assert {one.work.problem for one in taken if one is not None} == set(PROBLEMS[:4]), "all short ones fit beside it"


def test_what_trials_took_corrects_what_is_expected() -> None:
    cost = MeasuredCost()
    first, other = PROBLEMS[0], Problem(GemmShape(4096, 24576, 7168))
    assert cost.trial_s(first) == pytest.approx(measuring_s(first))
    for _ in range(100):
        cost.note(first, 3 * measuring_s(first))
    assert cost.trial_s(first) == pytest.approx(3 * measuring_s(first))
    assert cost.trial_s(other) == pytest.approx(3 * measuring_s(other)), "one without trials takes as others do"
    for _ in range(100):
        cost.note(other, measuring_s(other))
    assert cost.trial_s(first) == pytest.approx(3 * measuring_s(first), rel=0.2)
    assert cost.trial_s(other) == pytest.approx(measuring_s(other), rel=0.2)


def trial_of(problem: Problem, status: TrialStatus, seconds: float) -> Done:
    samples = (3.0,) if status.timed else ()
    work = Screening(problem, candidate(1))
    return Done(work, (Trial(problem, candidate(1), status, samples_us=samples, elapsed_s=seconds),))


def test_a_problem_has_less_left_with_each_trial_and_nothing_after_its_finals() -> None:
    balance = Balance(2)
    balance.bind(PROBLEMS[0], 1)
    left = [balance.left_s(1)]
    for _ in range(5):
        balance.note(trial_of(PROBLEMS[0], TrialStatus.OK, measuring_s(PROBLEMS[0])))
        left.append(balance.left_s(1))
    assert left == sorted(left, reverse=True)
    assert len(set(left)) == len(left)
    balance.note(Done(Comparison(PROBLEMS[0], ()), ()))
    assert (balance.left_s(0), balance.left_s(1)) == (0.0, 0.0)
    balance.bind(PROBLEMS[1], 0)
    assert balance.left_s(0) == pytest.approx(5 * measuring_s(PROBLEMS[1])), "the next takes as many trials as that one"


def test_a_hang_says_nothing_of_the_trials_to_come() -> None:
    balance = Balance(1)
    balance.bind(PROBLEMS[0], 0)
    before_s = balance.left_s(0)
    balance.note(trial_of(PROBLEMS[0], TrialStatus.TIMEOUT, DAY_S))
    assert balance.left_s(0) < before_s


def dies(gpus: Gpus) -> None:
    taken = gpus.take(0)
    assert taken is not None
    gpus.queue.finish(taken, [Measured(TrialStatus.WORKER_DIED, message="died")], 1.0)


def test_a_candidate_that_broke_processes_twice_is_not_handed_out_again() -> None:
    """Also where many problems had asked for it before anybody knew."""
    gpus = Gpus(2)
    gpus.add(*(task(problem, 1, rank) for rank, problem in enumerate(PROBLEMS[:4])), task(PROBLEMS[4], 2, rank=9))
    dies(gpus)
    dies(gpus)
    assert gpus.measure(0) == PROBLEMS[4]
    statuses = {d.work.problem: d.trials[0].status for d in gpus.done}
    assert [statuses[problem] for problem in PROBLEMS[:5]] == [
        *[TrialStatus.WORKER_DIED] * 2, *[TrialStatus.ILLEGAL] * 2, TrialStatus.OK
    ]  # fmt: skip


def test_those_of_the_same_code_are_tried_where_the_first_of_them_is_refused() -> None:
    gpus = Gpus(1)
    gpus.add(*(task(problem, 1) for problem in PROBLEMS[:2]))
    gpus.add(*(task(PROBLEMS[2], number, 1, "code") for number in (1, 2, 3)))
    dies(gpus)
    dies(gpus)
    assert gpus.measure(0) == PROBLEMS[2]
    last = [d.trials[0] for d in gpus.done[2:]]
    assert [(t.candidate, t.status) for t in last] == [
        (candidate(1), TrialStatus.ILLEGAL), (candidate(2), TrialStatus.OK), (candidate(3), TrialStatus.OK)
    ]  # fmt: skip
    assert [SAME_CODE in t.labels for t in last] == [False, False, True]


def test_finals_go_on_without_a_candidate_that_broke_processes_twice() -> None:
    gpus = Gpus(1)
    gpus.add(*(task(problem, 1) for problem in PROBLEMS[:2]))
    dies(gpus)
    dies(gpus)
    work = Comparison(PROBLEMS[2], (candidate(2), candidate(1)))
    gpus.add(Task(work, 0, [CompileOutcome(TrialStatus.OK)] * 2))
    taken = gpus.take(0)
    assert taken is not None
    assert list(taken.leaders().values()) == [0]
    gpus.queue.finish(taken, ok(), 1.0)
    assert [t.status for t in gpus.done[-1].trials] == [TrialStatus.OK, TrialStatus.ILLEGAL]


def test_a_closed_queue_hands_out_nothing_and_lets_who_waits_go() -> None:
    gpus = Gpus(2)
    waiting = [Thread(target=gpus.queue.take, args=(gpu,), kwargs={"wait": True}) for gpu in range(2)]
    for thread in waiting:
        thread.start()
    gpus.queue.close()
    for thread in waiting:
        thread.join()
    gpus.add(task(PROBLEMS[0]))
    assert gpus.queue.take(0, wait=True) is None
