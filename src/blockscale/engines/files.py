"""Config files as engines read them: reading, merging new entries in, and checking what was written."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blockscale.engines.atomic import PRIVATE_FOLDER, locked, replace_file, require_writable
from blockscale.engines.base import Engine
from blockscale.errors import BlockscaleError, IncompleteRunError, InputError
from blockscale.paths import machine_gave_out, reason_of
from blockscale.problem import QuantScheme, WeightShape

__all__ = [
    "ConfigFile",
    "Entry",
    "MergeReport",
    "UnreadableConfigFile",
    "merge_into",
    "parse_config",
    "read_config_file",
    "sidecar_path",
    "verify_written",
]

log = logging.getLogger(__name__)

# The fields of one config, or None: "null" stands for the engine's default at that key.
Entry = dict[str, Any] | None


class UnreadableConfigFile(BlockscaleError):
    """A config file that the engines' loaders would stumble over; ``reason`` says why."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} is no config file: {reason}.")
        self.path = path
        self.reason = reason


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A parsed file: batch size → entry, in file order, which decides ties of the lookup."""

    entries: dict[int, Entry]


@dataclass(frozen=True, slots=True)
class MergeReport:
    """What a merge left on disk. ``kept_aside`` is where an unreadable former file went."""

    path: Path
    entries: dict[int, Entry]
    changed: bool
    kept_aside: Path | None = None
    notes: tuple[str, ...] = field(default=())


class _Malformed(ValueError):
    pass


def read_config_file(path: Path) -> ConfigFile:
    """Read a config file.

    Raises:
        UnreadableConfigFile: it is not UTF-8 JSON, no object, or has a key that is no integer, a key twice, or an
            entry that is neither an object nor null.
        InputError: the file is missing or cannot be read.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror or error}): give an existing config file.") from error
    return parse_config(data, path)


def parse_config(data: bytes, path: Path) -> ConfigFile:
    """Parse the bytes of a config file; ``path`` is for the message.

    Raises:
        UnreadableConfigFile: as for ``read_config_file``.
    """
    try:
        return ConfigFile(_entries(_parse_object(data)))
    except _Malformed as error:
        raise UnreadableConfigFile(path, str(error)) from error


