"""The process that asks ggml for its devices: `python -m pinyon.engine.device_child TIME_LIMIT_S`. It prints what it found as JSON."""

import os
import signal
import sys

import msgspec

from pinyon.engine.device_probe import Found
from pinyon.engine.native import backend_devices, check_binding


def main() -> None:
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # drivers may print
    if sys.platform != "win32":
        # The parent keeps the time. This alarm ends the process should the parent die first, also amid native code.
        signal.setitimer(signal.ITIMER_REAL, 2 * float(sys.argv[1]))
    with answer:
        answer.write(msgspec.json.encode(Found(check_binding(), backend_devices())))


if __name__ == "__main__":
    main()
