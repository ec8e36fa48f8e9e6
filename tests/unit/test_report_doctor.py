"""What the doctor concludes from what it finds."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from blockscale.cli.main import main
from blockscale.engines import InstalledEngine
from blockscale.errors import InputError
from blockscale.hardware import H200
from blockscale.problem import Environment
from blockscale.report.doctor import GpuFacts, MachineFacts, PlaceFacts, anything_works, doctor_text, verdicts

HERE = Environment("NVIDIA H200", "sm_90", "580.1", "2.11", "3.6", "hash", "0.1.0")
AMPERE = replace(H200, name="NVIDIA A100-SXM4-80GB", arch="sm_80")


def facts(*specs, problem=None, engines=(), places=(), recordings=("h200",)):
    gpus = tuple(GpuFacts(i, spec, HERE) for i, spec in enumerate(specs))
    return MachineFacts((("torch", "2.11"), ("ray", None)), gpus, problem, engines, places, recordings)


def works(found):
    return {v.what: v.works for v in verdicts(found)}


def test_a_hopper_gpu_does_everything():
    found = works(facts(H200))
    assert found["FP8 on GPU 0"]
    assert found["INT8 on GPU 0"]
    assert found["SWAP_AB and SPLIT_K on GPU 0"]
    assert found["roofline of GPU 0"]


def test_an_ampere_gpu_has_int8_only_and_is_told_so():
    found = {v.what: v for v in verdicts(facts(AMPERE))}
    assert not found["FP8 on GPU 0"].works
    assert "--input-type int8" in found["FP8 on GPU 0"].text
    assert found["INT8 on GPU 0"].works
    assert not found["SWAP_AB and SPLIT_K on GPU 0"].works


def test_an_unknown_gpu_is_tuned_without_a_roofline():
    found = works(facts(replace(H200, name="NVIDIA X")))
    assert found["FP8 on GPU 0"]
    assert not found["roofline of GPU 0"]


def test_without_a_gpu_the_recorded_one_still_works():
    found = facts(problem="no GPU is visible")
    text = doctor_text(found)
    assert "no GPU is visible" in text
    assert "--device recorded:h200" in text
    assert anything_works(found)
    assert not anything_works(facts(recordings=()))


def test_text_names_packages_gpus_engines_and_unusable_places():
    engines = (InstalledEngine("vllm", "0.33.0", Path("/opt/vllm/configs")), InstalledEngine("sglang", "0.5.1", None))
    places = (PlaceFacts("store", Path("/mnt/s.db"), 12_300_000, "is on a network file system (nfs)"),)
    text = doctor_text(facts(H200, engines=engines, places=places))
    for part in ("torch", "NVIDIA H200", "sm_90", "580.1", "/opt/vllm/configs", "12.3 MB", "nfs", "by hand"):
        assert part in text


def test_the_command_exits_well_without_a_gpu(monkeypatch, capsys, tmp_path):
    def nothing_here():
        raise InputError("no GPU is visible")

    monkeypatch.setattr("blockscale.executor.gpus.visible_gpus", nothing_here)
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["gpus"] == []
    assert set(found) == {"packages", "gpus", "engines", "places", "verdicts"}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["missing/deep/s.db", "."])
def test_a_store_place_that_cannot_be_used_is_said(name, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("blockscale.executor.gpus.visible_gpus", list)
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", "--store", name]) == 0
    assert "no   store:" in capsys.readouterr().out


def test_text_fits_a_terminal():
    text = doctor_text(facts(H200, places=(PlaceFacts("store", Path("/s.db"), 0, "cannot be written " * 9),)), 80)
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("place", ["store", "compiler cache"])
def test_a_place_that_may_not_be_looked_at_is_said(place, monkeypatch, capsys, tmp_path):
    """As for a user who is not root and works with root's home; here a folder denies every look into it."""
    closed = tmp_path / "closed"
    stat = Path.stat

    def guarded(path, **options):
        if path.is_relative_to(closed) and path != closed:
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, **options)

    monkeypatch.setattr("blockscale.executor.gpus.visible_gpus", list)
    monkeypatch.setattr(Path, "stat", guarded)
    monkeypatch.setenv("XDG_CACHE_HOME", str((closed if place == "compiler cache" else tmp_path) / "cache"))
    store = (closed if place == "store" else tmp_path) / "s.db"
    assert main(["doctor", "--store", str(store)]) == 0
    assert f"no   {place}: {closed}" in capsys.readouterr().out
