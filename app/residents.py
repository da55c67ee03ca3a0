"""Which models are in memory, and which of them leave for another one. Knows no engine: what loads and ends, a Resident says.

Loads take turns in the order in which they were asked for. Room is made by those who answer nobody, the longest unused first. Where
only models that answer are in the way, they take nothing new once their place is no longer guarded, and the load waits for them.
"""

import asyncio
import contextlib
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Generic, TypeVar

from pinyon.app.counted import memory
from pinyon.app.errors import ModelSlotError, NoRoomError, TooLargeError
from pinyon.models.memory.fit import Budget, Fit

SWAP_WAIT_S: Final = 60.0
"""How long a load may wait, from when it was asked for, until it is refused."""
GUARD_S: Final = 2.0
GUARD_LOADS: Final = 5
"""A model that was loaded keeps its place for GUARD_S or so many times what its load took, if that is more, while it has requests: else two
models that do not fit together would be loaded in turn, one request each."""
LINGER_S: Final = 0.2
"""So soon after its last answer a model still counts as having requests: the same client may be about to ask again."""


class Resident(ABC):
    """A model in memory, or on its way there. `fit` is what it was promised, besides `cache_bytes` of RAM for KV of earlier prompts.

    `keep_alive_s` is how long it stays after its last request, None for ever. `holders` use it now.
    """

    def __init__(self, path: Path, name: str, fit: Fit, cache_bytes: int) -> None:
        self.path = path
        self.name = name
        self.fit = fit
        self.cache_bytes = cache_bytes
        self.keep_alive_s: float | None = None
        self.holders = 0
        self.used_at = 0.0
        self.guarded_until = math.inf
        self.loading: asyncio.Task[None] | None = None
        self.expiry: asyncio.TimerHandle | None = None

    @abstractmethod
    async def load(self) -> None:
        """Load it; an error ends its stay."""

    @abstractmethod
    async def close(self) -> None:
        """End it, also in the middle of its load."""

    @abstractmethod
    async def share_cache(self, models: int, spare_bytes: int) -> None:
        """Keep one part in so many of what may be kept of earlier prompts, or less: of RAM at most `spare_bytes` more than until now.

        `cache_bytes` are then what it keeps, and what it gave up is free.
        """

    @abstractmethod
    def used_bytes(self) -> int:
        """The RAM that it has already, without pages of its file."""

    @property
    def is_loaded(self) -> bool:
        return self.loading is not None and self.loading.done()

    def stay(self) -> None:
        """Have it not leave by itself."""
        if self.expiry is not None:
            self.expiry.cancel()
            self.expiry = None

    @property
    def promised_bytes(self) -> int:
        """Of RAM; pages of its file are among them, which the system counts as available."""
        return self.fit.plan.ram.total_bytes + self.cache_bytes


ResidentT = TypeVar("ResidentT", bound=Resident)


class Wanted(ABC, Generic[ResidentT]):
    """A model that is asked for. With `is_forced` it is loaded although it does not fit."""

    path: Path
    name: str
    is_forced: bool

    @abstractmethod
    async def prepare(self) -> None:
        """Learn what is needed to choose. Raises what keeps the model from being loaded."""

    @abstractmethod
    def choose(self, budget: Budget, beside: Sequence[ResidentT]) -> Fit:
        """Return how it would be loaded within a budget, `beside` these."""

    @abstractmethod
    def make(self, fit: Fit, budget: Budget, beside: Sequence[ResidentT]) -> ResidentT:
        """Return the resident that is loaded so. The budget is what was free for it, beside those that are here."""

    @abstractmethod
    def is_served_by(self, resident: ResidentT) -> bool:
        """Whether a resident of the same file will do."""

    @abstractmethod
    def shortage(self, fit: Fit, budget: Budget, beside: Sequence[ResidentT]) -> str:
        """Return what a model needs that does not fit, and what is free, in words."""


