"""One writer a store: a lock held for the life of a run and released by the kernel however the run ends."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from filelock import FileLock, Timeout

from blockscale.errors import InputError


def hold_store(path: Path) -> FileLock:
    """Take ``<path>.lock`` and return it; the caller releases it.

    Raises:
        InputError: another run holds it, or the lock file cannot be made.
    """
    lock_file = path.with_name(path.name + ".lock")
    lock = FileLock(lock_file)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        owner = _owner(lock_file)
        by = f" (pid {owner})" if owner else ""
        raise InputError(
            f"store {path} is in use by another run{by}: wait for it, or give --store another file."
        ) from None
    except OSError as error:
        raise InputError(
            f"store {path} cannot be locked ({error.strerror or error}): give --store a file in a folder that you may "
            "write."
        ) from None
    with contextlib.suppress(OSError):  # the number is for people only; the lock holds without it
        lock_file.write_text(f"{os.getpid()}\n")
    return lock


def _owner(lock_file: Path) -> str | None:
    try:
        text = lock_file.read_text().strip()
    except OSError:
        return None
    return text if text.isdigit() else None
