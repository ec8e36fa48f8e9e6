"""Serving from a folder of our own, on the loaders and the plugin machinery that the engines published."""

import ast
import json
import os
import subprocess
import sys

import pytest
from published import LOADERS

from blockscale.engines.kernels import kernels_of
from blockscale.hardware import H200
from blockscale.plugins import VARIABLE
from blockscale.plugins.loader import wrapped
from blockscale.plugins.own_files import OwnFiles
from blockscale.problem import GemmShape, Problem, QuantFormat, TileConfig, WeightShape

OURS = TileConfig(16, 64, 128, 1, num_warps=4, num_stages=4).to_entry()
THEIRS = TileConfig(32, 32, 128, 8, num_warps=8, num_stages=2).to_entry()


@pytest.fixture
def served(publish, release, quant, tmp_path):
    """A published module whose loader looks into our folder first, and a function that gives what M = 20 launches."""
    published = publish(quant.format)
    own = tmp_path / "own"
    own.mkdir()
    choose = OwnFiles([own], release.engine.name).instead_of
    name = LOADERS[quant.format]
    setattr(published.module, name, wrapped(published.loader, choose))

    def launched(n=512):
        published.loader.cache_clear()
        return published.launched(Problem(GemmShape(20, n, 7168), quant))[1]

    def write(folder, entry, n=512):
        path = folder / release.engine.file_name(WeightShape(n, 7168), quant, "NVIDIA H200")
        path.write_text(json.dumps({"16": entry, "64": THEIRS}))
        return path

    launched.default = release.engine.default_config(Problem(GemmShape(20, 512, 7168), quant), H200).to_entry()
    return published, own, launched, write


def test_ours_is_launched_first_then_theirs_then_the_default(served):
    published, own, launched, write = served
    assert launched() == launched.default
    write(published.configs, THEIRS)
    assert launched() == THEIRS
    ours = write(own, OURS)
    assert launched() == OURS
    assert str(ours) in published.log.infos[-1]
    write(published.configs, THEIRS, n=576)
    assert launched(576) == THEIRS


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"note": 1}', '{"16": null}', '{"16": {"BLOCK_SIZE_M": 16}}']
)
def test_a_damaged_file_of_ours_leaves_theirs_serving(served, content, caplog):
    published, own, launched, write = served
    write(published.configs, THEIRS)
    path = write(own, OURS)
    path.write_text(content)
    assert launched() == THEIRS
    assert launched() == THEIRS
    (warning,) = caplog.records
    assert str(path) in warning.getMessage()


def test_answers_are_cached_as_the_release_does(served):
    published, own, _, write = served
    write(own, OURS)
    assert published.loader(512, 7168, 128, 128) is published.loader(512, 7168, 128, 128)


# The packages themselves are not run: they need what serving needs. Their plugin modules are, as published.
_PROCESS = """
import sys, types
for name in ("vllm", "sglang", "sglang.srt"):
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__ = [f"{sys.argv[1]}/{name.replace('.', '/')}"]
    module.__spec__ = None
import importlib.machinery
for name in ("vllm", "sglang"):
    spec = importlib.machinery.PathFinder.find_spec(name, sys.argv[1:2])
    if spec is not None:
        sys.modules[name].__spec__ = spec
plugins = __import__(sys.argv[2], fromlist=["plugins"])
for _ in range(2):
    getattr(plugins, sys.argv[3])()
print(*(each._name for each in sys.meta_path if type(each).__module__ == "blockscale.plugins.on_import"))
"""


def test_the_release_itself_calls_the_plugin_which_knows_its_loaders(release, tmp_path):
    name = release.engine.name
    module, function = {"vllm": ("plugins", "load_general_plugins"), "sglang": ("srt.plugins", "load_plugins")}[name]
    if not (release.packages / name / module.replace(".", "/") / "__init__.py").is_file():
        pytest.skip(f"{release} calls no plugins")
    info = tmp_path / "declares_plugins-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: declares-plugins\nVersion: 1\n")
    group = {"vllm": "vllm.general_plugins", "sglang": "sglang.srt.plugins"}[name]
    (info / "entry_points.txt").write_text(f"[{group}]\nours = blockscale.plugins.{name}:register\n")
    path = os.pathsep.join([str(tmp_path), str(release.packages), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", _PROCESS, str(release.packages), f"{name}.{module}", function],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path, VARIABLE: str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    waiting = done.stdout.split()
    assert sorted(waiting) == sorted(set(waiting))
    formats = [each for each in QuantFormat if kernels_of(release.engine, each).kernels]
    assert len(waiting) == len(formats)
    for quant_format in formats:
        source = (release.packages / release.module_path(quant_format)).read_text(encoding="utf-8")
        assert LOADERS[quant_format] in {getattr(each, "name", None) for each in ast.parse(source).body}
        assert ".".join(release.module_path(quant_format).with_suffix("").parts) in waiting
