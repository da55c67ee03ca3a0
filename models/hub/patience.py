"""How long trouble with the hub is put up with: waits between tries, a deadline, a user who has had enough."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pinyon.models.errors import DownloadError, HubBusyError, HubConnectionError

_TRIES: Final = 6
_FIRST_WAIT_S: Final = 0.5
_LONGEST_WAIT_S: Final = 60.0
_SLICE_S: Final = 0.1


class StoppedError(DownloadError):
    """The user stopped it."""


@dataclass(frozen=True, slots=True)
class Patience:
    """`until` is on `clock`, in seconds; None is for work that may take as long as bytes come."""

    until: float | None = None
    cancelled: Callable[[], bool] = lambda: False
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def check(self) -> None:
        """Raises StoppedError once `cancelled` is true, DownloadError past the deadline."""
        if self.cancelled():
            raise StoppedError("stopped")
        if self.until is not None and self.clock() > self.until:
            raise DownloadError("the hub took too long to answer: try again, or check the network")

    def wait(self, failures: int, error: HubBusyError | HubConnectionError) -> None:
        """Wait before the next try; `failures` in a row came before it. Raises `error` where another try makes no sense."""
        asked = error.retry_after_s if isinstance(error, HubBusyError) else None
        wait_s = _FIRST_WAIT_S * 2 ** (failures - 1) if asked is None else asked
        if (
            failures >= _TRIES
            or wait_s > _LONGEST_WAIT_S
            or (self.until is not None and self.clock() + wait_s > self.until)
        ):
            raise error
        while wait_s > 0:
            self.check()
            self.sleep(min(wait_s, _SLICE_S))
            wait_s -= _SLICE_S
