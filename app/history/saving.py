"""A thread that saves: soon after something changed, in one piece with what follows at once, and again where that failed."""

import contextlib
import threading
from collections.abc import Callable
from typing import Final

_PAUSE_S: Final = 0.25
"""A kill loses at most what came in this time and in the write after it."""
_LONGEST_PAUSE_S: Final = 5.0


class Saver:
    """Calls `save` on its own thread; an error means that it has to try again.

    `on_trouble` is told, on that thread, when saving begins to fail and when it works again.
    """

    def __init__(self, save: Callable[[], None], on_trouble: Callable[[str], None]) -> None:
        self._save = save
        self._on_trouble = on_trouble
        self._state = threading.Condition()
        self._is_wanted = self._is_urgent = self._is_closing = False
        self._begun = self._ended = 0
        self._thread: threading.Thread | None = None
        self.why_not_saved = ""

    def want(self) -> None:
        """There is something to save."""
        with self._state:
            self._is_wanted = True
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="history", daemon=True)
                self._thread.start()
            self._state.notify_all()

    def flush(self) -> None:
        """Wait until what is wanted now was saved, or could not be."""
        with self._state:
            if not self._is_wanted and self._begun == self._ended:
                return
            wanted = self._begun + self._is_wanted
            self._is_urgent = True
            self._state.notify_all()
            self._state.wait_for(lambda: self._ended >= wanted)

    def close(self) -> None:
        """Save a last time, and end."""
        with self._state:
            self._is_closing = True
            self._state.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        pause_s = _PAUSE_S
        while self._next(pause_s):
            try:
                self._save()
            except Exception as error:  # noqa: BLE001  whatever it is, what is unsaved stays, and the user is told
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                self.fail(str(error))
            else:
                pause_s = _PAUSE_S
                self._worked()
            with self._state:
                self._ended += 1
                self._state.notify_all()

    def _next(self, pause_s: float) -> bool:
        """Wait for the next time to save; False when there is none."""
        with self._state:
            self._state.wait_for(lambda: self._is_wanted or self._is_closing)
            self._state.wait_for(lambda: self._is_urgent or self._is_closing, timeout=pause_s)
            if not self._is_wanted:
                return False
            self._is_wanted = self._is_urgent = False
            self._begun += 1
            return True

    def fail(self, why: str) -> None:
        """Saving cannot work, and is to be tried again."""
        was_fine, self.why_not_saved = not self.why_not_saved, why
        if was_fine:
            self._tell(f"not saved: {why}")
        if not self._is_closing:
            self.want()

    def _worked(self) -> None:
        was_fine, self.why_not_saved = not self.why_not_saved, ""
        if not was_fine:
            self._tell("saved again")

    def _tell(self, trouble: str) -> None:
        with contextlib.suppress(Exception):  # a listener's fault must not end the saving
            self._on_trouble(trouble)
