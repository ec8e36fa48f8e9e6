"""``blockscale compare``: a config file beside what it replaces, on its keys and between them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from blockscale.cli.devices import open_devices
from blockscale.cli.live import terminal_width
from blockscale.cli.parsing import Parser, whole_number
from blockscale.engines import Engine, engine, engine_names
from blockscale.engines.kernels import KernelChoice, choose_kernels
from blockscale.errors import InputError
from blockscale.executor.base import Device
from blockscale.problem import QuantFormat
from blockscale.report.compare import closing_lines, compare_json, file_lines, file_table, losses, title
from blockscale.report.table import render_table, wrap
from blockscale.tuning.comparison.contest import Rival
from blockscale.tuning.comparison.files import find_files
from blockscale.tuning.comparison.replaced import Replaced, named_files, shipped_files
from blockscale.tuning.comparison.run import Compared, CompareRequest, compare_files
from blockscale.tuning.request import STOCK_BATCH_SIZES

_CHOICE = tuple(rival for rival in Rival if rival is not Rival.BEST)
_LOSES = 1

_EPILOG = """A ratio in the table is a baseline's time over that of the file's config:
above 1 the file is faster. The exit code is 1 where the file is slower than
the engine's default or than the file it replaces, beyond noise, or where its
config does not run. DeepGEMM and cuBLAS are shown and judge nothing."""


def build_parser() -> Parser:
    """The parser of ``compare``."""
    parser = Parser(
        "blockscale compare", "Measure config files beside what they replace, where they lose too.", _EPILOG
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="config file of an engine, or a folder")
    parser.add_argument("--engine", choices=engine_names(), help="whose files (default: as their names are spelled)")
    parser.add_argument("--engine-version", metavar="V", help="version of --engine (default: installed, else newest)")
    parser.add_argument(
        "--against", type=Path, metavar="PATH", help="file or folder in place of the files that the engine ships"
    )
    parser.add_argument(
        "--device", default="cuda", metavar="DEVICE", help="cuda (the first GPU; default), recorded:h200, recorded:FILE"
    )
    parser.add_argument(
        "--batch-sizes",
        type=whole_number("--batch-sizes"),
        nargs="+",
        metavar="M",
        help="only these batch sizes (default: the file's keys and those that tune takes)",
    )
    parser.add_argument(
        "--between",
        action="store_true",
        help="also where the lookup goes over to the next key, and where the number of tiles steps between keys",
    )
    parser.add_argument(
        "--baselines",
        default=",".join(_CHOICE),
        metavar="LIST",
        help="what to compare with, by commas (default %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    return parser


def run(args: argparse.Namespace) -> int:
    """Compare and say where the files lose; 1 where they do."""
    engines = _engines(args)
    request = CompareRequest(
        tuple(args.batch_sizes or STOCK_BATCH_SIZES), bool(args.batch_sizes), args.between, _rivals(args.baselines)
    )
    with closing(_device(args.device, engines)) as device:
        found = find_files(args.files, engines, device.spec)
        replaced = Replaced({}, ())
        if args.against is not None:
            replaced = named_files(found.files, args.against, device.spec)
        elif Rival.SHIPPED in request.rivals:
            replaced = shipped_files(found.files, device.spec)
        notes = [*(f"passed over: {n} {_files(n)} {why}" for why, n in found.passed_over.items()), *replaced.notes]
        compared = compare_files(found.files, replaced.by_path, request, device)
        if args.json:
            report = compare_json(compared, device.spec, device.environment, notes, device.warnings())
            print(json.dumps(report, ensure_ascii=False))
        else:
            _show(compared, notes, device.warnings())
    return _LOSES if losses(compared) else 0


def _show(compared: Compared, notes: list[str], warnings: list[str]) -> None:
    width = terminal_width()
    for file in compared.files:
        print(title(file))
        print(render_table(file_table(file), width))
        print(*(wrap(line, width) for line in file_lines(file)), "", sep="\n")
    lines = [*(f"note: {note}" for note in notes), *(f"warning: {each}" for each in warnings), *closing_lines(compared)]
    print(*(wrap(line, width) for line in lines), sep="\n")


def _engines(args: argparse.Namespace) -> list[Engine]:
    if args.engine is None and args.engine_version is not None:
        raise InputError(f"--engine-version {args.engine_version} without --engine: say whose version it is.")
    return [engine(name, args.engine_version) for name in ([args.engine] if args.engine else engine_names())]


def _rivals(text: str) -> tuple[Rival, ...]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in _CHOICE:
            raise InputError(f"--baselines {text}: {name!r} is none; give some of {','.join(_CHOICE)}.")
    return tuple(rival for rival in _CHOICE if rival in names)


def _device(name: str, engines: Sequence[Engine]) -> Device:
    """The device to compare on; of GPUs the first one, whose processes take libraries' GEMMs among the candidates.

    It launches the engines' own FP8 kernels where these are installed.
    """
    if name != "cuda":
        (device,) = open_devices(name)
        return device
    from blockscale.executor.local import LocalDevice, LocalSettings, compile_workers
    from blockscale.measure.compile_pool import PoolSettings
    from blockscale.measure.library_worker import COMPILER, WORKER

    kernels, _ = choose_kernels(KernelChoice.AUTO, engines, QuantFormat.FP8)
    pool = PoolSettings(workers=compile_workers(1, 1), function=COMPILER)
    return LocalDevice(LocalSettings(pool=pool, worker=WORKER, kernels=kernels))


def _files(n: int) -> str:
    return "file" if n == 1 else "files"
