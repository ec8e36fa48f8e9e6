"""The recorded device: canonical form, phases, kernels that stand in, what is refused."""

from dataclasses import replace

import pytest

from blockscale.errors import InputError
from blockscale.executor.base import APPROXIMATE, Screening
from blockscale.executor.cost import measuring_s
from blockscale.executor.replay import ReplayDevice
from blockscale.hardware import H200
from blockscale.problem import (
    Candidate,
    Environment,
    GemmShape,
    Kernel,
    OutDtype,
    Phase,
    Problem,
    QuantFormat,
    QuantScheme,
    TileConfig,
    Trial,
    TrialStatus,
)
from blockscale.recording import embedded, load_recording, write_recording

ENVIRONMENT = Environment("NVIDIA H200", "sm_90", "580", "2.11", "3.6", "abc", "0.1")
PROBLEM = Problem(GemmShape(16, 512, 1024))
CONFIG = TileConfig(16, 64, 128)


def trial(config=CONFIG, kernel=Kernel.FP8, time_us=10.0, problem=PROBLEM, **fields):
    fields.setdefault("status", TrialStatus.OK)
    fields.setdefault("samples_us", (time_us, time_us + 0.5))
    return Trial(problem, Candidate(kernel, config), **fields)


@pytest.fixture
def device_of(tmp_path):
    def make(*trials, gpus=1):
        path = tmp_path / "recording.jsonl"
        write_recording(path, H200, ENVIRONMENT, trials)
        return ReplayDevice(load_recording(path), gpus)

    return make


@pytest.fixture
def ask(screen):
    def ask(device, config=CONFIG, kernel=Kernel.FP8, problem=PROBLEM):
        (answer,) = screen(device, problem, [Candidate(kernel, config)])
        return answer

    return ask


def test_every_spelling_of_one_launch_has_the_recorded_time(device_of, ask):
    device = device_of(trial())
    for group_m in (1, 16, 64):
        answer = ask(device, CONFIG.with_(group_m=group_m))
        assert answer.candidate.config.group_m == group_m
        assert answer.samples_us == (10.0, 10.5)


def test_recorded_spelling_need_not_be_canonical(device_of, ask):
    assert ask(device_of(trial(CONFIG.with_(group_m=32)))).time_us == 10.25


def test_of_several_spellings_the_canonical_one_answers_else_the_fastest(device_of, ask):
    g16, g32 = CONFIG.with_(group_m=16), CONFIG.with_(group_m=32)
    with_canonical = device_of(trial(g16, time_us=8.0), trial(CONFIG, time_us=10.0))
    assert ask(with_canonical, g16).samples_us[0] == 10.0
    without = device_of(trial(g32, time_us=9.0), trial(g16, time_us=8.0))
    assert ask(without).samples_us[0] == 8.0


def test_of_repeated_rows_the_last_answers(device_of, ask):
    assert ask(device_of(trial(time_us=8.0), trial(time_us=9.0))).samples_us[0] == 9.0


def test_unrecorded_config_has_a_status_of_its_own_and_no_time(device_of, ask):
    answer = ask(device_of(trial()), CONFIG.with_(num_stages=5))
    assert (answer.status, answer.time_us) == (TrialStatus.UNRECORDED, None)


def test_finals_answer_with_final_rows_where_there_are_some(device_of, ask, compare):
    other = CONFIG.with_(num_warps=8)
    device = device_of(trial(), trial(time_us=11.0, phase=Phase.FINAL), trial(other, time_us=12.0))
    finals = compare(device, PROBLEM, [Candidate(Kernel.FP8, CONFIG), Candidate(Kernel.FP8, other)])
    assert [(t.phase, t.samples_us[0]) for t in finals] == [(Phase.FINAL, 11.0), (Phase.FINAL, 12.0)]
    assert ask(device).samples_us[0] == 10.0


def test_recorded_failures_are_answered_as_such(device_of, ask):
    failed = trial(status=TrialStatus.OUT_OF_RESOURCES, samples_us=(), message="shared memory")
    answer = ask(device_of(failed))
    assert (answer.status, answer.message) == (TrialStatus.OUT_OF_RESOURCES, "shared memory")


def test_hopper_config_without_its_keys_is_the_plain_kernels(device_of, ask):
    assert ask(device_of(trial()), kernel=Kernel.FP8_HOPPER).status is TrialStatus.OK
    assert ask(device_of(trial(kernel=Kernel.FP8_HOPPER))).status is TrialStatus.OK
    split = CONFIG.with_(split_k=4)
    assert ask(device_of(trial()), split, Kernel.FP8_HOPPER).status is TrialStatus.UNRECORDED


