"""Fixtures shared by the whole test set."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import settings

from blockscale.executor.base import Comparison, Device, Screening
from blockscale.problem import Candidate, Problem, Trial

settings.register_profile("fast", max_examples=60, deadline=None)
settings.register_profile("stress", max_examples=2000, deadline=None)  # `make stress`
settings.load_profile("fast")


@pytest.fixture(scope="session")
def published_data() -> Path:
    """Folder with published model configs and engine files; they are not ours to ship, so tests skip without them."""
    default = Path(__file__).parents[1].parent / "shared" / "data"
    folder = Path(os.environ.get("BLOCKSCALE_PUBLISHED_DATA", default))
    if not folder.is_dir():
        pytest.skip("no published model configs and engine files here (BLOCKSCALE_PUBLISHED_DATA names their folder)")
    return folder


Try = Callable[[Device, Problem, Sequence[Candidate]], list[Trial]]


@pytest.fixture(scope="session")
def screen() -> Try:
    """Tries candidates on a device and waits for all: their screening trials, in the order given."""

    def screen(device: Device, problem: Problem, candidates: Sequence[Candidate]) -> list[Trial]:
        for candidate in candidates:
            device.start(Screening(problem, candidate), 0)
        trials = [trial for _ in candidates for trial in device.next_done().trials]
        return [next(t for t in trials if t.candidate == candidate) for candidate in candidates]

    return screen


@pytest.fixture(scope="session")
def compare() -> Try:
    """Re-times candidates on a device: their final trials, in the order given."""

    def compare(device: Device, problem: Problem, candidates: Sequence[Candidate]) -> list[Trial]:
        device.start(Comparison(problem, tuple(candidates)), 0)
        return list(device.next_done().trials)

    return compare