def _parse_object(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_distinct)
    except _Malformed:
        raise
    except UnicodeDecodeError as error:
        raise _Malformed("it is not UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise _Malformed(f"it is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise _Malformed("it holds no JSON object")
    return value


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise _Malformed(f"key {repeated!r} stands there twice")
    return found


def _entries(value: Mapping[str, Any]) -> dict[int, Entry]:
    entries: dict[int, Entry] = {}
    for key, entry in value.items():
        try:
            m = int(key)
        except ValueError as error:
            raise _Malformed(f"key {key!r} is no integer, and the loaders take every key for a batch size") from error
        if m in entries:
            raise _Malformed(f"batch size {m} stands there twice")
        if entry is not None and not isinstance(entry, dict):
            raise _Malformed(f"entry {key!r} is neither an object nor null")
        entries[m] = entry
    return entries


def sidecar_path(path: Path) -> Path:
    """Where the provenance of a config file's entries is kept, by batch size."""
    return path.parent / PRIVATE_FOLDER / f"{path.name.removesuffix('.json')}.meta.json"


def merge_into(
    path: Path,
    new: Mapping[int, Mapping[str, Any]],
    provenance: Mapping[int, Mapping[str, Any]],
) -> MergeReport:
    """Merge new entries into a config file, which is created if missing; new entries win for their batch sizes.

    Entries that ``new`` does not name stay as they are, keys come out in numeric order. A file that an engine could
    not read is first kept aside under another name. Runs that merge at once do not lose each other's entries, and a
    reader never sees half a file; nothing is written where nothing would change. ``provenance`` goes to the sidecar,
    by batch size.

    Raises:
        InputError: the folder or file cannot be written; nothing was changed.
        IncompleteRunError: the disk is full, or another process keeps the lock; the old file is intact.
    """
    require_writable(path.parent)
    with locked(path):
        data = _read_bytes(path)
        old, reason = _readable_entries(data, path)
        kept_aside = None
        notes: tuple[str, ...] = ()
        if reason is not None and new:
            kept_aside = _keep_aside(path, data or b"")
            notes = (f"{path.name} was no config file ({reason}): it is kept as {kept_aside.name}.",)
            log.warning("%s", notes[0])
        merged: dict[int, Entry] = dict(sorted({**old, **{m: dict(entry) for m, entry in new.items()}}.items()))
        changed = bool(new) and _replace_if_different(path, data, merged)
        _merge_sidecar(sidecar_path(path), provenance)
    return MergeReport(path, merged, changed, kept_aside, notes)


def _read_bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        if machine_gave_out(error):
            raise IncompleteRunError(
                f"{path} could not be read ({reason_of(error)}); it is as it was and what was measured is saved. "
                "Repeat the command once that is over."
            ) from error
        raise InputError(
            f"{path} cannot be read ({reason_of(error)}), so nothing can be merged into it: move it away, or "
            "choose another folder with --save-path."
        ) from error


def _readable_entries(data: bytes | None, path: Path) -> tuple[dict[int, Entry], str | None]:
    """The entries of a file that may be missing, and why it is unreadable if it is."""
    if data is None:
        return {}, None
    try:
        return parse_config(data, path).entries, None
    except UnreadableConfigFile as error:
        return {}, error.reason


def _keep_aside(path: Path, data: bytes) -> Path:
    """Copy an unreadable file to a free name beside it; a copy left by an interrupted run is taken as done."""
    number = 1
    while True:
        aside = path.with_name(f"{path.name}.unreadable-{number}")
        if not aside.exists():
            replace_file(aside, data, _scratch(path))
            return aside
        if aside.is_file() and aside.read_bytes() == data:
            return aside
        number += 1


def _replace_if_different(path: Path, old: bytes | None, entries: Mapping[int, Entry]) -> bool:
    # Engines ship files with indent 4; numeric order also decides ties of the lookup.
    text = json.dumps({str(m): entry for m, entry in entries.items()}, indent=4) + "\n"
    data = text.encode()
    if data == old:
        return False
    replace_file(path, data, _scratch(path))
    return True


def _merge_sidecar(path: Path, provenance: Mapping[int, Mapping[str, Any]]) -> None:
    """Merge provenance; the caller holds the lock. A sidecar that does not parse has nothing to keep.

    A record that says what the old one says, but for the day it was ``written``, is no news and changes nothing.
    """
    if not provenance:
        return
    data = _read_bytes(path)
    old, _ = _readable_entries(data, path)
    merged = dict(old)
    for m, record in provenance.items():
        new = json.loads(json.dumps(record))
        if _undated(old.get(m)) != _undated(new):
            merged[m] = new
    text = json.dumps({str(m): merged[m] for m in sorted(merged)}, indent=2) + "\n"
    if text.encode() != data:
        replace_file(path, text.encode(), path.with_suffix(".tmp"))


def _undated(record: Entry) -> Entry:
    return record and {key: value for key, value in record.items() if key != "written"}


def _scratch(path: Path) -> Path:
    return path.parent / PRIVATE_FOLDER / f"{path.name}.tmp"


def verify_written(
    path: Path,
    engine: Engine,
    weight: WeightShape,
    quant: QuantScheme,
    device_name: str,
    expected: Mapping[int, Mapping[str, Any]],
) -> None:
    """Look every batch size of ``expected`` up as the engine will: by file name, then by nearest key.

    Raises:
        IncompleteRunError: the engine would not find or not read the file, or would run another config than expected.
    """
    name = engine.file_name(weight, quant, device_name)
    if path.name != name:
        raise IncompleteRunError(f"{path}: {engine} looks for {name} and would not find this file.")
    try:
        entries = read_config_file(path).entries
    except UnreadableConfigFile as error:
        raise IncompleteRunError(f"{error} Another program changed it: repeat the command.") from error
    for m, entry in expected.items():
        found = entries[engine.lookup_key(list(entries), m)] if entries else None
        if found != entry:
            raise IncompleteRunError(
                f"{path}: for M = {m} {engine} would run {found}, not {dict(entry)}. Another program changed the file: "
                "repeat the command."
            )
