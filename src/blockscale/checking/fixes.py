"""What can be put right without a person: names, notes among the keys, the order of keys, bytes."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from blockscale.checking.content import Content, read_content
from blockscale.checking.findings import Code
from blockscale.checking.ladder import batch_size
from blockscale.checking.one_file import CheckedFile, note_keys, right_name
from blockscale.engines.atomic import PRIVATE_FOLDER, locked, replace_file, require_writable
from blockscale.engines.files import MalformedJsonError, keep_notes, scratch_path, sidecar_path
from blockscale.errors import InputError
from blockscale.paths import reason_of

_NO_HARD_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})


@dataclass(slots=True)
class Fixed:
    """Where a fixed file lies now, what was done to it, and why the rest was not."""

    path: Path
    done: list[str] = field(default_factory=list)
    failure: str | None = None


def fix_file(file: CheckedFile) -> Fixed:
    """Put right what is fixable of a checked file.

    The content is replaced whole under the lock of other writers, after a copy of it was kept in the private folder;
    the name is changed last, to one that no file has.

    Raises:
        IncompleteRunError: the disk is full, or another process keeps the lock; the file is as it was.
    """
    fixed = Fixed(file.path)
    codes = {each.code for each in file.findings if each.fixable}
    try:
        if codes - {Code.NEVER_FOUND}:
            real = Path(os.path.realpath(file.path))
            require_writable(real.parent)
            with locked(real):
                fixed.done += _fix_content(real)
        if Code.NEVER_FOUND in codes and (name := right_name(file.subject)):
            _rename(file.path, file.path.with_name(name))
            fixed.path = file.path.with_name(name)
            fixed.done.append(f"renamed to {name}")
    except FileExistsError as error:  # another file of the run may have got it just now
        fixed.failure = f"{Path(error.filename2).name} is there already: compare the two and delete one"
    except InputError:
        fixed.failure = f"{file.path.parent} cannot be written: fix a copy, or have its owner do it"
    except OSError as error:
        fixed.failure = f"{reason_of(error)}: fix a copy, or have its owner do it"
    return fixed


def _fix_content(path: Path) -> Iterator[str]:
    data = path.read_bytes()
    try:
        content = read_content(data)
    except MalformedJsonError:  # somebody else has changed it meanwhile
        return
    new = content.rewritten(_right_keys(content)).encode()
    if new != data:
        notes = {key: content.members[key] for key in note_keys(content)}
        backup = _keep(path, data)
        if notes:
            keep_notes(path, notes)
        replace_file(path, new, scratch_path(path))
        yield f"rewritten, the former content is {PRIVATE_FOLDER}/{backup.name}"
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o111:
        path.chmod(mode & ~0o111)
        yield "no longer a program"


def _right_keys(content: Content) -> list[str]:
    """Keys of batch sizes in numeric order."""
    notes = set(note_keys(content))
    return sorted((key for key in content.members if key not in notes), key=lambda key: batch_size(key) or 0)


def _keep(path: Path, data: bytes) -> Path:
    """Keep the bytes under a free name in the private folder; a copy of an interrupted fix is taken as done."""
    number = 1
    while True:
        kept = path.parent / PRIVATE_FOLDER / f"{path.name}.before-fix-{number}"
        if not kept.exists():
            replace_file(kept, data, scratch_path(path))
            return kept
        if kept.read_bytes() == data:
            return kept
        number += 1


def _rename(path: Path, new: Path) -> None:
    """Give a file and its sidecar another name that nothing has; a file that is there stays.

    Raises:
        OSError: the name is taken, or the folder cannot be written.
    """
    require_writable(path.parent)
    first, second = sorted((path, new))
    with locked(first), locked(second):
        _move(path, new)
        old_sidecar, new_sidecar = sidecar_path(path), sidecar_path(new)
        if old_sidecar.is_file() and not os.path.lexists(new_sidecar):
            _move(old_sidecar, new_sidecar)


def _move(path: Path, new: Path) -> None:
    try:
        os.link(path, new, follow_symlinks=False)  # fails where the name is taken, a rename would replace
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS or os.path.lexists(new):
            raise
        path.rename(new)
    else:
        path.unlink()
