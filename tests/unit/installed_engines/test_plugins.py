"""Serving from folders of our own: ours first, the engine's after, and an engine that never notices trouble."""

import importlib
import json
import logging
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from fake_engines import entry, write_config

from blockscale.plugins import VARIABLE


def register(name):
    importlib.import_module(f"blockscale.plugins.{name}").register()


def served(fake, n=512, k=7168):
    return importlib.import_module(fake.module).get_w8a8_block_fp8_configs(n, k, 128, 128)


@pytest.fixture
def own(tmp_path, monkeypatch):
    folder = tmp_path / "own"
    folder.mkdir()
    monkeypatch.setenv(VARIABLE, str(folder))
    return folder


def test_our_file_comes_first_and_theirs_serves_every_other_shape(fake, own):
    write_config(fake.configs / fake.file_name(512, 7168), 1)
    write_config(fake.configs / fake.file_name(576, 7168), 2)
    write_config(own / fake.file_name(512, 7168), 1, BLOCK_SIZE_M=32)
    register(fake.name)
    assert served(fake) == {1: entry(BLOCK_SIZE_M=32)}
    assert served(fake, n=576) == {2: entry()}
    assert served(fake, n=640) is None


def test_a_loader_that_is_imported_already_is_wrapped_wherever_it_is_known(fake, own):
    module = importlib.import_module(fake.module)
    user = importlib.import_module(f"{fake.name}")
    user.get_w8a8_block_fp8_configs = module.get_w8a8_block_fp8_configs
    write_config(own / fake.file_name(512, 7168), 4)
    register(fake.name)
    assert set(user.get_w8a8_block_fp8_configs(512, 7168, 128, 128)) == {4}
    assert set(served(fake)) == {4}


def test_each_file_is_read_once_as_the_engine_would(fake, own):
    write_config(own / fake.file_name(512, 7168), 4)
    register(fake.name)
    assert served(fake) is served(fake)
    assert len(importlib.import_module(fake.module).READ) == 1


def test_the_module_is_not_imported_by_the_plugin_and_keeps_its_own_loader(fake, own):
    register(fake.name)
    assert fake.module not in sys.modules
    module = importlib.import_module(fake.module)
    assert type(module.__spec__.loader).__name__ == type(module.__loader__).__name__ == "SourceFileLoader"


def test_the_first_of_several_folders_wins_and_tunes_own_layout_is_known(fake, own, tmp_path, monkeypatch):
    second = tmp_path / "second"
    monkeypatch.setenv(VARIABLE, os.pathsep.join([str(own), "", str(second)]))
    write_config(own / fake.name / fake.file_name(512, 7168), 1)
    write_config(second / fake.file_name(512, 7168), 2)
    write_config(second / fake.file_name(576, 7168), 3)
    register(fake.name)
    assert set(served(fake)) == {1}
    assert set(served(fake, n=576)) == {3}


def test_registering_again_changes_nothing(fake, own):
    write_config(own / fake.file_name(512, 7168), 4)
    register(fake.name)
    register(fake.name)
    loader = importlib.import_module(fake.module).get_w8a8_block_fp8_configs
    register(fake.name)
    assert importlib.import_module(fake.module).get_w8a8_block_fp8_configs is loader


def test_int8_files_serve_sglang(install_engine, own):
    fake = install_engine("sglang")
    write_config(own / fake.file_name(512, 7168).replace("fp8_", "int8_"), 8)
    register("sglang")
    module = importlib.import_module("sglang.kernels.ops.gemm.int8_kernel")
    assert set(module.get_w8a8_block_int8_configs(512, 7168, 128, 128)) == {8}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b"\xff\xfe",
        b'{"note": 1}',
        b'{"1": null}',
        b'{"1": {"BLOCK_SIZE_M": 16}}',
        json.dumps({"1": entry(BLOCK_SIZE_K=96)}).encode(),
        json.dumps({"1": entry(triton_version=3)}).encode(),
        b"\xef\xbb\xbf" + json.dumps({"1": entry()}).encode(),
    ],
)
def test_a_bad_file_is_passed_over_with_one_warning_that_names_check(content, fake, own, caplog):
    name = fake.file_name(512, 7168)
    (own / name).write_bytes(content)
    write_config(fake.configs / name, 16)
    register(fake.name)
    loader = importlib.import_module(fake.module).get_w8a8_block_fp8_configs
    for _ in range(2):
        assert set(loader(512, 7168, 128, 128)) == {16}
        loader.cache_clear()
    (warning,) = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert str(own / name) in warning.getMessage()
    assert "blockscale check" in warning.getMessage()


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), os.mkfifo, lambda path: path.symlink_to("nowhere")])
def test_what_is_no_file_is_passed_over(make, fake, own, caplog):
    make(own / fake.file_name(512, 7168))
    register(fake.name)
    assert served(fake) is None
    assert len(caplog.records) == 1


