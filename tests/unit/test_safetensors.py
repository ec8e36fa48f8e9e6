"""Headers and indices of checkpoints: what they say, and one message for each way of being broken."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from blockscale.errors import InputError
from blockscale.shapes.safetensors import NoTensorsError, StoredTensor, read_folder, read_header

WEIGHT = {"dtype": "F8_E4M3", "shape": [256, 128], "data_offsets": [0, 32768]}
SCALE = {"dtype": "F32", "shape": [2, 1], "data_offsets": [32768, 32776]}


def stored(header: object, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text


def test_a_folder_with_one_file(tmp_path: Path) -> None:
    header = {"__metadata__": {"format": "pt"}, "a.weight": WEIGHT, "a.weight_scale_inv": SCALE}
    (tmp_path / "model.safetensors").write_bytes(stored(header) + b"\0" * 32776)
    assert read_folder(tmp_path) == {
        "a.weight": StoredTensor("F8_E4M3", (256, 128)),
        "a.weight_scale_inv": StoredTensor("F32", (2, 1)),
    }


def test_the_index_says_which_files_count(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "1.safetensors", "b": "2.safetensors", "c": "1.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "1.safetensors").write_bytes(stored({"a": WEIGHT, "c": SCALE}))
    (tmp_path / "consolidated.safetensors").write_bytes(stored({"d": SCALE}))
    with pytest.raises(NoTensorsError, match=r"names without shapes.*of 2 shards: 1 of these are not there \(2\.safe"):
        read_folder(tmp_path)
    (tmp_path / "2.safetensors").write_bytes(stored({"b": SCALE}))
    assert set(read_folder(tmp_path)) == {"a", "b", "c"}


def test_without_an_index_a_second_copy_of_the_weights_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "consolidated.safetensors").write_bytes(stored({"d": SCALE}))
    assert set(read_folder(tmp_path)) == {"d"}
    (tmp_path / "model.safetensors").write_bytes(stored({"a": WEIGHT}))
    assert set(read_folder(tmp_path)) == {"a"}


def test_without_an_index_the_names_of_shards_say_how_many_there_are(tmp_path: Path) -> None:
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(stored({"a": WEIGHT}))
    with pytest.raises(NoTensorsError, match=r"model-00002-of-00002\.safetensors is not there"):
        read_folder(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").write_bytes(stored({"b": SCALE}))
    assert set(read_folder(tmp_path)) == {"a", "b"}


def test_a_folder_without_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(NoTensorsError, match=r"neither .*index\.json nor a \.safetensors"):
        read_folder(tmp_path)


def entry(**changes: object) -> dict[str, Any]:
    return {"a": {**WEIGHT, **changes}}


BROKEN = {
    "empty": (b"", "it has 0 bytes"),
    "a length alone is cut": (b"\1\0\0", "it has 3 bytes"),
    "too long": (stored({}, 100_000_001), "claims 100,000,001 bytes, and the format allows 100,000,000"),
    "an absurd length": (b"\xff" * 64, "claims 18,446,744,073,709,551,615 bytes"),
    "cut": (stored({"a": WEIGHT}, 1000), r"claims 1,000 bytes, and \d+ follow"),
    "no JSON": (stored(b"\x80\xff{"), "JSON cannot be read"),
    "nested without end": (stored(b"[" * 100_000), "JSON cannot be read"),
    "no object": (stored([1]), "its JSON is no object"),
    "an entry that is no object": (stored({"a": 1}), "tensor 'a' lacks"),
    "no element type": (stored(entry(dtype=8)), "tensor 'a' lacks"),
    "a shape of text": (stored(entry(shape=["256"])), "tensor 'a' lacks"),
    "a negative side": (stored(entry(shape=[-256, 128])), "tensor 'a' lacks"),
    "a side beyond any file": (stored(entry(shape=[2**63])), "tensor 'a' lacks"),
    "one offset": (stored(entry(data_offsets=[0])), "tensor 'a' lacks"),
    "a shape that its place belies": (stored(entry(shape=[256, 256])), "takes 65536 bytes, and 32768 are kept"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_header_that_lies_is_one_message(name: str, tmp_path: Path) -> None:
    content, reason = BROKEN[name]
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(InputError, match=rf"model\.safetensors is not what the safetensors format says \(.*{reason}"):
        read_header(path)


@pytest.mark.parametrize(
    ("index", "reason"),
    [
        ("{", "JSON cannot be read"),
        ("[]", "no object"),
        ("{}", "no weight_map"),
        ('{"weight_map": {}}', "no weight_map"),
        ('{"weight_map": {"a": "../../secret"}}', "no file beside it"),
        ('{"weight_map": {"a": "a\\u0000b"}}', "no file beside it"),
        ('{"weight_map": {"a": ""}}', "no file beside it"),
        ('{"weight_map": {"a": "\\ud800"}}', "no file beside it"),
    ],
)
def test_an_index_that_lies_is_one_message(index: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(InputError, match=rf"index\.json is not what the safetensors format says \(.*{reason}"):
        read_folder(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json"])
def test_a_pipe_is_not_read(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(InputError, match="is no file"):
        read_folder(tmp_path)
