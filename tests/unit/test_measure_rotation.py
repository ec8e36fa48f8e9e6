"""Inputs that many problems share: the same values whatever was made before, within memory, and verdicts on outputs."""

import weakref
from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from blockscale.errors import InputError
from blockscale.kernels.inputs import GemmInputs
from blockscale.kernels.reference import reference
from blockscale.measure import rotation as rotation_module
from blockscale.measure.rotation import (
    FINAL_SEED,
    SCREEN_SEED,
    InputOptions,
    Rotation,
    RotationPool,
    needed_bytes,
    refuse_too_large,
)
from blockscale.problem import GemmShape, OutDtype, Problem, QuantFormat, QuantScheme, TrialStatus

PROBLEM = Problem(GemmShape(3, 130, 256), out_dtype=OutDtype.FLOAT32)
L2_BYTES = 80_000  # five sets of this problem and more


def pool_of(budget_bytes: int = 1 << 30) -> RotationPool:
    return RotationPool(InputOptions("cpu", "float8_e4m3fn", L2_BYTES, budget_bytes))


def of_m(m: int, n: int = 130) -> Problem:
    return Problem(GemmShape(m, n, 256), out_dtype=OutDtype.FLOAT32)


def write_right_outputs(rotation: Rotation) -> None:
    right = reference(rotation.sets[0], rotation.problem).exact
    for out in rotation.outputs:
        out.copy_(right)


def contents(rotation: Rotation) -> list[torch.Tensor]:
    first = rotation.sets[0]
    return [t.float().clone() for t in (first.a, first.b, first.a_scale, first.b_scale)]


PROBLEMS = [of_m(m, n) for n in (130, 64) for m in (1, 3, 8)]
LARGEST = max(needed_bytes(p, 8, L2_BYTES) for p in PROBLEMS)


@cache
def made_alone(problem: Problem, seed: int) -> list[torch.Tensor]:
    pool = pool_of()
    pool.announce(PROBLEMS)
    return contents(pool.rotation(problem, seed))


