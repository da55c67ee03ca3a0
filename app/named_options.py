"""Sampling parameters and limits by name: `-o temperature=0.5`, a template's `[options]`, a batch's `options`."""

from collections.abc import Iterable, Mapping
from typing import Final, Self

import msgspec

from pinyon.app.ask import SamplingChoice
from pinyon.app.errors import UsageError
from pinyon.engine.request import GenerateRequest, SamplingParams


class NamedOptions(msgspec.Struct, frozen=True):
    """What was chosen; None is what the model's file recommends, or for `max_tokens` the end of the context."""

    sampling: SamplingChoice = SamplingChoice()
    max_tokens: int | None = None

    def checked(self) -> Self:
        """Return self, or raise InvalidRequestError naming the first option that is out of range for every model."""
        GenerateRequest("", (), self.sampling.over(SamplingParams()), self.max_tokens).checked(vocab_size=0)
        return self


_TYPES: Final = {
    field.name: field.type for field in msgspec.structs.fields(SamplingChoice) if field.name != "logit_bias"
}
_TYPES["max_tokens"] = int | None

_SENDABLE: Final = range(-(1 << 63), 1 << 64)
"""What the engine's process can be told. Which of these make sense it says itself."""


def named_options(values: Mapping[str, object]) -> NamedOptions:
    """Return what names and values choose; numbers may come as text. Raises UsageError for an unknown name or no number."""
    converted = {name: _converted(name, value) for name, value in values.items()}
    max_tokens = converted.pop("max_tokens", None)
    return NamedOptions(msgspec.convert(converted, SamplingChoice), msgspec.convert(max_tokens, int | None))


def named_values(pairs: Iterable[str], option: str) -> dict[str, str]:
    """Return what NAME=VALUE pairs say. Raises UsageError where one is none, or a name comes twice."""
    values: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise UsageError(f"{option} {pair!r} is no NAME=VALUE")
        if name in values:
            raise UsageError(f"{option} has {name} twice: {values[name]!r} and {value!r}")
        values[name] = value
    return values


def _converted(name: str, value: object) -> object:
    if name not in _TYPES:
        raise UsageError(f"there is no option {name!r}; the options are {', '.join(_TYPES)}")
    try:
        converted: object = msgspec.convert(value, _TYPES[name], strict=False)
    except msgspec.ValidationError:
        kind = "a whole number" if _TYPES[name] == int | None else "a number"
        raise UsageError(f"the option {name} is {value!r}: it has to be {kind}") from None
    if isinstance(converted, int) and converted not in _SENDABLE:
        raise UsageError(f"the option {name} is {value!r}, which has more than 64 bits")
    return converted
