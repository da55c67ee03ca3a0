"""Renders untrusted Jinja in one warm child process.

A model file is a download, and its chat template is a program. Jinja's sandbox keeps that program from reaching Python, but not
from running for ever or filling memory, so it runs in a child that is killed past a limit and replaced at once.
This file owns both sides: `TemplateSandbox` here, and `serve`, which `python -m pinyon.models.template_sandbox` runs there.
A request and its reply are one line of ASCII JSON each, which carries any text that Python can hold, lone surrogates included.

The memory limit needs Linux; elsewhere only the time limit holds. What templates may use follows the environment of Hugging
Face's `apply_chat_template`: trimmed blocks, loop controls, `raise_exception`, `strftime_now`, a `tojson` that leaves HTML alone,
and `{% generation %}`.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Literal, NoReturn, cast

import jinja2
import jinja2.ext
import msgspec
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from pinyon.models.errors import TemplateError, TemplateRejectedError, TemplateTooExpensiveError

if sys.platform != "win32":
    import resource

_SOURCE_CAP_BYTES = 256 << 10
_REQUEST_CAP_BYTES = 32 << 20
_OUTPUT_CAP_BYTES = 4 << 20
_REPLY_CAP_BYTES = 6 * _OUTPUT_CAP_BYTES + 4096  # a control character is one byte of output and `\u0000` in JSON
_REASON_CAP_CHARS = 1000
_START_LIMIT_S = 30.0
_READY = b"ready\n"
# What an interpreter may need to start and to know the local time; nothing else of the environment reaches a template.
_KEPT_ENVIRONMENT = ("SYSTEMROOT", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TZ")
# Has everything imported that jinja2 imports when a template first needs it: constants, pprint, textwrap, html, codecs, debug.
_WARM_UP = (
    r"{{ '\N{BULLET}' | striptags }}{{ lipsum() | pprint | wordwrap }}{{ strftime_now('%c') }}{{ raise_exception('') }}"
)
_ADVICE = "the template is broken or hostile: get the model from another source, or use --no-template"


class RenderRequest(msgspec.Struct, frozen=True):
    """A template's source and the variables it sees, which must be plain JSON values."""

    source: str
    variables: dict[str, object]


class Reply(msgspec.Struct, frozen=True):
    """`text` is the rendered text, or the reason why there is none."""

    kind: Literal["rendered", "refused", "broken", "expensive"]
    text: str


# ---- the side of the service


class TemplateSandbox:
    """One warm child and its replacement; renders wait for each other.

    Every method belongs to one event loop. `close` ends the child; a render after it starts another.
    """

    def __init__(self, time_limit_s: float = 2.0, memory_limit_bytes: int = 256 << 20) -> None:
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
        command = (sys.executable, "-P", "-m", "pinyon.models.template_sandbox")
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
            if greeting != _READY:
                await self.stop()
        if greeting != _READY:
            raise TemplateError(
                f"the process that renders chat templates was not ready within {_START_LIMIT_S:g} s: "
                f"check that {sys.executable} can import jinja2 and msgspec"
            )


def _environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in _KEPT_ENVIRONMENT if name in os.environ}
    return kept | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def _request_line(request: RenderRequest) -> bytes:
    source_bytes = len(request.source.encode("utf-8", "surrogatepass"))
    if source_bytes > _SOURCE_CAP_BYTES:
        raise TemplateTooExpensiveError(
            f"the chat template is {source_bytes:,} bytes long, the limit is {_SOURCE_CAP_BYTES:,}: {_ADVICE}"
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


# ---- the side of the child


class _RefusalError(Exception):
    """The template called `raise_exception`; the text is the template's own."""


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's tokens for training; here it is its body, in a scope of its own."""

    tags = frozenset({"generation"})  # type: ignore[assignment]  # jinja2 declares a set and only reads it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _raise_exception(message: object) -> NoReturn:
    raise _RefusalError(message)


def _strftime_now(format: str) -> str:  # noqa: A002  # the name by which templates may pass it
    return datetime.now().astimezone().strftime(format)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _jinja() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


@lru_cache(maxsize=8)
def _compiled(source: str) -> jinja2.Template:
    return _jinja().from_string(source)


def answer(line: bytes) -> Reply:
    """Render the request in `line`. Raises MemoryError, after which the process is not to be used again."""
    try:
        request = msgspec.convert(json.loads(line), RenderRequest)
        text = _compiled(request.source).render(request.variables)
        size_bytes = len(text.encode())
    except MemoryError:
        raise
    except RecursionError:
        return Reply("expensive", "is nested too deeply")
    except _RefusalError as error:
        return Reply("refused", str(error)[:_REASON_CAP_CHARS])
    except jinja2.TemplateSyntaxError as error:
        return Reply("broken", f"line {error.lineno}: {error.message}"[:_REASON_CAP_CHARS])
    except Exception as error:  # noqa: BLE001  # a template can raise anything that its expressions can
        return Reply("broken", f"{type(error).__name__}: {error}"[:_REASON_CAP_CHARS])
    if size_bytes > _OUTPUT_CAP_BYTES:
        return Reply("expensive", f"made {size_bytes:,} bytes of text, the limit is {_OUTPUT_CAP_BYTES:,}")
    return Reply("rendered", text)


def confine(memory_limit_bytes: int) -> None:
    """Give up what rendering does not need, for good: imports, new files and sockets, processes, more memory."""
    answer(msgspec.json.encode(RenderRequest(_WARM_UP, {})))
    sys.meta_path.clear()
    if sys.platform == "win32":
        return
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        _lower(resource.RLIMIT_AS, pages * resource.getpagesize() + memory_limit_bytes)
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_NPROC, 0)
    _lower(resource.RLIMIT_NOFILE, 3)


def _lower(limit: int, value: int) -> None:
    hard = resource.getrlimit(limit)[1]
    if hard == resource.RLIM_INFINITY or value < hard:
        resource.setrlimit(limit, (value, value))


def serve() -> None:
    """Answer requests from standard input until it ends, which it does when the parent dies."""
    time_limit_s, memory_limit_bytes = float(sys.argv[1]), int(sys.argv[2])
    confine(memory_limit_bytes)
    _send(_READY)
    for line in sys.stdin.buffer:
        # The parent keeps the time. This alarm ends the process should the parent die during an endless render.
        _set_alarm(2 * time_limit_s)
        _send(json.dumps(msgspec.to_builtins(answer(line))).encode() + b"\n")
        _set_alarm(0)


def _set_alarm(seconds: float) -> None:
    if sys.platform != "win32":
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _send(line: bytes) -> None:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    serve()
