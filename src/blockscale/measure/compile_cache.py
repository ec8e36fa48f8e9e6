"""The folder in which Triton keeps what the compile pool made; ours alone, so that it can be bounded."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

log = logging.getLogger(__name__)

DEFAULT_LIMIT_BYTES = 4 * 1024**3
IN_USE_S = 3600.0


def default_cache_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """``$XDG_CACHE_HOME/blockscale/triton``, absolute: Triton's cache files name each other by absolute path."""
    base = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return (Path(base) / "blockscale" / "triton").absolute()


def prune(folder: Path, limit_bytes: int = DEFAULT_LIMIT_BYTES, in_use_s: float = IN_USE_S) -> int:
    """Delete entries, least recently used first, until ``folder`` holds at most ``limit_bytes``; returns bytes freed.

    An entry touched within ``in_use_s`` seconds may belong to another run and stays.
    """
    entries = sorted(_usage(entry) for entry in _entries(folder))
    total = sum(size for _, size, _ in entries)
    now = time.time()
    freed = 0
    for used_at, size, entry in entries:
        if total - freed <= limit_bytes or now - used_at < in_use_s:
            break
        _remove(entry)
        freed += size
    if freed:
        log.info("pruned %d MiB of compiled kernels from %s", freed >> 20, folder)
    return freed


def drop_unreadable(folder: Path) -> int:
    """Delete entries with a JSON file that does not parse, as a crash or a full disk leaves them; returns how many."""
    dropped = 0
    for entry in _entries(folder):
        try:
            for file in entry.glob("*.json"):
                json.loads(file.read_bytes())
        except ValueError:
            _remove(entry)
            dropped += 1
        except OSError:  # another run is replacing it
            continue
    return dropped


def _entries(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.is_dir()]
    except FileNotFoundError:
        return []


def _usage(entry: Path) -> tuple[float, int, Path]:
    """When an entry was last used (seconds since the epoch), its size in bytes, and itself."""
    used_at, size = 0.0, 0
    with contextlib.suppress(FileNotFoundError):
        for file in entry.iterdir():
            stat = file.stat()
            used_at = max(used_at, stat.st_mtime, stat.st_atime)
            size += stat.st_size
    return used_at, size, entry


def _remove(entry: Path) -> None:
    # Renamed first: a reader finds an entry whole or not at all.
    grave = entry.with_name(f".{entry.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        entry.rename(grave)
        shutil.rmtree(grave, ignore_errors=True)
