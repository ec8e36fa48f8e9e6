"""Tuned files installed among those that a published release ships."""

import json
import shutil

import pytest

from blockscale.checking.one_file import check_file
from blockscale.cli.main import main
from blockscale.engines import PRIVATE_FOLDER
from blockscale.errors import InputError
from blockscale.executor import gpus
from blockscale.problem import GemmShape, Problem, QuantFormat, QuantScheme, TileConfig, WeightShape

OURS = TileConfig(16, 64, 128, 1, num_warps=4, num_stages=4).to_entry()
SHIPPED, NOT_SHIPPED = WeightShape(512, 7168), WeightShape(520, 7168)


@pytest.fixture
def installed(publish, release, tmp_path, monkeypatch):
    """The release's module and config folder as pip lays them out, on the path of this process."""

    def no_gpu():
        raise InputError("no GPU")

    published = publish()
    place = release.module_path(QuantFormat.FP8)
    shutil.copy(release.packages / place, published.path)
    shutil.copytree(release.packages / place.parent / "configs", published.configs, dirs_exist_ok=True)
    (info,) = release.packages.glob("*.dist-info")
    site_packages = tmp_path / "site-packages"
    shutil.copytree(info, site_packages / info.name)
    (site_packages / release.engine.name / "__init__.py").touch()
    monkeypatch.syspath_prepend(site_packages)
    monkeypatch.setattr(gpus, "visible_gpus", no_gpu)
    return published


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != PRIVATE_FOLDER}


def test_installed_files_are_launched_and_undone_byte_by_byte(installed, release, tmp_path, capsys):
    quant = QuantScheme()
    before = contents(installed.configs)
    tuned = tmp_path / "tuned"
    tuned.mkdir()
    names = {}
    for weight in (SHIPPED, NOT_SHIPPED):
        names[weight] = release.engine.file_name(weight, quant, "NVIDIA H200")
        (tuned / names[weight]).write_text(json.dumps({"16": OURS, "20": OURS}))
    shipped = {int(key): entry for key, entry in json.loads(before[names[SHIPPED]]).items()}
    assert 20 not in shipped
    assert main(["install", str(tuned), "--engine", release.engine.name, "--yes", "--json"]) == 0
    changes = [each["change"] for each in json.loads(capsys.readouterr().out)]
    assert changes == ["replaced", "new"]
    for m in (1, 16, 20, 64, 4096):
        problem = Problem(GemmShape(m, SHIPPED.N, SHIPPED.K), quant)
        expected = OURS if m in (16, 20) else release.launches(problem, shipped[m])[1]
        assert installed.launched(problem)[1] == expected
    assert installed.launched(Problem(GemmShape(3000, NOT_SHIPPED.N, NOT_SHIPPED.K), quant))[1] == OURS
    assert not check_file(installed.configs / names[SHIPPED], release.engine).findings
    assert main(["install", "--undo", "--engine", release.engine.name]) == 0
    assert contents(installed.configs) == before
