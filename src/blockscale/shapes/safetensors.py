"""What a checkpoint stores under which name: safetensors headers are read, weights never."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Element type, in the format's spelling (``F8_E4M3``, ``BF16``), and shape of one tensor of a checkpoint."""

    dtype: str
    shape: tuple[int, ...]
