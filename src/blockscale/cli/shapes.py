"""``blockscale shapes``: the weight shapes of a model, and the layers that a tensor-parallel size does not fit."""

from __future__ import annotations

import argparse
import json
import sys

from blockscale.cli.parsing import Parser, add_tp_size
from blockscale.engines import engine_names
from blockscale.errors import InputError


def build_parser() -> Parser:
    """The parser of ``shapes``."""
    parser = Parser("blockscale shapes", "List the block-quantised weights of a model as one GPU holds them.")
    parser.add_argument(
        "model", metavar="MODEL", help="folder with a config.json, a .json file, a hub id, or the preset deepseek-v3"
    )
    add_tp_size(parser)
    parser.add_argument("--engine", choices=engine_names(), help="name layers as this engine does")
    parser.add_argument(
        "--engine-version", metavar="V", help="its version (default: the installed one, else the newest)"
    )
    parser.add_argument(
        "--quantization",
        choices=["fp8-block"],
        help="quantisation to assume where the model's config names none (the only one, and the default)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    return parser


def run(args: argparse.Namespace) -> int:
    """Print the shapes; refused layers are listed too and make the exit code 2."""
    from blockscale.engines import engine
    from blockscale.report.shapes import shapes_json, shapes_table
    from blockscale.report.table import render_table
    from blockscale.shapes import layer_shapes, load_model_config

    if args.engine_version is not None:
        if args.engine is None:
            raise InputError(f"--engine-version {args.engine_version} without --engine: say whose version it is.")
        engine(args.engine, args.engine_version)
    name, config = load_model_config(args.model)
    shapes = layer_shapes(config, args.tp_size, args.engine, name)
    if args.json:
        print(json.dumps(shapes_json(shapes), ensure_ascii=False))
    else:
        block = f"blocks of {shapes.quant.block_n}×{shapes.quant.block_k}"
        print(f"{name} at tensor-parallel size {args.tp_size}, {block}\n")
        print(render_table(shapes_table(shapes)))
        for note in shapes.notes:
            print(f"note: {note}")
    sys.stdout.flush()  # so that in a log the errors follow the table
    for refused in shapes.refused:
        print(f"blockscale: error: {refused}", file=sys.stderr)
    return InputError.exit_code if shapes.refused else 0
