"""What SQLite reports, in words for the person at the command line."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from blockscale.errors import IncompleteRunError, InputError

_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


class UnreadableRow(Exception):
    """A row holds what no version of blockscale wrote: the file was damaged where SQLite cannot tell."""


_DENIED = {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH}
_ADVICE = {
    sqlite3.SQLITE_FULL: "free some space on its disk",
    sqlite3.SQLITE_IOERR: "free some space on its disk and check the disk",
    sqlite3.SQLITE_READONLY: "make it writable",
    sqlite3.SQLITE_CANTOPEN: "make its folder writable",
    sqlite3.SQLITE_BUSY: "end the program that keeps it locked",
    sqlite3.SQLITE_LOCKED: "end the program that keeps it locked",
}


@contextmanager
def opening(path: Path) -> Iterator[None]:
    """Say why a store cannot be opened.

    Raises:
        InputError: it is damaged or may not be written.
        IncompleteRunError: the disk is full or failing.
    """
    try:
        yield
    except (UnreadableRow, UnicodeDecodeError) as error:  # the latter where SQLite quotes what it cannot parse
        raise damaged(path, str(error)) from error
    except sqlite3.DatabaseError as error:
        code = _code(error)
        if code in _DAMAGED:
            raise damaged(path, str(error)) from None
        if code in _DENIED:
            raise InputError(f"store {path} cannot be written ({error}): give --store a file you may write.") from None
        raise _incomplete(path, error, code) from error


@contextmanager
def using(path: Path) -> Iterator[None]:
    """Say why an open store failed, and how to go on. Wrong use of the database is a bug and passes through.

    Raises:
        IncompleteRunError: the disk is full, failing or read-only, or the file was damaged.
    """
    try:
        yield
    except (UnreadableRow, UnicodeDecodeError) as error:  # the latter where SQLite quotes what it cannot parse
        raise IncompleteRunError(
            f"store {path} is damaged ({error}). Nothing was lost beside that: put it aside or restore a copy, then "
            "start the same command again."
        ) from error
    except sqlite3.DatabaseError as error:
        code = _code(error)
        if code not in _ADVICE and code not in _DAMAGED:
            raise
        raise _incomplete(path, error, code) from error


def damaged(path: Path, reason: str) -> InputError:
    """The refusal of a corrupt store."""
    return InputError(
        f"store {path} is damaged ({reason}): put it aside, restore a copy, or give --store another file; "
        "nothing in it was changed."
    )


def _code(error: sqlite3.Error) -> int:
    """Primary result code; the extended ones carry detail in the upper bytes."""
    return (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


def _incomplete(path: Path, error: sqlite3.Error, code: int) -> IncompleteRunError:
    advice = _ADVICE.get(code, "put it aside or restore a copy")
    return IncompleteRunError(
        f"store {path} could not be written ({error}). All trials before are saved: {advice}, then start the same "
        "command again."
    )