def test_kernel_akin_stands_in_labelled_and_warned_of_once(device_of, ask):
    device = device_of(trial())
    answers = [ask(device, kernel=Kernel.FP8_MASKED) for _ in range(2)]
    assert all(answer.labels == (APPROXIMATE,) and answer.samples_us == (10.0, 10.5) for answer in answers)
    (warning,) = device.warnings()
    assert "fp8_masked" in warning
    assert "approximate" in warning
    assert device.warnings() == []


def test_measured_kernel_needs_no_stand_in(device_of, ask):
    device = device_of(trial(), trial(kernel=Kernel.FP8_MASKED, time_us=12.0))
    answer = ask(device, kernel=Kernel.FP8_MASKED)
    assert (answer.samples_us[0], answer.labels, device.warnings()) == (12.0, (), [])


@pytest.mark.parametrize(
    "asked",
    [
        replace(PROBLEM, shape=GemmShape(17, 512, 1024)),
        replace(PROBLEM, quant=QuantScheme(QuantFormat.INT8)),
        replace(PROBLEM, quant=QuantScheme(block_n=64)),
        replace(PROBLEM, out_dtype=OutDtype.FLOAT32),
    ],
)
def test_unrecorded_problem_is_refused_with_what_there_is(device_of, asked):
    device = device_of(trial(), trial(problem=replace(PROBLEM, shape=GemmShape(32, 512, 1024))))
    with pytest.raises(InputError, match="512×1024 at M 16 32"):
        device.prepare([PROBLEM, asked])


def test_replayed_trials_never_pass_for_those_of_the_real_device(device_of):
    one, longer = device_of(trial()), device_of(trial(), trial(time_us=9.0))
    assert len({one.environment.key, longer.environment.key, ENVIRONMENT.key}) == 3
    assert one.environment.device_name == "NVIDIA H200"


def test_cost_is_measuring_and_compiling_is_told_apart_once(device_of, ask, compare):
    device = device_of(trial(compile_s=0.75))
    assert (ask(device).compile_s, ask(device).elapsed_s) == (0.75, pytest.approx(measuring_s(PROBLEM)))
    (final,) = compare(device, PROBLEM, [Candidate(Kernel.FP8, CONFIG)])
    assert (final.compile_s, final.elapsed_s) == (0.0, pytest.approx(measuring_s(PROBLEM)))
    assert measuring_s(Problem(GemmShape(4096, 4608, 7168))) > measuring_s(PROBLEM)


def test_recorded_cost_counts_where_there_is_one(device_of, ask):
    assert ask(device_of(trial(elapsed_s=2.5))).elapsed_s == 2.5


def test_shipped_recording_answers_the_best_known_config(screen):
    device = ReplayDevice(load_recording(embedded("h200")))
    problem = Problem(GemmShape(16, 2112, 7168))
    best = TileConfig(16, 32, 128, 1, 4, 3, split_k=8)
    (answer,) = screen(device, problem, [Candidate(Kernel.FP8_HOPPER, best)])
    assert answer.samples_us == (9.526, 9.69)


def test_several_gpus_answer_the_same_each_problem_in_its_order(device_of):
    other = replace(PROBLEM, shape=GemmShape(32, 512, 1024))
    asked = [(problem, stages) for problem in (PROBLEM, other) for stages in (2, 3, 4)]
    trials = [
        trial(CONFIG.with_(num_stages=stages), problem=problem, time_us=stages, elapsed_s=1.0, compile_s=0.5)
        for problem, stages in asked
    ]
    found = {}
    for gpus in (1, 2):
        device = device_of(*trials, gpus=gpus)
        for problem, stages in asked:
            device.start(Screening(problem, Candidate(Kernel.FP8, CONFIG.with_(num_stages=stages))), 0)
        found[gpus] = [device.next_done() for _ in asked]
        clock = device.clock()
        assert clock.gpus == gpus
        assert (clock.measuring_s + clock.idle_s) / gpus == pytest.approx(6.0 if gpus == 1 else 3.5)
    assert sorted(map(repr, found[1])) == sorted(map(repr, found[2]))
    assert [done.work.problem for done in found[2]] == [PROBLEM, other] * 3
