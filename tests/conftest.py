"""Fixtures shared by the whole test set."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings

from blockscale.executor.base import Comparison, Device, Screening
from blockscale.hardware import H200, DeviceSpec
from blockscale.problem import Candidate, Kernel, Problem, TileConfig, Trial
from blockscale.recording import embedded, load_recording
from blockscale.space import Clause, Space, build_space, canonical

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


@dataclass(frozen=True)
class Table:
    """What the recorded H200 holds of one problem on SGLang's kernels: µs by canonical config."""

    problem: Problem
    times: dict[TileConfig, float]

    @property
    def best_us(self) -> float:
        return min(self.times.values())

    def within(self, keep: Callable[[TileConfig], bool]) -> "Table":
        """The part of the table that a smaller device could run."""
        return Table(self.problem, {config: us for config, us in self.times.items() if keep(config)})

    def space(self, spec: DeviceSpec = H200) -> Space:
        """The configs of the table as a space."""

        def check(_: Problem, config: TileConfig) -> str | None:
            return None if canonical(self.problem, config) in self.times else "not recorded"

        return build_space(self.problem, spec, hopper=True, clauses=[Clause("recorded", check)])


@pytest.fixture(scope="session")
def recorded() -> Callable[[Problem], Table]:
    """Gives the recorded table of a problem."""
    recording = load_recording(embedded("h200"))

    def table(problem: Problem) -> Table:
        trials = [t for kernel in (Kernel.FP8_HOPPER, Kernel.FP8) for t in recording.trials(problem, kernel)]
        timed = {canonical(problem, t.candidate.config): t.time_us for t in trials if t.time_us is not None}
        return Table(problem, timed)

    return table
