"""Digest of the kernels' source, for the environment of a measurement. Without torch."""

from __future__ import annotations

import hashlib
from pathlib import Path

_MODULES = ("tiles.py", "fp8.py", "fp8_unrolled.py", "fp8_hopper.py", "int8.py", "launch.py")


def kernel_sources_hash() -> str:
    """sha256 over the modules that decide what a launch computes and how fast: the kernels and their launch."""
    digest = hashlib.sha256()
    for name in _MODULES:
        source = Path(__file__).with_name(name).read_bytes()
        digest.update(f"{name} {len(source)}\n".encode() + source)
    return digest.hexdigest()
