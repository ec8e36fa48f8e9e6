"""Models as arguments name them, listed at every tensor-parallel size for every engine."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from blockscale.cli.parsing import DEFAULT_TP_SIZE
from blockscale.engines import Engine
from blockscale.errors import InputError
from blockscale.shapes import Model, ModelShapes, Parallelism, layer_shapes, load_model

_FOLDING_ENGINE = "sglang"  # the one that can fold shared experts into its MoE kernel


@dataclass(frozen=True, slots=True)
class Listing:
    """A model's layers at one tensor-parallel size. ``engine`` is None where none was named.

    ``refusal`` says that the model is not quantised in blocks: then its layers are listed as if it were, which holds
    for what quantises it while loading.
    """

    model: str  # as the arguments name it
    shapes: ModelShapes
    engine: Engine | None
    refusal: InputError | None = None

    @property
    def title(self) -> str:
        """Name and tensor-parallel size."""
        return f"{self.shapes.name} at tensor-parallel size {self.shapes.parallelism.tp_size}"


def read_listings(
    args: argparse.Namespace, models: Sequence[str], engines: Sequence[Engine | None]
) -> tuple[Listing, ...]:
    """All listings, by model, then TP size, then engine, each distinct one once.

    Raises:
        InputError: a model cannot be read, or shared experts are to be folded by engines that never do.
    """
    if args.shared_experts_fusion and not any(e is None or e.name == _FOLDING_ENGINE for e in engines):
        raise InputError(
            f"--shared-experts-fusion without --engine {_FOLDING_ENGINE}: no other engine folds shared experts into "
            "its MoE kernel; leave it out."
        )
    sizes = list(dict.fromkeys(args.tp_size or [DEFAULT_TP_SIZE]))
    return tuple(
        _listing(args, given, model, Parallelism(tp_size, args.ep_size, args.dp_attention), engine)
        for given, model in _load(args, models).items()
        for tp_size in sizes
        for engine in engines
    )


def _load(args: argparse.Namespace, models: Sequence[str]) -> dict[str, Model]:
    """The models by what the arguments call them, which is also their name where two would have the same."""
    loaded = {given: load_model(given, revision=args.revision, token=args.token) for given in dict.fromkeys(models)}
    alike = Counter(model.name for model in loaded.values())
    return {given: replace(model, name=given) if alike[model.name] > 1 else model for given, model in loaded.items()}


def _listing(
    args: argparse.Namespace, given: str, model: Model, parallelism: Parallelism, engine: Engine | None
) -> Listing:
    folded = args.shared_experts_fusion and (engine is None or engine.name == _FOLDING_ENGINE)

    def listed(*, assumed: bool) -> ModelShapes:
        return layer_shapes(model, parallelism, engine, assume_block_quantised=assumed, shared_experts_in_moe=folded)

    try:
        return Listing(given, listed(assumed=args.quantization is not None), engine)
    except InputError as refusal:
        named = InputError(f"{model.name}: {refusal}")
        try:
            shapes = listed(assumed=True)
        except InputError:
            raise named from None
        return Listing(given, shapes, engine, named)


def require_one_source(
    models: Sequence[str], from_log: Path | None, n: int | None = None, k: int | None = None
) -> None:
    """Refuse arguments that name shapes in two ways, or one size of a weight.

    Raises:
        InputError: so it is.
    """
    sizes = "--N/--K" if n is not None or k is not None else None
    if from_log is not None and (models or sizes):
        also = " and ".join(filter(None, (" ".join(models), sizes)))
        raise InputError(
            f"both --from-log {from_log} and {also} are given: take the shapes from a log, or from a MODEL or --N/--K, "
            "not both."
        )
    if (n is None) != (k is None):
        given, missing = ("--N", "--K") if k is None else ("--K", "--N")
        raise InputError(f"{given} is given without {missing}: a weight has both; give --N and --K, or a MODEL.")
    if sizes and models:
        raise InputError(f"both {' '.join(models)} and --N/--K are given: tune a MODEL or one weight, not both.")
