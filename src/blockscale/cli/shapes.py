"""``blockscale shapes``: the weight shapes of models, and the layers that a tensor-parallel size does not fit."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from blockscale.cli.parsing import MODEL_HELP, Parser, add_model_options
from blockscale.engines import Engine, engine, engine_names
from blockscale.errors import InputError

if TYPE_CHECKING:
    from blockscale.cli.listings import Listing


def build_parser() -> Parser:
    """The parser of ``shapes``."""
    parser = Parser("blockscale shapes", "List the block-quantised weights of models as one GPU holds them.")
    parser.add_argument("models", nargs="*", metavar="MODEL", help=MODEL_HELP)
    add_model_options(parser)
    parser.add_argument("--engine", choices=engine_names(), help="list layers as this engine launches them")
    parser.add_argument(
        "--engine-version", metavar="V", help="its version (default: the installed one, else the newest)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    return parser


def run(args: argparse.Namespace) -> int:
    """Print the shapes; what is refused of a model makes the exit code 2, the rest is listed nevertheless."""
    from blockscale.cli.listings import read_listings, require_one_source

    require_one_source(args.models, args.from_log)
    chosen = _chosen_engine(args)
    if args.from_log is not None:
        return _list_log(args)
    if not args.models:
        raise InputError(
            "neither MODEL nor --from-log is given: name a model, e.g. `blockscale shapes deepseek-v3 --tp-size 8` "
            "(`blockscale shapes --help` lists what there is)."
        )
    listings = read_listings(args, args.models, [chosen])
    if args.json:
        from blockscale.report.shapes import listings_json

        engines = {chosen.name: chosen.version} if chosen else {}
        rows = ((each.shapes, str(each.refusal) if each.refusal else None) for each in listings)
        print(json.dumps(listings_json(rows, engines), ensure_ascii=False))
    else:
        _print_listings(listings)
    sys.stdout.flush()  # so that in a log the errors follow the table
    errors = dict.fromkeys(text for each in listings for text in _errors(each, named=len(listings) > 1))
    for text in errors:
        print(f"blockscale: error: {text}", file=sys.stderr)
    return InputError.exit_code if errors else 0


def _chosen_engine(args: argparse.Namespace) -> Engine | None:
    """The engine asked for, None where none is.

    Raises:
        InputError: a version without an engine, or one that is none.
    """
    if args.engine is not None:
        return engine(args.engine, args.engine_version)
    if args.engine_version is not None:
        raise InputError(f"--engine-version {args.engine_version} without --engine: say whose version it is.")
    return None


def _errors(listing: Listing, *, named: bool) -> list[str]:
    """What engines refuse of a model, which is ``named`` where there are several."""
    whose = f"{listing.title}: " if named else ""
    refused = [f"{whose}{layer}" for layer in listing.shapes.refused]
    return refused if listing.refusal is None else [str(listing.refusal), *refused]


def _print_listings(listings: tuple[Listing, ...]) -> None:
    from blockscale.cli.live import terminal_width
    from blockscale.report.shapes import heading, note_lines, shapes_table
    from blockscale.report.table import render_table, wrap

    width = terminal_width()
    for i, each in enumerate(listings):
        if i:
            print()
        engine = str(each.engine) if each.engine else None
        print(f"{heading(each.shapes, engine, assumed=each.refusal is not None)}\n")
        print(render_table(shapes_table(each.shapes)))
        for note in note_lines(each.shapes):
            print(wrap(f"note: {note}", width, "  "))
    if len(listings) > 1:
        distinct = {weight for each in listings for weight in each.shapes.weights}
        print(f"\n{len(distinct)} distinct shapes; `blockscale tune` with the same models tunes each once.")


def _list_log(args: argparse.Namespace) -> int:
    from blockscale.cli.live import terminal_width
    from blockscale.report.shapes import launches_json, launches_table
    from blockscale.report.table import render_table, wrap
    from blockscale.shapes.served import read_served

    served = read_served(args.from_log)
    if args.json:
        found = launches_json(served.launches, served.quant, served.engines, served.notes)
        print(json.dumps(found, ensure_ascii=False))
        return 0
    quant = served.quant
    whose = [", ".join(served.engines)] if served.engines else []
    whose += [f"{quant.format} in blocks of {quant.block_n}×{quant.block_k}"] if quant else []
    print(", ".join([f"Launched according to {args.from_log}", *whose]) + "\n")
    print(render_table(launches_table(served.launches)))
    for note in served.notes:
        print(wrap(f"note: {note}", terminal_width(), "  "))
    return 0
