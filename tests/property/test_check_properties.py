"""Whatever a config file holds and however it is named, it is checked and fixed without a traceback."""

import contextlib
import io
import json
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockscale.checking.content import read_content
from blockscale.checking.findings import Code
from blockscale.checking.ladder import check_ladder
from blockscale.checking.names import kind_of, read_name
from blockscale.checking.one_file import check_file, right_name
from blockscale.cli.main import main
from blockscale.engines import engine
from blockscale.engines.files import MalformedJsonError
from blockscale.problem import TileConfig
from blockscale.tuning.request import STOCK_BATCH_SIZES

ENTRY = TileConfig(64, 64, 128, num_warps=4, num_stages=3).to_entry()
FULL = {str(m): ENTRY for m in STOCK_BATCH_SIZES}
NAMES = st.sampled_from(
    [
        "N=512,K=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json",
        "N=512,K=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json",
        "N=512,K=128,device_name=AMD_Instinct_MI300X,dtype=fp8_w8a8,block_shape=[128, 128].json",
        "N=512,K=7168,device_name=Intel(R)_Arc(TM)_Pro_B70_Graphics,dtype=fp8_w8a8,block_shape=[128, 128].json",
        "N=512,K=7168,device_name=Quantum One,dtype=int8_w8a8,block_shape=[64, 96]",
    ]
)
VERSIONS = st.sampled_from(
    [("sglang", v) for v in ("0.5.5", "0.5.9", "0.5.12", "0.5.23", "main")] + [("vllm", "0.33.0")]
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0, 1, 2, 4, 16, 32, 64, 128, 256, 2**62])
    | st.floats()
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
FIELDS = st.sampled_from([*ENTRY, "SWAP_AB", "SPLIT_K", "waves_per_eu", "kpack", "num_ctas", "grf_mode"]) | st.text(
    max_size=5
)
ENTRIES = (
    st.dictionaries(FIELDS, VALUES, max_size=8)
    | st.builds(lambda more: {**ENTRY, **more}, st.dictionaries(FIELDS, VALUES, max_size=3))
    | VALUES
)
KEYS = st.sampled_from([str(m) for m in STOCK_BATCH_SIZES]) | st.integers().map(str) | st.text(max_size=6)
FILES = st.dictionaries(KEYS, ENTRIES, max_size=6) | VALUES


def written(value: object) -> bytes:
    return json.dumps(value).encode()


@st.composite
def damaged(draw) -> bytes:
    """A full file with some bytes taken out, changed or put in."""
    data = bytearray(json.dumps(FULL, indent=draw(st.sampled_from([None, 4]))).encode())
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 40))] = draw(
            st.binary(max_size=4) | st.sampled_from([b"{", b"}", b'"', b","])
        )
    return bytes(data)


def checked_and_fixed(data: bytes, name: str, of: tuple[str, str]) -> None:
    """The command ends as documented, before, with and after a fix; a second fix changes nothing."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, name).write_bytes(data)
        arguments = ["check", folder, "--engine", of[0], "--engine-version", of[1], "--json"]
        before = listed(arguments)
        left = listed([*arguments, "--fix"])
        assert not any(each["fixable"] for each in left)
        assert {each["code"] for each in left} <= {each["code"] for each in before}
        (path,) = (each for each in Path(folder).iterdir() if each.is_file())
        fixed = path.read_bytes()
        assert listed([*arguments, "--fix"]) == left
        assert path.read_bytes() == fixed
        assert main(arguments[:-1]) in (0, 1)


def listed(arguments: list[str]) -> list[dict]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    found = json.loads(out.getvalue())
    assert code == int(any(each["severity"] == "error" for each in found)), err.getvalue()
    return found


@pytest.fixture(autouse=True)
def _silent(capsys) -> None:
    """Text for people is not looked at here."""


@given(data=st.binary(max_size=200), name=NAMES, of=VERSIONS)
def test_random_bytes(data, name, of) -> None:
    checked_and_fixed(data, name, of)


@given(value=FILES, name=NAMES, of=VERSIONS)
def test_random_json(value, name, of) -> None:
    checked_and_fixed(written(value), name, of)


@given(data=damaged(), name=NAMES, of=VERSIONS)
def test_random_damage_to_a_full_file(data, name, of) -> None:
    checked_and_fixed(data, name, of)


@given(name=st.text() | st.from_regex(r"N=[0-9]{0,3},K=[0-9]{0,3},device_name=.{0,9},dtype=\w{0,9},block_shape=.{0,9}"))
def test_random_names(name) -> None:
    kind_of(name)
    named = read_name(name)
    path = Path("/nowhere", re.sub(r"[/\0]", "", name) or "x")
    (unreadable,) = (each for each in check_file(path, engine("vllm")).findings if each.code is Code.UNREADABLE)
    assert "cannot be read" in unreadable.message
    if named is not None:
        assert named.weight.N > 0


@given(
    n=st.integers(1, 10**6),
    k=st.integers(1, 10**6),
    device=st.from_regex(r"[A-Za-z0-9()_-]{1,20}", fullmatch=True),
    of=VERSIONS,
)
def test_the_right_name_is_the_one_that_is_right(n, k, device, of) -> None:
    eng = engine(*of)
    other = engine("vllm" if of[0] == "sglang" else "sglang")
    subject = check_file(
        Path("/nowhere", f"N={n},K={k},device_name={device},dtype=fp8_w8a8,block_shape=[128,  64]"), eng
    )
    name = right_name(subject.subject)
    if name is not None:
        again = check_file(Path("/nowhere", name), eng)
        assert right_name(again.subject) == name
        assert Code.NEVER_FOUND not in {each.code for each in again.findings}
        assert Code.NEVER_FOUND in {each.code for each in check_file(Path("/nowhere", name), other).findings}


@given(
    members=st.dictionaries(st.text(max_size=6), VALUES, min_size=1, max_size=6),
    indent=st.sampled_from([None, 0, 1, 4]),
    separators=st.sampled_from([(",", ":"), (" , ", " : "), (", ", ": ")]),
    ascii_only=st.booleans(),
    order=st.randoms(),
)
def test_chosen_members_come_in_the_order_asked_and_as_they_were(
    members, indent, separators, ascii_only, order
) -> None:
    text = json.dumps(members, indent=indent, separators=separators, ensure_ascii=ascii_only)
    try:
        content = read_content(f"\n {text}\n".encode(errors="strict"))
    except (UnicodeEncodeError, MalformedJsonError):  # a lone surrogate, or a number of thousands of digits
        return
    keys = order.sample(list(members), order.randint(0, len(members)))
    again = read_content(content.rewritten(keys).encode())
    assert list(again.members) == keys
    assert written(again.members) == written({key: members[key] for key in keys})


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6, unique=True),
    tiles=st.lists(st.integers(4, 5), min_size=6),
)
def test_unsorted_keys_name_just_the_sizes_whose_config_changes(sizes, tiles) -> None:
    eng = engine("sglang")
    entries = {m: {"BLOCK_SIZE_M": 2**tile} for m, tile in zip(sizes, tiles, strict=False)}
    found = [each for each in check_ladder(eng, entries) if each.code is Code.KEYS_UNSORTED]
    assert bool(found) == (sizes != sorted(sizes))
    if found:
        named = {int(m) for m in re.findall(r"M = (\d+) \(key", found[0].message)}
        ordered = sorted(sizes)
        changed = {m for m in range(1, 50) if entries[eng.lookup_key(sizes, m)] != entries[eng.lookup_key(ordered, m)]}
        assert named == changed
