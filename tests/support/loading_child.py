"""Run as a script: loads the model at each path that comes in, and says what came of it; native code may kill it.

Its other side is `Loader`.
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

LIMIT_S = 10.0


class Loader:
    """One child after another; `deaths` are the files that took one along."""

    def __init__(self) -> None:
        self.deaths: list[Path] = []
        self._child: subprocess.Popen[str] | None = None
        self._reader = ThreadPoolExecutor(1)

    def load(self, path: Path) -> str:
        """Return "loaded", the reason why not, or "died". Raises TimeoutError past LIMIT_S."""
        if self._child is None:
            self._child = subprocess.Popen(
                [sys.executable, __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "GGML_NO_BACKTRACE": "1"},
                text=True,
            )
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(f"{path}\n")
        self._child.stdin.flush()
        answer = self._reader.submit(self._child.stdout.readline).result(LIMIT_S)
        if not answer:
            self.deaths.append(path)
            self._end()
        return answer.strip() or "died"

    def _end(self) -> None:
        if self._child is not None:
            with self._child as child:
                child.kill()
            self._child = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._reader.shutdown()


def main() -> None:
    from pinyon.engine.errors import ModelLoadError
    from pinyon.engine.native import Model, NativeLog

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what native code prints is no answer
    log = NativeLog(sys.stderr)
    for line in sys.stdin:
        try:
            Model(Path(line.strip()), log, lambda _fraction: True).close()
            answer = "loaded"
        except ModelLoadError as error:
            answer = str(error).replace("\n", " ")
        print(ascii(answer)[1:-1], file=answers, flush=True)


if __name__ == "__main__":
    main()
