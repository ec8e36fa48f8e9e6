"""Reading a model's config.json with one clear message for what is missing or of a wrong type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blockscale.errors import InputError

WAY_OUT = "Give the weight's sizes with --N and --K instead."


class Fields:
    """The sizes of a model's text part; multimodal configs nest it under ``text_config``."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        nested = config.get("text_config")
        self._values: Mapping[str, Any] = nested if isinstance(nested, Mapping) else config

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self._values.get(name) is not None

    def size(self, name: str, default: int | None = None) -> int:
        """A positive integer; ``default`` where the field is absent or null.

        Raises:
            InputError: the field is missing without a default, or no positive integer.
        """
        return self._integer(name, 1, default)

    def count(self, name: str, default: int | None = None) -> int:
        """As ``size``, 0 allowed."""
        return self._integer(name, 0, default)

    def integers(self, name: str) -> tuple[int, ...]:
        """A list of integers, empty where the field is absent or null."""
        value = self._values.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(type(each) is int for each in value):
            raise InputError(f"config field {name} = {value!r} is no list of integers. {WAY_OUT}")
        return tuple(value)

    def _integer(self, name: str, least: int, default: int | None) -> int:
        value = self._values.get(name)
        if value is None:
            if default is None:
                raise InputError(f"the model's config has no field {name}, which its layer shapes need. {WAY_OUT}")
            return default
        if type(value) is not int or value < least:
            raise InputError(f"config field {name} = {value!r} is no integer of at least {least}. {WAY_OUT}")
        return value
