"""What an install would change: each tuned file merged, in memory, with what the engine has under its name."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from blockscale.checking.devices import Platform, platform_of
from blockscale.checking.findings import Code, harmful
from blockscale.checking.one_file import CheckedFile
from blockscale.checking.run import check_paths, known_engines
from blockscale.engines import Engine, UnreadableConfigFile, engine, merge_into, read_config_file
from blockscale.engines.files import Entry
from blockscale.errors import InputError
from blockscale.install import WAY_OUT
from blockscale.install.folder import ConfigFolder, content_of


class Kind(StrEnum):
    """What becomes of the engine's file."""

    NEW = "new"
    REPLACED = "replaced"
    EQUAL = "equal"


@dataclass(frozen=True, slots=True)
class Change:
    """A tuned file, where it goes, and the bytes there before and after; ``keys`` get other entries than before."""

    source: Path
    target: Path
    kind: Kind
    keys: tuple[int, ...]
    before: bytes | None
    after: bytes


@dataclass(frozen=True, slots=True)
class Plan:
    """All that would change in one engine's config folder."""

    engine: Engine
    folder: ConfigFolder
    changes: tuple[Change, ...]

    def count(self, kind: Kind) -> int:
        """Files of a kind."""
        return sum(each.kind is kind for each in self.changes)


def plan_install(paths: Sequence[Path], engine_name: str | None, gpus: Collection[str] | None) -> list[Plan]:
    """Plan for the files at ``paths``, an engine after the other; changes nothing.

    ``gpus`` are the names that the driver reports here, None where they cannot be told; files are then not held
    against them.

    Raises:
        InputError: there is no file, a file is for another engine or GPU or has errors, the engine is not installed,
            its loader is at no known place, or its folder cannot be written.
    """
    checked = check_paths(paths, known_engines(engine_name))
    if not checked.files:
        raise InputError(
            f"{', '.join(map(str, paths))}: there is no config file of block-scaled GEMMs: tune first, or name files "
            "or folders that hold them."
        )
    by_engine: dict[str, list[CheckedFile]] = {}
    for file in checked.files:
        by_engine.setdefault(file.subject.engine.name, []).append(file)
    plans = []
    for files in by_engine.values():
        of = files[0].subject.engine
        folder = installed_folder(of.name)
        for file in files:
            _require_sound(file)
            _require_gpu(file, gpus)
        plans.append(Plan(of, folder, tuple(_changes(files, folder.path))))
    return plans


def installed_folder(engine_name: str) -> ConfigFolder:
    """The config folder of the engine in this Python.

    Raises:
        InputError: there is no such engine, its loader is at no known place, or the folder cannot be written.
    """
    found = type(engine(engine_name, "main")).installed()
    if found is None:
        raise InputError(
            f"{engine_name} is not installed for {sys.executable}: run blockscale with the Python that serves, or "
            f"{WAY_OUT}."
        )
    if found.config_folder is None:
        raise InputError(
            f"{engine_name} {found.version} has its config loader at no place known to this blockscale, so nothing can "
            f"be installed: update blockscale, or {WAY_OUT}."
        )
    folder = ConfigFolder(found.config_folder)
    folder.require_writable()
    return folder


def _require_sound(file: CheckedFile) -> None:
    name = file.subject.engine
    if any(each.code is Code.NEVER_FOUND for each in file.findings):
        raise InputError(
            f"{file.path} is named as {name} never looks for it, perhaps for another engine: give the files of "
            f"{name.name}, or see `blockscale check`."
        )
    for each in harmful(file.findings):
        raise InputError(
            f"{file.path} would harm serving ({each.message}): `blockscale check` says all; nothing was changed."
        )


def _require_gpu(file: CheckedFile, gpus: Collection[str] | None) -> None:
    """Refuse a file of another GPU. Only NVIDIA's names are compared: on ROCm engines and drivers differ in them."""
    named = file.subject.named
    if not gpus or named is None or any(platform_of(gpu) is not Platform.CUDA for gpu in gpus):
        return
    if all(file.subject.engine.file_name(named.weight, named.quant, gpu) != file.path.name for gpu in gpus):
        raise InputError(
            f"{file.path} is for {named.device} and this machine has {', '.join(sorted(gpus))}, so "
            f"{file.subject.engine} would never read it: install it on a machine with that GPU, or {WAY_OUT}."
        )


def _changes(files: Sequence[CheckedFile], folder: Path) -> list[Change]:
    found: dict[str, Change] = {}
    for file in files:
        name = file.path.name
        if name in found:
            raise InputError(f"{found[name].source} and {file.path} have one name: give one of them.")
        found[name] = _change(file.path, folder / name)
    return [found[name] for name in sorted(found)]


def _change(source: Path, target: Path) -> Change:
    try:
        new = read_config_file(source).entries
    except UnreadableConfigFile as error:
        raise InputError(f"{error} `blockscale check --fix` may put it right.") from error
    entries = {m: entry for m, entry in new.items() if entry is not None}
    if not entries:
        raise InputError(f"{source} has no batch size: tune it again.")
    before = content_of(target)
    with tempfile.TemporaryDirectory() as scratch:
        staged = Path(scratch, target.name)
        old: dict[int, Entry] | None = None
        if before is not None:
            staged.write_bytes(before)
            old = _entries(staged)
        merged = merge_into(staged, entries, {}).entries
        after = staged.read_bytes()
    if old is not None and list(old.items()) == list(merged.items()):
        return Change(source, target, Kind.EQUAL, (), before, after)
    keys = tuple(m for m, entry in merged.items() if old is None or old.get(m) != entry)
    return Change(source, target, Kind.NEW if before is None else Kind.REPLACED, keys, before, after)


def _entries(path: Path) -> dict[int, Entry] | None:
    try:
        return read_config_file(path).entries
    except UnreadableConfigFile:
        return None
