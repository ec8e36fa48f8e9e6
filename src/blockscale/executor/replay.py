"""A device that answers from trials measured earlier on a real one."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from blockscale.errors import InputError
from blockscale.executor.base import APPROXIMATE, DeviceClock, Done, Work
from blockscale.executor.cost import measuring_s
from blockscale.executor.virtual import VirtualGpus
from blockscale.hardware import DeviceSpec
from blockscale.problem import (
    Candidate,
    Environment,
    Kernel,
    Phase,
    Problem,
    TileConfig,
    Trial,
    TrialStatus,
    WeightShape,
)
from blockscale.recording import Recording
from blockscale.space import canonical

# SGLang's and vLLM's FP8 kernels differ in whether the K tail is masked, which costs 3–25% on one config.
_STAND_INS = {Kernel.FP8_MASKED: Kernel.FP8, Kernel.FP8: Kernel.FP8_MASKED}

# Of the machines that were recorded; more than the second outrun any GPUs of one machine (measure/compile_pool.py).
_COMPILERS_A_GPU, _MOST_COMPILERS = 16, 32


@dataclass(slots=True)
class _Answers:
    """What is recorded of one piece of work."""

    by_phase: dict[Phase, Trial]

    def __getitem__(self, phase: Phase) -> Trial:
        other = Phase.SCREEN if phase is Phase.FINAL else Phase.FINAL
        return self.by_phase.get(phase) or self.by_phase[other]


class ReplayDevice:
    """Answers with recorded trials, deterministically; satisfies ``Device``.

    Configs compare in canonical form, so every spelling of one launch has the recorded time. Where several recorded
    configs are one launch, the answer is the row recorded under the canonical spelling, else the one with the lowest
    median, else the first of the file; of several rows under one spelling the last counts. A comparison gives the
    trials recorded as finals, where there are none those of the screening.

    A Hopper config without SWAP_AB and SPLIT_K is the plain kernel's. Where the asked kernel was not measured on the
    problem but one akin to it was, that one's times are given, labelled ``approximate``.

    Its environment is the recorded one with the recording's digest for the kernel hash: replayed trials never pass for
    fresh ones of the real device, nor those of a shorter recording for those of a longer one.

    Answers do not depend on the number of GPUs, but their order does: it is the one in which so many equal GPUs would
    finish, each candidate taking the seconds that were recorded (`VirtualGpus`). ``compilers`` is how many processes
    compile for them, 0 where compiling takes no time; by default that is so for one GPU, which then answers by rank,
    while several have 16 each, at most 32.
    """

    def __init__(self, recording: Recording, gpus: int = 1, compilers: int | None = None) -> None:
        self._recording = recording
        self._answers: dict[tuple[Problem, Kernel], dict[TileConfig, _Answers]] = {}
        self._said: set[str] = set()
        self._unsaid: list[str] = []
        self._environment = replace(recording.environment, kernel_hash=f"recording-{recording.digest}")
        if compilers is None:
            compilers = min(_MOST_COMPILERS, _COMPILERS_A_GPU * gpus) if gpus > 1 else 0
        self._gpus = VirtualGpus(gpus, compilers)
        self._clock = DeviceClock(gpus=gpus, compile_workers=compilers, recorded=True)

    @property
    def spec(self) -> DeviceSpec:
        """Limits of the recorded device."""
        return self._recording.spec

    @property
    def environment(self) -> Environment:
        """What was recorded, marked as a replay."""
        return self._environment

    def prepare(self, problems: Sequence[Problem]) -> None:
        """Read the trials of these problems.

        Raises:
            InputError: a problem is not recorded (the message lists what is), or a line of it cannot be read.
        """
        missing = [problem for problem in problems if not self._recording.kernels(problem)]
        if missing:
            raise InputError(self._refusal(missing, {problem.shape.weight for problem in problems}))
        for problem in problems:
            for kernel in self._recording.kernels(problem):
                self._of(problem, kernel)

    def can_try(self, problem: Problem, candidate: Candidate) -> bool:
        """Whether the candidate's launch, or the same config on a kernel akin to its own, is recorded."""
        return self._recorded(problem, candidate)[0] is not None

    def start(self, work: Work, rank: int) -> None:
        """Look the answer up and keep it for ``next_done``."""
        self.prepare([work.problem])
        trials = tuple(self._answer(work.problem, candidate, work.phase) for candidate in work.candidates)
        compile_s, measure_s = sum(t.compile_s for t in trials), sum(t.elapsed_s for t in trials)
        self._gpus.start(Done(work, trials), rank, compile_s, measure_s)

    def next_done(self) -> Done:
        """The answer that is there first in virtual time."""
        done = self._gpus.next_done()
        self._count(done.trials)
        return done

    def clock(self) -> DeviceClock:
        """Sums over what was answered, as recorded; measuring and idle seconds over GPUs are the virtual time."""
        return replace(self._clock, idle_s=self._gpus.idle_s)

    def warnings(self) -> list[str]:
        """Warnings since the last call; each is given once."""
        unsaid, self._unsaid = self._unsaid, []
        return unsaid

    def close(self) -> None:
        """Nothing is held."""

    def _answer(self, problem: Problem, candidate: Candidate, phase: Phase) -> Trial:
        answers, stand_in = self._recorded(problem, candidate)
        labels: tuple[str, ...] = ()
        if stand_in is not None:
            labels = (APPROXIMATE,)
            self._warn(
                f"Times of {candidate.kernel} were recorded on the kernel {stand_in}, akin to it: they are approximate."
            )
        if answers is None:
            message = f"no recorded trial of {candidate} at {problem}"
            return Trial(problem, candidate, TrialStatus.UNRECORDED, phase, message=message)
        recorded = answers[phase]
        if APPROXIMATE in recorded.labels:
            self._warn(f"The recording holds approximate times of kernel {candidate.kernel}.")
        # Finals run what screening compiled.
        compile_s = recorded.compile_s if recorded.phase is phase else 0.0
        estimated_s = measuring_s(problem) if recorded.status is not TrialStatus.ILLEGAL else 0.0
        recorded_s = recorded.elapsed_s if recorded.phase is phase else 0.0
        return replace(
            recorded,
            candidate=candidate,
            phase=phase,
            compile_s=compile_s,
            elapsed_s=recorded_s or estimated_s,
            labels=tuple(dict.fromkeys((*recorded.labels, *labels))),
        )

    def _recorded(self, problem: Problem, candidate: Candidate) -> tuple[_Answers | None, Kernel | None]:
        """What is recorded of a candidate, and the kernel that stood in for its own, None where it was its own."""
        kernel, config = self._launch(problem, candidate)
        own = self._of(problem, kernel)
        stand_in = None if own else _STAND_INS.get(kernel)
        answers = own.get(config) if stand_in is None else self._of(problem, stand_in).get(config)
        return answers, stand_in if answers is not None else None

    def _count(self, trials: Sequence[Trial]) -> None:
        clock = self._clock
        screening_s = sum(t.elapsed_s for t in trials if t.phase is Phase.SCREEN)
        self._clock = replace(
            clock,
            screening_s=clock.screening_s + screening_s,
            finals_s=clock.finals_s + sum(t.elapsed_s for t in trials) - screening_s,
            compiling_s=clock.compiling_s + sum(t.compile_s for t in trials),
            compilations=clock.compilations + sum(t.compile_s > 0 for t in trials),
        )

    def _launch(self, problem: Problem, candidate: Candidate) -> tuple[Kernel, TileConfig]:
        """What a candidate makes the GPU do, the same for all its spellings."""
        kernel, config = candidate.kernel, candidate.config
        if kernel is Kernel.FP8_HOPPER and not config.has_swap_split:
            kernel = Kernel.FP8
        return kernel, canonical(problem, config)

    def _of(self, problem: Problem, kernel: Kernel) -> dict[TileConfig, _Answers]:
        key = (problem, kernel)
        if key not in self._answers:
            self._answers[key] = self._collect(problem, kernel)
        return self._answers[key]

    def _collect(self, problem: Problem, kernel: Kernel) -> dict[TileConfig, _Answers]:
        rows = list(self._recording.trials(problem, kernel))
        if kernel is Kernel.FP8:
            rows += self._recording.trials(problem, Kernel.FP8_HOPPER)
        last = {(row.candidate, row.phase): row for row in rows}
        best: dict[tuple[TileConfig, Phase], Trial] = {}
        for row in last.values():
            launched, config = self._launch(problem, row.candidate)
            if launched is not kernel:
                continue
            other = best.get((config, row.phase))
            if other is None or _rank(row, config) < _rank(other, config):
                best[config, row.phase] = row
        answers: dict[TileConfig, _Answers] = {}
        for (config, phase), row in best.items():
            answers.setdefault(config, _Answers({})).by_phase[phase] = row
        return answers

    def _warn(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._unsaid.append(text)

    def _refusal(self, missing: Sequence[Problem], weights: Collection[WeightShape]) -> str:
        """What is not recorded, and what could be asked instead: what there is of the weights asked for, else all."""
        first = missing[0]
        asked = f"{first} {_scheme(first)}" + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
        verb = "are" if len(missing) > 1 else "is"
        akin = [problem for problem in self._recording.problems if problem.shape.weight in weights]
        held = "; ".join(_sizes(akin or self._recording.problems))
        instead = "Of the weights asked for it holds" if akin else "Ask for one of these:"
        return f"{asked} {verb} not recorded: a recorded device answers only for what it holds. {instead} {held}." + (
            " Ask for such with --batch-sizes, or for one weight with --N and --K." if akin else ""
        )


def _rank(row: Trial, canonical_config: TileConfig) -> tuple[bool, float]:
    time_us = row.time_us
    return row.candidate.config != canonical_config, float("inf") if time_us is None else time_us


def _scheme(problem: Problem) -> str:
    quant = problem.quant
    return f"{quant.format} [{quant.block_n}, {quant.block_k}] {problem.out_dtype}"


def _sizes(problems: Sequence[Problem]) -> Iterator[str]:
    """``fp8 [128, 128] bfloat16 2112×7168 at M 1 16 64`` for each scheme and weight."""

    def key(problem: Problem) -> tuple[str, int, int]:
        return _scheme(problem), problem.shape.N, problem.shape.K

    for (scheme, n, k), group in groupby(sorted(problems, key=lambda p: (*key(p), p.shape.M)), key):
        yield f"{scheme} {n}×{k} at M " + " ".join(str(problem.shape.M) for problem in group)
