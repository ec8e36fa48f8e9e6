"""The faulty device breaks what its plan says, reproducibly."""

import signal
import subprocess
import sys

import pytest

from blockscale.errors import IncompleteRunError
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
def test_failure_is_one_trials_status_and_the_next_goes_on(inner, fault, status):
    trials = list(FaultyDevice(inner, FaultPlan(at_trial={2: fault})).screen(PROBLEM, CANDIDATES[:3]))
    assert [t.status for t in trials] == [TrialStatus.OK, status, TrialStatus.OK]
    assert trials[1].message
    assert trials[1].samples_us == ()


def test_hang_costs_its_time_limit(inner):
    plan = FaultPlan(at_trial={1: Fault.HANG}, time_limit_s=30)
    (trial,) = FaultyDevice(inner, plan).screen(PROBLEM, CANDIDATES[:1])
    assert trial.elapsed_s == 30


def test_race_shows_only_in_finals(inner):
    device = FaultyDevice(inner, FaultPlan(on_candidate={CANDIDATES[0]: Fault.WRONG_IN_FINALS}))
    assert [t.status for t in device.screen(PROBLEM, CANDIDATES[:2])] == [TrialStatus.OK] * 2
    assert [t.status for t in device.finals(PROBLEM, CANDIDATES[:2])] == [TrialStatus.WRONG_RESULT, TrialStatus.OK]


@pytest.mark.parametrize("fault", [Fault.NOISE, Fault.OUTLIER])
def test_garbage_times_differ_from_the_true_ones_and_repeat(inner, fault):
    plan = FaultPlan(on_candidate={CANDIDATES[0]: fault})
    true, first, again = (
        [t.samples_us for t in device.screen(PROBLEM, CANDIDATES[:2])]
        for device in (inner, FaultyDevice(inner, plan), FaultyDevice(inner, plan))
    )
    assert first == again
    assert first[0] != true[0]
    assert first[1] == true[1]


def test_rates_hit_by_seed_whatever_the_order(inner):
    plan = FaultPlan(rates={Fault.DIE: 0.5}, seed=3)
    forth = {t.candidate: t.status for t in FaultyDevice(inner, plan).screen(PROBLEM, CANDIDATES)}
    back = {t.candidate: t.status for t in FaultyDevice(inner, plan).screen(PROBLEM, CANDIDATES[::-1])}
    other = {
        t.candidate: t.status
        for t in FaultyDevice(inner, FaultPlan(rates={Fault.DIE: 0.5}, seed=4)).screen(PROBLEM, CANDIDATES)
    }
    assert forth == back
    assert forth != other
    assert set(forth.values()) == {TrialStatus.OK, TrialStatus.WORKER_DIED}


def test_lost_device_stays_lost(inner):
    device = FaultyDevice(inner, FaultPlan(at_trial={3: Fault.DEVICE_LOST}))
    screening = device.screen(PROBLEM, CANDIDATES)
    assert [next(screening).candidate for _ in range(2)] == CANDIDATES[:2]
    with pytest.raises(IncompleteRunError, match="after 2 trials"):
        next(screening)
    with pytest.raises(IncompleteRunError):
        device.finals(PROBLEM, CANDIDATES[:1])
    with pytest.raises(IncompleteRunError):
        device.prepare([PROBLEM])


SCREEN_UNTIL_KILLED = """
from blockscale.executor.faulty import Fault, FaultPlan, FaultyDevice
from blockscale.executor.replay import ReplayDevice
from blockscale.recording import embedded, load_recording

recording = load_recording(embedded("h200"))
problem = recording.problems[0]
device = FaultyDevice(ReplayDevice(recording), FaultPlan(at_trial={4: Fault.KILL}))
candidates = [trial.candidate for trial in recording.trials(problem, recording.kernels(problem)[0])]
for trial in device.screen(problem, candidates):
    print(trial.candidate, flush=True)
"""


def test_kill_ends_the_whole_process_at_that_trial():
    child = subprocess.run([sys.executable, "-c", SCREEN_UNTIL_KILLED], capture_output=True, text=True)
    assert child.returncode == -signal.SIGKILL, child.stderr
    assert len(child.stdout.splitlines()) == 3
