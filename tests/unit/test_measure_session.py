"""Screening and finals against a fake GPU on the CPU: what is timed, what is checked, and what a fault costs."""

from collections.abc import Callable, Sequence

import pytest
import torch

from blockscale.errors import InputError
from blockscale.kernels.inputs import GemmInputs
from blockscale.kernels.reference import reference
from blockscale.measure.conditions import UnknownConditions
from blockscale.measure.rotation import SCREEN_SEED, InputOptions, RotationPool, needed_bytes, refuse_too_large
from blockscale.measure.session import Session
from blockscale.measure.timing import Launch, launches_per_replay, round_orders, set_count
from blockscale.problem import Candidate, GemmShape, Kernel, OutDtype, Problem, TileConfig, TrialStatus

PROBLEM = Problem(GemmShape(3, 130, 256), out_dtype=OutDtype.FLOAT32)
L2_BYTES = 80_000  # five sets of this problem and more
Fault = Callable[[int, torch.Tensor], None]


def candidate(group_m: int) -> Candidate:
    return Candidate(Kernel.FP8, TileConfig(16, 64, 128, group_m=group_m))


class FakeReplay:
    def __init__(self, gpu: "FakeGpu", launches: Sequence[Launch]) -> None:
        self.gpu, self.launches = gpu, launches

    def samples_us(self, count: int) -> list[float]:
        for launch in self.launches:
            launch()
        self.gpu.replays.append(len(self.launches))
        return [self.gpu.launch_us * len(self.launches)] * count


class FakeGpu:
    """Runs launches on the CPU; each takes ``launch_us``. Once ``lost``, every call fails, as CUDA's do."""

    def __init__(self, launch_us: float = 100.0) -> None:
        self.launch_us = launch_us
        self.replays: list[int] = []
        self.lost = False

    def capture(self, launches: Sequence[Launch]) -> FakeReplay:
        return FakeReplay(self, launches)

    def synchronize(self) -> None:
        if self.lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")


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
    faults: dict[int, Fault] | None = None, launch_us: float = 100.0
) -> tuple[Session, FakeGpu, FakeKernels]:
    gpu, kernels = FakeGpu(launch_us), FakeKernels(faults or {})
    pool = RotationPool(InputOptions("cpu", "float8_e4m3fn", L2_BYTES))
    return Session(gpu, kernels, pool, UnknownConditions()), gpu, kernels


def test_a_right_candidate_has_its_raw_samples_per_launch() -> None:
    session, gpu, _ = session_of()
    measured = session.screen(PROBLEM, candidate(1), None)
    assert measured.status is TrialStatus.OK
    assert measured.samples_us == pytest.approx([100.0] * 5)
    sets = set_count(PROBLEM, L2_BYTES)
    assert sets > 2
    assert gpu.replays[0] == sets  # the first look: one launch a set
    assert gpu.replays[1] % sets == 0
    assert gpu.replays[1] * 100.0 >= 1000.0


def test_a_candidate_far_behind_the_best_keeps_its_first_look() -> None:
    session, gpu, _ = session_of(launch_us=100.0)
    measured = session.screen(PROBLEM, candidate(1), best_us=24.0)
    assert measured.status is TrialStatus.COARSE
    assert measured.samples_us == pytest.approx([100.0])
    assert len(gpu.replays) == 1
    assert session.screen(PROBLEM, candidate(1), best_us=26.0).status is TrialStatus.OK


def unwritten(number: int, out: torch.Tensor) -> None:
    out[-1, -1] = float("nan")


def only_in_the_last_set(number: int, out: torch.Tensor) -> None:
    if number % set_count(PROBLEM, L2_BYTES) == 0:
        out[1, 2] += 1e6


def only_when_timed(number: int, out: torch.Tensor) -> None:
    if number > 3 * set_count(PROBLEM, L2_BYTES):
        out[0, 0] *= -1


