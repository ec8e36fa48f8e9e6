"""Layers of an architecture that nobody wrote rules for, read from the names and shapes of its checkpoint."""

from __future__ import annotations

from blockscale.errors import InputError
from blockscale.problem import QuantScheme
from blockscale.shapes.fields import WAY_OUT
from blockscale.shapes.rules import Family
from blockscale.shapes.safetensors import StoredTensor
from blockscale.shapes.source import Model

__all__ = ["StoredTensor", "family"]


def family(model: Model, quant: QuantScheme) -> Family:
    """The block-quantised layers that the checkpoint's tensors show.

    Raises:
        InputError: there are no tensors to read.
    """
    raise InputError(f"the layers of {model.name} cannot be told without its checkpoint. {WAY_OUT}")
