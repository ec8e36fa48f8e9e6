"""The file that one engine reads for one weight."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from blockscale.engines import PRIVATE_FOLDER, Engine, sidecar_path
from blockscale.errors import InputError
from blockscale.paths import PathKind, kind_at
from blockscale.problem import QuantScheme, WeightShape


@dataclass(frozen=True, slots=True)
class FileTarget:
    """A file by what its engine finds it by, and the folder that it is written to."""

    engine: Engine
    folder: Path
    weight: WeightShape
    quant: QuantScheme
    device_name: str

    @property
    def path(self) -> Path:
        """Where it lies."""
        return self.folder / self.engine.file_name(self.weight, self.quant, self.device_name)

    @property
    def shipped(self) -> Path | None:
        """The file of the same name that the installed engine ships, or None."""
        return self.engine.shipped_file(self.weight, self.quant, self.device_name)


# File systems take names of 255 bytes; the lock's and the sidecar's are longer than the file's own.
_LONGEST_NAME = 240
_WAY_OUT = "move it away, or choose another folder with --save-path"


def check_targets(targets: Iterable[FileTarget], store: Path) -> None:
    """Refuse files that no engine would find or that cannot be merged into, before anything is measured or written.

    ``store`` is its absolute path: what is merged into the store's file would replace it.

    Raises:
        InputError: a device name that makes no file name, a pipe or folder in a file's place, a file that may not be
            read, or the store in that place.
    """
    for target in targets:
        _check_name(target)
        for path in (target.path, sidecar_path(target.path)):
            kind = kind_at(path, _WAY_OUT)
            if kind not in (PathKind.FILE, None):
                raise InputError(f"{path} is a {kind}, so nothing can be merged into it: {_WAY_OUT}.")
            if kind and not os.access(path, os.R_OK):
                raise InputError(f"{path} may not be read, so nothing can be merged into it: {_WAY_OUT}.")
        folder = target.folder.resolve()
        if store in (target.path.resolve(), folder / target.path.name) or store.parent == folder / PRIVATE_FOLDER:
            raise InputError(f"store {store} lies where the files are written: give --store another file.")


def _check_name(target: FileTarget) -> None:
    name, file_name = target.device_name, target.path.name
    way_out = "give --device-name the name that the GPU has where the engine runs, e.g. NVIDIA H200"
    if not name.strip() or not name.isprintable():
        raise InputError(f"device name {name!r} is blank or holds signs that no file name should: {way_out}.")
    if file_name != target.engine.file_name(target.weight, target.quant, name):
        raise InputError(
            f"device name {name!r} has a slash, and {target.engine} finds no file of such a name: {way_out}."
        )
    if len(file_name.encode()) > _LONGEST_NAME:
        raise InputError(f"device name {name[:40]!r}… makes a file name of {len(file_name.encode())} bytes: {way_out}.")