MOVED = {
    "gone": "def get_other_configs(N, K, block_n, block_k):\n    return None\n",
    "other arguments": "def get_w8a8_block_fp8_configs(N, K):\n    return None\n",
    "pathlib": (
        "from pathlib import Path\n"
        "def get_w8a8_block_fp8_configs(N, K, block_n, block_k):\n"
        "    return None if not (Path(__file__).parent / 'configs').exists() else {}\n"
    ),
    "a class": "class get_w8a8_block_fp8_configs:\n    pass\n",
}


@pytest.mark.parametrize("name", ["sglang", "vllm"])
@pytest.mark.parametrize("text", MOVED.values(), ids=MOVED)
def test_a_loader_that_a_release_has_changed_is_left_alone_with_one_warning(name, text, install_engine, own, caplog):
    fake = install_engine(name, loader=text)
    register(name)
    module = importlib.import_module(fake.module)
    (warning,) = caplog.records
    assert VARIABLE in warning.getMessage()
    assert "blockscale install" in warning.getMessage()
    original = {}
    exec(text, original)
    kept = getattr(module, "get_w8a8_block_fp8_configs", None)
    assert type(kept) is type(original.get("get_w8a8_block_fp8_configs"))


@pytest.mark.parametrize("name", ["sglang", "vllm"])
def test_a_module_that_a_release_has_moved_is_one_warning(name, install_engine, own, caplog):
    install_engine(name, place="elsewhere/loader.py")
    register(name)
    (warning,) = caplog.records
    assert "no known place" in warning.getMessage()


def test_a_folder_that_is_not_there_is_one_warning(fake, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "absent"))
    register(fake.name)
    (warning,) = caplog.records
    assert "absent" in warning.getMessage()
    assert served(fake) is None


@pytest.mark.parametrize("name", ["sglang", "vllm"])
@pytest.mark.parametrize("value", [None, ""])
def test_without_the_variable_nothing_is_imported_or_changed(name, value):
    code = (
        "import sys; before = list(sys.meta_path); "
        f"from blockscale.plugins.{name} import register; register(); "
        "assert sys.meta_path == before; "
        "print(sorted(each for each in sys.modules if each.startswith('blockscale')))"
    )
    environment = {key: text for key, text in os.environ.items() if key != VARIABLE}
    if value is not None:
        environment[VARIABLE] = value
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == str(["blockscale", "blockscale.plugins", f"blockscale.plugins.{name}"])


def test_nothing_is_written_and_nothing_heavy_imported_while_serving(fake, own):
    write_config(own / fake.file_name(512, 7168), 4)
    before = sorted(own.rglob("*"))
    code = (
        f"import sys; sys.path.insert(0, {str(fake.configs.parents[0])!r}); "
        f"sys.path.insert(0, {sys.path[0]!r}); import importlib; "
        f"from blockscale.plugins.{fake.name} import register; register(); "
        f"module = importlib.import_module({fake.module!r}); "
        "assert set(module.get_w8a8_block_fp8_configs(512, 7168, 128, 128)) == {4}; "
        "sys.exit(' '.join(m for m in ('torch', 'triton', 'rich', 'numpy') if m in sys.modules) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert sorted(own.rglob("*")) == before


@pytest.mark.parametrize(("group", "name"), [("vllm.general_plugins", "vllm"), ("sglang.srt.plugins", "sglang")])
def test_the_package_declares_its_plugins(group, name):
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))
    module, _, function = project["project"]["entry-points"][group]["blockscale"].partition(":")
    assert module == f"blockscale.plugins.{name}"
    assert callable(getattr(importlib.import_module(module), function))
