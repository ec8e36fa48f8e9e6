"""The measuring process as its parent holds it: started when needed, replaced when a candidate broke it."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Event
from typing import Any, TypeAlias

from blockscale.errors import BlockscaleError, IncompleteRunError, InputError
from blockscale.measure.child import Child, ChildDiedError, ChildError, ChildRaisedError, ChildTarget, ChildTimeoutError
from blockscale.measure.classify import classify_text
from blockscale.measure.compile_pool import GPU_EXTRA_HINT
from blockscale.measure.protocol import Describe, Description, Finals, Measured, Prepare, Screen, Warnings
from blockscale.problem import Phase, Problem, TrialStatus

log = logging.getLogger(__name__)

# Of each finalist None where it was not reached; None of all where the process was lost and nobody knows with which.
_Finalists: TypeAlias = list[Measured | None] | None

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


@dataclass(frozen=True)
class GpuPlace:
    """A GPU as messages name it: its index among the visible ones, and those of the ``others`` beside it."""

    index: int = 0
    others: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """The GPU by its index, where there are several."""
        return f"GPU {self.index}" if self.others else "the GPU"

    @property
    def way_on(self) -> str:
        """What goes on when this GPU is lost."""
        if not self.others:
            return "the same command goes on from here"
        return f"the same command with --gpus {','.join(map(str, self.others))} goes on without it"


def start_error(error: ChildError, gpu: GpuPlace | None = None) -> BlockscaleError:
    """What a person is told when a process that needs the GPU does not start for the first time."""
    if isinstance(error, ChildRaisedError):
        if error.type_name == "InputError":
            return InputError(error.message)
        if error.type_name == "ModuleNotFoundError":
            return InputError(
                f"measuring on a GPU needs torch and Triton ({error.message}): {GPU_EXTRA_HINT}, or try everything out "
                "with --device recorded:h200."
            )
        if "no GPU is visible" in error.message or "No CUDA GPUs" in error.message:
            return InputError(NO_GPU)
    of, way_on = (f" of {gpu.name}", f"; {gpu.way_on}.") if gpu is not None and gpu.others else ("", "")
    return IncompleteRunError(f"the measuring process{of} does not start: {error}{way_on}")


class MeasuringProcess:
    """One GPU's measuring process. What a candidate does to it comes back as a `Measured`; nothing else is lost.

    Requests may be sent ahead, so that the process has the next one when it has answered the last. It takes them in
    order, so whatever breaks it is the oldest one's doing: that one is answered for, the rest are sent to the next
    process. One thread uses it at a time; ``stop`` may be called from any.
    """

    def __init__(self, target: ChildTarget, limits: Limits, gpu: GpuPlace | None = None) -> None:
        self._target = target
        self._limits = limits
        self.gpu = gpu or GpuPlace()
        self._child: Child | None = None
        self._announced: tuple[Problem, ...] = ()
        self._known: set[tuple[Problem, Phase]] = set()  # what this process has made inputs for
        self._sent: deque[Screen | Finals] = deque()  # not answered yet
        self._stopped = Event()

    def start(self) -> Child:
        """Begin to start the process; ``describe`` waits for it."""
        self._child = Child(self._target)
        return self._child

    def describe(self) -> Description:
        """Wait until the process has started for the first time and ask what its GPU is.

        Raises:
            InputError: there is no GPU, or torch and Triton are missing.
            IncompleteRunError: the process does not start for another reason.
        """
        child = self._child or self.start()
        try:
            child.receive(self._limits.start_s)
            description: Description = child.ask(Describe(), self._limits.start_s)
        except ChildError as error:
            self.discard()
            raise start_error(error, self.gpu) from error
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
            raise IncompleteRunError(
                f"{self.gpu.name}: the measuring process was lost while preparing ({error}); {self.gpu.way_on}."
            ) from error
        self._announced = tuple(problems)

    def send(self, request: Screen | Finals) -> None:
        """Ask for a candidate to be verified and timed, or for several in interleaved rounds; answers come in order.

        Raises:
            IncompleteRunError: no process can be started any more.
        """
        if self._child is not None and not self._sent and not self._child.alive:
            self.discard()  # killed while idle, say: not this candidate's doing
        self._running().send(request)
        self._sent.append(request)

    def receive(self) -> list[Measured]:
        """The results of the oldest request sent, one for each of its candidates.

        Of finalists, one that breaks the process is out and the others start again.

        Raises:
            IncompleteRunError: the GPU failed, or no process can be started any more.
        """
        request = self._sent[0]
        answer = self._answer(request)
        self._sent.popleft()
        if isinstance(request, Screen):
            return [answer]
        measured = _by_finalist(request, answer)
        if (whole := _whole(measured)) is not None:
            return whole
        later, self._sent = self._sent, deque()  # they wait until the culprit is found
        try:
            return self._without_culprit(request, measured)
        finally:
            self._sent = later
            if self._child is not None:
                self._send_again(self._child)

    def warnings(self) -> list[str]:
        """Sentences about the GPU's present state; nothing may be unanswered."""
        try:
            said: list[str] = self._ask(Warnings(), self._limits.request_s) if self._child is not None else []
        except ChildError as error:
            log.info("no conditions: %s", error)
            return []
        return said

    def discard(self) -> None:
        """End the process. The next request starts another, which is sent what is not answered."""
        if self._child is not None:
            self._child.kill()
        self._child = None
        self._known.clear()

    def stop(self) -> None:
        """Kill the process for good, from whatever thread: who waits for it is told, and no other one starts."""
        self._stopped.set()
        child = self._child
        if child is not None:
            child.strike()

    def _without_culprit(self, request: Finals, measured: _Finalists) -> list[Measured]:
        """Results of finalists, those that break the process apart from the others."""
        if (whole := _whole(measured)) is not None:
            return whole
        if measured is None:
            alone = [self._series(Finals(request.problem, (c,))) for c in request.candidates]
            measured = [result for results in alone for result in results or []]
        stay = [i for i, result in enumerate(measured) if result is None or result.status is TrialStatus.OK]
        again: list[Measured] = []
        if len(stay) < len(measured) and stay:
            rest = Finals(request.problem, tuple(request.candidates[i] for i in stay))
            again = self._without_culprit(rest, self._series(rest))
        redone = dict(zip(stay, again, strict=False))
        kept = [redone.get(i, result) for i, result in enumerate(measured)]
        return [result for result in kept if result is not None]

    def _series(self, request: Finals) -> _Finalists:
        """One interleaved series."""
        self._running().send(request)
        return _by_finalist(request, self._answer(request))

    def _answer(self, request: Screen | Finals) -> Any:
        """The child's answer to its oldest request; a `Measured` that says how the child was lost where it was."""
        limit_s = self._limit_s(request)
        try:
            answer = self._receive(self._running(), limit_s)
        except ChildTimeoutError:
            return Measured(TrialStatus.TIMEOUT, message=f"no result within {limit_s:g} s; the process was replaced")
        except ChildDiedError as error:
            return Measured(TrialStatus.WORKER_DIED, message=f"the measuring process {error}")
        except ChildRaisedError as error:
            raise self._broken(error) from error
        if not _answers(request, answer):
            self.discard()
            said = f"sent an unreadable answer ({str(answer)[:100]})"
            return Measured(TrialStatus.WORKER_DIED, message=f"the measuring process {said}")
        self._known.add(_inputs_of(request))
        if any(result is not None and result.poisoned for result in (answer if isinstance(answer, list) else [answer])):
            self.discard()
        return answer

    def _limit_s(self, request: Screen | Finals) -> float:
        known = _inputs_of(request) in self._known
        limit_s = self._limits.request_s if known else self._limits.first_of_problem_s
        return limit_s + len(request.candidates) * self._limits.final_s if isinstance(request, Finals) else limit_s

    def _ask(self, request: Any, limit_s: float) -> Any:
        """Send a request that is no measurement and wait for its answer; nothing may be unanswered.

        Raises:
            ChildError: no answer; a child that died or hung has been discarded.
            IncompleteRunError: no process can be started any more.
        """
        child = self._running()
        child.send(request)
        return self._receive(child, limit_s)

    def _receive(self, child: Child, limit_s: float) -> Any:
        try:
            return child.receive(limit_s)
        except ChildRaisedError:
            raise
        except BaseException:  # after Ctrl-C, too: its late answer would be taken for the next request's
            self.discard()
            raise

    def _running(self) -> Child:
        failed = 0
        while self._child is None:
            if self._stopped.is_set():
                raise IncompleteRunError("measuring was stopped")
            try:
                child = self.start()
                if self._stopped.is_set():  # since the question above
                    child.strike()
                child.receive(self._limits.start_s)
                if self._announced:
                    child.ask(Prepare(self._announced), self._limits.first_of_problem_s)
                self._send_again(child)
            except ChildError as error:
                self.discard()
                failed += 1
                log.warning("the measuring process does not start: %s", error)
                if failed >= self._limits.starts:
                    raise IncompleteRunError(
                        f"{self.gpu.name} is gone: its measuring process failed to start {failed} times in a row "
                        f"({error}). Look at it with nvidia-smi or rocm-smi; {self.gpu.way_on}."
                    ) from error
        return self._child

    def _send_again(self, child: Child) -> None:
        for request in self._sent:
            child.send(request)

    def _broken(self, error: ChildRaisedError) -> Exception:
        """What an exception outside of any candidate means: the GPU failed, or this package has a mistake."""
        self.discard()
        if classify_text(error.type_name, error.message) is not None:
            return IncompleteRunError(f"{self.gpu.name} failed: {error}; {self.gpu.way_on}.")
        log.error("measuring process: %s", error.traceback)
        return RuntimeError(f"the measuring process raised {error}")


def _inputs_of(request: Screen | Finals) -> tuple[Problem, Phase]:
    """Which inputs a request needs: finals run on fresh ones."""
    return request.problem, Phase.SCREEN if isinstance(request, Screen) else Phase.FINAL


def _answers(request: Screen | Finals, answer: Any) -> bool:
    """Whether an answer is one to this request."""
    if isinstance(request, Screen):
        return isinstance(answer, Measured)
    right = isinstance(answer, list) and len(answer) == len(request.candidates)
    return right and all(result is None or isinstance(result, Measured) for result in answer)


def _by_finalist(request: Finals, answer: Any) -> _Finalists:
    """Results by finalist from whatever a series was answered with."""
    if isinstance(answer, Measured):
        return [answer] if len(request.candidates) == 1 else None
    measured: list[Measured | None] = answer
    return measured


def _whole(measured: _Finalists) -> list[Measured] | None:
    """The results, if every finalist has one that tells of it alone."""
    if measured is None or any(result is None or result.poisoned for result in measured):
        return None
    return [result for result in measured if result is not None]
