"""Checks grammars from outside in child processes that can be killed.

A grammar is a program for llguidance: one can overflow its stack, fill memory or take minutes. So it is compiled first in a
child (`grammar_child`), within limits, and reaches a worker only after that.
"""

import asyncio
import hashlib
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, cast

import msgspec

from pinyon.engine.errors import EngineStartError, InvalidRequestError
from pinyon.engine.grammar_messages import ACCEPTED, READY, REFUSED
from pinyon.engine.request import Grammar
from pinyon.engine.worker_process import worker_environment

_COMMAND: Final = (sys.executable, "-P", "-m", "pinyon.engine.grammar_child")
TIME_LIMIT_S: Final = 1.0
MEMORY_LIMIT_BYTES: Final = 512 << 20
CHILDREN_AT_ONCE: Final = 2
_START_LIMIT_S = 30.0
_REMEMBERED = 64


class GrammarChecker:
    """Checks grammars and remembers the good ones. Belongs to one event loop; holds nothing that must be closed.

    A fresh child for each check is simpler than a warm one and cannot carry anything from one grammar to the next. It costs
    0.2 s, and only once for each grammar: programs send the same few again and again.
    """

    def __init__(
        self,
        time_limit_s: float = TIME_LIMIT_S,
        memory_limit_bytes: int = MEMORY_LIMIT_BYTES,
        command: Sequence[str] = _COMMAND,
    ) -> None:
        self._time_limit_s = time_limit_s
        self._memory_limit_bytes = memory_limit_bytes
        self._command = command
        self._room = asyncio.Semaphore(CHILDREN_AT_ONCE)
        self._good: OrderedDict[bytes, Grammar] = OrderedDict()

    async def check(self, grammar: Grammar) -> Grammar:
        """Return the grammar as a worker takes it; GBNF comes back translated. The time limit starts when a child is ready.

        Raises:
            InvalidRequestError: llguidance refuses it, or it takes more than the limits, or crashes the child.
            EngineStartError: no child can be started.
        """
        digest = hashlib.sha256(msgspec.json.encode(grammar)).digest()
        good = self._good.get(digest)
        if good is None:
            async with self._room:
                good = await self._ask_child(grammar)
        self._good[digest] = good
        self._good.move_to_end(digest)
        if len(self._good) > _REMEMBERED:
            self._good.popitem(last=False)
        return good

    async def _ask_child(self, grammar: Grammar) -> Grammar:
        child = await self._start_child()
        try:
            answer = await self._answer(child, grammar)
        finally:  # also when this task is cancelled
            await _end(child)
        if child.returncode == ACCEPTED:
            return Grammar(answer.decode())
        if child.returncode == REFUSED:
            raise InvalidRequestError(answer.decode())
        raise InvalidRequestError(
            f"checking the grammar takes more than {self._memory_limit_bytes >> 20} MiB of memory, or it is too large or "
            "nested too deeply: simplify it"
        )

    async def _answer(self, child: asyncio.subprocess.Process, grammar: Grammar) -> bytes:
        await _wait_ready(child)
        try:
            async with asyncio.timeout(self._time_limit_s):
                answer, _ = await child.communicate(msgspec.json.encode(grammar))
        except TimeoutError:
            raise InvalidRequestError(
                f"checking the grammar takes more than {self._time_limit_s:g} s: simplify it"
            ) from None
        return answer

    async def _start_child(self) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                *self._command,
                str(self._memory_limit_bytes),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=worker_environment(),
                start_new_session=True,  # Ctrl+C in the terminal is for the service alone
            )
        except OSError as error:
            raise EngineStartError(f"cannot start the process that checks grammars: {error}") from error


async def _wait_ready(child: asyncio.subprocess.Process) -> None:
    greeting = b""
    with suppress(TimeoutError):
        async with asyncio.timeout(_START_LIMIT_S):
            greeting = await cast("asyncio.StreamReader", child.stdout).readline()
    if greeting != READY:
        raise EngineStartError(
            f"the process that checks grammars was not ready within {_START_LIMIT_S:g} s: check that {sys.executable} can "
            "import llguidance"
        )


async def _end(child: asyncio.subprocess.Process) -> None:
    if child.returncode is None:
        with suppress(ProcessLookupError):
            child.kill()
    await child.communicate()
