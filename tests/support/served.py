"""`pinyon serve` as a process, and its worker."""

import contextlib
import subprocess
import time

import psutil
from command_line import PINYON, environment


@contextlib.contextmanager
def serving(home, *options):
    """A server that has said where it is; its process has the attributes `url` and `banner`."""
    with subprocess.Popen(
        [*PINYON, "serve", "--port", "0", *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(home),
    ) as server:
        server.banner = b""
        while b"ends it" not in server.banner and (line := server.stderr.readline()):
            server.banner += line
        server.url = server.banner.decode().split("\n", 1)[0]
        try:
            yield server
        finally:
            server.terminate()
            try:
                server.wait(20)
            finally:
                server.kill()


def worker_of(server):
    (worker,) = (child for child in psutil.Process(server.pid).children() if "pinyon.engine.worker" in child.cmdline())
    return worker


def until(condition, limit_s=20):
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)
