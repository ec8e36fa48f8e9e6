"""What stands at a path that a person gave, told without opening it: reading a pipe or a device may never end."""

from __future__ import annotations

import errno
import stat
from enum import StrEnum
from pathlib import Path

from blockscale.errors import InputError

_GAVE_OUT = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EFBIG,
        errno.EIO,
        errno.ESTALE,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
    }
)


class PathKind(StrEnum):
    """What a path leads to, symbolic links followed."""

    FILE = "file"
    FOLDER = "folder"
    OTHER = "pipe, socket or device"


def kind_at(path: Path, way_out: str) -> PathKind | None:
    """What is there, None where nothing is. ``way_out`` ends the message of a refusal.

    Raises:
        InputError: it cannot be told: a name that is too long, a folder that may not be entered, a loop of links.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InputError(f"{path} cannot be reached ({reason_of(error)}): {way_out}.") from None
    if stat.S_ISREG(mode):
        return PathKind.FILE
    return PathKind.FOLDER if stat.S_ISDIR(mode) else PathKind.OTHER


def at_home(path: Path, way_out: str) -> Path:
    """The path with ``~`` or ``~user`` put in.

    Raises:
        InputError: there is no such home folder.
    """
    try:
        return path.expanduser()
    except RuntimeError as error:  # pathlib has no kind of its own for it
        raise InputError(f"{path} cannot be reached ({reason_of(error)}): {way_out}.") from None


def reason_of(error: Exception) -> str:
    """The words of an error of the file system, without its number and path."""
    return getattr(error, "strerror", None) or str(error).rstrip(".")


def machine_gave_out(error: OSError) -> bool:
    """Whether the machine is out of something (disk, open files, memory), and no path is wrong."""
    return error.errno in _GAVE_OUT


def first_bytes(path: Path, most: int, way_out: str) -> bytes:
    """The file at ``path``, at most ``most`` + 1 bytes of it, so that the caller can tell one that is longer.

    Raises:
        InputError: it is no file, or cannot be read.
    """
    if kind_at(path, way_out) is not PathKind.FILE:
        raise InputError(f"{path} is no file: {way_out}.")
    try:
        with path.open("rb") as file:
            return file.read(most + 1)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({reason_of(error)}): give a readable file.") from error
