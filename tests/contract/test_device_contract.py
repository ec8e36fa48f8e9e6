"""What every device owes a run. A new device joins by a fixture parameter."""

import pytest

from blockscale.errors import InputError
from blockscale.executor.base import Device
from blockscale.executor.faulty import Fault, FaultPlan, FaultyDevice
from blockscale.executor.replay import ReplayDevice
from blockscale.problem import Candidate, GemmShape, Kernel, Phase, Problem, TileConfig, TrialStatus
from blockscale.recording import embedded, load_recording

PROBLEM = Problem(GemmShape(16, 2112, 7168))
CANDIDATES = [
    Candidate(kernel, TileConfig(16, block_n, 128, group_m, 4, stages, split_k=split))
    for kernel, split in ((Kernel.FP8, 1), (Kernel.FP8_HOPPER, 4))
    for block_n in (32, 64)
    for group_m in (1, 16)
    for stages in (3, 7)
]


@pytest.fixture(scope="module")
def recording():
    return load_recording(embedded("h200"))


FAULTS = {
    "replay": None,
    "faultless": FaultPlan(),
    "faulty": FaultPlan(
        at_trial={2: Fault.HANG, 3: Fault.DIE, 4: Fault.COMPILE_ERROR, 5: Fault.OUT_OF_RESOURCES},
        rates={Fault.NOISE: 0.3, Fault.OUTLIER: 0.3, Fault.WRONG_IN_FINALS: 0.3},
    ),
}


@pytest.fixture(params=FAULTS)
def device(request, recording):
    inner = ReplayDevice(recording)
    plan = FAULTS[request.param]
    device: Device = inner if plan is None else FaultyDevice(inner, plan)
    device.prepare([PROBLEM])
    yield device
    device.close()


def test_screening_gives_one_trial_per_candidate_in_order(device):
    trials = list(device.screen(PROBLEM, CANDIDATES))
    assert [t.candidate for t in trials] == CANDIDATES
    assert {t.problem for t in trials} == {PROBLEM}
    assert {t.phase for t in trials} == {Phase.SCREEN}


def test_finals_give_one_trial_per_candidate_in_order(device):
    trials = device.finals(PROBLEM, CANDIDATES)
    assert [t.candidate for t in trials] == CANDIDATES
    assert {t.phase for t in trials} == {Phase.FINAL}


def test_only_timed_trials_have_a_time(device):
    for trial in [*device.screen(PROBLEM, CANDIDATES), *device.finals(PROBLEM, CANDIDATES)]:
        assert (trial.time_us is not None) == trial.status.timed
        assert trial.status in (TrialStatus.OK, TrialStatus.COARSE) or trial.message
        assert trial.elapsed_s >= 0


def test_nothing_asked_is_nothing_tried(device):
    assert list(device.screen(PROBLEM, [])) == []
    assert device.finals(PROBLEM, []) == []


def test_device_names_itself_alike(device):
    assert device.spec.name == device.environment.device_name
    assert device.spec.arch == device.environment.arch
    assert device.environment == device.environment


def test_problem_beyond_the_device_is_refused(device):
    with pytest.raises(InputError):
        device.prepare([Problem(GemmShape(16, 999, 7168))])


def test_each_warning_is_given_once(device):
    candidates = [Candidate(Kernel.FP8_MASKED, c.config) for c in CANDIDATES if c.kernel is Kernel.FP8]
    list(device.screen(PROBLEM, candidates))
    device.finals(PROBLEM, candidates)
    said = device.warnings() + device.warnings()
    assert len(said) == len(set(said))


def test_closing_twice_is_safe(device):
    before = device.environment
    device.close()
    device.close()
    assert device.environment == before
