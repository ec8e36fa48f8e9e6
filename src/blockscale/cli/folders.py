"""Output folders: where each engine's files go, and a refused run that leaves none of them behind."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from blockscale.engines import PRIVATE_FOLDER
from blockscale.errors import InputError


def output_folders(save_path: Path | None, engines: Sequence[str]) -> tuple[tuple[str, Path], ...]:
    """(engine, folder) pairs: ``save_path`` itself for one engine, a folder in it for each of several.

    Without ``save_path`` it is ``configs/ENGINE`` in the working directory.
    """
    if save_path is None:
        return tuple((name, Path("configs") / name) for name in engines)
    if len(engines) == 1:
        return ((engines[0], save_path),)
    return tuple((name, save_path / name) for name in engines)


@contextlib.contextmanager
def nothing_left_behind(folders: Iterable[Path]) -> Iterator[None]:
    """Remove again what is empty of ``folders`` and their parents, if they came into being in a refused run."""
    absent = [
        path
        for folder in folders
        for path in (folder / PRIVATE_FOLDER, folder, *folder.parents)
        if not os.path.lexists(path)
    ]
    try:
        yield
    except InputError:
        for path in sorted(set(absent), key=lambda p: len(p.parts), reverse=True):
            with contextlib.suppress(OSError):  # not empty, or never made
                path.rmdir()
        raise
