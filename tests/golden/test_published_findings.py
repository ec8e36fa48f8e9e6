"""What check finds in the files that both engines have published: all of it is known, and nothing else is found."""

from pathlib import Path

import pytest

from blockscale.checking.findings import Code, Severity
from blockscale.checking.run import Checked, check_paths, known_engines

TP8_OF_V3 = 13  # shapes of DeepSeek-V3 that L20Y was tuned for


@pytest.fixture(scope="module")
def checked(published_data: Path) -> Checked:
    return check_paths([published_data / "configs"], known_engines())


def having(checked: Checked, code: Code) -> set[tuple[str, str, str]]:
    """(engine, device, shape) of the files with a finding of this code."""
    found = set()
    for file in checked.files:
        named = file.subject.named
        assert named is not None
        if code in {each.code for each in file.findings}:
            found.add((file.subject.engine.name, named.device, str(named.weight)))
    return found


def test_files_cut_by_several_writers(checked: Checked) -> None:
    found = having(checked, Code.LADDER_TRUNCATED)
    assert {device for _, device, _ in found} == {"NVIDIA_L20Y"}
    assert len(found) == 2 * TP8_OF_V3


def test_names_that_are_never_found(checked: Checked) -> None:
    assert having(checked, Code.NEVER_FOUND) == {
        ("vllm", "NVIDIA_H200", "1536×7168"),
        ("vllm", "NVIDIA_H100_80GB_HBM3", "1536×7168"),
    }


def test_copies_across_shapes(checked: Checked) -> None:
    pairs = (("24576×1536", "3072×1536"), ("32768×512", "4096×512"), ("7168×16384", "7168×2048"))
    expected = {("sglang", "AMD_Instinct_MI300X", shape) for pair in pairs for shape in pair}
    assert having(checked, Code.COPIED) == expected


def test_keys_out_of_order(checked: Checked) -> None:
    assert having(checked, Code.KEYS_UNSORTED) == {
        ("sglang", "NVIDIA_L40", "2048×4096"),
        ("sglang", "NVIDIA_L40", "5120×2048"),
    }


def test_the_k_tile_that_one_scale_serves(checked: Checked) -> None:
    assert having(checked, Code.BK_NOT_DIVIDING) == {("vllm", "AMD_Instinct_MI300X", "7168×128")}
    (finding,) = (each for file in checked.files for each in file.findings if each.code is Code.BK_NOT_DIVIDING)
    assert finding.severity is Severity.WARNING
    assert finding.message.startswith("keys 1, 64: ")


def test_nothing_else_is_found(checked: Checked) -> None:
    assert {each.code for file in checked.files for each in file.findings} == {
        Code.LADDER_TRUNCATED,
        Code.NEVER_FOUND,
        Code.COPIED,
        Code.KEYS_UNSORTED,
        Code.BK_NOT_DIVIDING,
    }
