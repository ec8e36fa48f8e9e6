"""A measuring and a compile process without GPU, torch or Triton, which misbehave on command. For tests.

They stand in for the real ones under a `LocalDevice`, so that everything else of it is real: the processes, the pipes
between them, the time limits. Times come from the analytic clock, equal in every process and run; what goes wrong when
stands in a file that the environment names.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from blockscale.hardware import H200
from blockscale.measure.classify import classify
from blockscale.measure.compile_pool import CompileOptions, CompileOutcome, CompileRequest
from blockscale.measure.protocol import Describe, Description, Finals, Measured, Prepare, Request, Screen, Warnings
from blockscale.measure.timing import TimingPlan
from blockscale.problem import Candidate, Environment, Phase, Problem, TrialStatus

PLAN_VARIABLE = "BLOCKSCALE_SYNTHETIC_PLAN"
WORKER = f"{__name__}:open_worker"
COMPILER = f"{__name__}:open_compiler"

_ENVIRONMENT = Environment(H200.name, H200.arch, "none", "none", "none", "synthetic", "0")
_NOISE = 0.002  # largest, as a share
_LEAK_BYTES = 1 << 28  # what a process may leak before the system refuses
_LAUNCHES = {Phase.SCREEN: 20, Phase.FINAL: 60}


class Mishap(StrEnum):
    """What a kernel does to its process, or the process to its answer."""

    DIE = "die"  # SIGKILL, as the system does when memory is short
    FAULT = "fault"  # a segmentation fault
    HANG = "hang"
    STOP = "stop"  # SIGSTOP
    POISON = "poison"  # an illegal access: the context is lost, and the process says so
    LEAK = "leak"  # memory without end
    WRONG = "wrong"  # at its first check
    WRONG_ONCE_IN_50 = "wrong_once_in_50"  # of 50 launches one
    GARBAGE = "garbage"  # bytes that are no answer
    HALF = "half"  # the beginning of an answer, and no more
    NONSENSE = "nonsense"  # an answer to nothing that was asked
    GPU_LOST = "gpu_lost"  # the process dies, and no other one starts


@dataclass(frozen=True)
class SyntheticPlan:
    """What goes wrong; ``folder`` keeps what happened, so that it outlasts processes.

    ``at_trial`` counts screenings and finalists of all processes of a folder from 1. ``on_candidate`` names candidates
    as they print. ``trial_s`` is how long every trial takes, in seconds.
    """

    folder: Path
    at_trial: Mapping[int, Mishap] = field(default_factory=dict)
    on_candidate: Mapping[str, Mishap] = field(default_factory=dict)
    trial_s: float = 0.0

    @property
    def log(self) -> Path:
        """One line a trial that was begun: process, phase, problem, candidate."""
        return self.folder / "trials"

    @property
    def lost(self) -> Path:
        """Stands there while the GPU is lost."""
        return self.folder / "lost"

    def save(self) -> dict[str, str]:
        """Write the plan into its folder; what a parent's environment needs for its processes to follow it."""
        path = self.folder / "plan.json"
        path.write_text(json.dumps(asdict(self) | {"folder": str(self.folder)}))
        return {PLAN_VARIABLE: str(path)}

    @classmethod
    def load(cls) -> SyntheticPlan | None:
        """The plan that the environment names; None where it names none."""
        if (path := os.environ.get(PLAN_VARIABLE)) is None:
            return None
        saved = json.loads(Path(path).read_text())
        return cls(
            Path(saved["folder"]),
            {int(number): Mishap(name) for number, name in saved["at_trial"].items()},
            {name: Mishap(mishap) for name, mishap in saved["on_candidate"].items()},
            saved["trial_s"],
        )

    def begin(self, problem: Problem, candidate: Candidate, phase: Phase) -> Mishap | None:
        """Log one trial; what is to go wrong with it."""
        with self.log.open("a+") as log:
            fcntl.flock(log, fcntl.LOCK_EX)
            log.seek(0)
            number = sum(1 for _ in log) + 1
            log.write(f"{os.getpid()} {phase} {problem} {candidate}\n")
        return self.at_trial.get(number) or self.on_candidate.get(str(candidate))


