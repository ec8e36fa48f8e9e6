"""The engines' files of a run: merged, written, read back as the engine would, with their provenance."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import blockscale
from blockscale.engines.base import Engine
from blockscale.engines.files import merge_into, verify_written
from blockscale.executor.base import Device
from blockscale.problem import WeightShape
from blockscale.tuning.events import FileWritten, Note, Observer
from blockscale.tuning.one_problem import Decision, Job
from blockscale.tuning.request import TuneRequest

# Batch sizes of decoding; a file without any key among them serves decoding with a prefill tile.
_LARGEST_DECODE_KEY = 64


class FileWriter:
    """Writes the file of one engine and weight at a time and remembers which it wrote."""

    def __init__(self, request: TuneRequest, device: Device, observer: Observer) -> None:
        self._request = request
        self._device = device
        self._observe = observer
        self._folders = dict(request.folders)
        self._written: dict[Path, None] = {}

    @property
    def written(self) -> tuple[Path, ...]:
        """Files in place so far, in the order they were written."""
        return tuple(self._written)

    def write(self, engine: Engine, weight: WeightShape, rows: Sequence[tuple[Job, Decision | None]]) -> None:
        """Merge the decided entries into the weight's file; an undecided key gets what would run otherwise.

        A key without a valid candidate is left out.
        """
        name = self._request.device_name or self._device.spec.name
        path = self._folders[engine.name] / engine.file_name(weight, self._request.quant, name)
        entries: dict[int, dict[str, Any]] = {}
        provenance: dict[int, dict[str, Any]] = {}
        for job, decision in rows:
            m = job.problem.shape.M
            entry = decision.result.entry if decision else job.baseline.entry
            if entry is not None:
                entries[m] = entry
                provenance[m] = self._origin(job, decision)
        if not entries:
            return
        report = merge_into(path, entries, provenance)
        verify_written(path, engine, weight, self._request.quant, name, entries)
        for note in report.notes:
            self._observe(Note(note))
        if min(report.entries) > _LARGEST_DECODE_KEY:
            self._observe(
                Note(
                    f"{path.name} has no key up to {_LARGEST_DECODE_KEY}: decoding will run the config of "
                    f"M = {min(report.entries)}; tune decode batch sizes too.",
                    warning=True,
                )
            )
        self._written[path] = None
        self._observe(FileWritten(engine.name, path, tuple(report.entries)))

    def _origin(self, job: Job, decision: Decision | None) -> dict[str, Any]:
        """Where an entry comes from, for the sidecar."""
        origin: dict[str, Any] = {
            "engine": {"name": job.engine.name, "version": str(job.engine.version)},
            "baseline": job.baseline.source,
            "environment": asdict(self._device.environment),
            "written": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
            "blockscale": blockscale.__version__,
        }
        if decision is None:
            return origin | {"status": "not tuned: the run was interrupted"}
        origin |= {
            "status": str(decision.result.outcome),
            "reason": decision.result.reason,
            "time_us": decision.result.time_us,
            "baseline_us": decision.result.baseline_us,
            "screened": decision.result.screened,
        }
        if decision.final is not None:
            origin |= {
                "kernel": str(decision.final.candidate.kernel),
                "samples_us": list(decision.final.samples_us),
                "labels": list(decision.final.labels),
            }
        return origin
