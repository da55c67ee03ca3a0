"""Renders untrusted Jinja in one warm child process.

A model file is a download, and its chat template is a program. Jinja's sandbox keeps that program from reaching Python, but not
from running for ever or filling memory, so it runs in a child (`template_child`) that is killed past a limit and replaced at
once. The memory limit needs Linux; elsewhere only the time limit holds.
"""

import asyncio
import json
import os
import subprocess
import sys
from contextlib import suppress
from typing import cast

import msgspec

from pinyon.models.errors import TemplateError, TemplateRejectedError, TemplateTooExpensiveError
from pinyon.models.template_messages import OUTPUT_CAP_BYTES, READY, RenderRequest, Reply

SOURCE_CAP_BYTES = 256 << 10
TIME_LIMIT_S = 2.0
MEMORY_LIMIT_BYTES = 256 << 20
_REQUEST_CAP_BYTES = 32 << 20
_REPLY_CAP_BYTES = 6 * OUTPUT_CAP_BYTES + 4096  # a control character is one byte of output and `\u0000` in JSON
_START_LIMIT_S = 30.0
# What an interpreter may need to start and to know the local time; nothing else of the environment reaches a template.
_KEPT_ENVIRONMENT = ("SYSTEMROOT", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TZ")
_ADVICE = "the template is broken or hostile: get the model from another source, or use --no-template"


class TemplateSandbox:
    """One warm child and its replacement; renders wait for each other.

    Every method belongs to one event loop. `close` ends the child; a render after it starts another.
    """

    def __init__(self, time_limit_s: float = TIME_LIMIT_S, memory_limit_bytes: int = MEMORY_LIMIT_BYTES) -> None:
        self._time_limit_s = time_limit_s
        self._memory_limit_bytes = memory_limit_bytes
        self._lock = asyncio.Lock()
        self._child: asyncio.Task[_Child] | None = None

    async def start(self) -> None:
        """Wait until a child is ready. Raises TemplateError when none can be started."""
        async with self._lock:
            await self._warm_child()

    async def render(self, request: RenderRequest) -> str:
        """The rendered text, at most 4 MiB of UTF-8.

        The time limit counts from the moment when the child is ready and idle, not from the call.
        Raises TemplateRejectedError when the template refuses (with its own sentence) or is broken, TemplateTooExpensiveError
        past a limit, TemplateError when no child can be started.
        """
        line = _request_line(request)
        async with self._lock:
            child = await self._warm_child()
            answer = b""
            try:
                async with asyncio.timeout(self._time_limit_s):
                    answer = await child.ask(line)
            except TimeoutError:
                raise TemplateTooExpensiveError(
                    f"the chat template took more than {self._time_limit_s:g} s: {_ADVICE}"
                ) from None
            finally:
                # Also when this task was cancelled: a reply left unread would answer the next request.
                if not answer:
                    self._child = asyncio.create_task(self._replacement(child))
        if not answer:
            raise TemplateTooExpensiveError(
                f"the chat template used more than {self._memory_limit_bytes >> 20} MiB of memory, or crashed: {_ADVICE}"
            )
        return _rendered(msgspec.convert(json.loads(answer), Reply))

    async def close(self) -> None:
        async with self._lock:
            if self._child is not None:
                with suppress(TemplateError):
                    await (await self._child).stop()
                self._child = None

    async def _warm_child(self) -> "_Child":
        if self._child is not None:
            with suppress(TemplateError):  # a start that failed is tried again
                child = await asyncio.shield(self._child)
                if child.alive:
                    return child
        self._child = asyncio.create_task(self._new_child())
        return await asyncio.shield(self._child)

    async def _new_child(self) -> "_Child":
        return await _Child.start(self._time_limit_s, self._memory_limit_bytes)

    async def _replacement(self, child: "_Child") -> "_Child":
        await child.stop()
        return await self._new_child()


class _Child:
    """A child process and the two pipes to it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._requests = cast("asyncio.StreamWriter", process.stdin)
        self._replies = cast("asyncio.StreamReader", process.stdout)

    @classmethod
    async def start(cls, time_limit_s: float, memory_limit_bytes: int) -> "_Child":
        command = (sys.executable, "-P", "-m", "pinyon.models.template_child")
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                str(time_limit_s),
                str(memory_limit_bytes),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=_environment(),
                limit=_REPLY_CAP_BYTES,
                start_new_session=True,  # Ctrl+C in the terminal is for the service alone
            )
        except OSError as error:
            raise TemplateError(f"cannot start the process that renders chat templates: {error}") from error
        child = cls(process)
        await child._wait_ready()
        return child

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    async def ask(self, line: bytes) -> bytes:
        """The line that answers `line`; empty when the child died instead."""
        with suppress(ConnectionError):  # it died while it was reading: its output has an end
            self._requests.write(line)
            await self._requests.drain()
        answer = await self._replies.readline()
        return answer if answer.endswith(b"\n") else b""

    async def stop(self) -> None:
        if (
            not self._replies.at_eof()
        ):  # at its end it exits by itself, and a kill could take the exit status from asyncio
            with suppress(ProcessLookupError):
                self._process.kill()
        await self._process.communicate()

    async def _wait_ready(self) -> None:
        greeting = b""
        try:
            async with asyncio.timeout(_START_LIMIT_S):
                greeting = await self._replies.readline()
        except TimeoutError:
            pass
        finally:
            if greeting != READY:
                await self.stop()
        if greeting != READY:
            raise TemplateError(
                f"the process that renders chat templates was not ready within {_START_LIMIT_S:g} s: "
                f"check that {sys.executable} can import jinja2 and msgspec"
            )


def _environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in _KEPT_ENVIRONMENT if name in os.environ}
    return kept | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def _request_line(request: RenderRequest) -> bytes:
    source_bytes = len(request.source.encode("utf-8", "surrogatepass"))
    if source_bytes > SOURCE_CAP_BYTES:
        raise TemplateTooExpensiveError(
            f"the chat template is {source_bytes:,} bytes long, the limit is {SOURCE_CAP_BYTES:,}: {_ADVICE}"
        )
    line = json.dumps(msgspec.to_builtins(request)).encode() + b"\n"
    if len(line) > _REQUEST_CAP_BYTES:
        raise TemplateTooExpensiveError(
            f"the messages and the chat template are {len(line):,} bytes of JSON, the limit is {_REQUEST_CAP_BYTES:,}: "
            "shorten the conversation"
        )
    return line


def _rendered(reply: Reply) -> str:
    match reply.kind:
        case "rendered":
            return reply.text
        case "refused":
            raise TemplateRejectedError(f"the chat template refuses these messages: {reply.text}")
        case "broken":
            raise TemplateRejectedError(f"the chat template cannot be rendered: {reply.text}")
        case "expensive":
            raise TemplateTooExpensiveError(f"the chat template {reply.text}: {_ADVICE}")