class Residents(Generic[ResidentT]):
    """`budget` tells what the system has free for models. Unless there may be `several`, whoever is idle leaves for a model that is loaded."""

    def __init__(self, budget: Callable[[], Awaitable[Budget]], *, several: bool) -> None:
        self._free = budget
        self._several = several
        self._here: dict[Path, ResidentT] = {}
        self._leaving: dict[ResidentT, asyncio.Task[None]] = {}
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()
        self._is_awaited = False
        self._spreading: set[asyncio.Task[None]] = set()
        self._is_closing = False

    @property
    def here(self) -> tuple[ResidentT, ...]:
        """All that are in memory or being loaded, the last used first."""
        return tuple(sorted(self._here.values(), key=lambda each: each.used_at, reverse=True))

    @property
    def everywhere(self) -> tuple[ResidentT, ...]:
        """Those, and who is leaving: all that take memory."""
        return (*self._here.values(), *self._leaving)

    async def room(self) -> tuple[Budget, Budget]:
        """Return what the next model could have if those that are in memory leave for it, and what there is beside them."""
        return await self._most(), await self._left_over()

    @contextlib.asynccontextmanager
    async def using(
        self, wanted: Wanted[ResidentT], on_hold: Callable[[ResidentT], None] = lambda _resident: None
    ) -> AsyncIterator[ResidentT]:
        """Have a model loaded, and hold it; `on_hold` is called as soon as there is a resident, before it is loaded.

        Raises:
            NoRoomError: models that answer are in the way, and stayed too long.
            ModelSlotError: the model is answering, and with less than what is asked for.
            Exception: what `wanted` raises, and its load.
        """
        resident, held = await self._held(wanted, on_hold)
        with held:
            await asyncio.shield(_loading_of(resident))
            yield resident

    @contextlib.contextmanager
    def held(self, resident: ResidentT) -> Iterator[ResidentT]:
        """Hold a resident; one that has left stays away."""
        self._hold(resident)
        try:
            yield resident
        finally:
            self._release(resident)

    async def close(self) -> None:
        """End all."""
        self._is_closing = True
        loads = [_loading_of(resident) for resident in self.here]
        for resident in self.here:
            self._unload(resident)
        for spreading in self._spreading:
            spreading.cancel()
        if ends := [*loads, *self._leaving.values(), *self._spreading]:
            await asyncio.wait(ends)

    def _hold(self, resident: ResidentT) -> None:
        resident.holders += 1
        resident.used_at = _now()
        resident.stay()

    def _release(self, resident: ResidentT) -> None:
        resident.holders -= 1
        resident.used_at = _now()
        self._let_expire(resident)
        self._changed.set()

    def _let_expire(self, resident: ResidentT) -> None:
        """Have it leave when its time is over; at once where it has none."""
        resident.stay()
        if resident.holders or not resident.is_loaded or resident.keep_alive_s is None:
            return
        if resident.keep_alive_s > 0:
            resident.expiry = asyncio.get_running_loop().call_later(resident.keep_alive_s, self._unload, resident)
        else:
            self._unload(resident)

    async def _held(
        self, wanted: Wanted[ResidentT], on_hold: Callable[[ResidentT], None]
    ) -> tuple[ResidentT, contextlib.ExitStack]:
        """Return a resident, with what holds it until that is left."""
        limit_s = _now() + SWAP_WAIT_S
        with contextlib.ExitStack() as held:
            resident = self._here.get(wanted.path)
            if resident is not None and wanted.is_served_by(resident) and not self._gives_way(resident):
                held.enter_context(self.held(resident))
                on_hold(resident)
                return resident, held.pop_all()
            async with self._turn:
                resident = self._here.get(wanted.path)
                if resident is None or not wanted.is_served_by(resident):
                    resident = await self._placed(wanted, limit_s)
                held.enter_context(self.held(resident))
                on_hold(resident)
                return resident, held.pop_all()

    def _gives_way(self, resident: ResidentT) -> bool:
        """Whether a resident takes nothing new, since somebody waits for room."""
        return self._is_awaited and _now() >= resident.guarded_until

    async def _placed(self, wanted: Wanted[ResidentT], limit_s: float) -> ResidentT:
        await wanted.prepare()
        await self._require_free_path(wanted)
        await self._all_loaded()  # two at once slow each other down, and what they will take of a GPU is not known yet
        most = await self._most()
        best = wanted.choose(most, ())
        if not best.fits and not wanted.is_forced:
            raise _too_large(wanted.shortage(best, most, ()))
        await self._make_way()
        while not self._several and (idle := self._longest_unused()) is not None:
            await self._left(idle)
        try:
            found, free = await self._room_for(wanted, best, limit_s)
        except BaseException:
            self._spread()
            raise
        finally:
            self._is_awaited = False
        resident = self._here[wanted.path] = wanted.make(found, free, self.everywhere)
        resident.loading = asyncio.create_task(self._load(resident))
        resident.loading.add_done_callback(lambda task: task.cancelled() or task.exception())  # callers may have left
        return resident

    async def _room_for(self, wanted: Wanted[ResidentT], best: Fit, limit_s: float) -> tuple[Fit, Budget]:
        """Make room until a model fits as well as without the others, or nobody is idle; wait for those who are not where it must be."""
        while True:
            free = await self._left_over()
            found = wanted.choose(free, self.everywhere)
            if found.fits and found.compromises == best.compromises:
                return found, free
            if (idle := self._longest_unused()) is not None:
                await self._left(idle)
            elif wanted.is_forced or (found.fits and (_now() >= limit_s or math.isinf(self._next_idle_s()))):
                return found, free
            elif not self._here and not self._leaving:
                raise _too_large(wanted.shortage(found, free, ()))
            elif _now() >= limit_s:
                raise NoRoomError(self._no_room(wanted, found, free))
            else:
                await self._wait_for_change(limit_s)

    async def _require_free_path(self, wanted: Wanted[ResidentT]) -> None:
        """Let the same file's resident of another kind end. Raises ModelSlotError where it cannot."""
        if (same := self._here.get(wanted.path)) is not None:
            if same.holders or not same.is_loaded:
                raise ModelSlotError(
                    f"{same.name} is answering with a context of {same.fit.context_tokens:,} tokens and KV in {same.fit.plan.choice.kv.type}, and is"
                    " loaded with others only when nobody uses it: try again later"
                )
            await self._left(same)
        for leaving in [each for each in self._leaving if each.path == wanted.path]:
            await self._left(leaving)

    async def _load(self, resident: ResidentT) -> None:
        started_at = _now()
        try:
            await resident.load()
        except BaseException:
            self._here = {path: each for path, each in self._here.items() if each is not resident}
            await resident.close()
            self._spread()
            self._changed.set()
            raise
        loaded_at = _now()
        resident.guarded_until = loaded_at + max(GUARD_S, GUARD_LOADS * (loaded_at - started_at))
        asyncio.get_running_loop().call_soon(self._let_expire, resident)  # where nobody waited for it to the end

    def _unload(self, resident: ResidentT) -> None:
        """Have a resident leave; its memory counts until it is gone."""
        if self._here.get(resident.path) is not resident:
            return
        del self._here[resident.path]
        closing = self._leaving[resident] = asyncio.create_task(resident.close())

        def gone(_task: asyncio.Task[None]) -> None:
            del self._leaving[resident]
            self._spread()
            self._changed.set()

        closing.add_done_callback(gone)

    async def _make_way(self) -> None:
        """Let one more model come: who is leaving has left, and the others keep less of earlier prompts."""
        if self._leaving:
            await asyncio.wait(self._leaving.values())
        await asyncio.gather(*(each.share_cache(len(self._here) + 1, 0) for each in self.here))

    def _spread(self) -> None:
        """Have those who stay keep more of earlier prompts, once nobody is being loaded."""
        if self._here and not self._is_closing:
            task = asyncio.create_task(self._spread_in_turn())
            self._spreading.add(task)
            task.add_done_callback(self._spreading.discard)

    async def _spread_in_turn(self) -> None:
        async with self._turn:
            await self._all_loaded()
            for each in self.here:
                await each.share_cache(len(self.everywhere), (await self._left_over()).ram_bytes)

    async def _all_loaded(self) -> None:
        if loads := [_loading_of(each) for each in self._here.values()]:
            await asyncio.wait(loads)

    async def _left(self, resident: ResidentT) -> None:
        self._unload(resident)
        if (closing := self._leaving.get(resident)) is not None:
            await asyncio.wait((closing,))

    def _longest_unused(self) -> ResidentT | None:
        now = _now()
        return min(
            (each for each in self._here.values() if self._idle_from(each) <= now),
            key=lambda each: each.used_at,
            default=None,
        )

    def _idle_from(self, resident: ResidentT) -> float:
        """Return from when on a resident counts as idle, as things are."""
        if resident.holders or not resident.is_loaded:
            return math.inf
        return min(resident.guarded_until, resident.used_at + LINGER_S) if self._several else resident.used_at

    async def _wait_for_change(self, limit_s: float) -> None:
        """Return when there may be more room, or at the limit; meanwhile residents give way."""
        self._is_awaited = True
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(min(limit_s, self._next_idle_s())):
                await self._changed.wait()

    def _next_idle_s(self) -> float:
        return min(map(self._idle_from, self._here.values()), default=math.inf)

    def _no_room(self, wanted: Wanted[ResidentT], found: Fit, free: Budget) -> str:
        busy = ", ".join(f"{each.name} ({memory(each.promised_bytes)})" for each in self.here)
        return f"{wanted.shortage(found, free, self.everywhere)}. What could make room is answering: {busy}; try again later"

    async def _left_over(self) -> Budget:
        """Return what is free now, less what the models have been promised and did not take yet."""
        free = await self._free()
        owed = sum(each.promised_bytes - each.used_bytes() for each in self.everywhere)
        return replace(free, ram_bytes=max(0, free.ram_bytes - owed))

    async def _most(self) -> Budget:
        """Return what would be free without any model."""
        free, models = await self._free(), self.everywhere
        held = Counter[str]()
        for need in (need for each in models for need in each.fit.plan.devices):
            held[need.device] += need.total_bytes
        return replace(
            free,
            ram_bytes=free.ram_bytes + sum(each.used_bytes() for each in models),
            gpus=tuple((name, size + held[name]) for name, size in free.gpus),
        )


def _too_large(shortage: str) -> TooLargeError:
    return TooLargeError(
        f"{shortage}. Close other programs, or take a smaller quantisation or model (`pinyon fit` tells which one fits); --force loads it"
        " all the same"
    )


def _now() -> float:
    return asyncio.get_running_loop().time()


def _loading_of(resident: Resident) -> asyncio.Task[None]:
    assert resident.loading is not None, "a resident that is here is loaded or being loaded"
    return resident.loading
