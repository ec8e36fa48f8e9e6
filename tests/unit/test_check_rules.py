"""Each rule that a config file can break: its code, its severity, and what the message tells."""

import json
from pathlib import Path

import pytest

from blockscale.checking.findings import Code, Finding, Severity
from blockscale.checking.one_file import check_file
from blockscale.engines import engine
from blockscale.problem import TileConfig
from blockscale.tuning.request import STOCK_BATCH_SIZES

ENTRY = TileConfig(64, 64, 128, num_warps=4, num_stages=3).to_entry()
H200, B200, L40 = "NVIDIA_H200", "NVIDIA_B200", "NVIDIA_L40"
MI300X, ARC = "AMD_Instinct_MI300X", "Intel(R)_Arc(TM)_Pro_B70_Graphics"
FULL = {str(m): ENTRY for m in STOCK_BATCH_SIZES}


def name(engine_name="vllm", device=H200, n=512, k=7168, dtype="fp8", block=(128, 128)):
    gap = ", " if engine_name == "sglang" else ","
    return f"N={n},K={k},device_name={device},dtype={dtype}_w8a8,block_shape=[{block[0]}{gap}{block[1]}].json"


def entry(**changes):
    """A sound entry with some fields changed, and those left out that are None."""
    return {field: value for field, value in {**ENTRY, **changes}.items() if value is not None}


def with_entry(key="16", **changes):
    return {**FULL, key: entry(**changes)}


@pytest.fixture
def check(tmp_path: Path):
    """Checks a file of this content; gives the findings by code."""

    def check(content, engine_name="vllm", version=None, **named) -> dict[Code, Finding]:
        path = tmp_path / name(engine_name, **named)
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        findings = check_file(path, engine(engine_name, version)).findings
        assert len({each.code for each in findings}) == len(findings)
        return {each.code: each for each in findings}

    return check


