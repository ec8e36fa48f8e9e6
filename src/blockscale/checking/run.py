"""Files and folders checked together: which files, for which engine, and fixed where that is asked for."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from blockscale.checking.copies import with_copies
from blockscale.checking.findings import Finding, Severity
from blockscale.checking.fixes import Fixed, fix_file
from blockscale.checking.names import NameKind, kind_of, read_name, spelled_for
from blockscale.checking.one_file import CheckedFile, check_file
from blockscale.engines import Engine, engine, engine_names
from blockscale.errors import InputError
from blockscale.paths import PathKind, kind_at

_WAY_OUT = "give config files or folders of them"

Engines = Mapping[str, Engine]


@dataclass(frozen=True, slots=True)
class Checked:
    """All files checked, in order, and how many were passed over, by what they are."""

    files: tuple[CheckedFile, ...]
    passed_over: Mapping[NameKind, int]

    def count(self, severity: Severity) -> int:
        """Findings of one severity."""
        return sum(each.severity is severity for file in self.files for each in file.findings)


def known_engines(name: str | None = None, version: str | None = None) -> Engines:
    """The engines that files may be for, by name: the one named, or all of them.

    Raises:
        InputError: a version without a name, or one that is none.
    """
    if name is not None:
        return {name: engine(name, version)}
    if version is not None:
        raise InputError(f"--engine-version {version} without --engine: say whose version it is.")
    return {each: engine(each) for each in engine_names()}


def check_paths(paths: Sequence[Path], engines: Engines) -> Checked:
    """Check the files named and those below the folders named, each once.

    Raises:
        InputError: a path that is not there, or is neither file nor folder.
    """
    files: dict[Path, CheckedFile] = {}
    passed_over: Counter[NameKind] = Counter()
    for path in paths:
        for each, named in _files_at(path):
            place = _place(each)
            if place in files:
                continue
            kind = kind_of(each.name)
            if kind is NameKind.BLOCK_GEMM or (named and kind is not NameKind.OTHER_KERNEL):
                files[place] = _check(each, engines)
            elif each.name.endswith(".json") or kind is not NameKind.OTHER:
                passed_over[kind] += 1
    return Checked(tuple(with_copies(list(files.values()))), dict(passed_over))


def with_findings(checked: Checked, more: Mapping[Path, Sequence[Finding]]) -> Checked:
    """The same files, with further findings by path."""
    files = [
        CheckedFile(file.subject, file.content, (*file.findings, *more.get(file.path, ()))) for file in checked.files
    ]
    return Checked(tuple(files), checked.passed_over)


def fix_all(checked: Checked) -> list[Fixed]:
    """Put right what is fixable, file by file; a file that cannot be written says so and the others go on.

    Raises:
        IncompleteRunError: the disk is full, or another process keeps a lock.
    """
    fixable = [file for file in checked.files if any(each.fixable for each in file.findings)]
    return [fix_file(file) for file in fixable]


def moved(paths: Sequence[Path], fixed: Sequence[Fixed], checked: Checked) -> list[Path]:
    """The paths as they are after the fixes."""
    before = [file.path for file in checked.files if any(each.fixable for each in file.findings)]
    now = {_place(old): each.path for old, each in zip(before, fixed, strict=True)}
    return [now.get(_place(path), path) for path in paths]


def _files_at(path: Path) -> Iterator[tuple[Path, bool]]:
    """The files at a path, and whether the person named them one by one."""
    match kind_at(path, _WAY_OUT):
        case PathKind.FILE:
            yield path, True
        case PathKind.FOLDER:
            for each in _below(path):
                yield each, False
        case None:
            raise InputError(f"{path}: there is no such file or folder: {_WAY_OUT}.")
        case other:
            raise InputError(f"{path} is a {other}: {_WAY_OUT}.")


def _place(path: Path) -> Path:
    """Equal for two paths of one name in one folder; a link is a name of its own."""
    return path.parent.resolve() / path.name


def _below(folder: Path) -> Iterator[Path]:
    """All files at whatever depth, hidden folders (ours among them) and hidden files aside."""

    def refuse(error: OSError) -> None:
        raise InputError(f"{error.filename} cannot be searched ({error.strerror}): {_WAY_OUT} that may be read.")

    for here, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith("."):
                yield Path(here, name)


def _check(path: Path, engines: Engines) -> CheckedFile:
    """Check a file for the engine that it is told to be for, else for each, and keep the one that takes it best."""
    told = _told(path)
    if told is not None and told in engines:
        return check_file(path, engines[told])
    results = [check_file(path, each) for each in engines.values()]
    return min(results, key=lambda r: sum(each.severity is Severity.ERROR for each in r.findings))


def _told(path: Path) -> str | None:
    """The engine that the nearest folder of its name tells, else the one that spells the file's name so."""
    for part in reversed(path.parent.absolute().parts):
        if part.lower() in engine_names():
            return part.lower()
    return spelled_for(path.name) if read_name(path.name) else None
