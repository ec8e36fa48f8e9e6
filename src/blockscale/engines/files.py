"""Config files as engines read them: reading, merging new entries in, and checking what was written."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
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
    "MalformedJsonError",
    "MergeReport",
    "UnreadableConfigFile",
    "keep_notes",
    "merge_into",
    "parse_config",
    "parse_json",
    "read_config_file",
    "scratch_path",
    "sidecar_path",
    "verify_written",
    "was_tuned",
]

log = logging.getLogger(__name__)

# Beyond these nobody means a config file: a batch size takes about 200 bytes, an entry is two levels deep.
LARGEST_FILE_BYTES = 4 << 20
_DEEPEST = 50
_TOO_DEEP = f"it is nested deeper than {_DEEPEST} levels"
_LONGEST_KEY = 40  # that a message quotes
_NOTES = "notes"  # the sidecar's key for what is about no batch size

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


class MalformedJsonError(ValueError):
    """Text that is no JSON as config files hold it; the message is the second half of a sentence."""


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
    except MalformedJsonError as error:
        raise UnreadableConfigFile(path, str(error)) from error


def parse_json(data: bytes) -> Any:
    """The JSON value in the bytes of a config file, whose objects name no key twice.

    Raises:
        MalformedJsonError: it is not UTF-8, no JSON, names a key twice, or is nested or large beyond any config file.
    """
    if len(data) > LARGEST_FILE_BYTES:
        raise MalformedJsonError(f"it has more than {LARGEST_FILE_BYTES >> 20} MiB")
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_distinct)
    except MalformedJsonError:
        raise
    except UnicodeDecodeError as error:
        raise MalformedJsonError("it is not UTF-8") from error
    except RecursionError as error:
        raise MalformedJsonError(_TOO_DEEP) from error
    except ValueError as error:
        raise MalformedJsonError(f"it is not JSON ({error})") from error
    _require_shallow(value)
    return value


def _require_shallow(value: Any) -> None:
    """Refuse what is nested so deeply that showing it could overflow the stack."""
    level = [value]
    for _ in range(_DEEPEST):
        level = [inner for outer in level if isinstance(outer, (dict, list)) for inner in _inside(outer)]
        if not level:
            return
    raise MalformedJsonError(_TOO_DEEP)


def _inside(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def _parse_object(data: bytes) -> dict[str, Any]:
    value = parse_json(data)
    if not isinstance(value, dict):
        raise MalformedJsonError("it holds no JSON object")
    return value


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        repeated, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise MalformedJsonError(f"key {repeated[:_LONGEST_KEY]!r} stands there twice")
    return found


def _entries(value: Mapping[str, Any]) -> dict[int, Entry]:
    entries: dict[int, Entry] = {}
    for key, entry in value.items():
        try:
            m = int(key)
        except ValueError as error:
            raise MalformedJsonError(
                f"key {key!r} is no integer, and the loaders take every key for a batch size"
            ) from error
        if m in entries:
            raise MalformedJsonError(f"batch size {m} stands there twice")
        if entry is not None and not isinstance(entry, dict):
            raise MalformedJsonError(f"entry {key!r} is neither an object nor null")
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
            replace_file(aside, data, scratch_path(path))
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
    replace_file(path, data, scratch_path(path))
    return True


def was_tuned(path: Path, batch_sizes: Iterable[int]) -> bool:
    """Whether the sidecar of a config file says where the entry of each of these batch sizes comes from."""
    try:
        records, _ = _read_sidecar(sidecar_path(path))
    except BlockscaleError:  # it may not be read
        return False
    return all(m in records for m in batch_sizes)


def keep_notes(path: Path, notes: Mapping[str, Any]) -> None:
    """Add notes of a config file that are about no batch size to its sidecar; the caller holds the lock.

    A note that another of its name differs from is kept beside it under a numbered name.

    Raises:
        InputError: the sidecar cannot be read or written.
        IncompleteRunError: the disk is full; the sidecar is as it was.
    """
    records, kept = _read_sidecar(sidecar_path(path))
    for name, note in notes.items():
        free, number = name, 2
        while free in kept and kept[free] != note:
            free, number = f"{name} ({number})", number + 1
        kept[free] = note
    _write_sidecar(sidecar_path(path), records, kept)


def _merge_sidecar(path: Path, provenance: Mapping[int, Mapping[str, Any]]) -> None:
    """Merge provenance; the caller holds the lock. A sidecar that does not parse has nothing to keep.

    A record that says what the old one says, but for the day it was ``written``, is no news and changes nothing.
    """
    if not provenance:
        return
    records, notes = _read_sidecar(path)
    for m, record in provenance.items():
        new = json.loads(json.dumps(record))
        if _undated(records.get(m)) != _undated(new):
            records[m] = new
    _write_sidecar(path, records, notes)


def _read_sidecar(path: Path) -> tuple[dict[int, Entry], dict[str, Any]]:
    """Records by batch size, and notes; both empty where there is no sidecar or none that parses."""
    data = _read_bytes(path)
    if data is None:
        return {}, {}
    try:
        value = _parse_object(data)
        notes = value.pop(_NOTES, {})
        return _entries(value), notes if isinstance(notes, dict) else {}
    except MalformedJsonError:
        return {}, {}


def _write_sidecar(path: Path, records: Mapping[int, Entry], notes: Mapping[str, Any]) -> None:
    """Write a sidecar unless that would change nothing."""
    value: dict[str, Any] = {str(m): records[m] for m in sorted(records)}
    if notes:
        value[_NOTES] = dict(notes)
    data = (json.dumps(value, indent=2) + "\n").encode()
    if data != _read_bytes(path):
        replace_file(path, data, path.with_suffix(".tmp"))


def _undated(record: Entry) -> Entry:
    return record and {key: value for key, value in record.items() if key != "written"}


def scratch_path(path: Path) -> Path:
    """The file that is written before it replaces a config file."""
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
