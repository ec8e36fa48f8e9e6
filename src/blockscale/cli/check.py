"""``blockscale check``: config files held against what their engine does with them, and put right."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from blockscale.checking.findings import Severity
from blockscale.checking.fixes import Fixed
from blockscale.checking.run import check_paths, fix_all, known_engines, moved, with_findings
from blockscale.cli.endings import one_line
from blockscale.cli.parsing import Parser
from blockscale.engines import engine_names
from blockscale.errors import InputError
from blockscale.report.check import closing_lines, file_lines, findings_json, fixed_lines

_HAS_ERRORS = 1

_EPILOG = """The exit code is 1 where there are errors and 0 where there are warnings alone.
Without --engine the nearest folder named sglang or vllm tells whose a file is,
else the spelling of its block shape, else the engine that finds fewest errors.
A folder is searched to any depth; files of other kernels (fused MoE,
channelwise) and hidden files are passed over."""


def build_parser() -> Parser:
    """The parser of ``check``."""
    parser = Parser(
        "blockscale check", "Find what engines never read, cannot load or run wrongly in config files.", _EPILOG
    )
    parser.add_argument("paths", nargs="+", type=Path, metavar="FILE", help="config file of an engine, or a folder")
    parser.add_argument("--engine", choices=engine_names(), help="whose files (default: as folder or name tell)")
    parser.add_argument("--engine-version", metavar="V", help="version of --engine (default: installed, else newest)")
    parser.add_argument(
        "--fix",
        action="store_true",
        help="put right what needs no tuning: wrong names, notes among the keys, their order, bytes; say what is left",
    )
    parser.add_argument(
        "--compile",
        action="store_true",
        help="also compile each entry for the GPU in the file's name (needs the extra `gpu`, no GPU; takes minutes)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON list of findings on stdout")
    return parser


def run(args: argparse.Namespace) -> int:
    """Check, fix if asked, and say what is left; 1 where that has errors, 2 where a fix could not be written."""
    engines = known_engines(args.engine, args.engine_version)
    checked = check_paths(args.paths, engines)
    fixed: list[Fixed] = []
    if args.fix:
        fixed = fix_all(checked)
        checked = check_paths(moved(args.paths, fixed, checked), engines)
    if args.compile:
        from blockscale.checking.compiled import compile_findings

        checked = with_findings(checked, compile_findings(checked.files))
    if args.json:
        print(json.dumps(findings_json(checked)))
        _print(fixed_lines(fixed), sys.stderr)
    else:
        _print([*fixed_lines(fixed), *(line for file in checked.files for line in file_lines(file))], sys.stdout)
        _print(closing_lines(checked), sys.stdout)
    failures = [each for each in fixed if each.failure is not None]
    sys.stdout.flush()  # so that in a log the errors follow the findings
    for each in failures:
        print(one_line(f"blockscale: error: {each.path} is not fixed: {each.failure}."), file=sys.stderr)
    if failures:
        return InputError.exit_code
    return _HAS_ERRORS if checked.count(Severity.ERROR) else 0


def _print(lines: Sequence[str], stream: TextIO) -> None:
    for line in lines:
        print(one_line(line), file=stream)
