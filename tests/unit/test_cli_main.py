"""Commands, options and their documentation; how errors become exit codes."""

import argparse
import io
import subprocess
import sys
from pathlib import Path

import pytest

from blockscale.cli.main import COMMANDS, Command, main
from blockscale.cli.parsing import Parser
from blockscale.errors import BlockscaleError, IncompleteRunError, InputError

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")

OPTIONS = [
    (name, action)
    for name, command in COMMANDS.items()
    for action in command.load()[0]()._actions
    if not isinstance(action, argparse._HelpAction)
]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_in_help_document_and_readme(name, capsys):
    assert main(["--help"]) == 0
    assert f"  {name} " in capsys.readouterr().out
    assert f"## {name}" in DOCUMENT
    assert f"blockscale {name}" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("name", "action"), OPTIONS, ids=lambda x: x if isinstance(x, str) else x.dest)
def test_every_option_is_explained_in_help_and_document(name, action):
    assert action.help
    section = DOCUMENT.split(f"## {name}\n")[1].split("\n## ")[0]
    for option in action.option_strings or [action.metavar or ""]:
        assert f"`{option}" in section, option


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_exits_well(name, capsys):
    assert main([name, "--help"]) == 0
    assert f"usage: blockscale {name}" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_fits_a_terminal_of_80_columns(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*filter(None, [name]), "--help"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_version_and_no_command(capsys):
    assert main(["--version"]) == 0
    assert main([]) == 2
    assert "commands:" in capsys.readouterr().out


def test_options_of_the_stock_script_are_taken():
    parse = COMMANDS["tune"].load()[0]().parse
    line = "-tp 4 --N 512 --K 7168 --input-type int8 --out-dtype half --block-n 64 --block-k 64 --batch-size 1 16"
    args = parse([*line.split(), "--save-path", "out"])
    assert (args.tp_size, args.N, args.K, args.input_type) == ([4], 512, 7168, "int8")
    assert (args.block_n, args.block_k) == (64, 64)
    assert (args.out_dtype, args.batch_sizes, args.save_path) == ("float16", [1, 16], Path("out"))


def test_a_model_may_stand_before_or_after_other_options():
    parse = COMMANDS["tune"].load()[0]().parse
    assert parse(["a", "b", "--tp-size", "2"]).models == ["a", "b"]
    assert parse(["--tp-size", "2", "a"]).models == ["a"]


@pytest.mark.parametrize(
    ("given", "models", "tp_size", "batch_sizes"),
    [
        (["--tp-size", "4", "8", "a", "b", "--yes"], ["a", "b"], [4, 8], None),
        (["-tp", "4", "org/a", "8", "--batch-sizes", "1", "16", "./b"], ["org/a", "./b"], [4, 8], [1, 16]),
        (
            ["a", "--tp-size", "4", "--batch-sizes", "1", "01-ai/b", "--tp-size=8", "c"],
            ["01-ai/b", "a", "c"],
            [4, 8],
            [1],
        ),
    ],
)
def test_a_model_after_several_numbers_is_none_of_them(given, models, tp_size, batch_sizes):
    args = COMMANDS["tune"].load()[0]().parse(given)
    assert (args.models, args.tp_size, args.batch_sizes) == (models, tp_size, batch_sizes)


def failing_with(error, monkeypatch):
    def build():
        return Parser("blockscale fail", "")

    def run(args):
        raise error

    monkeypatch.setattr(Command, "load", lambda self: (build, run))
    return main(["doctor"])


@pytest.mark.parametrize(
    ("error", "code"), [(InputError("wrong"), 2), (IncompleteRunError("disk full"), 3), (BlockscaleError("found"), 1)]
)
def test_expected_errors_are_one_line_with_their_exit_code(error, code, monkeypatch, capsys):
    monkeypatch.delenv("BLOCKSCALE_DEBUG", raising=False)
    assert failing_with(error, monkeypatch) == code
    assert capsys.readouterr().err == f"blockscale: error: {error}\n"


def test_a_path_that_may_not_be_used_is_one_line(monkeypatch, capsys):
    monkeypatch.delenv("BLOCKSCALE_DEBUG", raising=False)
    assert failing_with(PermissionError(13, "Permission denied", "/root/config.json"), monkeypatch) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("blockscale: error: /root/config.json cannot be accessed (permission denied): give a path")


def test_debug_adds_the_traceback(monkeypatch, capsys):
    monkeypatch.setenv("BLOCKSCALE_DEBUG", "1")
    assert failing_with(InputError("wrong"), monkeypatch) == 2
    assert "Traceback" in capsys.readouterr().err


def test_interrupt_says_that_the_command_continues(monkeypatch, capsys):
    assert failing_with(KeyboardInterrupt(), monkeypatch) == 130
    assert "same command continues" in capsys.readouterr().err


def test_an_error_of_our_own_is_called_a_bug(monkeypatch, capsys):
    assert failing_with(ZeroDivisionError("x"), monkeypatch) == 70
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "This is a bug" in err


def test_a_reader_that_left_ends_the_command_quietly():
    read = subprocess.run(
        [
            sys.executable,
            "-c",
            "from blockscale.cli.main import main; raise SystemExit(main(['shapes', 'deepseek-v3']))",
        ],
        stdout=(closed := _pipe_without_reader()),
        stderr=subprocess.PIPE,
    )
    closed.close()
    assert read.stderr == b""
    assert read.returncode == 141


def _pipe_without_reader() -> io.FileIO:
    import os

    reader, writer = os.pipe()
    os.close(reader)
    return io.FileIO(writer, "w")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["tune", "--help"],
        ["shapes", "--help"],
        ["export", "--help"],
        ["shapes", "deepseek-v3", "--tp-size", "8"],
        ["shapes", "deepseek-v3", "--tp-size", "8", "--json"],
    ],
)
def test_what_needs_no_device_starts_without_heavy_imports(arguments):
    code = (
        "import sys; from blockscale.cli.main import main; main(sys.argv[1:]); "
        "sys.exit(' '.join(m for m in ('torch', 'triton', 'rich', 'numpy') if m in sys.modules) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_module_behind_every_command_is_there():
    for command in COMMANDS.values():
        build, run = command.load()
        assert callable(run)
        assert isinstance(build(), Parser)
