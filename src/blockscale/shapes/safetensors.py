"""What a checkpoint stores under which name: safetensors indices and headers are read, weights never.

The format: 8 bytes with the header's length, little-endian, then a JSON object of names with element type, shape and
place in the rest of the file (huggingface/safetensors, README, read in December 2026).
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from blockscale.errors import InputError
from blockscale.paths import PathKind, first_bytes, kind_at, reason_of

INDEX = "model.safetensors.index.json"

# The format's own reader takes no longer header.
_LARGEST_HEADER_BYTES = 100_000_000
_LARGEST_INDEX_BYTES = 100_000_000
_LENGTH_BYTES = 8
_NUMBERED = re.compile(r"(?P<stem>.+)-(?P<number>[0-9]{5,6})-of-(?P<of>[0-9]{5,6})\.safetensors")
_MOST_SHARDS = 10_000

_WAY_OUT = "fetch the checkpoint again, or give sizes with --N and --K"

_BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64"), 64),
}


class NoTensorsError(InputError):
    """Nothing is wrong with the checkpoint, but there is none here, or not all of it."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Element type, in the format's spelling (``F8_E4M3``, ``BF16``), and shape of one tensor of a checkpoint."""

    dtype: str
    shape: tuple[int, ...]


def read_folder(folder: Path) -> dict[str, StoredTensor]:
    """All tensors of the checkpoint in a folder: the shards that its index names, else ``model.safetensors`` alone, for
    others may hold the same weights under other names, else every ``*.safetensors``.

    Raises:
        NoTensorsError: there is no safetensors file, or a shard is missing.
        InputError: an index or a header is not what the format says.
    """
    if kind_at(folder / INDEX, _WAY_OUT) is None:
        shards = tuple(folder.glob("model.safetensors")) or tuple(sorted(folder.glob("*.safetensors")))
        if not shards:
            raise NoTensorsError(f"{folder} has neither {INDEX} nor a .safetensors file: {_WAY_OUT}.")
        if absent := _absent(shards):
            raise NoTensorsError(f"{folder} has shards and no {INDEX}, and {absent} is not there: {_WAY_OUT}.")
    else:
        names = _shards_of(folder / INDEX)
        missing = [name for name in names if kind_at(folder / name, _WAY_OUT) is not PathKind.FILE]
        if missing:
            more = " and more" if len(missing) > 1 else ""
            raise NoTensorsError(
                f"{INDEX} in {folder} gives names without shapes, which are in the headers of {len(names)} shards: "
                f"{len(missing)} of these are not there ({missing[0]}{more}): {_WAY_OUT}."
            )
        shards = tuple(folder / name for name in names)
    return {name: tensor for shard in shards for name, tensor in read_header(shard).items()}


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one safetensors file.

    Raises:
        InputError: the file cannot be read, is cut short, or its header is not what the format says.
    """
    if kind_at(path, _WAY_OUT) is not PathKind.FILE:
        raise InputError(f"{path} is no file: {_WAY_OUT}.")
    try:
        with path.open("rb") as file:
            prefix = file.read(_LENGTH_BYTES)
            length = int.from_bytes(prefix, "little")
            if len(prefix) == _LENGTH_BYTES and length <= _LARGEST_HEADER_BYTES:
                return _tensors(path, _json_object(path, _whole(path, file.read(length), length)))
    except OSError as error:
        raise InputError(f"{path} cannot be read ({reason_of(error)}): give a readable file.") from error
    if len(prefix) < _LENGTH_BYTES:
        raise _broken(path, f"it has {len(prefix)} bytes, and the length of a header takes {_LENGTH_BYTES}")
    raise _broken(path, f"its header claims {length:,} bytes, and the format allows {_LARGEST_HEADER_BYTES:,}")


def _whole(path: Path, header: bytes, length: int) -> bytes:
    if len(header) < length:
        raise _broken(path, f"its header claims {length:,} bytes, and {len(header):,} follow")
    return header


def _tensors(path: Path, header: dict[str, Any]) -> dict[str, StoredTensor]:
    return {name: _tensor(path, name, entry) for name, entry in header.items() if name != "__metadata__"}


def _tensor(path: Path, name: str, entry: Any) -> StoredTensor:
    fields = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = (fields.get(field) for field in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or not _sizes(shape) or not _sizes(offsets) or len(offsets) != 2:
        raise _broken(path, f"tensor {name!r} lacks an element type, a shape or a place")
    stored = (offsets[1] - offsets[0]) * 8
    needed = math.prod(shape) * _BITS[dtype] if dtype in _BITS else stored
    if stored != needed:
        sides = "×".join(map(str, shape)) or "one element"
        raise _broken(
            path, f"tensor {name!r} of {dtype}, {sides}, takes {needed // 8} bytes, and {stored // 8} are kept"
        )
    return StoredTensor(dtype, tuple(shape))


def _sizes(value: Any) -> TypeGuard[list[int]]:
    """Whether it is a list of few sizes that a file can have."""
    return (
        isinstance(value, list) and len(value) <= 16 and all(type(each) is int and 0 <= each < 2**63 for each in value)
    )


def _absent(shards: tuple[Path, ...]) -> str | None:
    """The first shard that names like ``model-00001-of-00004.safetensors`` promise and that is not among them."""
    there = {shard.name for shard in shards}
    for name in sorted(there):
        if numbered := _NUMBERED.fullmatch(name):
            digits, last = len(numbered["number"]), min(int(numbered["of"]), _MOST_SHARDS)
            named = (f"{numbered['stem']}-{i:0{digits}}-of-{numbered['of']}.safetensors" for i in range(1, last + 1))
            return next((each for each in named if each not in there), None)
    return None


def _shards_of(index: Path) -> tuple[str, ...]:
    text = first_bytes(index, _LARGEST_INDEX_BYTES, _WAY_OUT)
    if len(text) > _LARGEST_INDEX_BYTES:
        raise _broken(index, f"it is longer than {_LARGEST_INDEX_BYTES:,} bytes")
    shards = _json_object(index, text).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise _broken(index, "it has no weight_map from tensors to shards")
    names = tuple(dict.fromkeys(map(str, shards.values())))
    outside = next((name for name in names if not (name and name.isprintable() and Path(name).name == name)), None)
    if outside is not None:
        raise _broken(index, f"{outside!r} is no file beside it")
    return names


def _json_object(path: Path, text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _broken(path, f"its JSON cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise _broken(path, "its JSON is no object")
    return value


def _broken(path: Path, why: str) -> InputError:
    return InputError(f"{path} is not what the safetensors format says ({why}): {_WAY_OUT}.")
