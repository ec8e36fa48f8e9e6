"""``blockscale install``: tuned files put into an installed engine's own config folder, and taken out again."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from blockscale.cli.endings import one_line
from blockscale.cli.parsing import Parser
from blockscale.engines import engine_names, installed_engines
from blockscale.engines.rules import RESTART_NOTE
from blockscale.errors import BlockscaleError, InputError
from blockscale.install import WAY_OUT
from blockscale.install.plan import Kind, Plan, installed_folder, plan_install
from blockscale.report.install import plan_json, plan_lines, undone_json, undone_lines

_DEFAULT = Path("configs")

_EPILOG = """Entries are merged by batch size as `tune` merges them. A file that is replaced
is kept and comes back with --undo. An update of the engine takes its folder
away: install again then, or set BLOCKSCALE_CONFIG_DIR to your own folder where
the engine runs, which needs no install and outlives updates."""


def build_parser() -> Parser:
    """The parser of ``install``."""
    parser = Parser("blockscale install", "Put tuned files into an installed engine's own config folder.", _EPILOG)
    parser.add_argument(
        "paths", nargs="*", type=Path, metavar="FILE", help="tuned file or a folder of them (default: ./configs/ENGINE)"
    )
    parser.add_argument(
        "--engine", choices=engine_names(), help="which engine (default: whose the files are; --undo: all)"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="list what would be new, replaced and equal; change nothing"
    )
    parser.add_argument("--undo", action="store_true", help="put back all that was installed")
    parser.add_argument("--yes", action="store_true", help="do not ask before files of the engine are replaced")
    parser.add_argument("--json", action="store_true", help="one JSON list on stdout, an object a file; asks nothing")
    return parser


def run(args: argparse.Namespace) -> int:
    """Install, or undo all installs."""
    if args.undo:
        return _undo(args)
    plans = plan_install(args.paths or _default_paths(args.engine), args.engine, _gpus())
    if not args.dry_run:
        if not (args.yes or args.json) and sys.stdin.isatty() and any(plan.count(Kind.REPLACED) for plan in plans):
            _confirm(plans)
        for plan in plans:
            for each in plan.changes:
                if each.kind is not Kind.EQUAL:
                    plan.folder.put(each.target, each.before, each.after)
    if args.json:
        print(json.dumps(plan_json(plans, done=not args.dry_run)))
        return 0
    _print(plan_lines(plans, done=not args.dry_run))
    if not args.dry_run:
        print(RESTART_NOTE)
    return 0


def _undo(args: argparse.Namespace) -> int:
    if args.paths:
        raise InputError(f"{args.paths[0]} with --undo, which puts back all that was installed: give no file.")
    if args.dry_run:
        raise InputError("--dry-run with --undo: choose one of them.")
    names = [args.engine] if args.engine else [each.name for each in installed_engines() if each.config_folder]
    folders = [installed_folder(name) for name in names]
    if not any(folder.installed for folder in folders):
        where = ", ".join(str(folder.path) for folder in folders) or "no engine is installed for this Python"
        raise InputError(f"nothing that was installed is there to put back ({where}): run `blockscale install` first.")
    done = {folder.path / name: outcome for folder in folders for name, outcome in folder.undo().items()}
    if args.json:
        print(json.dumps(undone_json(done)))
    else:
        _print([*undone_lines(done), RESTART_NOTE])
    return 0


def _default_paths(engine_name: str | None) -> list[Path]:
    """Where `tune` writes, for the engine named or those installed; the whole folder where it has none of theirs."""
    names = [engine_name] if engine_name else [each.name for each in installed_engines()]
    return [folder for name in names if (folder := _DEFAULT / name).is_dir()] or [_DEFAULT]


def _gpus() -> frozenset[str] | None:
    """Names of the GPUs here as the driver reports them; None where there is none, as where an image is built."""
    from blockscale.executor.gpus import visible_gpus

    try:
        return frozenset(gpu.name for gpu in visible_gpus())
    except BlockscaleError:
        return None


def _confirm(plans: Sequence[Plan]) -> None:
    _print(plan_lines(plans, done=False))
    try:
        answer = input("Go? [Y/n] ").strip().lower()
    except EOFError:
        answer = "n"
    if answer not in ("", "y", "yes"):
        raise InputError(
            f"not installed, as you said; nothing was changed. To leave the engine's files alone, {WAY_OUT}."
        )


def _print(lines: Sequence[str]) -> None:
    for line in lines:
        print(one_line(line))
