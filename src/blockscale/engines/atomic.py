"""Files that several runs write and a server reads: replaced whole under a lock, or left as they were.

Lock, sidecar and unfinished writes lie in ``<folder>/.blockscale/``, which engines do not read.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from blockscale.errors import BlockscaleError, IncompleteRunError, InputError
from blockscale.paths import machine_gave_out, reason_of

PRIVATE_FOLDER = ".blockscale"
_LOCK_TIMEOUT_S = 60.0  # a merge holds the lock for milliseconds


def require_writable(folder: Path) -> Path:
    """Make sure that files can be replaced in ``folder``, which is created if missing; returns its private folder.

    Raises:
        InputError: it is no folder, or cannot be created or written.
        IncompleteRunError: the disk is full.
    """
    private = folder / PRIVATE_FOLDER
    try:
        private.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _failure(folder, error) from error
    for each in (folder, private):
        if not os.access(each, os.W_OK | os.X_OK):
            raise _unwritable(each, "Permission denied")
    return private


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock on ``path`` against other runs; the folder must have passed ``require_writable``.

    Raises:
        IncompleteRunError: another process kept the lock for a minute.
    """
    lock = FileLock(path.parent / PRIVATE_FOLDER / f"{path.name}.lock", timeout=_LOCK_TIMEOUT_S)
    try:
        lock.acquire()
    except Timeout as error:
        raise IncompleteRunError(
            f"{path}: another process has held {lock.lock_file} for {_LOCK_TIMEOUT_S:.0f} s. What was measured is "
            "saved: end that process and repeat the command."
        ) from error
    except OSError as error:
        raise _failure(path, error) from error
    try:
        yield
    finally:
        lock.release()


def replace_file(path: Path, data: bytes, scratch: Path) -> None:
    """Put ``data`` in place of ``path`` so that a reader sees the old bytes or the new, whatever happens meanwhile.

    ``scratch`` is the file written first, on the same file system; the caller holds a lock that covers it.

    Raises:
        IncompleteRunError: the disk is full or fails; ``path`` is as it was.
        InputError: ``path`` may not be written.
    """
    try:
        _write_synced(scratch, data)
        with contextlib.suppress(FileNotFoundError):
            scratch.chmod(stat.S_IMODE(path.stat().st_mode))
        scratch.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            scratch.unlink()
        raise _failure(path, error) from error


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Make the rename itself survive a power cut; file systems that cannot are left alone."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _failure(path: Path, error: OSError) -> BlockscaleError:
    """The error for the person: a disk that gave out lets the run continue later, all else needs another place."""
    reason = reason_of(error)
    if not machine_gave_out(error):
        return _unwritable(path, reason)
    return IncompleteRunError(
        f"{path} could not be written ({reason}); it is as it was and what was measured is saved. Make room and "
        "repeat the command."
    )


def _unwritable(path: Path, reason: str) -> InputError:
    return InputError(f"{path} cannot be written ({reason}): choose another folder with --save-path.")