@pytest.mark.parametrize("engine_name", ["sglang", "vllm"])
@pytest.mark.parametrize("device", [H200, B200, L40, MI300X, ARC, "NVIDIA_H100_80GB_HBM3", "NVIDIA_H200_MIG_1g.18gb"])
def test_a_sound_file_has_no_findings(check, engine_name, device) -> None:
    small = {str(m): entry(BLOCK_SIZE_M=16, num_stages=2) for m in STOCK_BATCH_SIZES}
    assert check(small, engine_name, device=device) == {}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not JSON"),
        (json.dumps(FULL).encode()[:-1], "not JSON"),
        (json.dumps(FULL).encode()[: len(json.dumps(FULL)) // 2], "not JSON"),
        (b"\xff\xfe{\x00}\x00", "not UTF-8"),
        (b'{"1": {}, "1": {}}', "'1' stands there twice"),
        (b'{"1": {"num_warps": 4, "num_warps": 8}}', "'num_warps' stands there twice"),
        (b'{"16": {}, " 16": {}}', "'16', ' 16' are the same batch size"),
        (b'{"1": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested deeper"),
        (b'{"1": ' + b"[" * 60 + b"]" * 60 + b"}", "nested deeper"),
        (b'{"1": ' + b"9" * 5000 + b"}", "not JSON"),
        (b" " * (4 << 20) + b"{}", "more than 4 MiB"),
        (b'{"' + b"k" * 10**6 + b'": 1, "' + b"k" * 10**6 + b'": 2}', f"{'k' * 40}' stands there twice"),
    ],
    ids=range(12),
)
@pytest.mark.parametrize("engine_name", ["sglang", "vllm"])
def test_what_cannot_be_read(check, engine_name, content, said) -> None:
    found = check(content, engine_name)
    assert list(found) == [Code.UNREADABLE]
    assert found[Code.UNREADABLE].severity is Severity.ERROR
    assert said in found[Code.UNREADABLE].message


@pytest.mark.parametrize("content", [[], None, 1, "text", True, [FULL]])
def test_a_top_level_that_is_no_object(check, content) -> None:
    assert list(check(content)) == [Code.NOT_AN_OBJECT]


@pytest.mark.parametrize(("value", "said"), [(None, "null"), ([], "an array"), ("x", "a string"), (5, "a number")])
@pytest.mark.parametrize("engine_name", ["sglang", "vllm"])
def test_an_entry_that_is_no_object(check, engine_name, value, said) -> None:
    found = check({**FULL, "8": value, "512": value}, engine_name)
    assert list(found) == [Code.NOT_AN_OBJECT]
    assert f"keys 8, 512: {said}" in found[Code.NOT_AN_OBJECT].message


@pytest.mark.parametrize("key", ["triton_version", "1.5", "", "1e3", "9" * 5000, "\ud800"])
def test_keys_that_are_no_integers(check, key) -> None:
    found = check({**FULL, key: "3.6.0"})
    assert list(found) == [Code.KEY_NOT_INTEGER]
    assert found[Code.KEY_NOT_INTEGER].fixable
    assert "sidecar" in found[Code.KEY_NOT_INTEGER].message


@pytest.mark.parametrize("key", ["0", "-1", "-4096"])
def test_keys_that_no_launch_has(check, key) -> None:
    found = check({key: ENTRY, **FULL})
    assert list(found) == [Code.KEY_NOT_POSITIVE]
    assert found[Code.KEY_NOT_POSITIVE].fixable


@pytest.mark.parametrize("field", ["BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps"])
@pytest.mark.parametrize("engine_name", ["sglang", "vllm"])
def test_missing_fields(check, engine_name, field) -> None:
    found = check(with_entry(**{field: None}), engine_name)
    assert list(found) == [Code.FIELD_MISSING]
    assert f"key 16: {field} missing" in found[Code.FIELD_MISSING].message


def test_stages_may_be_left_to_the_compiler(check) -> None:
    assert check(with_entry(num_stages=None)) == {}


@pytest.mark.parametrize(
    ("fields", "engine_name", "version", "named"),
    [
        ({"SPLIT_K": 4}, "vllm", None, {}),
        ({"SWAP_AB": False}, "vllm", None, {}),  # the key alone breaks the launch
        ({"SPLIT_K": 1}, "vllm", "0.8.5", {}),
        ({"SPLIT_K": 4}, "sglang", "0.5.20", {}),
        ({"SWAP_AB": True}, "sglang", "0.5.12", {}),
        ({"SWAP_AB": True}, "sglang", None, {"device": B200}),
        ({"SPLIT_K": 2}, "sglang", None, {"device": MI300X}),
        ({"SPLIT_K": 2}, "sglang", None, {"dtype": "int8"}),
        ({"SWAP_AB": False, "SPLIT_K": 1}, "sglang", None, {}),  # the plain kernel is launched, and has neither
        ({"waves_per_eu": 2}, "vllm", None, {}),
        ({"kpack": 1, "matrix_instr_nonkdim": 16}, "sglang", None, {}),
        ({"waves_per_eu": 2}, "sglang", None, {"device": ARC}),
        ({"USE_TMA": True}, "sglang", None, {}),
        ({"comment": "by hand"}, "vllm", None, {"device": MI300X}),
        ({"block_m": 64}, "vllm", None, {"device": "NVIDIA_H999"}),
    ],
)
def test_fields_that_break_the_launch(check, fields, engine_name, version, named) -> None:
    found = check(with_entry(num_stages=2, **fields), engine_name, version, **named)
    found.pop(Code.DEVICE_UNKNOWN, None)
    assert list(found) == [Code.FIELD_UNKNOWN]
    assert next(iter(fields)) in found[Code.FIELD_UNKNOWN].message


@pytest.mark.parametrize(
    ("fields", "engine_name", "version", "device"),
    [
        ({"SPLIT_K": 4}, "sglang", "0.5.21", H200),
        ({"SWAP_AB": True, "SPLIT_K": 1}, "sglang", "0.5.23", H200),
        ({"SWAP_AB": True}, "sglang", "main", "NVIDIA_H100_80GB_HBM3"),
        ({"num_ctas": 1}, "vllm", None, H200),
        ({"waves_per_eu": 0}, "sglang", None, MI300X),
        ({"kpack": 1, "matrix_instr_nonkdim": 16}, "vllm", None, MI300X),
        ({"grf_mode": "256"}, "vllm", None, ARC),
    ],
)
def test_fields_that_are_taken(check, fields, engine_name, version, device) -> None:
    assert check(with_entry(num_stages=2, **fields), engine_name, version, device=device) == {}


@pytest.mark.parametrize(
    "fields",
    [
        {"BLOCK_SIZE_M": 48},
        {"BLOCK_SIZE_M": 8},
        {"BLOCK_SIZE_N": 0},
        {"BLOCK_SIZE_N": -64},
        {"BLOCK_SIZE_K": 16},
        {"BLOCK_SIZE_K": 96},
        {"BLOCK_SIZE_M": "64"},
        {"BLOCK_SIZE_M": 64.0},
        {"BLOCK_SIZE_M": [64]},
        {"BLOCK_SIZE_M": 2**40},
        {"num_warps": 3},
        {"num_warps": 0},
        {"num_warps": 64},  # 2,048 threads
        {"num_warps": True},
        {"GROUP_SIZE_M": 0},
        {"GROUP_SIZE_M": 1.5},
        {"num_stages": 0},
        {"num_stages": -1},
        {"num_stages": 2**31},
        {"GROUP_SIZE_M": 10**4000},
        {"num_stages": float("nan")},
    ],
    ids=lambda fields: str(fields)[:40],
)
@pytest.mark.parametrize("engine_name", ["sglang", "vllm"])
def test_illegal_values(check, engine_name, fields) -> None:
    found = check(with_entry(**fields), engine_name)
    assert list(found) == [Code.VALUE_ILLEGAL]
    assert "key 16: " in found[Code.VALUE_ILLEGAL].message


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"9" * 4000: ENTRY}),
        json.dumps({"9" * 4000: {**ENTRY, "num_warps": 3}, "16": ENTRY}),
        json.dumps({"9" * 4000: {**ENTRY, "num_stages": 4}, "1": ENTRY}),
        json.dumps({"9" * 4000: ENTRY, "0" + "9" * 4000: ENTRY}),
        json.dumps({"9" * 5000: ENTRY}),
        json.dumps({"16": {**ENTRY, "SPLIT_K": 2**4000}}),
        json.dumps({"16": {**ENTRY, "num_stages": 10**4000}}),
        json.dumps({"16": {**ENTRY, "x" * 4000: 1}}),
    ],
    ids=["late", "fault", "unsorted", "twice", "no-integer", "split", "stages", "field"],
)
def test_messages_stay_short_whatever_the_file_holds(check, text) -> None:
    found = check(text, "sglang")
    assert found
    assert all(len(each.message) < 600 for each in found.values())


