"""Screening and finals against a fake GPU on the CPU: what is timed, what is checked, and what a fault costs."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import pytest
import torch

from blockscale.kernels.inputs import GemmInputs
from blockscale.kernels.reference import reference
from blockscale.measure.conditions import Conditions, UnknownConditions
from blockscale.measure.rotation import SCREEN_SEED, InputOptions, RotationPool
from blockscale.measure.session import Session
from blockscale.measure.timing import Launch, Series, round_orders, set_count
from blockscale.problem import Candidate, GemmShape, Kernel, OutDtype, Problem, TileConfig, TrialStatus

PROBLEM = Problem(GemmShape(3, 130, 256), out_dtype=OutDtype.FLOAT32)
L2_BYTES = 80_000  # five sets of this problem and more
SETS = set_count(PROBLEM, L2_BYTES)
Fault = Callable[[int, torch.Tensor], None]


def candidate(group_m: int) -> Candidate:
    return Candidate(Kernel.FP8, TileConfig(16, 64, 128, group_m=group_m))


class FakeReplay:
    def __init__(self, gpu: "FakeGpu", launches: Sequence[Launch]) -> None:
        self.gpu, self.launches = gpu, launches

    def samples_us(self, series: Series) -> list[float]:
        for launch in self.launches:
            launch()
        self.gpu.series.append(series)
        pass_us = self.gpu.launch_us * len(self.launches)
        return [pass_us * series.passes + next(self.gpu.disturbances, 0.0) for _ in range(series.count)]


class FakeGpu:
    """Runs launches on the CPU; each takes ``launch_us``, and samples are longer by the ``disturbances`` in turn. Once
    ``lost``, every call fails, as CUDA's do."""

    def __init__(self, launch_us: float = 100.0) -> None:
        self.launch_us = launch_us
        self.disturbances: Iterator[float] = iter(())
        self.series: list[Series] = []
        self.lost = False

    def capture(self, launches: Sequence[Launch]) -> FakeReplay:
        assert len(launches) == SETS  # one pass over the sets
        return FakeReplay(self, launches)

    def synchronize(self) -> None:
        if self.lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")


class FakeConditions(UnknownConditions):
    """Says ``labels`` in turn after stretches, and ``of_series`` at the end of one."""

    def __init__(self, labels: Iterable[str] = (), of_series: Iterable[str] = ()) -> None:
        self.labels, self.of_series = iter(labels), frozenset(of_series)

    def passed(self) -> frozenset[str]:
        return frozenset(next(self.labels, "").split())

    def end(self) -> frozenset[str]:
        return self.of_series


class FakeKernels:
    """Right kernels, with a fault for those whose GROUP_SIZE_M is listed: called with the launch's number."""

    def __init__(self, faults: dict[int, Fault]) -> None:
        self.faults = faults
        self.order: list[int] = []
        self.problem_seeds: list[float] = []

    def launches(
        self, problem: Problem, candidate: Candidate, sets: Sequence[GemmInputs], outputs: Sequence[torch.Tensor]
    ) -> list[Launch]:
        right = reference(sets[0], problem).exact.to(outputs[0].dtype)
        self.problem_seeds.append(float(sets[0].a_scale[0, 0]))
        number = 0

        def launch(out: torch.Tensor) -> None:
            nonlocal number
            number += 1
            self.order.append(candidate.config.group_m)
            out.copy_(right)
            if (fault := self.faults.get(candidate.config.group_m)) is not None:
                fault(number, out)

        return [lambda out=out: launch(out) for out in outputs]


def session_of(
    faults: dict[int, Fault] | None = None, launch_us: float = 100.0, conditions: Conditions | None = None
) -> tuple[Session, FakeGpu, FakeKernels]:
    gpu, kernels = FakeGpu(launch_us), FakeKernels(faults or {})
    pool = RotationPool(InputOptions("cpu", "float8_e4m3fn", L2_BYTES, budget_bytes=1 << 30))
    return Session(gpu, kernels, pool, conditions or UnknownConditions()), gpu, kernels


def test_a_right_candidate_has_its_raw_samples_per_launch() -> None:
    session, gpu, _ = session_of()
    measured = session.screen(PROBLEM, candidate(1), None)
    assert measured.status is TrialStatus.OK
    assert measured.samples_us == pytest.approx([100.0] * len(measured.samples_us))
    last = gpu.series[-1]
    assert len(measured.samples_us) == last.count
    assert last.passes * SETS * 100.0 >= session.plan.sample_us


