"""Launches of one candidate over many sets, and the workspace that they share."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from blockscale.kernels.inputs import make_inputs
from blockscale.measure import launcher
from blockscale.problem import Candidate, GemmShape, Kernel, Problem, TileConfig

PROBLEM = Problem(GemmShape(3, 130, 256))


def split(count: int) -> Candidate:
    return Candidate(Kernel.FP8_HOPPER, TileConfig(16, 64, 128, split_k=count))


@pytest.fixture
def bind(monkeypatch: pytest.MonkeyPatch) -> Callable[[Candidate], tuple[list[Any], torch.Tensor]]:
    """Binds a candidate to two sets; gives the launches and the workspace that they were bound to."""
    given: list[torch.Tensor] = []
    real = launcher.bind_sets

    def bind_sets(*arguments: Any) -> Any:
        given.append(arguments[4])
        return real(*arguments)

    monkeypatch.setattr(launcher, "bind_sets", bind_sets)
    kernels = launcher.TritonKernels()
    sets = [make_inputs(PROBLEM, "float8_e4m3fn", seed) for seed in range(2)]
    outputs: Sequence[torch.Tensor] = [torch.empty((3, 130), dtype=torch.bfloat16) for _ in sets]

    def bound(candidate: Candidate) -> tuple[list[Any], torch.Tensor]:
        launches = kernels.launches(PROBLEM, candidate, sets, outputs)
        return launches, given.pop()

    return bound


def test_each_set_has_its_launch_and_partial_sums_begin_as_nan(bind: Any) -> None:
    launches, workspace = bind(split(4))
    assert len(launches) == 2
    assert workspace.numel() == 4 * 3 * 130
    assert bool(workspace.isnan().all())


def test_candidates_held_together_share_a_workspace_that_is_large_enough(bind: Any) -> None:
    first, large = bind(split(4))
    large.zero_()
    second, shared = bind(split(2))
    assert shared is large
    assert bool(shared[: 2 * 3 * 130].isnan().all())
    third, larger = bind(split(8))
    assert larger.numel() == 8 * 3 * 130
    assert larger.data_ptr() != large.data_ptr()
    del first, second, third


def test_a_workspace_ends_with_the_launches_that_use_it(bind: Any) -> None:
    launches, _ = bind(split(16))
    del launches, _
    assert bind(split(2))[1].numel() == 2 * 3 * 130
