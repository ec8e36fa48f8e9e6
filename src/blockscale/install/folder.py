"""An engine's config folder: files replaced with their originals kept, and put back.

In ``.blockscale/``, which engines do not read, ``installed.json`` says for each file what it was and what was written
in its place (SHA-256), and ``originals/`` holds the files that were replaced. Original and record are on disk before
the file changes, so an install that was interrupted anywhere can be undone.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from blockscale.engines import PRIVATE_FOLDER, require_writable
from blockscale.engines.atomic import locked, replace_file
from blockscale.engines.files import MalformedJsonError, parse_json, scratch_path
from blockscale.errors import IncompleteRunError, InputError
from blockscale.install import WAY_OUT
from blockscale.paths import reason_of


class Outcome(StrEnum):
    """What undoing did with a file."""

    RESTORED = "restored"
    REMOVED = "removed"
    LEFT = "left"  # somebody else has changed it since


@dataclass(frozen=True, slots=True)
class Undone:
    """What undoing did with a file; ``original`` is where the engine's own is kept if it could not be put back."""

    outcome: Outcome
    original: Path | None = None


@dataclass(frozen=True, slots=True)
class _Record:
    """What a file was (None: not there) and the hashes of all that installs have put in its place."""

    before: str | None
    ours: tuple[str, ...]


class ConfigFolder:
    """The config folder of an installed engine."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._private = path / PRIVATE_FOLDER
        self._journal = self._private / "installed.json"
        self._originals = self._private / "originals"

    def require_writable(self) -> None:
        """Make sure that files can be replaced here.

        Raises:
            InputError: it may not be written: another's files, or the read-only layer of a container.
        """
        made = [each for each in (self._private, self.path) if not each.exists()]
        try:
            with _or_way_out(self.path):
                require_writable(self.path)
        finally:
            for each in made:
                with contextlib.suppress(OSError):
                    each.rmdir()

    @property
    def installed(self) -> tuple[str, ...]:
        """Names of the files that were installed here and not put back since."""
        return tuple(sorted(self._records()))

    def put(self, target: Path, before: bytes | None, after: bytes) -> None:
        """Replace ``target``, which holds ``before``, by ``after``, and keep what undoing needs.

        Raises:
            InputError: the folder cannot be written.
            IncompleteRunError: the disk is full, or another program changed the file.
        """
        name = target.name
        with _or_way_out(self.path):
            require_writable(self.path)
            with locked(self.path / self._journal.name), locked(target):
                if content_of(target) != before:
                    raise IncompleteRunError(f"{target}: another program changed it meanwhile: repeat the command.")
                records = self._records()
                now, old = _hash(before), records.get(name)
                if old is not None and (now == old.before or now in old.ours):
                    records[name] = _Record(old.before, (*old.ours, _sha256(after)))
                else:
                    if before is not None:
                        self._originals.mkdir(exist_ok=True)
                        replace_file(self._originals / name, before, scratch_path(target))
                    records[name] = _Record(now, (_sha256(after),))
                self._write(records)
                replace_file(target, after, scratch_path(target))

    def undo(self) -> dict[str, Undone]:
        """Put every file back that still is as an install left it; says by name what was done.

        Of one that is left as it is the original stays; the next install goes on from what the file is now.

        Raises:
            InputError: the folder cannot be written.
            IncompleteRunError: the disk is full; the same command goes on.
        """
        done: dict[str, Undone] = {}
        with _or_way_out(self.path):
            require_writable(self.path)
            with locked(self.path / self._journal.name):
                records = self._records()
                for name in sorted(records):
                    with locked(self.path / name):
                        outcome = self._restore(name, records.pop(name))
                        self._write(records)
                    original = self._originals / name
                    if outcome is not Outcome.LEFT:
                        original.unlink(missing_ok=True)
                    done[name] = Undone(outcome, original if original.exists() else None)
        with contextlib.suppress(OSError):
            self._originals.rmdir()
        return done

    def _restore(self, name: str, record: _Record) -> Outcome:
        target = self.path / name
        now = _hash(content_of(target))
        if now != record.before and now not in record.ours:
            return Outcome.LEFT
        if record.before is None:
            target.unlink(missing_ok=True)
            return Outcome.REMOVED
        if now != record.before:
            original = content_of(self._originals / name)
            if _hash(original) != record.before or original is None:
                return Outcome.LEFT
            replace_file(target, original, scratch_path(target))
        return Outcome.RESTORED

    def _records(self) -> dict[str, _Record]:
        data = content_of(self._journal)
        if data is None:
            return {}
        try:
            value: dict[str, Any] = parse_json(data)
            return {Path(name).name: _Record(each["before"], tuple(each["ours"])) for name, each in value.items()}
        except (MalformedJsonError, AttributeError, KeyError, TypeError) as error:
            raise InputError(
                f"{self._journal} is damaged, so what was installed is not known: move it away and install the engine "
                "again."
            ) from error

    def _write(self, records: dict[str, _Record]) -> None:
        if not records:
            self._journal.unlink(missing_ok=True)
            return
        value = {name: {"before": each.before, "ours": list(each.ours)} for name, each in records.items()}
        replace_file(self._journal, (json.dumps(value, indent=2) + "\n").encode(), self._journal.with_suffix(".tmp"))


def content_of(path: Path) -> bytes | None:
    """The bytes of a file, None where there is none.

    Raises:
        InputError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({reason_of(error)}): move it away, or {WAY_OUT}.") from error


@contextlib.contextmanager
def _or_way_out(folder: Path) -> Iterator[None]:
    """Say of a folder that cannot be written what else there is."""
    try:
        yield
    except OSError as error:
        raise InputError(_unwritable(folder, error)) from error
    except InputError as error:
        if "cannot be written" not in str(error):
            raise
        raise InputError(_unwritable(folder, error.__cause__)) from error


def _unwritable(folder: Path, cause: BaseException | None) -> str:
    reason = reason_of(cause) if isinstance(cause, OSError) else "permission denied"
    return f"the engine's config folder {folder} cannot be written ({reason}): run as its owner, or {WAY_OUT}."


def _hash(data: bytes | None) -> str | None:
    return None if data is None else _sha256(data)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
