"""The faulty device breaks what its plan says, reproducibly."""

import signal
import subprocess
import sys

import pytest

from blockscale.errors import IncompleteRunError
from blockscale.executor.base import Screening
from blockscale.executor.faulty import Fault, FaultPlan, FaultyDevice
from blockscale.executor.replay import ReplayDevice
from blockscale.problem import Candidate, GemmShape, Kernel, Problem, TileConfig, TrialStatus
from blockscale.recording import embedded, load_recording

PROBLEM = Problem(GemmShape(16, 2112, 7168))
CANDIDATES = [
    Candidate(Kernel.FP8, TileConfig(16, block_n, 128, 1, warps, stages))
    for block_n in (32, 64, 128)
    for warps in (4, 8)
    for stages in (2, 3, 4, 5)
]


@pytest.fixture(scope="module")
def inner():
    return ReplayDevice(load_recording(embedded("h200")))


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (Fault.HANG, TrialStatus.TIMEOUT),
        (Fault.DIE, TrialStatus.WORKER_DIED),
        (Fault.COMPILE_ERROR, TrialStatus.COMPILE_ERROR),
        (Fault.OUT_OF_RESOURCES, TrialStatus.OUT_OF_RESOURCES),
    ],
)
def test_failure_is_one_trials_status_and_the_next_goes_on(inner, screen, fault, status):
    trials = screen(FaultyDevice(inner, FaultPlan(at_trial={2: fault})), PROBLEM, CANDIDATES[:3])
    assert [t.status for t in trials] == [TrialStatus.OK, status, TrialStatus.OK]
    assert trials[1].message
    assert trials[1].samples_us == ()


def test_hang_costs_its_time_limit(inner, screen):
    plan = FaultPlan(at_trial={1: Fault.HANG}, time_limit_s=30)
    (trial,) = screen(FaultyDevice(inner, plan), PROBLEM, CANDIDATES[:1])
    assert trial.elapsed_s == 30


def test_race_shows_only_in_finals(inner, screen, compare):
    device = FaultyDevice(inner, FaultPlan(on_candidate={CANDIDATES[0]: Fault.WRONG_IN_FINALS}))
    assert [t.status for t in screen(device, PROBLEM, CANDIDATES[:2])] == [TrialStatus.OK] * 2
    assert [t.status for t in compare(device, PROBLEM, CANDIDATES[:2])] == [TrialStatus.WRONG_RESULT, TrialStatus.OK]


@pytest.mark.parametrize("fault", [Fault.NOISE, Fault.OUTLIER])
def test_garbage_times_differ_from_the_true_ones_and_repeat(inner, screen, fault):
    plan = FaultPlan(on_candidate={CANDIDATES[0]: fault})
    true, first, again = (
        [t.samples_us for t in screen(device, PROBLEM, CANDIDATES[:2])]
        for device in (inner, FaultyDevice(inner, plan), FaultyDevice(inner, plan))
    )
    assert first == again
    assert first[0] != true[0]
    assert first[1] == true[1]


def test_rates_hit_by_seed_whatever_the_order(inner, screen):
    plan = FaultPlan(rates={Fault.DIE: 0.5}, seed=3)
    forth = {t.candidate: t.status for t in screen(FaultyDevice(inner, plan), PROBLEM, CANDIDATES)}
    back = {t.candidate: t.status for t in screen(FaultyDevice(inner, plan), PROBLEM, CANDIDATES[::-1])}
    other = {
        t.candidate: t.status
        for t in screen(FaultyDevice(inner, FaultPlan(rates={Fault.DIE: 0.5}, seed=4)), PROBLEM, CANDIDATES)
    }
    assert forth == back
    assert forth != other
    assert set(forth.values()) == {TrialStatus.OK, TrialStatus.WORKER_DIED}


def test_scrambled_work_comes_back_in_another_order_and_the_same_one_again(screen):
    def order(seed):
        inner = ReplayDevice(load_recording(embedded("h200")))
        device = FaultyDevice(inner, FaultPlan(scrambled=True, seed=seed))
        for candidate in CANDIDATES:
            device.start(Screening(PROBLEM, candidate), 0)
        return [device.next_done().work.candidate for _ in CANDIDATES]

    assert order(1) == order(1)
    assert len({tuple(order(seed)) for seed in range(3)}) == 3
    assert sorted(order(1)) == sorted(CANDIDATES)


def test_lost_device_stays_lost():
    inner = ReplayDevice(load_recording(embedded("h200")))
    device = FaultyDevice(inner, FaultPlan(at_trial={3: Fault.DEVICE_LOST}))
    for candidate in CANDIDATES:
        device.start(Screening(PROBLEM, candidate), 0)
    assert [device.next_done().work.candidates for _ in range(2)] == [(c,) for c in CANDIDATES[:2]]
    with pytest.raises(IncompleteRunError, match="after 2 trials"):
        device.next_done()
    with pytest.raises(IncompleteRunError):
        device.start(Screening(PROBLEM, CANDIDATES[0]), 0)
    with pytest.raises(IncompleteRunError):
        device.prepare([PROBLEM])


SCREEN_UNTIL_KILLED = """
from blockscale.executor.base import Screening
from blockscale.executor.faulty import Fault, FaultPlan, FaultyDevice
from blockscale.executor.replay import ReplayDevice
from blockscale.recording import embedded, load_recording

recording = load_recording(embedded("h200"))
problem = recording.problems[0]
device = FaultyDevice(ReplayDevice(recording), FaultPlan(at_trial={4: Fault.KILL}))
candidates = [trial.candidate for trial in recording.trials(problem, recording.kernels(problem)[0])]
for candidate in candidates:
    device.start(Screening(problem, candidate), 0)
while True:
    print(device.next_done().work, flush=True)
"""


def test_kill_ends_the_whole_process_at_that_trial():
    child = subprocess.run([sys.executable, "-c", SCREEN_UNTIL_KILLED], capture_output=True, text=True)
    assert child.returncode == -signal.SIGKILL, child.stderr
    assert len(child.stdout.splitlines()) == 3