@pytest.mark.parametrize("fields", [{"SPLIT_K": 3}, {"SPLIT_K": 0}, {"SWAP_AB": 1}, {"SPLIT_K": True}], ids=str)
def test_illegal_values_of_the_hopper_kernel(check, fields) -> None:
    assert list(check(with_entry(**fields), "sglang")) == [Code.VALUE_ILLEGAL]


def test_partial_sums_beyond_32_bits(check) -> None:
    found = check(with_entry("4096", SPLIT_K=16), "sglang", n=36864)
    assert "32-bit offsets" in found[Code.VALUE_ILLEGAL].message


def test_small_k_tiles_of_versions_that_read_wrong_scales(check) -> None:
    content = with_entry(BLOCK_SIZE_K=64)
    for version in ("0.5.6.post1", "0.5.9"):
        assert list(check(content, "sglang", version)) == [Code.VALUE_ILLEGAL]
        assert check(content, "sglang", version, dtype="int8") == {}
    for version in ("0.5.5.post3", "0.5.10", "main"):
        assert check(content, "sglang", version) == {}
    assert check(content, "vllm") == {}


@pytest.mark.parametrize(
    ("block_k", "engine_name", "version", "named"),
    [
        (256, "vllm", None, {}),
        (256, "vllm", "0.8.5", {"device": MI300X}),
        (256, "sglang", "0.5.23", {}),
        (256, "sglang", "0.5.9", {}),
        (256, "sglang", "main", {"device": MI300X}),
        (256, "sglang", "main", {"dtype": "int8"}),
        (64, "vllm", None, {"block": (32, 32)}),
        (64, "sglang", "0.5.23", {"block": (128, 96)}),
        (256, "sglang", "0.5.23", {"k": 128}),  # steps over no tile at all
    ],
)
def test_k_tiles_that_need_several_scales(check, block_k, engine_name, version, named) -> None:
    content = {str(m): entry(num_stages=2, BLOCK_SIZE_K=named.get("block", (128, 128))[1]) for m in STOCK_BATCH_SIZES}
    if named.get("block") == (128, 96):
        content = {str(m): entry(BLOCK_SIZE_K=32) for m in STOCK_BATCH_SIZES}
    content["16"] = entry(BLOCK_SIZE_K=block_k, num_stages=2)
    found = check(content, engine_name, version, **named)
    assert list(found) == [Code.BK_NOT_DIVIDING]
    assert found[Code.BK_NOT_DIVIDING].severity is Severity.ERROR
    assert f"key 16: BLOCK_SIZE_K = {block_k}" in found[Code.BK_NOT_DIVIDING].message


