"""Reading a model's config.json with one clear message for what is missing or of a wrong type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blockscale.errors import InputError

WAY_OUT = "Give the weight's sizes with --N and --K instead."

_MOST_LAYERS = 10_000  # far beyond any model; each one is looked at


def text_part(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What multimodal configs nest under ``text_config``, None where a config has nothing nested."""
    nested = config.get("text_config")
    return nested if isinstance(nested, Mapping) else None


def architectures(config: Mapping[str, Any]) -> list[str]:
    """The names under ``architectures``, none where the field is absent, null or empty.

    Raises:
        InputError: it is no list of names.
    """
    names = config.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError(f"config field architectures = {names!r} is no list of names. {WAY_OUT}")
    return names


def own_name(config: Mapping[str, Any]) -> str:
    """What the config calls its architecture."""
    return ", ".join(architectures(config)) or str(config.get("model_type") or "unnamed")


class Fields:
    """The sizes of a model's text part."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        nested = text_part(config)
        self._values = config if nested is None else nested

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

    def layers(self, name: str = "num_hidden_layers") -> range:
        """The indices of the decoder layers that ``name`` counts.

        Raises:
            InputError: as ``size``, or there are more than 10,000.
        """
        layers = self.size(name)
        if layers > _MOST_LAYERS:
            raise InputError(f"config field {name} = {layers} is more than the {_MOST_LAYERS} layers read. {WAY_OUT}")
        return range(layers)

    def flag(self, name: str, default: bool) -> bool:
        """True or false; ``default`` where the field is absent or null."""
        value = self._values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise InputError(f"config field {name} = {value!r} is neither true nor false. {WAY_OUT}")
        return value

    def integers(self, name: str) -> tuple[int, ...]:
        """A list of integers, empty where the field is absent or null."""
        value = self._values.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(type(each) is int for each in value):
            raise InputError(f"config field {name} = {value!r} is no list of integers. {WAY_OUT}")
        return tuple(value)

    def strings(self, name: str) -> tuple[str, ...]:
        """A list of names, empty where the field is absent or null."""
        value = self._values.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise InputError(f"config field {name} = {value!r} is no list of names. {WAY_OUT}")
        return tuple(value)

    def text(self, name: str) -> str:
        """A text, empty where the field is absent or null."""
        value = self._values.get(name)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise InputError(f"config field {name} = {value!r} is no text. {WAY_OUT}")
        return value

    def nested(self, name: str) -> Fields:
        """The fields of an object, none where the field is absent or null."""
        value = self._values.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise InputError(f"config field {name} = {value!r} is no object. {WAY_OUT}")
        return Fields(value or {})

    def _integer(self, name: str, least: int, default: int | None) -> int:
        value = self._values.get(name)
        if value is None:
            if default is None:
                raise InputError(f"the model's config has no field {name}, which its layer shapes need. {WAY_OUT}")
            return default
        if type(value) is not int or value < least:
            raise InputError(f"config field {name} = {value!r} is no integer of at least {least}. {WAY_OUT}")
        return value
