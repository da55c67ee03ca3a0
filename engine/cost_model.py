"""What things cost on this machine with this model, as measured while it works."""

from typing import Final

_MEMORY: Final = 0.2
"""The weight of the newest measurement in a running mean."""


class Rate:
    """Seconds per unit, a running mean; the first measurement replaces the guess."""

    def __init__(self, guess: float) -> None:
        self._value = guess
        self._measured = False

    @property
    def value(self) -> float:
        return self._value

    @property
    def per_s(self) -> float:
        """Units per second as measured; 0 while nothing was."""
        return 1 / self._value if self._measured and self._value else 0.0

    def measure(self, units: int, seconds: float) -> None:
        new = seconds / units
        self._value = new if not self._measured else (1 - _MEMORY) * self._value + _MEMORY * new
        self._measured = True


class CostModel:
    """Seconds for computing tokens of a prompt, and for bringing their KV back instead."""

    def __init__(self) -> None:
        self._prefill_s_per_token = Rate(1e-2)
        self._restore_s_per_byte = Rate(1e-9)

    @property
    def prefill_tokens_per_s(self) -> float:
        """0 while nothing was measured."""
        return self._prefill_s_per_token.per_s

    @property
    def restore_bytes_per_s(self) -> float:
        """0 while nothing was measured."""
        return self._restore_s_per_byte.per_s

    def prefill_s(self, tokens: int) -> float:
        return tokens * self._prefill_s_per_token.value

    def restore_s(self, size_bytes: int) -> float:
        return size_bytes * self._restore_s_per_byte.value

    def measure_prefill(self, tokens: int, seconds: float) -> None:
        """Take note of a step that computed nothing but prompts."""
        self._prefill_s_per_token.measure(tokens, seconds)

    def measure_restore(self, size_bytes: int, seconds: float) -> None:
        """Take note of KV that came back, from where its bytes were to the context."""
        self._restore_s_per_byte.measure(size_bytes, seconds)
