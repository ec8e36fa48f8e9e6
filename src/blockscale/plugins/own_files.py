"""Tuned files in folders of our own: which of them an engine takes instead of the file it ships."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from blockscale.checking.findings import harmful
from blockscale.checking.one_file import check_file
from blockscale.engines import engine
from blockscale.plugins import VARIABLE

log = logging.getLogger(__name__)


class OwnFiles:
    """The files of one engine in some folders, the first folder first. Reads only, and only when asked.

    In each folder files lie directly or in a folder of the engine's name, as ``tune`` writes them.
    """

    def __init__(self, folders: Sequence[Path], engine_name: str) -> None:
        self._folders = [each for folder in folders for each in (folder, folder / engine_name)]
        self._engine = engine_name
        self._warned: set[Path] = set()

    def instead_of(self, shipped: str) -> str:
        """The path to read instead of ``shipped``: a sound file of its name of ours, else ``shipped`` itself.

        A file that would make the engine fail or compute wrong numbers is passed over with one warning.
        """
        for folder in self._folders:
            path = folder / Path(shipped).name
            if not os.path.lexists(path):
                continue
            fault = self._fault(path)
            if fault is None:
                return str(path)
            if path not in self._warned:
                self._warned.add(path)
                log.warning(
                    "%s: %s is passed over (%s). `blockscale check --engine %s %r` says all that is wrong with it.",
                    VARIABLE,
                    path,
                    fault,
                    self._engine,
                    str(path),
                )
        return shipped

    def _fault(self, path: Path) -> str | None:
        try:
            checked = check_file(path, engine(self._engine))
        except Exception as error:  # whatever it is, serving goes on with the shipped file
            return f"it could not be checked: {error}"
        if checked.content is not None and checked.content.has_bom:
            return "it begins with a byte order mark"
        if checked.content is not None and not checked.content.members:
            return "it has no batch size"
        return next((each.message for each in harmful(checked.findings)), None)


def folders_of(value: str) -> list[Path]:
    """The folders that a value of the variable names; one that is not there is left out with a warning."""
    folders = []
    for part in value.split(os.pathsep):
        if not part:
            continue
        folder = Path(os.path.expanduser(part)).absolute()  # noqa: PTH111 - Path.expanduser raises for unknown users
        if folder.is_dir():
            folders.append(folder)
        else:
            log.warning("%s: %s is no folder that can be read, so nothing is read from it.", VARIABLE, folder)
    return folders