def test_a_candidate_far_behind_the_best_keeps_its_first_look() -> None:
    session, gpu, _ = session_of(launch_us=126.0)
    measured = session.screen(PROBLEM, candidate(1), best_us=100.0)
    assert measured.status is TrialStatus.COARSE
    assert measured.samples_us == pytest.approx([126.0] * len(measured.samples_us))
    assert sum(series.count * series.passes + series.ahead for series in gpu.series) <= 5
    gpu.launch_us = 124.0
    assert session.screen(PROBLEM, candidate(1), best_us=100.0).status is TrialStatus.OK


@pytest.mark.parametrize("launch_us", [10.0, 100.0, 900.0, 9000.0])
@pytest.mark.parametrize("when", range(4))
def test_one_disturbance_costs_no_good_candidate_its_place(launch_us: float, when: int) -> None:
    session, gpu, _ = session_of(launch_us=launch_us)
    gpu.disturbances = iter([0.0] * when + [0.4 * launch_us * SETS])
    assert session.screen(PROBLEM, candidate(1), best_us=launch_us).status is TrialStatus.OK


def test_a_pass_that_is_slow_beyond_doubt_is_timed_once() -> None:
    session, gpu, kernels = session_of(launch_us=10_000.0)
    measured = session.screen(PROBLEM, candidate(1), best_us=100.0)
    assert (measured.status, measured.samples_us) == (TrialStatus.COARSE, (10_000.0,))
    assert gpu.series == [Series(1, passes=1, ahead=0)]
    assert len(kernels.order) == 1 + SETS  # one to load the kernel, one a set


def test_only_one_set_is_launched_before_the_pass_is_recorded() -> None:
    session, _, kernels = session_of({7: raises("out of resource: shared memory")})
    assert session.screen(PROBLEM, candidate(7), None).status is TrialStatus.OUT_OF_RESOURCES
    assert len(kernels.order) == 1


def unwritten(number: int, out: torch.Tensor) -> None:
    out[-1, -1] = float("nan")


def only_in_the_last_set(number: int, out: torch.Tensor) -> None:
    if number > 1 and (number - 1) % SETS == 0:  # the first launch is no pass
        out[1, 2] += 1e6


def only_when_timed(number: int, out: torch.Tensor) -> None:
    if number > 1 + 2 * SETS:  # after both passes of the first look
        out[0, 0] *= -1


@pytest.mark.parametrize(
    ("fault", "status", "coarse"),
    [
        (unwritten, TrialStatus.NAN_RESULT, False),
        (unwritten, TrialStatus.NAN_RESULT, True),
        (only_in_the_last_set, TrialStatus.WRONG_RESULT, False),
        (only_in_the_last_set, TrialStatus.WRONG_RESULT, True),
        (only_when_timed, TrialStatus.WRONG_RESULT, False),
    ],
)
def test_a_wrong_output_anywhere_disqualifies(fault: Fault, status: TrialStatus, coarse: bool) -> None:
    session, _, _ = session_of({7: fault}, launch_us=10.0)
    measured = session.screen(PROBLEM, candidate(7), best_us=0.1 if coarse else None)
    assert measured.status is status
    assert measured.samples_us == ()
    assert session.screen(PROBLEM, candidate(1), None).status is TrialStatus.OK


def test_a_kernel_that_also_spoils_the_inputs_costs_only_its_own_trial() -> None:
    session, _, _ = session_of({7: unwritten})
    spoilt = session._pool.rotation(PROBLEM, SCREEN_SEED)
    spoilt.sets[0].b_scale.zero_()
    spoilt.sets[0].a_scale.zero_()
    assert session.screen(PROBLEM, candidate(7), None).status is TrialStatus.NAN_RESULT
    fresh = session._pool.rotation(PROBLEM, SCREEN_SEED)
    assert float(fresh.sets[0].b_scale.min()) > 0


def raises(text: str) -> Fault:
    def fault(number: int, out: torch.Tensor) -> None:
        raise RuntimeError(text)

    return fault


def test_a_launch_that_fails_is_that_candidates_failure() -> None:
    session, _, _ = session_of({7: raises("Triton Error [CUDA]: invalid argument")})
    measured = session.screen(PROBLEM, candidate(7), None)
    assert (measured.status, measured.poisoned) == (TrialStatus.LAUNCH_ERROR, False)
    assert "invalid argument" in measured.message
    assert session.screen(PROBLEM, candidate(1), None).status is TrialStatus.OK