@settings(max_examples=25)
@given(
    asked=st.lists(
        st.tuples(st.sampled_from(PROBLEMS), st.sampled_from([SCREEN_SEED, FINAL_SEED])), min_size=1, max_size=8
    ),
    budget_bytes=st.sampled_from([0, LARGEST // 4, LARGEST, 2 * LARGEST, 1 << 30]),
)
def test_a_problems_inputs_are_the_same_whatever_was_asked_for_before(
    asked: list[tuple[Problem, int]], budget_bytes: int
) -> None:
    pool = pool_of(budget_bytes)
    pool.announce(PROBLEMS)
    for problem, seed in asked:
        rotation = pool.rotation(problem, seed)
        expected = made_alone(problem, seed)
        assert all(map(torch.equal, contents(rotation), expected))
        for inputs in rotation.sets:
            assert torch.equal(inputs.a.float(), expected[0])
            assert torch.equal(inputs.b.float(), expected[1])
        rotation.fill_nan()
        assert rotation.check().status is TrialStatus.NAN_RESULT
        write_right_outputs(rotation)
        assert rotation.check().ok
        assert pool.held_bytes <= max(budget_bytes, LARGEST)


def test_what_was_made_is_kept_and_the_weight_is_shared() -> None:
    pool = pool_of()
    pool.announce(PROBLEMS)
    first = pool.rotation(of_m(8), SCREEN_SEED)
    second = pool.rotation(of_m(1), SCREEN_SEED)
    assert pool.rotation(of_m(8), SCREEN_SEED) is first
    assert pool.rotation(of_m(1), SCREEN_SEED) is second
    shared = list(zip(first.sets, second.sets, strict=False))
    assert all(a.b is b.b and a.b_scale is b.b_scale for a, b in shared)
    assert all(a.a.data_ptr() != b.a.data_ptr() for a, b in shared[1:])
    assert len({s.b.data_ptr() for s in second.sets}) == len(second.sets)


def test_without_room_the_problem_unused_for_longest_goes_first() -> None:
    first, second, third = of_m(4), of_m(5), of_m(3)
    pool = pool_of()
    pool.announce(PROBLEMS)
    for problem in (first, second):
        pool.rotation(problem, SCREEN_SEED)
    tight = pool_of(pool.held_bytes)  # room for these two, and so not for the third as well
    tight.announce(PROBLEMS)
    kept = {p: tight.rotation(p, SCREEN_SEED) for p in (first, second)}
    tight.rotation(first, SCREEN_SEED)
    tight.rotation(third, SCREEN_SEED)
    assert tight.rotation(first, SCREEN_SEED) is kept[first]
    assert tight.rotation(second, SCREEN_SEED) is not kept[second]


def test_memory_of_other_weights_is_given_up_for_the_problem_at_hand() -> None:
    pool = pool_of(budget_bytes=0)
    held = []
    for n in (130, 64, 200):
        pool.rotation(of_m(3, n), SCREEN_SEED)
        held.append(pool.held_bytes)
        assert pool.held_bytes <= needed_bytes(of_m(3, n), 3, L2_BYTES)
    assert held[1] < held[0]


def test_what_was_made_before_memory_ran_out_is_freed_before_the_next_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[torch.Tensor]] = []
    make_inputs, copies = rotation_module.make_inputs, rotation_module._copies

    def noted(*args: object) -> GemmInputs:
        assert all(matrix() is None for matrix in made)
        inputs = make_inputs(*args)
        made.append(weakref.ref(inputs.b))
        return inputs

    def short_of_memory(tensor: torch.Tensor, count: int) -> list[torch.Tensor]:
        if len(made) == 1:
            raise torch.OutOfMemoryError
        return copies(tensor, count)

    monkeypatch.setattr(rotation_module, "make_inputs", noted)
    monkeypatch.setattr(rotation_module, "_copies", short_of_memory)
    rotation = pool_of().rotation(PROBLEM, SCREEN_SEED)
    assert len(made) == 2
    write_right_outputs(rotation)
    assert rotation.check().ok


def test_a_larger_m_announced_later_makes_the_inputs_anew() -> None:
    pool, at_once = pool_of(), pool_of()
    pool.announce([of_m(3)])
    pool.rotation(of_m(3), SCREEN_SEED)
    pool.announce([of_m(8)])
    at_once.announce([of_m(3), of_m(8)])
    expected = contents(at_once.rotation(of_m(3), SCREEN_SEED))
    assert all(map(torch.equal, contents(pool.rotation(of_m(3), SCREEN_SEED)), expected))


@pytest.mark.parametrize("kept_results", [1 << 27, 5 * 130, 2 * 130])
@pytest.mark.parametrize("out_dtype", list(OutDtype))
def test_a_wrong_output_of_any_set_is_named_however_much_of_the_reference_is_kept(
    monkeypatch: pytest.MonkeyPatch, kept_results: int, out_dtype: OutDtype
) -> None:
    monkeypatch.setattr(rotation_module, "_KEPT_RESULTS", kept_results)
    pool = pool_of()
    pool.announce([of_m(8)])
    rotation = pool.rotation(replace(of_m(3), out_dtype=out_dtype), SCREEN_SEED)
    write_right_outputs(rotation)
    assert rotation.check().ok
    for number in (0, len(rotation.outputs) - 1):
        write_right_outputs(rotation)
        rotation.outputs[number][2, 7] *= -3
        verdict = rotation.check()
        assert verdict.status is TrialStatus.WRONG_RESULT
        assert verdict.message.startswith("1 of ")


def test_outputs_may_differ_between_sets_while_each_is_right() -> None:
    rotation = pool_of().rotation(PROBLEM, SCREEN_SEED)
    write_right_outputs(rotation)
    out = rotation.outputs[-1]
    out *= 1 + 2.0**-15
    assert not torch.equal(out, rotation.outputs[0])
    assert rotation.check().ok


def test_int8_problems_share_a_weight_too() -> None:
    problem = Problem(GemmShape(3, 130, 256), QuantScheme(QuantFormat.INT8))
    rotation = pool_of().rotation(problem, SCREEN_SEED)
    write_right_outputs(rotation)
    assert rotation.check().ok


def test_one_pass_over_the_sets_is_larger_than_twice_the_l2_cache() -> None:
    rotation = pool_of().rotation(PROBLEM, SCREEN_SEED)
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
