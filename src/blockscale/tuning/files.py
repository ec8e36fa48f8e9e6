"""The engines' files of a run: merged, written, read back as the engine would, with their provenance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from blockscale.engines import Engine, MergeReport, merge_into, verify_written
from blockscale.errors import IncompleteRunError, InputError
from blockscale.executor.base import Device
from blockscale.problem import OutDtype, WeightShape
from blockscale.tuning.choice import Choice, origin, verdict
from blockscale.tuning.events import FileWritten, Note, Observer
from blockscale.tuning.first_seen import FirstSeen
from blockscale.tuning.fitted import KeyFitting
from blockscale.tuning.one_problem import Decision, Job
from blockscale.tuning.request import TuneRequest
from blockscale.tuning.target import FileTarget

# Batch sizes of decoding; a file without any key among them serves decoding with a prefill tile.
_LARGEST_DECODE_KEY = 64


Announce: TypeAlias = Callable[[Mapping[int, dict[str, Any]]], None]
"""Is told entries by key before they are written."""


def write_choices(
    target: FileTarget,
    choices: Mapping[int, Choice],
    fitting: KeyFitting | None = None,
    out_dtype: OutDtype = OutDtype.BFLOAT16,
    announce: Announce = lambda entries: None,
) -> list[Note | FileWritten]:
    """Merge entries into a file by batch size and look them up as its engine will; returns what there is to say.

    With ``fitting``, further keys between those that the file then has follow, chosen from times of ``out_dtype``.

    Raises:
        InputError: the file or its folder cannot be written; nothing was changed.
        IncompleteRunError: the disk is full, another process keeps the lock, or the engine would run other configs.
    """
    path = target.path
    report = _merge(target, choices, announce)
    said: list[Note | FileWritten] = [Note(text) for text in report.notes]
    if fitting is not None and (further := fitting.choices(target, out_dtype)):
        report = _merge(target, further, announce)
        verify_written(path, target.engine, target.weight, target.quant, target.device_name, _entries(choices))
        keys = " ".join(map(str, sorted(further)))
        said.append(Note(f"{path.name}: keys {keys} hold configs of their neighbours, where the faster one changes."))
    smallest = min(report.entries)
    if smallest > _LARGEST_DECODE_KEY:
        text = (
            f"{path.name} has no key up to {_LARGEST_DECODE_KEY}: decoding will run the config of M = {smallest}; "
            "tune decode batch sizes too."
        )
        said.append(Note(text, warning=True))
    return [*said, FileWritten(target.engine.name, path, tuple(report.entries))]


def _merge(target: FileTarget, choices: Mapping[int, Choice], announce: Announce) -> MergeReport:
    entries = _entries(choices)
    announce(entries)
    report = merge_into(target.path, entries, {m: choice.provenance for m, choice in choices.items()})
    verify_written(target.path, target.engine, target.weight, target.quant, target.device_name, entries)
    return report


def _entries(choices: Mapping[int, Choice]) -> dict[int, dict[str, Any]]:
    return {m: choice.entry for m, choice in choices.items()}


class FileWriter:
    """Writes the file of one engine and weight at a time and remembers which it wrote.

    With ``fitting``, files whose keys are all decided get further keys between them.
    """

    def __init__(
        self,
        request: TuneRequest,
        device: Device,
        first_seen: FirstSeen,
        observer: Observer,
        fitting: KeyFitting | None = None,
    ) -> None:
        self._request = request
        self._device = device
        self._first_seen = first_seen
        self._observe = observer
        self._fitting = fitting
        self._written: dict[Path, None] = {}

    @property
    def written(self) -> tuple[Path, ...]:
        """Files in place so far, in the order they were written."""
        return tuple(self._written)

    def write(self, engine: Engine, weight: WeightShape, rows: Sequence[tuple[Job, Decision | None]]) -> None:
        """Merge the decided entries into the weight's file; an undecided key gets what would run otherwise.

        A key without a valid candidate is left out.

        Raises:
            IncompleteRunError: as `write_choices`, also where the file or its folder cannot be written any more.
        """
        target = self._request.target(engine, weight, self._device.spec)
        made = {job.problem.shape.M: self._choice(job, decision) for job, decision in rows}
        choices = {m: choice for m, choice in made.items() if choice is not None}
        if not choices:
            return
        fitting = None if any(decision is None for _, decision in rows) else self._fitting
        announce = partial(self._first_seen.will_write, target)
        try:
            said = write_choices(target, choices, fitting, self._request.out_dtype, announce)
        except InputError as error:  # it could be written when the run began
            raise IncompleteRunError(
                f"{error} What was measured is saved; the same command goes on from it."
            ) from error
        self._written[target.path] = None
        for event in said:
            self._observe(event)

    def _choice(self, job: Job, decision: Decision | None) -> Choice | None:
        record = origin(job.engine, job.baseline, self._device.environment)
        if decision is None:
            return Choice(job.baseline.entry, record | {"status": "not tuned: the run was interrupted"})
        if decision.result.entry is None:
            return None
        record |= verdict(decision.selection, decision.final) | {"screened": decision.result.screened}
        return Choice(decision.result.entry, record)
