"""What a file's name says, whose it is, and which names no engine ever looks for."""

from pathlib import Path

import pytest

from blockscale.checking.devices import as_reported, is_reported, known_spec
from blockscale.checking.findings import Code, Finding, Severity
from blockscale.checking.names import NameKind, kind_of, read_name, spelled_for
from blockscale.checking.one_file import check_file
from blockscale.engines import engine

VLLM = "N=512,K=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json"
SGLANG = "N=512,K=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json"
CONTENT = (
    '{"1": {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1, "num_warps": 4, '
    '"num_stages": 3}}'
)


def findings(folder: Path, name: str, engine_name: str = "vllm", version: str | None = None) -> dict[Code, Finding]:
    path = folder / name
    path.write_text(CONTENT)
    return {each.code: each for each in check_file(path, engine(engine_name, version)).findings}


@pytest.mark.parametrize(
    "name",
    [
        SGLANG,
        VLLM.removesuffix(".json"),
        VLLM.replace(".json", "json"),
        VLLM + ".json",
        VLLM + ".txt",
        VLLM.replace(".json", ".JSON"),
        VLLM.replace("NVIDIA_H200", "NVIDIA H200"),
        VLLM.replace("NVIDIA_H200", "nvidia_h200"),
        VLLM.replace("NVIDIA_H200", "NVIDIA-H200"),
        VLLM.replace("NVIDIA_H200", "NVIDIA_H200_"),
        VLLM.replace(",K=", ", K="),
        VLLM.replace("N=512", "n=0512"),
        VLLM.replace("[128,128]", "128,128"),
        VLLM.replace("[128,128]", "(128,128)"),
        VLLM.replace("fp8_w8a8", "FP8_W8A8"),
    ],
)
def test_names_that_an_engine_does_not_look_for_are_put_right(tmp_path: Path, name: str) -> None:
    found = findings(tmp_path, name)
    assert list(found) == [Code.NEVER_FOUND]
    assert f"vllm {engine('vllm').version} looks for {VLLM} and not for this: --fix" in found[Code.NEVER_FOUND].message
    assert found[Code.NEVER_FOUND].fixable


def test_the_space_is_sglangs(tmp_path: Path) -> None:
    assert findings(tmp_path, SGLANG, "sglang") == {}
    assert list(findings(tmp_path, VLLM, "sglang")) == [Code.NEVER_FOUND]


def test_a_name_whose_right_form_is_taken_is_not_fixable(tmp_path: Path) -> None:
    (tmp_path / VLLM).write_text("{}")
    found = findings(tmp_path, SGLANG)[Code.NEVER_FOUND]
    assert not found.fixable
    assert "there already" in found.message


@pytest.mark.parametrize(
    "name",
    [
        VLLM.replace("NVIDIA_H200", ""),
        VLLM.replace("NVIDIA_H200", " "),
        VLLM.replace("NVIDIA_H200", "None"),
        VLLM.replace("NVIDIA_H200", "cuda:0"),
        VLLM.replace("N=512", "N=0"),
        VLLM.replace("N=512", "N=-512"),
        VLLM.replace("K=7168", "K=many"),
        VLLM.replace("K=7168", "K=٧"),
        VLLM.replace("N=512,", ""),
        VLLM.replace(",block_shape=[128,128]", ""),
        VLLM.replace("128,128", "128"),
        VLLM.replace("128,128", "0,128"),
        VLLM + ".bak",
        "config.json",
    ],
)
def test_names_that_tell_too_little_to_be_put_right(tmp_path: Path, name: str) -> None:
    found = findings(tmp_path, name)
    assert list(found) == [Code.NEVER_FOUND]
    assert not found[Code.NEVER_FOUND].fixable


@pytest.mark.parametrize("device", ["NVIDIA_H999", "NVIDIA_H100", "H200", "0x75b0", "Quantum_One"])
def test_devices_that_no_driver_reports(tmp_path: Path, device: str) -> None:
    found = findings(tmp_path, VLLM.replace("NVIDIA_H200", device))
    assert list(found) == [Code.DEVICE_UNKNOWN]
    assert found[Code.DEVICE_UNKNOWN].severity is Severity.WARNING
    assert device in found[Code.DEVICE_UNKNOWN].message


