"""The process that renders chat templates: `python -m pinyon.models.template_child TIME_LIMIT_S MEMORY_LIMIT_BYTES`.

What templates may use follows the environment of Hugging Face's `apply_chat_template`: trimmed blocks, loop controls,
`raise_exception`, `strftime_now`, a `tojson` that leaves HTML alone, and `{% generation %}`.
"""

import json
import signal
import sys
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import NoReturn

import jinja2
import jinja2.ext
import msgspec
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from pinyon.models.template_messages import OUTPUT_CAP_BYTES, READY, RenderRequest, Reply

if sys.platform != "win32":
    import resource

_REASON_CAP_CHARS = 1000
# Has everything imported that jinja2 imports when a template first needs it: constants, pprint, textwrap, html, codecs, debug.
_WARM_UP = (
    r"{{ '\N{BULLET}' | striptags }}{{ lipsum() | pprint | wordwrap }}{{ strftime_now('%c') }}{{ raise_exception('') }}"
)


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
    if size_bytes > OUTPUT_CAP_BYTES:
        return Reply("expensive", f"made {size_bytes:,} bytes of text, the limit is {OUTPUT_CAP_BYTES:,}")
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
    _send(READY)
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
