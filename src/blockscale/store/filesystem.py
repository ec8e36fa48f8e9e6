"""Where a store may lie: in a writable folder of a local disk."""

from __future__ import annotations

import os
from pathlib import Path

from blockscale.errors import InputError

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


def check_location(path: Path, mount_table: Path = MOUNT_TABLE) -> None:
    """Refuse a place where a store cannot lie; ``mount_table`` tells which folders are on a network.

    Raises:
        InputError: ``path`` is a folder, its folder is missing, not writable, or on a network file system.
    """
    if path.is_dir():
        raise InputError(f"store {path} is a folder: give --store the name of a file in it.")
    folder = path.parent
    if not folder.is_dir():
        raise InputError(f"store {path}: the folder {folder} does not exist: create it, or give --store another file.")
    if not os.access(folder, os.W_OK | os.X_OK) or (path.exists() and not os.access(path, os.R_OK | os.W_OK)):
        raise InputError(f"store {path} cannot be written: give --store a file that you may write.")
    kind = network_filesystem(path, mount_table)
    if kind is not None:
        raise InputError(
            f"store {path} is on a network file system ({kind}), where concurrent runs could damage it: "
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