def test_what_is_never_read(tmp_path: Path) -> None:
    int8 = VLLM.replace("fp8", "int8")
    for name in (int8, int8.replace("128,128", "128, 128"), int8.replace("NVIDIA_H200", "NVIDIA_A100-SXM4-80GB")):
        found = findings(tmp_path, name)
        assert list(found) == [Code.NEVER_READ]
        assert "INT8" in found[Code.NEVER_READ].message
    assert findings(tmp_path, SGLANG.replace("fp8", "int8"), "sglang") == {}
    without_fp8 = findings(tmp_path, VLLM.replace("NVIDIA_H200", "NVIDIA_A100-SXM4-80GB"))
    assert "no FP8" in without_fp8[Code.NEVER_READ].message


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (VLLM, NameKind.BLOCK_GEMM),
        (SGLANG.removesuffix(".json"), NameKind.BLOCK_GEMM),
        ("N=,K=,device_name=", NameKind.BLOCK_GEMM),
        ("E=256,N=128,device_name=NVIDIA_H20,dtype=fp8_w8a8,block_shape=[128, 128].json", NameKind.OTHER_KERNEL),
        ("N=4096,K=4096,device_name=NVIDIA_L40S,dtype=fp8_w8a8_channelwise.json", NameKind.OTHER_KERNEL),
        ("N=1,K=1,device_name=X,dtype=fp8_w8a8_per_token,input_dtype=bf16,out_dtype=bf16.json", NameKind.OTHER_KERNEL),
        ("N=1,K=1,device_name=X,dtype=int8_w8a16,block_shape=[128,128].json", NameKind.OTHER_KERNEL),
        (f"{VLLM}.unreadable-1", NameKind.SET_ASIDE),
        (f"{VLLM}.bak", NameKind.SET_ASIDE),
        (f"{VLLM}~", NameKind.SET_ASIDE),
        ("README.md", NameKind.OTHER),
        ("package.json", NameKind.OTHER),
    ],
)
def test_kinds_of_names(name: str, kind: NameKind) -> None:
    assert kind_of(name) is kind


def test_spellings() -> None:
    assert (spelled_for(SGLANG), spelled_for(VLLM), spelled_for("config.json")) == ("sglang", "vllm", None)
    assert read_name(SGLANG) == read_name(VLLM)


@pytest.mark.parametrize(
    ("device", "arch"),
    [
        ("NVIDIA_H200", "sm_90"),
        ("NVIDIA_H100_80GB_HBM3", "sm_90"),
        ("NVIDIA_H100_80GB_HBM3_MIG_1g.10gb", "sm_90"),
        ("NVIDIA_H20-3e", "sm_90"),
        ("NVIDIA_A100-SXM4-80GB", "sm_80"),
        ("NVIDIA_L40S", "sm_89"),
        ("NVIDIA_GeForce_RTX_4090_D", "sm_89"),
        ("NVIDIA_GeForce_RTX_5090", "sm_120"),
        ("NVIDIA_RTX_PRO_6000_Blackwell_Workstation_Edition", "sm_120"),
        ("NVIDIA_RTX_6000_Ada_Generation", "sm_89"),
        ("NVIDIA_B200", "sm_100"),
        ("AMD_Instinct_MI300X", "gfx942"),
        ("AMD_Instinct_MI325_OAM", "gfx942"),
        ("MI308X", "gfx942"),
        ("AMD_Instinct_MI355X", "gfx950"),
        ("AMD_Instinct_MI455X", "gfx1250"),
    ],
)
def test_known_devices(device: str, arch: str) -> None:
    spec = known_spec(device)
    assert spec is not None
    assert spec.arch == arch
    assert is_reported(device)


@pytest.mark.parametrize(
    "device",
    [
        "NVIDIA_L20Y",
        "AMD_Radeon_Graphics",
        "AMD_Radeon_8060S",
        "Radeon_8060S_Graphics",
        "AMD_Radeon_RX7900XTX",
        "Intel(R)_Arc(TM)_Pro_B70_Graphics",
    ],
)
def test_devices_whose_names_tell_no_architecture(device: str) -> None:
    assert known_spec(device) is None
    assert is_reported(device)


def test_limits_of_the_h200_are_those_that_tuning_uses() -> None:
    from blockscale.hardware import H200

    spec = known_spec("NVIDIA_H200")
    assert spec is not None
    for limit in ("name", "vendor", "arch", "shared_memory_bytes", "registers_per_unit", "warp_size"):
        assert getattr(spec, limit) == getattr(H200, limit)
    assert as_reported("nvidia h200") == "NVIDIA_H200"
