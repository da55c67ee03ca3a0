"""Chooses context, type of KV and places of layers so that a model fits into what is free, and says what was given up for that.

In the order in which a person would: the context asked for, with small windows where the model has windows, else a smaller one, else KV in
eight bits, else experts and then layers in RAM instead of on the GPU, else nothing, with what would have to change.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from pinyon.models.memory.kv import CELL_PADDING, KvChoice, KvType, possible_types
from pinyon.models.memory.plan import RAM, Choice, Gpu, MemoryPlan, memory_plan, with_draft
from pinyon.models.memory.sizes import ModelSizes

USUAL_CONTEXT: Final = 32_768
SMALL_CONTEXT: Final = 4_096
"""A context is made smaller down to here before anything else is given up."""
PLENTY: Final = 8
"""A model that needs this part of what is free with its whole context gets that."""

Shape = Callable[[int, ModelSizes, bool], KvChoice]
"""How an engine lays out a context of so many tokens, with full windows or not: sequences, rows of a batch."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Bytes that a model may take: of RAM, and of each GPU by its name, in llama.cpp's order. What `sharing` GPUs take is RAM, too."""

    ram_bytes: int
    gpus: tuple[tuple[str, int], ...] = ()
    sharing: frozenset[str] = frozenset()

    def less_ram(self, size_bytes: int) -> "Budget":
        """Return a budget with so many bytes of RAM less."""
        return replace(self, ram_bytes=max(0, self.ram_bytes - size_bytes))

    def excess(self, plan: MemoryPlan) -> tuple[tuple[str, int], ...]:
        """Return by how many bytes a plan is too large, for each device where it is."""
        allowed = {RAM: self.ram_bytes, **dict(self.gpus)}
        needed = {need.device: need.total_bytes for need in plan.devices}
        needed[RAM] += sum(size for device, size in needed.items() if device in self.sharing)
        return tuple((device, size - allowed[device]) for device, size in needed.items() if size > allowed[device])


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked for; None is for the fit to choose. `draft` is a second model that is to have room beside the first one."""

    context_tokens: int | None = None
    kv_type: KvType | None = None
    gpu_layers: int | None = None
    draft: ModelSizes | None = None


class Kind(StrEnum):
    """What was given up."""

    WINDOW = "window"
    CONTEXT = "context"
    KV_TYPE = "kv_type"
    EXPERTS = "experts"
    LAYERS = "layers"


@dataclass(frozen=True, slots=True)
class Compromise:
    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class Fit:
    """What was chosen. Where nothing fits, `plan` is the smallest choice there is, and `lacking` says by how many bytes it is too large, by device.

    `wanted_context` and `wanted_kv_type`, if any, are what was aimed at; `compromises` say what was given up to fit, in words.
    """

    plan: MemoryPlan
    wanted_context: int
    compromises: tuple[Compromise, ...] = ()
    lacking: tuple[tuple[str, int], ...] = ()
    wanted_kv_type: KvType | None = None

    @property
    def fits(self) -> bool:
        return not self.lacking

    @property
    def context_tokens(self) -> int:
        return self.plan.choice.kv.cells


def fit(sizes: ModelSizes, budget: Budget, shape: Shape, wish: Wish = Wish()) -> Fit:
    """Return the choice for a model under a budget."""
    return _Search(sizes, budget, shape, wish).fit()


def largest_context(
    sizes: ModelSizes, budget: Budget, shape: Shape, found: Fit, draft: ModelSizes | None = None
) -> int:
    """Return how many tokens of context fit with KV in f16 where `found` puts the layers, up to those that the model was trained for.

    It is 0 where not even the smallest context fits.
    """
    choice = found.plan.choice
    placement = _Placement(choice.gpu_layers, choice.cpu_expert_layers)
    search = _Search(sizes, budget, shape, Wish(draft=draft))
    return search.widest(sizes.trained_context, KvType.F16, placement).kv.cells


@dataclass(frozen=True, slots=True)
class _Placement:
    gpu_layers: int
    cpu_expert_layers: int


class _Search:
    def __init__(self, sizes: ModelSizes, budget: Budget, shape: Shape, wish: Wish) -> None:
        self._sizes = sizes
        self._budget = budget
        self._shape = shape
        self._wish = wish
        self._gpus = tuple(Gpu(name, max(free, 1)) for name, free in budget.gpus)

    def fit(self) -> Fit:
        wanted = self._wanted_context()
        smallest = min(wanted, SMALL_CONTEXT)
        placements, windows, kinds = self.placements(), self._windows(), self._types()
        for placement in placements:
            for kv_type in kinds:
                if any(self._fits(self._choice(smallest, kv_type, placement, full)) for full in windows):
                    return self._fit(self.widest(wanted, kv_type, placement), wanted, placements[0])
        return self._fit(self._choice(smallest, kinds[-1], placements[-1], windows[-1]), wanted, placements[0])

    def _fit(self, choice: Choice, wanted: int, first: _Placement) -> Fit:
        plan = self._plan(choice)
        compromises = tuple(self._compromises(choice, wanted, first))
        return Fit(plan, wanted, compromises, self._budget.excess(plan), self._wish.kv_type)

    def widest(self, wanted: int, kv_type: KvType, placement: _Placement) -> Choice:
        """Return the choice with the largest context that fits, at most what is wanted, with full windows if that costs nothing of it."""
        found = [
            self._choice(self._largest(wanted, kv_type, placement, full), kv_type, placement, full)
            for full in self._windows()
        ]
        return max(found, key=lambda choice: (choice.kv.cells, choice.kv.full_window))

    def placements(self) -> Sequence[_Placement]:
        """Return where layers may go, the best first: all on the GPUs, then with fewer experts there, then with fewer layers."""
        layers = len(self._sizes.layers)
        asked = self._wish.gpu_layers
        if not self._gpus or asked == 0:
            return (_Placement(0, 0),)
        most = layers + 1 if asked is None else min(asked, layers + 1)
        with_experts = layers if any(layer.experts for layer in self._sizes.layers) else 0
        by_experts = [_Placement(most, kept) for kept in range(with_experts + 1)]
        if asked is not None:
            return by_experts
        return [*by_experts, *(_Placement(fewer, with_experts) for fewer in range(most - 1, -1, -1))]

    def _largest(self, wanted: int, kv_type: KvType, placement: _Placement, full_window: bool) -> int:
        """Return the largest context that fits, at most what is wanted, in steps of the padding; 0 where none does."""
        if self._fits(self._choice(wanted, kv_type, placement, full_window)):
            return wanted
        low, high = 0, -(-wanted // CELL_PADDING)  # in paddings: low fits or is nothing, high does not
        while high - low > 1:
            middle = (low + high) // 2
            if self._fits(self._choice(middle * CELL_PADDING, kv_type, placement, full_window)):
                low = middle
            else:
                high = middle
        return low * CELL_PADDING

    def _fits(self, choice: Choice) -> bool:
        return not self._budget.excess(self._plan(choice))

    def _plan(self, choice: Choice) -> MemoryPlan:
        plan = memory_plan(self._sizes, choice, self._gpus)
        return plan if self._wish.draft is None else with_draft(plan, self._wish.draft, self._gpus)

    def _choice(self, context: int, kv_type: KvType, placement: _Placement, full_window: bool) -> Choice:
        kv = replace(self._shape(context, self._sizes, full_window), type=kv_type)
        return Choice(kv, placement.gpu_layers, placement.cpu_expert_layers)

    def _windows(self) -> Sequence[bool]:
        return (True, False) if self._sizes.kept.window else (True,)

    def _wanted_context(self) -> int:
        trained = self._sizes.trained_context
        if self._wish.context_tokens is not None:
            return self._wish.context_tokens
        if trained <= USUAL_CONTEXT:
            return trained
        whole = self._plan(self._choice(trained, self._types()[0], self.placements()[0], True))
        share = Budget(
            self._budget.ram_bytes // PLENTY,
            tuple((name, free // PLENTY) for name, free in self._budget.gpus),
            self._budget.sharing,
        )
        is_plenty = not share.excess(whole)
        return trained if is_plenty else USUAL_CONTEXT

    def _types(self) -> Sequence[KvType]:
        possible = possible_types(self._sizes.kept)
        if self._wish.kv_type in possible:
            return (self._wish.kv_type,)
        return [kind for kind in (KvType.F16, KvType.Q8_0) if kind in possible]

    def _compromises(self, choice: Choice, wanted: int, first: _Placement) -> Iterator[Compromise]:
        if not choice.kv.full_window:
            yield Compromise(
                Kind.WINDOW, f"windowed layers keep their window only: {choice.kv.sequences - 1} answers at once"
            )
        if choice.kv.cells < wanted:
            asked = "asked for" if self._wish.context_tokens is not None else "usual"
            yield Compromise(Kind.CONTEXT, f"a context of {choice.kv.cells:,} tokens instead of the {asked} {wanted:,}")
        asked_type, kept = self._wish.kv_type, self._sizes.kept
        if asked_type is not None and asked_type is not choice.kv.type:
            sizes = ", ".join(map(str, kept.head_elements))
            text = f"keys and values in {choice.kv.type}: {asked_type} needs heads of a multiple of 32, and they have {sizes}"
            yield Compromise(Kind.KV_TYPE, text)
        elif choice.kv.type is not KvType.F16 and asked_type is None:
            yield Compromise(Kind.KV_TYPE, f"keys and values in {choice.kv.type}: this can cost quality")
        if choice.cpu_expert_layers > first.cpu_expert_layers:
            yield Compromise(Kind.EXPERTS, f"the experts of {choice.cpu_expert_layers} layers in RAM: slower")
        if choice.gpu_layers < first.gpu_layers:
            layers = len(self._sizes.layers) + 1
            yield Compromise(Kind.LAYERS, f"{choice.gpu_layers} of {layers} layers on the GPU: slower")
