"""``blockscale export``: engine files or a recorded device, from what a store holds; nothing is measured."""

from __future__ import annotations

import argparse
from pathlib import Path

from blockscale.cli.folders import nothing_left_behind, output_folders
from blockscale.cli.inputs import chosen_engines
from blockscale.cli.parsing import Parser, add_store
from blockscale.engines import engine_names, require_writable
from blockscale.errors import InputError
from blockscale.recording import require_replaceable
from blockscale.report.lines import plain_line
from blockscale.store import Store, choose_environment, export_recording

_EPILOG = """A store may hold measurements of several environments (GPU, driver, torch,
Triton); times of two never mix. Where there are several, name one by
--device-name or by --environment."""


def build_parser() -> Parser:
    """The parser of ``export``."""
    parser = Parser("blockscale export", "Write engine files or a recorded device from a store.", _EPILOG)
    parser.add_argument(
        "what",
        choices=["configs", "recording"],
        metavar="{configs,recording}",
        help="configs: the engines' files, from the trials of finished problems; recording: a file for "
        "--device recorded:FILE",
    )
    add_store(parser, "read this")
    parser.add_argument("--device-name", metavar="NAME", help="the device whose measurements are meant")
    parser.add_argument("--environment", metavar="KEY", help="the environment meant, by the start of its key")
    parser.add_argument("--output", "-o", type=Path, metavar="PATH", help="recording: the file (.gz compresses)")
    parser.add_argument("--engine", action="append", choices=engine_names(), help="configs: as in tune, repeatable")
    parser.add_argument("--engine-version", metavar="V", help="configs: as in tune")
    parser.add_argument("--save-path", type=Path, metavar="DIR", help="configs: as in tune (default ./configs/ENGINE)")
    parser.add_argument("--overwrite", action="store_true", help="configs: as in tune")
    parser.add_argument(
        "--keys",
        choices=["asked", "fit"],
        help="configs: fit adds keys between the tuned ones, where the faster config changes (default asked)",
    )
    return parser


def run(args: argparse.Namespace) -> int:
    """Write what was asked for."""
    return _configs(args) if args.what == "configs" else _recording(args)


def _recording(args: argparse.Namespace) -> int:
    for option in ("engine", "engine_version", "save_path", "overwrite", "keys"):
        if getattr(args, option):
            name = option.replace("_", "-")
            raise InputError(f"--{name}: belongs to `export configs`; leave it out of `export recording`.")
    if args.output is None:
        raise InputError("export recording: no file to write; give -o PATH.")
    require_replaceable(args.output)
    with Store.open(args.store, create=False) as store:
        count = export_recording(store, args.output, args.device_name, args.environment)
    print(f"wrote {args.output} ({count} trials); use it with --device recorded:{args.output}")
    return 0


def _configs(args: argparse.Namespace) -> int:
    from blockscale.tuning.events import FileWritten
    from blockscale.tuning.fitted import KeyFitting
    from blockscale.tuning.stored import StoredFiles

    if args.output is not None:
        raise InputError("-o/--output: belongs to `export recording`; `export configs` takes --save-path.")
    engines = chosen_engines(args)
    folders = output_folders(args.save_path, [e.name for e in engines])
    with Store.open(args.store, create=False) as store:
        environment = choose_environment(store, args.device_name, args.environment)
        files = StoredFiles.read(store, environment)
        fitting = KeyFitting(store, environment, files.spec) if args.keys == "fit" else None
        for engine, (_, folder) in zip(engines, folders, strict=True):
            files.check(engine, folder, store.path)
        with nothing_left_behind(folder for _, folder in folders):
            for _, folder in folders:
                require_writable(folder)
            written = 0
            for engine, (_, folder) in zip(engines, folders, strict=True):
                for event in files.write(engine, folder, overwrite=args.overwrite, fitting=fitting):
                    print(plain_line(event))
                    written += isinstance(event, FileWritten)
            if not written:
                raise InputError(
                    f"store {args.store} holds no finished problem of {environment.device_name} for "
                    f"{', '.join(e.name for e in engines)}: nothing to write; run `blockscale tune` with that engine."
                )
    return 0
