"""``check --compile``: the compiler finds what the count of shared memory leaves open."""

import json
from pathlib import Path

import pytest

from blockscale.cli.main import main

ENTRY = {
    "BLOCK_SIZE_M": 256,
    "BLOCK_SIZE_N": 256,
    "BLOCK_SIZE_K": 256,
    "GROUP_SIZE_M": 1,
    "num_warps": 8,
    "num_stages": 1,
}


def test_what_compiling_tells(capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "N=512,K=7168,device_name=NVIDIA_L40,dtype=fp8_w8a8,block_shape=[256,256].json"
    small = {**ENTRY, "BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32}
    # Two buffers of 64 KiB; with a single stage they may share one, so the count alone does not refuse it.
    path.write_text(json.dumps({"1": small, "4096": ENTRY, "8192": None}))
    assert main(["check", str(path), "--json"]) == 1
    assert [each["code"] for each in json.loads(capsys.readouterr().out)] == ["not-an-object"]
    assert main(["check", str(path), "--json", "--compile"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [each["code"] for each in found] == ["not-an-object", "smem-overflow"]
    assert found[1]["message"].startswith("key 4096: ")
    assert "131072 bytes required, 101376 on NVIDIA L40" in found[1]["message"]


def test_devices_without_known_limits_are_left_out(capsys, tmp_path: Path) -> None:
    path = tmp_path / "N=512,K=7168,device_name=NVIDIA_L20Y,dtype=fp8_w8a8,block_shape=[256,256].json"
    path.write_text(json.dumps({"16": {**ENTRY, "BLOCK_SIZE_M": 16}}))
    assert main(["check", str(path), "--compile"]) == 0
    assert "1 file checked" in capsys.readouterr().out