@pytest.mark.parametrize(
    ("fault", "status", "coarse"),
    [
        (unwritten, TrialStatus.NAN_RESULT, False),
        (unwritten, TrialStatus.NAN_RESULT, True),
        (only_in_the_last_set, TrialStatus.WRONG_RESULT, False),
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
    assert [len(m.samples_us) for m in measured if m is not None] == [7, 7, 7]
    assert kernels.problem_seeds[0] != kernels.problem_seeds[1]
    turns = [now for before, now in zip([0, *kernels.order], kernels.order, strict=False) if before != now]
    assert turns == [1, 2, 3, *(i + 1 for order in round_orders(3, 7) for i in order)]


def test_a_finalist_that_turns_wrong_late_is_out_and_the_others_finish() -> None:
    session, _, _ = session_of({7: only_when_timed})
    right, wrong = session.finals(PROBLEM, [candidate(1), candidate(7)])
    assert right is not None
    assert right.status is TrialStatus.OK
    assert len(right.samples_us) == 7
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


def test_finals_name_the_candidate_that_poisoned_the_process() -> None:
    session, _, _ = session_of({7: raises("CUDA error: misaligned address")})
    first, poison, last = session.finals(PROBLEM, [candidate(1), candidate(7), candidate(2)])
    assert (first, last) == (None, None)
    assert poison is not None
    assert (poison.status, poison.poisoned) == (TrialStatus.ILLEGAL_ACCESS, True)


def test_inputs_are_made_once_for_the_largest_m_and_are_the_same_in_every_run() -> None:
    small, large = PROBLEM, Problem(GemmShape(8, 130, 256), out_dtype=OutDtype.FLOAT32)
    values = []
    for order in ([small, large], [large, small]):
        pool = RotationPool(InputOptions("cpu", "float8_e4m3fn", L2_BYTES))
        pool.announce([small, large])
        seen = {p: pool.rotation(p, SCREEN_SEED).sets[0].a.float().sum().item() for p in order}
        values.append([seen[small], seen[large]])
    assert values[0] == values[1]


def test_one_pass_over_the_sets_is_larger_than_twice_the_l2_cache() -> None:
    rotation = RotationPool(InputOptions("cpu", "float8_e4m3fn", L2_BYTES)).rotation(PROBLEM, SCREEN_SEED)
    tensors = [t for s in rotation.sets for t in (s.a, s.b, s.a_scale, s.b_scale)] + rotation.outputs
    assert sum(t.nbytes for t in tensors) > 2 * L2_BYTES
    assert len({t.data_ptr() for t in tensors}) == len(tensors)
    assert all(t.data_ptr() % 16 == 0 for t in tensors)  # as kernels are compiled for


@pytest.mark.parametrize("m", [1, 64, 4096, 65536])
@pytest.mark.parametrize(("n", "k"), [(24576, 1536), (2112, 7168), (512, 512), (32768, 8192)])
def test_measuring_takes_at_most_four_gib_beyond_the_problems_own_tensors(m: int, n: int, k: int) -> None:
    problem = Problem(GemmShape(m, n, k))
    assert needed_bytes(problem, 4096, 60 << 20) - problem.bytes_moved <= 4 << 30


def test_what_does_not_fit_into_gpu_memory_is_refused_before_anything_is_measured() -> None:
    huge = Problem(GemmShape(1 << 20, 24576, 7168))
    with pytest.raises(InputError, match=r"needs \d+\.\d GiB of GPU memory and 4\.0 GiB are free"):
        refuse_too_large([PROBLEM, huge], 60 << 20, 4 << 30)
    refuse_too_large([PROBLEM], 60 << 20, 4 << 30)


def test_a_replay_is_a_whole_number_of_passes() -> None:
    assert launches_per_replay(9.0, 9, 1000.0, 2048) % 9 == 0
    assert 9.0 * launches_per_replay(9.0, 9, 1000.0, 2048) >= 1000.0
    assert launches_per_replay(5000.0, 2, 1000.0, 2048) == 2
    assert launches_per_replay(0.001, 300, 1e6, 256) == 300


def test_each_round_of_the_finals_begins_with_another_candidate() -> None:
    orders = round_orders(3, 7)
    assert [order[0] for order in orders] == [0, 1, 2, 0, 1, 2, 0]
    assert all(sorted(order) == [0, 1, 2] for order in orders)
    assert round_orders(0, 7) == []
