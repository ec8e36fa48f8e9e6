"""Measuring processes that hang, die and raise: each costs one trial and nothing else."""

import os
import signal
import threading
from pathlib import Path

import pytest
from fakes_local import Does
from lanes import PROBLEM, Make, Notes, Try, candidate

from blockscale.errors import IncompleteRunError
from blockscale.executor.base import Comparison, Screening
from blockscale.measure.child import Child
from blockscale.problem import GemmShape, Phase, Problem
from blockscale.problem import TrialStatus as S


def test_whatever_a_candidate_does_costs_its_own_trial_only(make: Make, notes: Notes, screen: Try) -> None:
    device = make(limit_s=2.0)
    groups = [1, Does.HANG, 2, Does.DIE, 3, Does.POISON, 4, Does.WRONG, Does.NO_COMPILE, 5]
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
    assert len(notes("start")) == 4  # the first, and one after each loss


def test_a_replaced_process_learns_again_what_will_be_tuned(make: Make, notes: Notes, screen: Try) -> None:
    device = make()
    device.prepare([PROBLEM, Problem(GemmShape(1, 2112, 7168))])
    screen(device, PROBLEM, [candidate(Does.DIE), candidate(1)])
    assert notes("prepare") == ["2", "2"]


def test_a_poisoned_final_is_run_again_without_the_culprit(make: Make, notes: Notes, compare: Try) -> None:
    trials = compare(make(), PROBLEM, [candidate(g) for g in (1, Does.POISON, 2)])
    assert [t.status for t in trials] == [S.OK, S.ILLEGAL_ACCESS, S.OK]
    assert all(t.phase is Phase.FINAL for t in trials)
    assert notes("finals") == [f"1 {Does.POISON} 2", "1 2"]


def test_finals_that_die_find_the_culprit_and_interleave_the_rest_again(make: Make, notes: Notes, compare: Try) -> None:
    trials = compare(make(), PROBLEM, [candidate(g) for g in (1, Does.DIE, Does.NO_COMPILE, 2)])
    assert [t.status for t in trials] == [S.OK, S.WORKER_DIED, S.COMPILE_ERROR, S.OK]
    assert notes("finals") == [f"1 {Does.DIE} 2", "1", str(Does.DIE), "2", "1 2"]


def test_a_gpu_that_is_gone_ends_the_run_and_keeps_what_was_measured(make: Make) -> None:
    device = make()
    for group in (1, Does.LOSE_GPU, 2):
        device.start(Screening(PROBLEM, candidate(group)), 0)
    assert [device.next_done().trials[0].status for _ in range(2)] == [S.OK, S.WORKER_DIED]
    with pytest.raises(IncompleteRunError, match=r"2 times in a row.*fallen off the bus.*goes on from here"):
        device.next_done()


def test_requests_sent_ahead_of_one_that_breaks_the_process_are_measured_by_the_next(make: Make, screen: Try) -> None:
    for culprit in (Does.DIE, Does.POISON):
        trials = screen(make(), PROBLEM, [candidate(g, t) for g, t in ((1, 4), (culprit, 5), (2, 6), (3, 7))])
        assert [t.samples_us[:1] for t in trials] == [(4.0,), (), (6.0,), (7.0,)]


def test_screens_of_other_problems_come_through_finals_that_die(make: Make) -> None:
    device = make()
    other = Problem(GemmShape(1, 2112, 7168))
    works = [
        Screening(other, candidate(4, 4)),
        Comparison(PROBLEM, tuple(candidate(g) for g in (1, Does.DIE, 2))),
        Screening(other, candidate(5, 5)),
        Screening(other, candidate(6, 6)),
    ]
    for work in works:
        device.start(work, 0)
    done = {d.work: d.trials for d in (device.next_done() for _ in works)}
    assert [t.status for t in done[works[1]]] == [S.OK, S.WORKER_DIED, S.OK]
    assert [done[w][0].samples_us[0] for w in works if isinstance(w, Screening)] == [4.0, 5.0, 6.0]


def test_closing_ends_a_measurement_that_hangs(make: Make, tmp_path: Path) -> None:
    device = make()
    device.start(Screening(PROBLEM, candidate(Does.HANG)), 0)
    while "screen" not in (tmp_path / "notes0").read_text():
        os.sched_yield()
    device.close()
    assert not [t for t in threading.enumerate() if t.name == "blockscale-measuring"]


def test_ctrl_c_ends_the_wait_for_a_measurement_that_hangs(make: Make, tmp_path: Path) -> None:
    device = make()
    device.start(Screening(PROBLEM, candidate(Does.HANG)), 0)

    def interrupt() -> None:
        while "screen" not in (tmp_path / "notes0").read_text():
            os.sched_yield()
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    def wait_to_be_interrupted() -> None:
        threading.Thread(target=interrupt).start()
        device.next_done()

    with pytest.raises(KeyboardInterrupt):
        wait_to_be_interrupted()
    assert device.warnings() == [], "what hangs is not asked"


def test_a_mistake_of_ours_is_raised_not_recorded(make: Make, screen: Try) -> None:
    with pytest.raises(RuntimeError, match="KeyError: 'a mistake of ours'"):
        screen(make(), PROBLEM, [candidate(Does.RAISE)])


def test_a_process_killed_while_idle_costs_no_candidate(make: Make, notes: Notes, tmp_path: Path, screen: Try) -> None:
    device = make()
    device.prepare([PROBLEM])
    assert [t.status for t in screen(device, PROBLEM, [candidate(1)])] == [S.OK]
    pid = int((tmp_path / "pid0").read_text())
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert [t.status for t in screen(device, PROBLEM, [candidate(2)])] == [S.OK]
    assert len(notes("start")) == 2


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
