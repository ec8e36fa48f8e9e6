"""Devices of several models at the same time: a run for each, with one store and one watcher."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from threading import Event as Flag
from threading import Lock, Thread
from typing import NoReturn

from threadpoolctl import threadpool_limits

from blockscale.engines import Engine
from blockscale.errors import BlockscaleError, IncompleteRunError, InputError
from blockscale.executor.base import Device
from blockscale.store import Store
from blockscale.tuning.events import (
    Event,
    Note,
    Observer,
    ProblemResult,
    ProblemStarted,
    RunSummary,
    TimeSpent,
    TrialFinished,
)
from blockscale.tuning.request import TuneRequest
from blockscale.tuning.run import run_tune


@dataclass(frozen=True, slots=True)
class Group:
    """The GPUs of one model, as one device, and what is tuned on them."""

    request: TuneRequest
    engines: tuple[Engine, ...]
    device: Device

    @property
    def name(self) -> str:
        """The model."""
        return self.device.spec.name


def run_groups(groups: Sequence[Group], store: Store, observer: Observer) -> RunSummary:
    """Tune every group, all at the same time; a single one as `run_tune` does.

    Of several, events carry the device's name, and one summary ends them. A group that fails saves what it has
    finished, while the others go on; on Ctrl-C all of them save and end.

    Raises:
        InputError: every group was refused, as `run_tune` refuses.
        IncompleteRunError: a group could not finish; the others have. The same call continues.
        KeyboardInterrupt: likewise, none has finished.
    """
    if len(groups) == 1:
        (only,) = groups
        return run_tune(only.request, only.engines, only.device, store, observer)
    return _RunsAtOnce(groups, store, observer).run()


class _RunsAtOnce:
    """A thread for each group. Each event is shown alone, and the runs stop together where one alone may not go on."""

    def __init__(self, groups: Sequence[Group], store: Store, observer: Observer) -> None:
        self._groups = groups
        self._store = store
        self._observer = observer
        self._showing = Lock()
        self._stopping = Flag()
        self._summaries: dict[str, RunSummary] = {}
        self._failures: list[tuple[str, BaseException]] = []  # the first first

    def run(self) -> RunSummary:
        """As `run_groups`."""
        threads = [Thread(target=self._tune, args=(g,), name=f"tuning {g.name}", daemon=True) for g in self._groups]
        # A run limits these threads itself; of two that overlap, the first to end would lift the other's limit.
        with threadpool_limits(limits=1):
            try:
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
            except BaseException:
                self._stop()
                for thread in threads:
                    if thread.ident is not None:
                        thread.join()
                raise
        if self._stopping.is_set():
            raise self._failures[0][1]
        summary = self._summary()
        if self._summaries:
            self._observer(summary)
        if self._failures:
            self._raise()
        return summary

    def _tune(self, group: Group) -> None:
        def observe(event: Event) -> None:
            # Not at any event: while a run saves what is finished, it tells of files.
            if self._stopping.is_set() and isinstance(event, TrialFinished):
                raise KeyboardInterrupt
            if not isinstance(event, RunSummary):
                self._show(group, _named(event, group.name))

        try:
            summary = run_tune(group.request, group.engines, group.device, self._store, observe)
            self._summaries[group.name] = summary
        except BaseException as error:
            if not self._stopping.is_set():
                self._failures.append((group.name, error))
                if isinstance(error, BlockscaleError):
                    self._show(group, Note(f"{group.name}: {error} The other GPUs go on.", warning=True))

    def _show(self, group: Group, event: Event) -> None:
        with self._showing:
            try:
                self._observer(event)
            except BaseException as error:  # nobody watches any more: that ends all runs, as it ends a single one
                if not self._stopping.is_set():
                    self._failures.insert(0, (group.name, error))
                    self._stop()
                raise

    def _stop(self) -> None:
        """Have all runs end soon: who waits for a device is woken, who does not ends at its next trial."""
        self._stopping.set()
        for group in self._groups:
            group.device.close()

    def _summary(self) -> RunSummary:
        ended = [(g.name, self._summaries[g.name]) for g in self._groups if g.name in self._summaries]
        return RunSummary(
            trials_measured=sum(s.trials_measured for _, s in ended),
            trials_reused=sum(s.trials_reused for _, s in ended),
            files=tuple(path for _, s in ended for path in s.files),
            results=tuple(replace(result, device_name=name) for name, s in ended for result in s.results),
            complete=len(ended) == len(self._groups) and all(s.complete for _, s in ended),
        )

    def _raise(self) -> NoReturn:
        """One error for all that failed; a mistake of ours, or of the machine, as it is."""
        for _, error in self._failures:
            if not isinstance(error, BlockscaleError):
                raise error
        refused = not self._summaries and all(isinstance(error, InputError) for _, error in self._failures)
        failed = dict(self._failures)
        text = " ".join(f"{group.name}: {failed[group.name]}" for group in self._groups if group.name in failed)
        raise (InputError if refused else IncompleteRunError)(text) from self._failures[0][1]


def _named(event: Event, name: str) -> Event:
    """The event, with the device that it tells of."""
    match event:
        case ProblemStarted() | TrialFinished() | ProblemResult() | TimeSpent():
            return replace(event, device_name=name)
        case Note():
            return replace(event, text=f"{name}: {event.text}")
        case _:
            return event