@pytest.mark.parametrize(("engine_name", "version"), [("vllm", None), ("sglang", "0.5.5")])
def test_a_large_k_tile_is_harmless_where_one_scale_serves_all_of_k(check, engine_name, version) -> None:
    found = check(with_entry(BLOCK_SIZE_K=256, num_stages=2), engine_name, version, k=128)
    assert found[Code.BK_NOT_DIVIDING].severity is Severity.WARNING


def test_the_newest_sglang_takes_several_groups_a_tile_on_cuda(check) -> None:
    assert check(with_entry(BLOCK_SIZE_K=256, num_stages=2), "sglang", "main") == {}
    assert Code.BK_NOT_DIVIDING in check(with_entry(BLOCK_SIZE_K=256, SPLIT_K=2, num_stages=2), "sglang", "main")


@pytest.mark.parametrize(
    ("fields", "device"),
    [
        ({"BLOCK_SIZE_M": 256, "BLOCK_SIZE_N": 256, "num_stages": 4}, H200),
        ({"BLOCK_SIZE_M": 128, "BLOCK_SIZE_N": 128, "num_stages": 5}, L40),
        ({"BLOCK_SIZE_M": 256, "BLOCK_SIZE_N": 256, "num_stages": 3}, MI300X),
        ({"BLOCK_SIZE_M": 128, "BLOCK_SIZE_N": 128, "num_stages": 5}, "NVIDIA_GeForce_RTX_4090"),
        ({"BLOCK_SIZE_M": 128, "BLOCK_SIZE_N": 128, "num_stages": 5}, "NVIDIA_RTX_PRO_6000_Blackwell_Server_Edition"),
    ],
)
@pytest.mark.parametrize("engine_name", ["sglang", "vllm"])
def test_tiles_that_do_not_fit(check, engine_name, fields, device) -> None:
    content = {str(m): entry(num_stages=2, num_warps=8) for m in STOCK_BATCH_SIZES} | {
        "4096": entry(num_warps=8, **fields)
    }
    found = check(content, engine_name, device=device)
    assert list(found) == [Code.SMEM_OVERFLOW]
    assert "key 4096: " in found[Code.SMEM_OVERFLOW].message


def test_limits_of_unknown_devices_are_not_checked(check) -> None:
    content = with_entry(BLOCK_SIZE_M=256, BLOCK_SIZE_N=256, num_stages=5, num_warps=64)
    assert list(check(content, device="NVIDIA_H999")) == [Code.DEVICE_UNKNOWN]
    assert list(check(content, device="NVIDIA_L20Y")) == []


@pytest.mark.parametrize("engine_name", ["sglang", "vllm"])
@pytest.mark.parametrize("sizes", [STOCK_BATCH_SIZES[-3:], (65,), (128, 96), ()])
def test_ladders_that_begin_too_late(check, engine_name, sizes) -> None:
    found = check({str(m): ENTRY for m in sizes}, engine_name)
    assert Code.LADDER_TRUNCATED in found
    assert Code.LADDER_SPARSE not in found


