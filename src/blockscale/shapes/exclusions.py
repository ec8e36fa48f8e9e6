"""Names of modules as quantisation configs list them, and what becomes of a layer that they name in part."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from blockscale.errors import InputError
from blockscale.shapes.fields import WAY_OUT
from blockscale.shapes.rules import Layer

# What stands before ``layers.`` in a checkpoint's names, by the kind of model and the version of transformers.
_PREFIXES = ("model.", "", "model.language_model.", "language_model.model.", "language_model.")
_LINEAR = "Linear"  # the class of all linear layers


@dataclass(frozen=True, slots=True)
class Names:
    """Names and regular expressions (``re:…``, matched from the start) that stand for modules.

    ``anywhere``: a name stands for each module whose dotted path contains it, else for the module of that very name.
    """

    exact: frozenset[str] = frozenset()
    patterns: tuple[re.Pattern[str], ...] = field(default=(), compare=False)
    anywhere: bool = False

    @classmethod
    def of(cls, names: Sequence[str], *, anywhere: bool) -> Names:
        """Read a config's list.

        Raises:
            InputError: a regular expression is none.
        """
        patterns = []
        for name in names:
            if name.startswith("re:"):
                try:
                    patterns.append(re.compile(name.removeprefix("re:")))
                except (re.error, OverflowError, RecursionError) as error:
                    raise InputError(
                        f"{name!r} in the model's quantisation is no regular expression. {WAY_OUT}"
                    ) from error
        exact = frozenset(name.rstrip(".") for name in names if not name.startswith("re:"))
        return cls(exact, tuple(patterns), anywhere)

    @property
    def all_linear(self) -> bool:
        """Whether they name the class of all linear layers."""
        return _LINEAR in self.exact

    def match(self, path: str) -> bool:
        """Whether they name the module at ``path``, which begins with ``layers.``."""
        return any(self._match(prefix + path) for prefix in _PREFIXES)

    def _match(self, path: str) -> bool:
        if self.anywhere and not self.exact.isdisjoint(_parts(path)):
            return True
        return path in self.exact or any(pattern.match(path) for pattern in self.patterns)


NOTHING = Names()


def _parts(path: str) -> Iterator[str]:
    """Every run of a dotted path's components."""
    words = path.split(".")
    for start in range(len(words)):
        for end in range(start + 1, len(words) + 1):
            yield ".".join(words[start:end])


@dataclass(frozen=True, slots=True)
class Kept:
    """What is left of a layer: None where nothing is, and what to tell a person; ``mixed`` why engines refuse it."""

    layer: Layer | None
    note: str | None = None
    mixed: str | None = None


def keep_quantised(layer: Layer, named: Callable[[str], bool | None], *, unnamed: bool) -> Kept:
    """The layer with the count of those of its occurrences that are quantised in blocks.

    ``named`` says whether a module's name puts it in blocks, None where nothing names it: then ``unnamed`` holds. The
    own name of a fused layer stands for all its parts that nothing names (vLLM 0.33.0 and SGLang 0.5.23,
    find_matched_target). Engines refuse a mix: both (is_layer_skipped) want one precision for all parts.
    """
    if layer.site is None:
        return Kept(layer)
    own = layer.name.rpartition(".")[2].split(" ")[0]
    left = 0
    for index in layer.site.layers:
        for root in layer.site.roots:
            at = f"layers.{index}.{root}"
            whole = named(at + own) if len(layer.modules) > 1 else None
            if whole is False:
                continue
            by_name = {module: named(at + module) for module in layer.modules}
            parts = {module: whole or unnamed if told is None else told for module, told in by_name.items()}
            if len(set(parts.values())) > 1:
                other = [module for module, quantised in parts.items() if not quantised]
                why = f"{at}{', '.join(other)} unquantised, but not the other parts of the fused {own}"
                return Kept(layer, mixed=f"the config keeps {why}: engines want one precision for all parts")
            left += all(parts.values())
    if left == layer.count:
        return Kept(layer)
    here = "all" if left == 0 else f"{layer.count - left} of {layer.count}"
    note = f"{layer.name} is left out in {here} layers: the config keeps it unquantised or quantises it otherwise."
    return Kept(replace(layer, count=left) if left else None, note)