class SyntheticMeasuring:
    """What a measuring process holds: how often it launched what, and what it leaked."""

    def __init__(self, plan: SyntheticPlan | None) -> None:
        self._plan = plan
        self._launches: Counter[tuple[Problem, Candidate]] = Counter()
        self._leaked: list[bytes] = []

    def screen(self, problem: Problem, candidate: Candidate) -> Any:
        """One candidate's result."""
        return self._try(problem, candidate, Phase.SCREEN, TimingPlan().samples)

    def finals(self, problem: Problem, candidates: Sequence[Candidate]) -> Any:
        """A result for each, none after one that poisoned the process."""
        results: list[Any] = []
        for candidate in candidates:
            results.append(self._try(problem, candidate, Phase.FINAL, TimingPlan().rounds))
            if isinstance(results[-1], Measured) and results[-1].poisoned:
                return [*([None] * (len(results) - 1)), results[-1], *([None] * (len(candidates) - len(results)))]
        return results

    def _try(self, problem: Problem, candidate: Candidate, phase: Phase, samples: int) -> Any:
        mishap = None
        if self._plan is not None:
            mishap = self._plan.begin(problem, candidate, phase)
            time.sleep(self._plan.trial_s)
        before = self._launches[problem, candidate]
        self._launches[problem, candidate] += _LAUNCHES[phase]
        wrong = mishap is Mishap.WRONG or (
            mishap is Mishap.WRONG_ONCE_IN_50 and before // 50 < self._launches[problem, candidate] // 50
        )
        if wrong:
            return Measured(TrialStatus.WRONG_RESULT, message="1 of 50 outputs is off")
        if mishap is Mishap.NONSENSE:
            return "what was the question?"
        if mishap is Mishap.POISON:
            return Measured(TrialStatus.ILLEGAL_ACCESS, message="an illegal memory access", poisoned=True)
        if mishap is Mishap.LEAK:
            return self._leak()
        if mishap is not None and mishap is not Mishap.WRONG_ONCE_IN_50:
            self._end(mishap)
        return Measured(TrialStatus.OK, _samples_us(problem, candidate, phase, samples))

    def _leak(self) -> Measured:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + _LEAK_BYTES, resource.RLIM_INFINITY))
        try:
            while True:
                self._leaked.append(bytes(1 << 22))
        except MemoryError as error:
            failure = classify(error, TrialStatus.LAUNCH_ERROR)
            return Measured(failure.status, message=failure.message, poisoned=failure.poisoned)

    def _end(self, mishap: Mishap) -> None:
        """What the process does not come back from."""
        answers = int(sys.argv[2])  # the pipe to the parent, as `measure/child_main.py` got it
        match mishap:
            case Mishap.FAULT:
                os.kill(os.getpid(), signal.SIGSEGV)
            case Mishap.STOP:
                os.kill(os.getpid(), signal.SIGSTOP)
            case Mishap.GARBAGE:
                os.write(answers, b"\x00\x00\x00\x20" + bytes(range(32)))
            case Mishap.HALF:
                os.write(answers, b"\x00\x00\x00\x20half")
            case Mishap.DIE:
                os.kill(os.getpid(), signal.SIGKILL)
            case Mishap.GPU_LOST:
                assert self._plan is not None
                self._plan.lost.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        while True:  # until somebody kills it
            signal.pause()


def _samples_us(problem: Problem, candidate: Candidate, phase: Phase, count: int) -> tuple[float, ...]:
    """Times by the analytic clock with a little noise, equal whenever they are asked for."""
    from blockscale.costmodel import ConfigArrays, analytic_us  # numpy, which compile processes start faster without

    arrays = ConfigArrays.of([candidate.config], problem.quant, H200)
    time_us = float(analytic_us(problem, arrays, H200)[0])
    digest = hashlib.sha256(f"{problem} {candidate} {phase}".encode()).digest()
    return tuple(time_us * (1 + _NOISE * byte / 255) for byte in digest[:count])


def open_worker(options: object) -> Callable[[Request], Any]:
    """Entry of the measuring process, for ``LocalSettings.worker``. ``options`` is unused.

    Raises:
        RuntimeError: the plan's GPU is lost.
    """
    plan = SyntheticPlan.load()
    if plan is not None and plan.lost.exists():
        raise RuntimeError("CUDA error: GPU is lost: it has fallen off the bus")
    measuring = SyntheticMeasuring(plan)

    def answer(request: Request) -> Any:
        match request:
            case Describe():
                return Description(H200, _ENVIRONMENT, H200.memory_bytes)
            case Prepare():
                return None
            case Screen(problem, candidate, _):
                return measuring.screen(problem, candidate)
            case Finals(problem, candidates):
                return measuring.finals(problem, candidates)
            case Warnings():
                return []

    return answer


def open_compiler(options: CompileOptions) -> Callable[[CompileRequest], CompileOutcome]:
    """Entry of a compile process, for ``PoolSettings.function``: everything compiles, each config to its own code."""
    return lambda request: CompileOutcome(TrialStatus.OK, code=str(request.candidate))
