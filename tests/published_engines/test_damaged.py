"""What published releases do with damaged files, against what `check` says that they do."""

import json
from dataclasses import dataclass, field

import pytest

from blockscale.checking.findings import Code
from blockscale.checking.one_file import check_file
from blockscale.hardware import H200
from blockscale.problem import GemmShape, Problem, QuantScheme, TileConfig, WeightShape

ENTRY = TileConfig(16, 64, 128, 1, num_warps=4, num_stages=3).to_entry()
OTHER = ENTRY | {"GROUP_SIZE_M": 32}
SOUND = {str(m): ENTRY for m in (1, 16, 64, 256, 1024, 4096)}
PROBLEM = Problem(GemmShape(16, 512, 7168), QuantScheme())

FAILS = "fails"
DEFAULT = "default"


@dataclass
class Damage:
    """Bytes, what `check` finds in them (None: nothing), and what serving M = 16 comes to: an entry, or a word."""

    content: bytes
    code: Code | None
    outcome: dict[str, object] | str
    name: dict[str, str] = field(default_factory=dict)


def changed(**members: object) -> bytes:
    return json.dumps(SOUND | members).encode()


def without(name: str) -> dict[str, object]:
    return {key: value for key, value in ENTRY.items() if key != name}


TEXT = json.dumps(SOUND, indent=4)
DAMAGES = {
    "sound": Damage(TEXT.encode(), None, ENTRY),
    "empty": Damage(b"", Code.UNREADABLE, FAILS),
    "cut": Damage(TEXT[:100].encode(), Code.UNREADABLE, FAILS),
    "not UTF-8": Damage(TEXT.encode("utf-16"), Code.UNREADABLE, FAILS),
    "key twice": Damage(TEXT[:-2].encode() + b', "16": ' + json.dumps(OTHER).encode() + b"}", Code.UNREADABLE, OTHER),
    "size twice": Damage(changed(**{"016": OTHER}), Code.UNREADABLE, OTHER),
    "list": Damage(b"[]", Code.NOT_AN_OBJECT, FAILS),
    "null entry": Damage(changed(**{"16": None}), Code.NOT_AN_OBJECT, FAILS),
    "number entry": Damage(changed(**{"16": 3}), Code.NOT_AN_OBJECT, FAILS),
    "note": Damage(changed(triton_version="3.6.0"), Code.KEY_NOT_INTEGER, FAILS),
    "fraction": Damage(changed(**{"1.5": ENTRY}), Code.KEY_NOT_INTEGER, FAILS),
    "negative": Damage(changed(**{"-1": OTHER}), Code.KEY_NOT_POSITIVE, ENTRY),
    "no tile": Damage(changed(**{"16": without("BLOCK_SIZE_N")}), Code.FIELD_MISSING, FAILS),
    "no warps": Damage(changed(**{"16": without("num_warps")}), Code.FIELD_MISSING, without("num_warps")),
    "no stages": Damage(changed(**{"16": without("num_stages")}), None, without("num_stages")),
    "AMD's field": Damage(changed(**{"16": ENTRY | {"kpack": 1}}), Code.FIELD_UNKNOWN, FAILS),
    "no effect": Damage(changed(**{"16": ENTRY | {"SWAP_AB": False}}), Code.FIELD_UNKNOWN, FAILS),
    "mark": Damage(b"\xef\xbb\xbf" + TEXT.encode(), Code.BYTES, FAILS),
    "returns": Damage(TEXT.replace("\n", "\r\n").encode(), Code.BYTES, ENTRY),
    "spacing": Damage(TEXT.encode(), Code.NEVER_FOUND, DEFAULT, {"block_shape=[128, 128]": "block_shape=[128 ,128]"}),
    "device": Damage(TEXT.encode(), Code.NEVER_FOUND, DEFAULT, {"NVIDIA_H200": "NVIDIA H200"}),
    "ending": Damage(TEXT.encode(), Code.NEVER_FOUND, DEFAULT, {".json": ".json.txt"}),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_file_does_what_check_says(publish, release, damage):
    published = publish()
    name = release.engine.file_name(WeightShape(512, 7168), PROBLEM.quant, "NVIDIA H200")
    for right, wrong in damage.name.items():
        name = name.replace(right, wrong).replace(right.replace(" ", ""), wrong)
    path = published.configs / name
    path.write_bytes(damage.content)
    assert [each.code for each in check_file(path, release.engine).findings] == ([damage.code] if damage.code else [])
    expected = damage.outcome
    if expected is DEFAULT:
        expected = release.engine.default_config(PROBLEM, H200).to_entry()
    assert outcome(published) == expected


def outcome(published):
    """The config that is launched, or that serving fails."""
    try:
        return published.launched(PROBLEM)[1]
    except Exception:
        return FAILS


def test_swapped_and_split_entries_run_on_a_kernel_that_takes_them_or_fail_as_check_says(publish, release):
    published = publish()
    path = published.configs / release.engine.file_name(WeightShape(512, 7168), PROBLEM.quant, "NVIDIA H200")
    entry = ENTRY | {"SWAP_AB": True, "SPLIT_K": 4}
    path.write_bytes(changed(**{"16": entry}))
    codes = [each.code for each in check_file(path, release.engine).findings]
    if release.engine.takes_swap_split(H200):
        assert codes == []
        assert published.launched(PROBLEM) == release.launches(PROBLEM, entry)
    else:
        assert (codes, outcome(published)) == ([Code.FIELD_UNKNOWN], FAILS)


def test_an_empty_object_serves_the_default_without_a_word(publish, release):
    published = publish()
    path = published.configs / release.engine.file_name(WeightShape(512, 7168), PROBLEM.quant, "NVIDIA H200")
    path.write_text("{}")
    assert outcome(published) == release.engine.default_config(PROBLEM, H200).to_entry()
    assert published.log.warnings == []
