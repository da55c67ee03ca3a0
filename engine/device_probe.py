"""Asks ggml for its devices in a child process: a driver that hangs or crashes takes only that with it."""

import functools
import importlib.util
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from pinyon.engine.device import Device
from pinyon.engine.errors import EngineCrashedError, EngineStartError, EngineStuckError
from pinyon.engine.worker_process import exit_text, worker_environment

_COMMAND: Final = (sys.executable, "-P", "-m", "pinyon.engine.device_child")
TIME_LIMIT_S: Final = 20.0
"""Starting a driver takes up to a few seconds."""


_CPU_LIBRARIES: Final = re.compile(
    r"(lib)?(llama(-common)?|mtmd|ggml(-base|-cpu.*|-blas|-rpc)?)\.(so|dylib|dll)(\..*)?"
)
_LIBRARY: Final = re.compile(r".+\.(so|dylib|dll)(\..*)?")


class Found(msgspec.Struct, frozen=True):
    """`build` names the native library, `devices` are all that it can compute on, the CPU among them."""

    build: str
    devices: tuple[Device, ...]


@functools.cache
def may_have_gpus() -> bool:
    """Whether llama.cpp was built for anything else than CPUs, as the names of its libraries tell; without loading them."""
    package = importlib.util.find_spec("llama_cpp")
    if package is None or package.origin is None:
        return False
    names = [path.name for path in (Path(package.origin).parent / "lib").glob("*")]
    return any(_LIBRARY.fullmatch(name) and not _CPU_LIBRARIES.fullmatch(name) for name in names)


def probe_devices(time_limit_s: float = TIME_LIMIT_S, command: Sequence[str] = _COMMAND) -> Found:
    """Return what ggml finds now. Takes half a second, more with drivers to start.

    Raises:
        EngineStartError: no process can be started.
        EngineCrashedError: it died, or did not answer; EngineStuckError: it did not end in time.
    """
    try:
        child = subprocess.run(
            [*command, str(time_limit_s)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=time_limit_s,
            env=worker_environment(),
            check=False,
        )
    except OSError as error:
        raise EngineStartError(f"the process that looks for devices cannot be started: {error}") from error
    except subprocess.TimeoutExpired:
        raise EngineStuckError(
            f"looking for devices took more than {time_limit_s:g} s: a driver may hang, see if its own tools answer"
        ) from None
    if child.returncode != 0:
        lines = child.stderr.decode("utf-8", "replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
        raise EngineCrashedError(
            f"the process that looks for devices died ({exit_text(child.returncode)}); it said at last: {last}"
        )
    try:
        return msgspec.json.decode(child.stdout, type=Found)
    except msgspec.DecodeError as error:
        raise EngineCrashedError(
            f"the process that looks for devices gave no answer that can be read: {error}"
        ) from error
