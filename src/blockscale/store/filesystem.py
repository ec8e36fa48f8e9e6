"""Where a store may lie: in a writable folder of a local disk."""

from __future__ import annotations

import os
from pathlib import Path

from blockscale.errors import InputError
from blockscale.paths import PathKind, kind_at, reason_of

# WAL needs memory shared between processes and locks that hold; over a network there is neither.
_NETWORK = {
    "9p",
    "afs",
    "beegfs",
    "ceph",
    "cifs",
    "glusterfs",
    "gpfs",
    "lustre",
    "ncpfs",
    "nfs",
    "nfs4",
    "orangefs",
    "panfs",
    "pvfs2",
    "smb3",
    "smbfs",
    "wekafs",
}
_NETWORK_FUSE = {
    "ceph",
    "cephfs",
    "gcsfuse",
    "glusterfs",
    "goofys",
    "gvfsd-fuse",
    "juicefs",
    "mountpoint-s3",
    "rclone",
    "s3fs",
    "sshfs",
}


MOUNT_TABLE = Path("/proc/self/mounts")
_WAY_OUT = "give --store another file"


def locate(path: Path) -> Path:
    """The absolute path of a store, its home folder put in and symbolic links followed.

    Raises:
        InputError: there is no such home folder, the links form a loop, or the working directory is gone.
    """
    try:
        return path.expanduser().resolve()
    except (OSError, RuntimeError) as error:  # pathlib raises RuntimeError for homes and loops
        raise InputError(f"store {path} cannot be reached ({reason_of(error)}): {_WAY_OUT}.") from None


def check_location(path: Path, mount_table: Path = MOUNT_TABLE) -> None:
    """Refuse a place where a store cannot lie; ``mount_table`` tells which folders are on a network.

    Raises:
        InputError: ``path`` is something else than a file, its folder is missing, not writable, or on a network file
            system.
    """
    folder = path.parent
    kind = kind_at(path, _WAY_OUT)
    if kind is PathKind.FOLDER:
        raise InputError(f"store {path} is a folder: give --store the name of a file in it.")
    if kind is PathKind.OTHER:
        raise InputError(f"store {path} is a pipe, socket or device: give --store an ordinary file.")
    if kind_at(folder, _WAY_OUT) is not PathKind.FOLDER:
        raise InputError(f"store {path}: the folder {folder} does not exist: create it, or give --store another file.")
    if not os.access(folder, os.W_OK | os.X_OK) or (kind and not os.access(path, os.R_OK | os.W_OK)):
        raise InputError(f"store {path} cannot be written: give --store a file that you may write.")
    network = network_filesystem(path, mount_table)
    if network is not None:
        raise InputError(
            f"store {path} is on a network file system ({network}), where concurrent runs could damage it: "
            "give --store a file on a local disk."
        )


def network_filesystem(path: Path, mount_table: Path) -> str | None:
    """Type of the network file system that holds ``path``, None on a local one or where the table cannot be read.

    ``mount_table`` has the format of ``/proc/self/mounts``; the longest mount point above the path decides, and of two
    mounts on one point the later one, which hides the earlier.
    """
    try:
        lines = mount_table.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    longest, kind = -1, ""
    for line in lines:
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = Path(_unescape(fields[1]))
        if path.is_relative_to(point) and len(point.parts) >= longest:
            longest, kind = len(point.parts), fields[2]
    is_network = kind in _NETWORK or (kind.startswith("fuse.") and kind.removeprefix("fuse.") in _NETWORK_FUSE)
    return kind if is_network else None


def _unescape(field: str) -> str:
    """The kernel writes space, tab, newline and backslash as octal numbers."""
    for code, sign in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(code, sign)
    return field
