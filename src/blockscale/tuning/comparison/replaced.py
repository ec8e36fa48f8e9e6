"""The files that those under test replace: the ones that the installed engines ship, or named in their stead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from blockscale.errors import InputError
from blockscale.hardware import DeviceSpec
from blockscale.paths import PathKind, kind_at
from blockscale.tuning.comparison.files import EngineFile, find_files, read_engine_file


@dataclass(frozen=True, slots=True)
class Replaced:
    """What each file replaces, by the file's path, and why some replace nothing."""

    by_path: dict[Path, EngineFile]
    notes: tuple[str, ...]


def shipped_files(files: Sequence[EngineFile], spec: DeviceSpec) -> Replaced:
    """The files of the same names that the installed engines ship. One that an engine cannot read replaces nothing."""
    found: dict[Path, EngineFile] = {}
    notes: dict[str, None] = {}
    for file in files:
        engine = file.engine
        path = engine.shipped_file(file.weight, file.quant, spec.name)
        if engine.installed() is None:
            notes[f"{engine.name} is not installed here, so no shipped file is compared: --against names one."] = None
        elif path is None:
            notes[f"{engine.name} ships no file for {file.weight} on {spec.name}."] = None
        elif path.samefile(file.path):
            notes[f"{file.path} is the file that {engine.name} ships."] = None
        else:
            try:
                found[file.path] = read_engine_file(path, engine, file.weight, file.quant)
            except InputError as error:
                notes[f"the shipped file is left out: {error}"] = None
    return Replaced(found, tuple(notes))


def named_files(files: Sequence[EngineFile], against: Path, spec: DeviceSpec) -> Replaced:
    """The files at ``against``: a folder has them under the same names, a file is for one of the weights.

    Raises:
        InputError: there is none for any of the files, or one cannot be read.
    """
    folder = kind_at(against, "give a config file or a folder of them") is PathKind.FOLDER
    found: dict[Path, EngineFile] = {}
    if folder:
        for file in files:
            path = against / file.path.name
            if path.is_file():
                found[file.path] = read_engine_file(path, file.engine, file.weight, file.quant)
    else:
        (other,) = find_files([against], [file.engine for file in files], spec).files
        found = {
            file.path: other
            for file in files
            if (file.engine.name, file.weight, file.quant) == (other.engine.name, other.weight, other.quant)
        }
    if not found:
        names = f"has none of {', '.join(f.path.name for f in files[:3])}" if folder else "is for another weight"
        raise InputError(f"--against {against} {names}: give what the files under test replace.")
    notes = (f"--against {against} has nothing for {file.weight}." for file in files if file.path not in found)
    return Replaced(found, tuple(notes))