def test_a_truncated_ladder_says_what_runs_instead(check) -> None:
    message = check({str(m): ENTRY for m in STOCK_BATCH_SIZES[-3:]})[Code.LADDER_TRUNCATED].message
    assert "every M below 2048 takes key 2048, with a tile of 64 rows" in message


@pytest.mark.parametrize(
    ("sizes", "tile", "missing"),
    [
        (STOCK_BATCH_SIZES[4:], 128, "1, 2, 4, 8"),
        (STOCK_BATCH_SIZES[4:], 64, "1, 2, 4, 8"),
        (STOCK_BATCH_SIZES[4:], 32, "1, 2, 4"),
        ((64, 128), 64, "1, 2, 4, 8"),
        ((1, 48), 256, "32"),
    ],
)
def test_sizes_that_a_far_taller_tile_serves(check, sizes, tile, missing) -> None:
    found = check({str(m): entry(BLOCK_SIZE_M=tile if m > 1 else 16, num_stages=2) for m in sizes})
    assert list(found) == [Code.LADDER_SPARSE]
    assert found[Code.LADDER_SPARSE].severity is Severity.WARNING
    assert f"no key for M = {missing}: " in found[Code.LADDER_SPARSE].message


def test_gaps_that_cost_nothing(check) -> None:
    assert check({str(m): entry(BLOCK_SIZE_M=16) for m in STOCK_BATCH_SIZES[4:]}) == {}  # no tile is less tall
    assert check({"1": entry(BLOCK_SIZE_M=64), "4096": entry(BLOCK_SIZE_M=64)}) == {}  # tuned so for a smaller M


def test_unsorted_keys_name_the_sizes_that_they_decide(check) -> None:
    wide = entry(BLOCK_SIZE_N=128)
    order = ["96", "128", "48", *(str(m) for m in STOCK_BATCH_SIZES if m not in (48, 64, 96, 128))]
    found = check({key: wide if key == "96" else ENTRY for key in order})
    assert list(found) == [Code.KEYS_UNSORTED]
    assert "it decides M = 72 (key 96, sorted 48)" in found[Code.KEYS_UNSORTED].message
    same = check(dict.fromkeys(reversed(order), ENTRY))
    assert "no M takes another config" in same[Code.KEYS_UNSORTED].message


@pytest.mark.parametrize(
    ("version", "device", "raised"),
    [
        ("0.5.12", MI300X, True),
        ("0.5.23", "AMD_Radeon_Graphics", True),
        ("0.5.23", ARC, True),
        ("0.5.11", MI300X, False),
        ("0.5.13", H200, True),
        ("0.5.14", H200, False),
        ("0.5.23", H200, False),
    ],
)
def test_k_tiles_that_the_loader_raises(check, version, device, raised) -> None:
    content = {str(m): entry(BLOCK_SIZE_M=16, num_stages=2) for m in STOCK_BATCH_SIZES}
    content["16"] = entry(BLOCK_SIZE_K=64, num_stages=2)
    found = check(content, "sglang", version, device=device)
    assert list(found) == ([Code.BK_RAISED] if raised else [])


def test_bytes(check, tmp_path: Path) -> None:
    text = json.dumps(FULL, indent=4)
    for content, said in (
        (b"\xef\xbb\xbf" + text.encode(), "byte order mark"),
        (text.replace("\n", "\r\n").encode(), "carriage returns"),
    ):
        found = check(content)
        assert list(found) == [Code.BYTES]
        assert said in found[Code.BYTES].message
        assert found[Code.BYTES].fixable
    path = tmp_path / name()
    path.write_text(text)
    path.chmod(0o755)
    (finding,) = check_file(path, engine("vllm")).findings
    assert "run as a program" in finding.message


def test_equal_faults_are_one_finding(check) -> None:
    found = check({key: entry(BLOCK_SIZE_K=256, num_stages=2) for key in FULL})
    assert "keys 1, 2, 4, 8, 16, 24 and 12 more: " in found[Code.BK_NOT_DIVIDING].message
