"""Equal GPUs of a cluster as a `Device`: what the driver does, whatever carries its messages."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from blockscale.errors import IncompleteRunError
from blockscale.executor.base import DeviceClock, Done, Screening, Work
from blockscale.executor.culprits import Culprits
from blockscale.executor.ray_actor import GpuDescription, Report
from blockscale.executor.ray_queue import Entry, WorkQueue
from blockscale.hardware import DeviceSpec
from blockscale.problem import Candidate, Environment, Problem, Trial, TrialStatus

# Candidates that a GPU has in hand before it gets no new problem: two for each of its compilers, so that none waits for
# a message, and enough where there are few.
_A_COMPILER = 2
_AT_LEAST = 16

# Deaths under a comparison that are put down to it: its candidates have all run before.
_DEATHS_OF_A_COMPARISON = 2


@dataclass(frozen=True, slots=True)
class Member:
    """A GPU of the cluster; a replacement on the same GPU is another member."""

    number: int
    about: GpuDescription

    def __str__(self) -> str:
        return self.about.name


@dataclass(frozen=True, slots=True)
class Lost:
    """A GPU that will not answer any more, and why, as the part of a sentence."""

    reason: str


@dataclass(frozen=True, slots=True)
class Joined:
    """A GPU that was asked for is there and prepared."""


Event: TypeAlias = tuple[Member, Report | Lost | Joined]


class Fleet(Protocol):
    """The actors behind a `RayDevice`. None of these raises for an actor that is gone: ``next_event`` tells."""

    @property
    def members(self) -> Sequence[Member]:
        """Those that are there from the start."""
        ...

    def prepare(self, problems: Sequence[Problem]) -> None:
        """As ``Device.prepare``, on every GPU, and on those that join later before they do.

        Raises:
            InputError: a GPU refuses.
        """
        ...

    def start(self, member: Member, entry: Entry) -> None:
        """Send work to a GPU."""
        ...

    def next_event(self) -> Event | None:
        """Wait for what happens next; None when nothing did for a while.

        Raises:
            Exception: this package has a mistake, on a node.
        """
        ...

    def ask_for_one_more(self) -> None:
        """Have a GPU join as soon as the cluster has a free one."""
        ...

    def may_grow(self) -> bool:
        """Whether a GPU that was asked for may still join."""
        ...

    def warnings(self) -> list[str]:
        """What the GPUs have to say, with their names."""
        ...

    def close(self) -> None:
        """Let go of all actors. Safe to call twice."""
        ...


class RayDevice:
    """Satisfies ``Device`` with GPUs of one model, wherever they are.

    A GPU that is lost costs the trial that was the first in its hands: that is what it was measuring, or was about to.
    The rest goes to the other GPUs, and another one takes its place where the cluster has one.
    """

    def __init__(
        self,
        fleet: Fleet,
        can_try: Callable[[Problem, Candidate], bool],
        start_s: float = 0.0,
        notes: Sequence[str] = (),
    ) -> None:
        """``start_s`` is how long it took to open the GPUs, in seconds; ``notes`` are said as warnings."""
        self._fleet = fleet
        self._can_try = can_try
        self._queue: WorkQueue[Member] = WorkQueue()
        self._finished: deque[Done] = deque()
        self._at_work = 0  # started and not handed back
        self._clocks: dict[Member, DeviceClock] = {}
        self._start_s = start_s
        self._culprits = Culprits()
        self._answered: set[Member] = set()
        self._suspects: list[tuple[Work, str]] = []
        self._deaths: Counter[Work] = Counter()
        self._said = list(notes)
        self._last_loss = ""
        for member in fleet.members:
            self._join(member)
        self._about = fleet.members[0].about

    @property
    def spec(self) -> DeviceSpec:
        """Limits of each GPU."""
        return self._about.spec

    @property
    def environment(self) -> Environment:
        """What their measurements depend on."""
        return self._about.environment

    def prepare(self, problems: Sequence[Problem]) -> None:
        """As each GPU's own device.

        Raises:
            InputError: a GPU refuses.
            RuntimeError: work is under way.
        """
        if self._at_work:
            raise RuntimeError("problems are announced before any work is started")
        self._fleet.prepare(problems)

    def can_try(self, problem: Problem, candidate: Candidate) -> bool:
        """As the GPUs' devices, which are not asked."""
        return self._can_try(problem, candidate)

    def start(self, work: Work, rank: int) -> None:
        """Send the work to the GPU that has its problem or has room for it; what no GPU has room for waits here."""
        self._at_work += 1
        self._queue.add(work, rank)
        self._hand_out()

    def next_done(self) -> Done:
        """Wait for the next finished work.

        Raises:
            IncompleteRunError: no GPU is left.
            RuntimeError: nothing was started, or this package has a mistake.
        """
        if not self._at_work:
            raise RuntimeError("nothing was started")
        while not self._finished:
            if not self._queue.gpus and not self._fleet.may_grow():
                raise IncompleteRunError(
                    f"no GPU of the cluster is left ({self._last_loss}): what was measured is saved. Look at it with "
                    "`ray status`; the same command goes on once a node is back."
                )
            event = self._fleet.next_event()
            if event is not None:
                self._take(*event)
                self._hand_out()
        self._at_work -= 1
        return self._finished.popleft()

    def clock(self) -> DeviceClock:
        """Sums over all GPUs, those that were lost too."""
        clocks = list(self._clocks.values())
        return DeviceClock(
            start_s=self._start_s,
            screening_s=sum(c.screening_s for c in clocks),
            finals_s=sum(c.finals_s for c in clocks),
            idle_s=sum(c.idle_s for c in clocks),
            compiling_s=sum(c.compiling_s for c in clocks),
            compilations=sum(c.compilations for c in clocks),
            compile_workers=sum(c.compile_workers for c in clocks),
            gpus=len(self._fleet.members),
            recorded=any(c.recorded for c in clocks),
        )

    def warnings(self) -> list[str]:
        """What the GPUs have to say, and which were lost since the last call."""
        said, self._said = self._said, []
        return said + self._fleet.warnings()

    def close(self) -> None:
        """Let go of all GPUs. Safe to call twice."""
        self._fleet.close()

    def _join(self, member: Member) -> None:
        self._queue.join(member, max(_AT_LEAST, _A_COMPILER * member.about.compile_workers))

    def _hand_out(self) -> None:
        for member, entry in self._queue.hand_out():
            work = entry.work
            refusal = self._culprits.refusal(work.candidate) if isinstance(work, Screening) else None
            if refusal is None:
                self._fleet.start(member, entry)
            else:
                self._queue.returned(member, work)
                self._finished.append(_failed(work, TrialStatus.ILLEGAL, refusal))

    def _take(self, member: Member, what: Report | Lost | Joined) -> None:
        if isinstance(what, Lost):
            self._lose(member, what.reason)
            return
        self._record_suspects()
        if isinstance(what, Joined):
            self._join(member)
            return
        self._clocks[member] = what.clock
        for done in what.done:
            self._queue.returned(member, done.work)
            self._answered.add(member)
            self._finish(done)

    def _lose(self, member: Member, reason: str) -> None:
        in_hand = self._queue.leave(member)
        self._last_loss = f"{member} {reason}"
        said = self._last_loss
        if in_hand:
            work = in_hand[0].work
            self._deaths[work] += 1
            if isinstance(work, Screening) or self._deaths[work] == _DEATHS_OF_A_COMPARISON:
                self._suspects.append((work, f"{self._last_loss} while it was the next to be measured there"))
                in_hand = in_hand[1:]
                said += "; the trial that it was at counts as failed"
        if in_hand:
            said += "; its other work goes to the GPUs that are left"
        self._said.append(f"{said}.")
        for entry in in_hand:
            self._queue.put_back(entry)
        if member in self._answered:  # one that is lost before it has measured anything would be lost again
            self._fleet.ask_for_one_more()

    def _record_suspects(self) -> None:
        """Record what GPUs were lost with, once another one shows that the cluster itself is not gone."""
        suspects, self._suspects = self._suspects, []
        for work, reason in suspects:
            self._finish(_failed(work, TrialStatus.WORKER_DIED, reason))

    def _finish(self, done: Done) -> None:
        for trial in done.trials:
            self._culprits.note(trial)
        self._finished.append(done)


def _failed(work: Work, status: TrialStatus, message: str) -> Done:
    return Done(work, tuple(Trial(work.problem, c, status, work.phase, message=message) for c in work.candidates))
