"""Writing a recorded device."""

from __future__ import annotations

import gzip
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

from blockscale.errors import IncompleteRunError, InputError
from blockscale.hardware import DeviceSpec
from blockscale.paths import PathKind, kind_at, machine_gave_out
from blockscale.problem import Environment, Trial
from blockscale.recording.columns import Columns
from blockscale.recording.header import header_fields


def require_replaceable(path: Path) -> None:
    """Refuse a recording's place that is taken by something else than a file: a device would be replaced too.

    Raises:
        InputError: it is, or cannot be reached.
    """
    if kind_at(path, "give another file") not in (PathKind.FILE, None):
        raise InputError(f"{path} is not a regular file, so no recording takes its place: give the name of a file.")


def write_recording(path: Path, spec: DeviceSpec, environment: Environment, trials: Iterable[Trial]) -> int:
    """Write a recorded device; gzip-compressed where the name ends in ``.gz``. Returns the number of trials.

    The file appears whole or not at all, and the same trials give the same bytes. All trials are held in memory.

    Raises:
        InputError: there is nothing to write, the folder cannot be written, or ``path`` is something else than a file.
        IncompleteRunError: the disk is full.
    """
    require_replaceable(path)
    columns = Columns()
    for trial in trials:
        columns.add(trial)
    if columns.trials == 0:
        raise InputError(f"{path}: there is no trial to record; nothing was written.")
    records = [header_fields(spec, environment), *columns.lines()]
    temporary = None
    try:
        with tempfile.NamedTemporaryFile("wb", dir=path.parent, prefix=f".{path.name}.", delete=False) as raw:
            temporary = Path(raw.name)
            if path.suffix == ".gz":
                with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed:
                    _write(packed, records)
            else:
                _write(raw, records)
            raw.flush()
            os.fsync(raw.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        if machine_gave_out(error):
            raise IncompleteRunError(f"{path}: the disk is full: free some space and export again.") from None
        raise InputError(f"{path} cannot be written ({error.strerror}): give another file.") from None
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
    return columns.trials


def _write(out: IO[bytes] | gzip.GzipFile, records: Iterable[Mapping[str, Any]]) -> None:
    for record in records:
        out.write(json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode("utf-8") + b"\n")
