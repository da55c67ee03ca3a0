"""A server's worker, and waiting for what will be."""

import time

import psutil


def worker_of(server):
    (worker,) = (child for child in psutil.Process(server.pid).children() if "pinyon.engine.worker" in child.cmdline())
    return worker


def until(condition, limit_s=20):
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)
