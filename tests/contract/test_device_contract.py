"""What every device owes a run. A new device joins by a fixture parameter."""

import pytest

from blockscale.errors import InputError
from blockscale.executor.base import Device, Screening
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


def test_screening_gives_one_trial_for_each_candidate(device):
    works = [Screening(PROBLEM, candidate) for candidate in CANDIDATES]
    for work in works:
        device.start(work, 0)
    done = [device.next_done() for _ in works]
    assert [d.work for d in done] == works, "equal ranks in the order of start"
    assert all([t.candidate for t in d.trials] == [d.work.candidate] for d in done)
    trials = [t for d in done for t in d.trials]
    assert {t.problem for t in trials} == {PROBLEM}
    assert {t.phase for t in trials} == {Phase.SCREEN}


def test_a_comparison_gives_one_trial_per_candidate_in_order(device, compare):
    trials = compare(device, PROBLEM, CANDIDATES)
    assert [t.candidate for t in trials] == CANDIDATES
    assert {t.phase for t in trials} == {Phase.FINAL}


def test_only_timed_trials_have_a_time(device, screen, compare):
    for trial in [*screen(device, PROBLEM, CANDIDATES), *compare(device, PROBLEM, CANDIDATES)]:
        assert (trial.time_us is not None) == trial.status.timed
        assert trial.status in (TrialStatus.OK, TrialStatus.COARSE) or trial.message
        assert trial.elapsed_s >= 0


def test_what_a_device_could_say_nothing_of_it_tells_beforehand(device, screen):
    can = {candidate: device.can_try(PROBLEM, candidate) for candidate in CANDIDATES}
    assert set(can.values()) == {True, False}
    for trial in screen(device, PROBLEM, CANDIDATES):
        assert trial.status is not TrialStatus.UNRECORDED if can[trial.candidate] else trial.time_us is None


def test_of_what_waits_the_lower_rank_goes_first(device):
    ranked = list(zip(CANDIDATES, [3, 1, 2, 1], strict=False))
    for candidate, rank in ranked:
        device.start(Screening(PROBLEM, candidate), rank)
    done = [device.next_done().work.candidates[0] for _ in ranked]
    assert done == [CANDIDATES[i] for i in (1, 3, 2, 0)]


def test_waiting_for_nothing_is_a_mistake(device, screen):
    screen(device, PROBLEM, CANDIDATES[:1])
    with pytest.raises(RuntimeError, match="nothing was started"):
        device.next_done()


def test_the_clock_counts_what_was_measured(device, screen, compare):
    before = device.clock()
    screen(device, PROBLEM, CANDIDATES[:1])
    compare(device, PROBLEM, CANDIDATES[:2])
    after = device.clock()
    assert after.screening_s > before.screening_s
    assert after.finals_s > before.finals_s
    assert after.measuring_s == after.screening_s + after.finals_s


def test_device_names_itself_alike(device):
    assert device.spec.name == device.environment.device_name
    assert device.spec.arch == device.environment.arch
    assert device.environment == device.environment


def test_problem_beyond_the_device_is_refused(device):
    with pytest.raises(InputError):
        device.prepare([Problem(GemmShape(16, 999, 7168))])


def test_each_warning_is_given_once(device, screen, compare):
    candidates = [Candidate(Kernel.FP8_MASKED, c.config) for c in CANDIDATES if c.kernel is Kernel.FP8]
    screen(device, PROBLEM, candidates)
    compare(device, PROBLEM, candidates)
    said = device.warnings() + device.warnings()
    assert len(said) == len(set(said))


def test_closing_twice_is_safe(device):
    before = device.environment
    device.close()
    device.close()
    assert device.environment == before