def test_an_illegal_access_says_that_the_process_is_lost() -> None:
    session, _, _ = session_of({7: raises("CUDA error: an illegal memory access was encountered")})
    measured = session.screen(PROBLEM, candidate(7), None)
    assert (measured.status, measured.poisoned) == (TrialStatus.ILLEGAL_ACCESS, True)


def test_an_unknown_error_that_took_the_gpu_along_is_noticed() -> None:
    session, gpu, _ = session_of()

    def lose(number: int, out: torch.Tensor) -> None:
        gpu.lost = True
        raise RuntimeError("an error of a future release")

    session._kernels.faults[7] = lose  # type: ignore[attr-defined]
    measured = session.screen(PROBLEM, candidate(7), None)
    assert (measured.status, measured.poisoned) == (TrialStatus.LAUNCH_ERROR, True)


def test_finals_interleave_on_inputs_that_screening_did_not_see() -> None:
    session, _, kernels = session_of(launch_us=1000.0)
    session.screen(PROBLEM, candidate(1), None)
    kernels.order.clear()
    measured = session.finals(PROBLEM, [candidate(1), candidate(2), candidate(3)])
    assert [len(m.samples_us) for m in measured if m is not None] == [session.plan.rounds] * 3
    assert kernels.problem_seeds[0] != kernels.problem_seeds[1]
    turns = [now for before, now in zip([0, *kernels.order], kernels.order, strict=False) if before != now]
    assert turns == [1, 2, 3, *(i + 1 for order in round_orders(3, session.plan.rounds) for i in order)]


def test_a_finalist_that_turns_wrong_late_is_out_and_the_others_finish() -> None:
    session, _, _ = session_of({7: only_when_timed})
    right, wrong = session.finals(PROBLEM, [candidate(1), candidate(7)])
    assert right is not None
    assert right.status is TrialStatus.OK
    assert len(right.samples_us) == session.plan.rounds
    assert wrong is not None
    assert wrong.status is TrialStatus.WRONG_RESULT


def test_a_race_now_and_then_in_a_few_outputs_is_caught_by_the_finals() -> None:
    racing = False

    def race(number: int, out: torch.Tensor) -> None:
        if racing and number % 5 == 0:
            out.view(-1)[::1000] *= -1  # 0.1% of the outputs of every fifth launch

    session, _, _ = session_of({7: race})
    assert session.screen(PROBLEM, candidate(7), None).status is TrialStatus.OK
    racing = True
    right, wrong = session.finals(PROBLEM, [candidate(1), candidate(7)])
    assert right is not None
    assert right.status is TrialStatus.OK
    assert wrong is not None
    assert wrong.status is TrialStatus.WRONG_RESULT


def test_a_final_sample_fills_its_time_whatever_a_pass_takes() -> None:
    for launch_us in (2.0, 30.0, 1000.0):
        session, gpu, _ = session_of(launch_us=launch_us)
        (measured,) = session.finals(PROBLEM, [candidate(1)])
        assert measured is not None
        assert measured.samples_us == pytest.approx([launch_us] * session.plan.rounds)
        assert gpu.series[-1].passes * SETS * launch_us >= session.plan.round_us


def test_what_slowed_any_part_of_the_finals_down_labels_all_of_them() -> None:
    conditions = FakeConditions(["", "", "", "power_capped"], of_series=["thermal"])
    session, _, _ = session_of({7: unwritten}, conditions=conditions)
    first, second, wrong = session.finals(PROBLEM, [candidate(1), candidate(2), candidate(7)])
    assert first is not None
    assert second is not None
    assert wrong is not None
    assert (first.labels, second.labels) == (("power_capped", "thermal"), ("thermal",))
    assert wrong.labels == ()


def test_a_screen_that_heat_slowed_down_is_timed_again() -> None:
    session, gpu, _ = session_of(conditions=FakeConditions(["power_capped", "thermal", "power_capped"]))
    measured = session.screen(PROBLEM, candidate(1), None)
    assert (measured.status, measured.labels) == (TrialStatus.OK, ("power_capped",))
    assert gpu.series[-1] == gpu.series[-2]


def test_finals_name_the_candidate_that_poisoned_the_process() -> None:
    session, _, _ = session_of({7: raises("CUDA error: misaligned address")})
    first, poison, last = session.finals(PROBLEM, [candidate(1), candidate(7), candidate(2)])
    assert (first, last) == (None, None)
    assert poison is not None
    assert (poison.status, poison.poisoned) == (TrialStatus.ILLEGAL_ACCESS, True)
