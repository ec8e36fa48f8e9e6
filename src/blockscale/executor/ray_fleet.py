"""The actors behind a `RayDevice`, as Ray carries their messages."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from blockscale.errors import BlockscaleError, InputError
from blockscale.executor.ray_actor import GpuActor, GpuDescription
from blockscale.executor.ray_device import Event, Joined, Lost, Member
from blockscale.executor.ray_queue import Entry
from blockscale.problem import Problem

# An actor reports at least this often, so that a silent one is known from one that has nothing to say.
_REPORT_S = 2.0
_NOTHING_S = 1.0
_PREPARE_S = 300.0
_WARNINGS_S = 10.0
_CLOSE_S = 20.0


@dataclass(frozen=True)
class ActorSettings:
    """What an actor opens, and how long it may take to open, or be silent, in seconds.

    ``open_device`` is Ray's reference to a function that opens a device: it may hold a whole recording, which goes to
    each node once. ``answers_at_once`` as for `GpuActor`.
    """

    open_device: Any
    answers_at_once: bool = False
    start_s: float = 240.0
    silent_s: float = 60.0

    def start_actor(self) -> Any:
        """A new actor, on a GPU of its own as soon as the cluster has a free one; ``open`` is still to be called."""
        import ray

        # Collecting waits, so it has a thread of its own; all else is one call after the other, in order.
        # No CPU is asked for: a node's CPUs are shared among its actors by themselves.
        options = {"num_gpus": 1, "num_cpus": 0, "max_restarts": 0, "concurrency_groups": {"collect": 1}}
        return ray.remote(**options)(GpuActor).remote(self.open_device, self.answers_at_once)


@dataclass
class _Asked:
    """An actor that was asked for, at a moment of ``time.monotonic``."""

    actor: Any
    since_s: float = field(default_factory=time.monotonic)


class RayFleet:
    """Equal GPUs, an actor each; satisfies ``Fleet``."""

    def __init__(
        self, opened: Sequence[tuple[Any, GpuDescription]], settings: ActorSettings, closed: Callable[[], None]
    ) -> None:
        """``closed`` is called when all actors were let go."""
        self._settings = settings
        self._on_close: Callable[[], None] | None = closed
        self._number = count()
        self._problems: tuple[Problem, ...] = ()
        self._actors: dict[Member, Any] = {}
        self._heard_s: dict[Member, float] = {}
        self._collecting: dict[Any, Member] = {}  # by the reference that Ray gave for the call
        self._opening: dict[Any, _Asked] = {}
        for actor, about in opened:
            self._add(actor, about)
        self.members: tuple[Member, ...] = tuple(self._actors)

    def prepare(self, problems: Sequence[Problem]) -> None:
        """As ``Fleet.prepare``; an actor that is lost meanwhile is told of by ``next_event``."""
        import ray

        self._problems = tuple(problems)
        for answer in [actor.prepare.remote(self._problems) for actor in self._actors.values()]:
            try:
                ray.get(answer, timeout=_PREPARE_S)
            except ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, InputError):
                    raise InputError(str(error.cause)) from None
                raise
            except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
                pass

    def start(self, member: Member, entry: Entry) -> None:
        """As ``Fleet.start``."""
        self._actors[member].start.remote(entry.work, entry.rank)

    def next_event(self) -> Event | None:
        """As ``Fleet.next_event``."""
        import ray

        waited_for = [*self._collecting, *self._opening]
        ready, _ = ray.wait(waited_for, num_returns=1, timeout=_NOTHING_S) if waited_for else ([], None)
        if not ready:
            if not waited_for:
                time.sleep(_NOTHING_S)
            return self._silent()
        (answer,) = ready
        if answer in self._opening:
            return self._opened(answer)
        member = self._collecting.pop(answer)
        try:
            report = ray.get(answer)
        except ray.exceptions.RayActorError as error:
            return self._drop(member, f"is gone: {in_short(error)}")
        except ray.exceptions.RayTaskError as error:
            if not isinstance(error.cause, BlockscaleError):
                raise
            return self._drop(member, f"failed: {str(error.cause).rstrip('.')}")
        self._collect(member)
        return member, report

    def ask_for_one_more(self) -> None:
        """As ``Fleet.ask_for_one_more``."""
        actor = self._settings.start_actor()
        self._opening[actor.open.remote()] = _Asked(actor)

    def may_grow(self) -> bool:
        """As ``Fleet.may_grow``: one was asked for, not too long ago, and the cluster still has GPUs."""
        import ray

        patient = any(time.monotonic() - asked.since_s < self._settings.start_s for asked in self._opening.values())
        return patient and ray.cluster_resources().get("GPU", 0) >= 1

    def warnings(self) -> list[str]:
        """As ``Fleet.warnings``; who does not answer has nothing to say."""
        import ray

        asked = {member: actor.warnings.remote() for member, actor in self._actors.items()}
        if asked:
            ray.wait(list(asked.values()), num_returns=len(asked), timeout=_WARNINGS_S)
        said = []
        for member, answer in asked.items():
            with contextlib.suppress(ray.exceptions.RayError):
                said += [f"{member}: {text}" for text in ray.get(answer, timeout=0)]
        return said

    def close(self) -> None:
        """As ``Fleet.close``: each actor ends its processes, and is killed whether it did or not."""
        import ray

        closed, self._on_close = self._on_close, None
        if closed is None:
            return
        for asked in self._opening.values():  # before others let go of a GPU that these would get
            ray.kill(asked.actor)
        answers = [actor.close.remote() for actor in self._actors.values()]
        if answers:
            ray.wait(answers, num_returns=len(answers), timeout=_CLOSE_S)
        for actor in self._actors.values():
            ray.kill(actor)
        self._actors.clear()
        closed()

    def _add(self, actor: Any, about: GpuDescription) -> Member:
        member = Member(next(self._number), about)
        self._actors[member] = actor
        self._collect(member)
        return member

    def _collect(self, member: Member) -> None:
        self._heard_s[member] = time.monotonic()
        call = self._actors[member].collect.options(concurrency_group="collect")
        self._collecting[call.remote(_REPORT_S)] = member

    def _opened(self, answer: Any) -> Event | None:
        """What became of an actor that was asked for; one that is not like the others is let go."""
        import ray

        actor = self._opening.pop(answer).actor
        try:
            about = ray.get(answer)
            usual = self.members[0].about
            if (about.spec, about.environment) == (usual.spec, usual.environment):
                ray.get(actor.prepare.remote(self._problems), timeout=_PREPARE_S)
                return self._add(actor, about), Joined()
        except ray.exceptions.RayError:
            pass
        ray.kill(actor)
        return None

    def _silent(self) -> Event | None:
        now_s = time.monotonic()
        for answer, member in self._collecting.items():
            if now_s - self._heard_s[member] > self._settings.silent_s:
                del self._collecting[answer]
                return self._drop(member, f"did not answer for {self._settings.silent_s:g} s")
        return None

    def _drop(self, member: Member, reason: str) -> Event:
        """Let go of an actor for good: one that Ray cannot reach now may run on, and would hold its GPU."""
        import ray

        ray.kill(self._actors.pop(member))
        return member, Lost(reason)


def in_short(error: Exception) -> str:
    """What Ray says in many lines, in a few words."""
    if dead := re.search(r"because (its [a-z ]+ has died)", str(error)):
        return dead[1]
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    raised = [line for line in lines if re.match(r"\w+Error: ", line)]  # the last line of a traceback
    return [type(error).__name__, *reversed(lines), *raised][-1].rstrip(".")
