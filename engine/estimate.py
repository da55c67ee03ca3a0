"""What a request would find of its prompt if it began now, and what the rest would take."""

import msgspec


class Estimate(msgspec.Struct, frozen=True, tag="estimate"):
    """Tokens of the prompt by where their KV is, as in CacheReport; the others are computed in `compute_s` seconds.

    `restore_s` is for bringing back what is in RAM or on disk. Waiting for other requests is not in either. Unless it
    `is_measured`, nothing was computed yet, and the seconds are a guess.
    """

    prompt_tokens: int
    resident: int = 0
    ram: int = 0
    disk: int = 0
    compute_s: float = 0.0
    restore_s: float = 0.0
    is_measured: bool = False

    @property
    def cached(self) -> int:
        return self.resident + self.ram + self.disk
