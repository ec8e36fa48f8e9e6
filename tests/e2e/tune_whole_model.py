"""Tunes a whole model on a device that answers at once: memory and size of the store as JSON, last line on stdout.

A program of its own, since the peak of a process's resident memory never falls again. It runs in an empty folder.
"""

import json
import random
import sqlite3
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from blockscale.cli import tune
from blockscale.cli.main import main
from blockscale.costmodel import ConfigArrays, analytic_us
from blockscale.executor.base import DeviceClock, Done, Work
from blockscale.hardware import H200, DeviceSpec
from blockscale.measure.timing import TimingPlan
from blockscale.problem import Candidate, Environment, Phase, Problem, Trial, TrialStatus


class EstimatedDevice:
    """Answers every candidate with its estimated time and some noise, in as many samples as a GPU gives."""

    spec: DeviceSpec = H200
    environment = Environment(H200.name, H200.arch, "580.126", "2.11.0", "3.6.0", "estimated", "0")

    def prepare(self, problems: Sequence[Problem]) -> None:
        """Any problem will do."""

    def __init__(self) -> None:
        self._waiting: deque[Work] = deque()

    def can_try(self, problem: Problem, candidate: Candidate) -> bool:
        return True

    def start(self, work: Work, rank: int) -> None:
        self._waiting.append(work)

    def next_done(self) -> Done:
        work = self._waiting.popleft()
        plan = TimingPlan()
        samples = plan.samples if work.phase is Phase.SCREEN else plan.rounds
        return Done(work, tuple(self._trial(work.problem, c, work.phase, samples) for c in work.candidates))

    def clock(self) -> DeviceClock:
        return DeviceClock(recorded=True)

    def warnings(self) -> list[str]:
        return []

    def close(self) -> None:
        """Nothing is held."""

    def _trial(self, problem: Problem, candidate: Candidate, phase: Phase, samples: int) -> Trial:
        noise = random.Random(f"{problem} {candidate} {phase}")
        arrays = ConfigArrays.of([candidate.config], problem.quant, self.spec)
        time_us = float(analytic_us(problem, arrays, self.spec)[0])
        times = tuple(time_us * noise.uniform(1.0, 1.02) for _ in range(samples))
        trial = Trial(problem, candidate, TrialStatus.OK, phase, times, labels=("power_capped",))
        return replace(trial, compile_s=noise.uniform(0.3, 2.0), elapsed_s=noise.uniform(0.01, 0.1))


def measured(store: Path) -> dict[str, float]:
    """Peak resident memory in MiB (Linux counts KiB), samples kept, and bytes of the closed store for each."""
    with sqlite3.connect(store) as connection:
        ((packed,),) = connection.execute("SELECT SUM(LENGTH(samples_us)) FROM trials")
    samples = packed // 8
    # Not getrusage: what it says begins with the peak of the process that started this one.
    (peak,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    peak_mib = int(peak.split()[1]) / 1024
    return {"peak_mib": peak_mib, "samples": samples, "bytes_a_sample": store.stat().st_size / samples}


if __name__ == "__main__":
    tune.open_devices = lambda *given: [EstimatedDevice()]
    code = main(["tune", *sys.argv[1:], "--yes", "--store", "store.db"])
    print(json.dumps({"code": code} | measured(Path("store.db"))))
