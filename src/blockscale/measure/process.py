"""The measuring process as its parent holds it: started when needed, replaced when a candidate broke it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from blockscale.errors import BlockscaleError, IncompleteRunError, InputError
from blockscale.measure.child import Child, ChildDiedError, ChildError, ChildRaisedError, ChildTarget, ChildTimeoutError
from blockscale.measure.classify import classify_text
from blockscale.measure.compile_pool import GPU_EXTRA_HINT
from blockscale.measure.protocol import Describe, Description, Finals, Measured, Prepare, Screen, Warnings
from blockscale.problem import Candidate, Phase, Problem, TrialStatus

log = logging.getLogger(__name__)

NO_GPU = (
    "no GPU is visible to torch on this machine: tune on one that has a CUDA or ROCm GPU, or try everything out on "
    "recorded measurements with --device recorded:h200."
)


@dataclass(frozen=True)
class Limits:
    """How long the measuring process may take, in seconds, and how often it may fail to start in a row."""

    start_s: float = 180.0
    request_s: float = 60.0
    first_of_problem_s: float = 120.0  # makes inputs and their reference as well
    final_s: float = 30.0  # for each finalist, on top
    starts: int = 3


def start_error(error: ChildError) -> BlockscaleError:
    """What a person is told when a process that needs the GPU does not start for the first time."""
    if isinstance(error, ChildRaisedError):
        if error.type_name == "ModuleNotFoundError":
            return InputError(
                f"measuring on a GPU needs torch and Triton ({error.message}): {GPU_EXTRA_HINT}, or try everything out "
                "with --device recorded:h200."
            )
        if "no GPU is visible" in error.message or "No CUDA GPUs" in error.message:
            return InputError(NO_GPU)
    return IncompleteRunError(f"the measuring process does not start: {error}")


class MeasuringProcess:
    """One GPU's measuring process. What a candidate does to it comes back as a `Measured`; nothing else is lost."""

    def __init__(self, target: ChildTarget, limits: Limits) -> None:
        self._target = target
        self._limits = limits
        self._child: Child | None = None
        self._announced: tuple[Problem, ...] = ()
        self._holds: tuple[Problem, Phase] | None = None  # what it has made inputs for

    def describe(self) -> Description:
        """Start the process for the first time and ask what its GPU is.

        Raises:
            InputError: there is no GPU, or torch and Triton are missing.
            IncompleteRunError: the process does not start for another reason.
        """
        try:
            self._child = self._start()
            description: Description = self._child.ask(Describe(), self._limits.start_s)
        except ChildError as error:
            self.discard()
            raise start_error(error) from error
        return description

    def prepare(self, problems: Sequence[Problem]) -> None:
        """Announce the problems to come.

        Raises:
            InputError: one does not fit into the GPU's free memory.
            IncompleteRunError: the process was lost.
        """
        try:
            self._ask(Prepare(tuple(problems)), self._limits.first_of_problem_s)
        except ChildRaisedError as error:
            if error.type_name == "InputError":
                raise InputError(error.message) from None
            raise self._broken(error) from error
        except ChildError as error:
            raise IncompleteRunError(f"the measuring process was lost while preparing: {error}") from error
        self._announced = tuple(problems)

    def screen(self, problem: Problem, candidate: Candidate, best_us: float | None) -> Measured:
        """Verify and time one candidate; ``best_us`` is the best time so far."""
        measured: Measured = self._measure(Screen(problem, candidate, best_us), self._limit_s(problem, Phase.SCREEN))
        return measured

    def finals(self, problem: Problem, candidates: Sequence[Candidate]) -> list[Measured]:
        """Time all in interleaved rounds. One that breaks the process is out and the others start again."""
        measured = self._series(problem, candidates)
        if measured is None:  # lost with several at hand: find out with whom
            measured = [result for c in candidates for result in self._series(problem, [c]) or []]
        elif not any(result is None or result.poisoned for result in measured):
            return [result for result in measured if result is not None]
        stay = [i for i, result in enumerate(measured) if result is None or result.status is TrialStatus.OK]
        again: list[Measured] = []
        if len(stay) < len(candidates) and stay:
            again = self.finals(problem, [candidates[i] for i in stay])
        redone = dict(zip(stay, again, strict=False))
        kept = [redone.get(i, result) for i, result in enumerate(measured)]
        return [result for result in kept if result is not None]

    def warnings(self) -> list[str]:
        """Sentences about the GPU's present state."""
        try:
            said: list[str] = self._ask(Warnings(), self._limits.request_s) if self._child is not None else []
        except ChildError as error:
            log.info("no conditions: %s", error)
            return []
        return said

    def discard(self) -> None:
        """End the process. The next request starts another."""
        if self._child is not None:
            self._child.kill()
        self._child = None
        self._holds = None

    def _series(self, problem: Problem, candidates: Sequence[Candidate]) -> list[Measured | None] | None:
        """One interleaved series; None when the process was lost and it is unknown with which candidate."""
        limit_s = self._limit_s(problem, Phase.FINAL) + len(candidates) * self._limits.final_s
        answer = self._measure(Finals(problem, tuple(candidates)), limit_s)
        if isinstance(answer, Measured):
            return [answer] if len(candidates) == 1 else None
        measured: list[Measured | None] = answer
        if any(result is not None and result.poisoned for result in measured):
            self.discard()
        return measured

    def _measure(self, request: Screen | Finals, limit_s: float) -> Any:
        """The child's answer; a `Measured` that says how the child was lost where it was."""
        try:
            answer = self._ask(request, limit_s)
        except ChildTimeoutError:
            return Measured(TrialStatus.TIMEOUT, message=f"no result within {limit_s:g} s; the process was replaced")
        except ChildDiedError as error:
            return Measured(TrialStatus.WORKER_DIED, message=f"the measuring process {error}")
        except ChildRaisedError as error:
            raise self._broken(error) from error
        if isinstance(answer, Measured) and answer.poisoned:
            self.discard()
        return answer

    def _limit_s(self, problem: Problem, phase: Phase) -> float:
        return self._limits.request_s if self._holds == (problem, phase) else self._limits.first_of_problem_s

    def _ask(self, request: Any, limit_s: float) -> Any:
        """Send a request to the process, starting one where there is none.

        Raises:
            ChildError: no answer; a child that died or hung has been discarded.
            IncompleteRunError: no process can be started any more.
        """
        child = self._running()
        try:
            answer = child.ask(request, limit_s)
        except ChildRaisedError:
            raise
        except BaseException:  # after Ctrl-C, too: its late answer would be taken for the next request's
            self.discard()
            raise
        if isinstance(request, Screen | Finals):
            self._holds = (request.problem, Phase.SCREEN if isinstance(request, Screen) else Phase.FINAL)
        return answer

    def _running(self) -> Child:
        failed = 0
        while self._child is None:
            try:
                self._child = self._start()
                if self._announced:
                    self._child.ask(Prepare(self._announced), self._limits.first_of_problem_s)
            except ChildError as error:
                self.discard()
                failed += 1
                log.warning("the measuring process does not start: %s", error)
                if failed >= self._limits.starts:
                    raise IncompleteRunError(
                        f"the GPU is gone: its measuring process failed to start {failed} times in a row "
                        f"({error}). Look at it with nvidia-smi or rocm-smi; the same command goes on from here."
                    ) from error
        return self._child

    def _start(self) -> Child:
        child = Child(self._target)
        try:
            child.receive(self._limits.start_s)
        except BaseException:
            child.kill()
            raise
        return child

    def _broken(self, error: ChildRaisedError) -> Exception:
        """What an exception outside of any candidate means: the GPU failed, or this package has a mistake."""
        self.discard()
        if classify_text(error.type_name, error.message) is not None:
            return IncompleteRunError(f"the GPU failed: {error}. The same command goes on from here.")
        log.error("measuring process: %s", error.traceback)
        return RuntimeError(f"the measuring process raised {error}")
