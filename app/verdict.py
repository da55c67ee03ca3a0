"""What is said of a model before it is loaded, or even fetched: whether it fits here, with how much context, how fast, how good."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from pinyon.app.devices import chosen_cores, gpus_here
from pinyon.app.fit import budget, layout, remedy
from pinyon.app.kv_budget import ram_budget
from pinyon.app.machine_speed import stored_speed
from pinyon.app.settings import Folders, Settings
from pinyon.app.wire import Room
from pinyon.models.gguf_header import GgufHeader
from pinyon.models.machine.ram import read_ram
from pinyon.models.machine.weight_speed import WeightSpeed
from pinyon.models.memory.fit import Budget, Wish, fit, largest_context
from pinyon.models.memory.kv import KvType
from pinyon.models.memory.plan import RAM, DeviceNeed
from pinyon.models.memory.sizes import ModelSizes, with_weights
from pinyon.models.quant_quality import bits_per_weight, expected_loss_nats, loss_text, main_type, mix_name
from pinyon.models.speed_prediction import Speed, much_faster_type, predicted_speed, predicted_speed_as


class DeviceShare(msgspec.Struct, frozen=True):
    """Bytes that a model takes of a device: `other_bytes` are buffers and the process. `budget_bytes` is what it may take."""

    device: str
    weights_bytes: int
    kv_bytes: int
    other_bytes: int
    budget_bytes: int


class Verdict(msgspec.Struct, frozen=True):
    """`context_tokens` is what would be chosen, `largest_context` what fits at most with KV in f16 and the layers in the same
    places. Where it does not fit, `remedy` says what would have to change. `faster` names a much faster type of the same model. Speeds are None where nothing was measured. What is not `is_exact`
    is worked out from another quantisation's header, or of an architecture that keeps something unknown.
    """

    name: str
    quantization: str
    size_bytes: int
    bits_per_weight: float
    loss_nats: float | None
    quality: str
    fits: bool
    context_tokens: int
    largest_context: int
    kv_type: str
    full_window: bool
    gpu_layers: int
    cpu_expert_layers: int
    devices: tuple[DeviceShare, ...]
    compromises: tuple[str, ...]
    remedy: str
    speed: Speed | None
    faster: str
    is_exact: bool


@dataclass(frozen=True, slots=True)
class Here:
    """What this machine has to offer: what a model may take, and how fast weights are, where that was measured.

    `loaded` models are in memory, which the budget counts as free, since they leave for another one; `beside` is what is free while they stay.
    """

    budget: Budget
    speed: WeightSpeed | None = None
    beside: Budget | None = None
    loaded: tuple[str, ...] = ()


def here_now(folders: Folders, settings: Settings, room: Room | None = None) -> Here:
    """Return what this machine has to offer now, `room` where models run already; else it takes half a second where there are drivers of
    GPUs to start.
    """
    speed = stored_speed(folders, chosen_cores(settings).threads)
    if room is not None:
        return Here(room.most, speed, room.beside, room.models)
    kept_bytes = ram_budget(settings).reserved_bytes(())
    return Here(budget(settings, read_ram(), gpus_here()).less_ram(kept_bytes), speed)


def leaving_for(name: str, sizes: ModelSizes, here: Here, wish: Wish) -> tuple[str, ...]:
    """Return which models leave memory as far as needed, since this one would not fit as well beside them."""
    if here.beside is None or name in here.loaded:
        return ()
    alone, beside = (fit(sizes, budget, layout, wish) for budget in (here.budget, here.beside))
    needs_no_more = beside.fits and beside.compromises == alone.compromises
    return () if needs_no_more or not alone.fits else here.loaded


def settled_wish(settings: Settings, context: int | None = None, kv_type: str | None = None) -> Wish:
    """Return what is asked for where the settings have a say, too."""
    kind = kv_type or settings.kv_type
    return Wish(context or settings.context, None if kind is None else KvType(kind), settings.gpu_layers)


def verdict(name: str, headers: Sequence[GgufHeader], sizes: ModelSizes, here: Here, wish: Wish) -> Verdict:
    """Return what is said of a model whose headers are known."""
    speed = None if here.speed is None else predicted_speed(headers, here.speed)
    faster = None if here.speed is None else much_faster_type(headers, here.speed)
    return _verdict(
        name,
        mix_name(headers),
        sum(header.file_bytes for header in headers),
        bits_per_weight(headers),
        sizes,
        here,
        wish,
        speed,
        ""
        if faster is None
        else f"{faster.name} of the same model: {faster.prefill:.1f} times as fast in prompts, {faster.batch:.1f} times for 8 clients",
    )


def verdict_of_sibling(
    name: str,
    quantization: str,
    size_bytes: int,
    known: tuple[Sequence[GgufHeader], ModelSizes],
    here: Here,
    wish: Wish,
) -> Verdict:
    """Return what is said of another quantisation of a model whose headers are `known`: the same layers with other weights."""
    headers, sizes = known
    weights_bytes = max(size_bytes - sum(header.data_offset for header in headers), 1)
    bits = bits_per_weight(headers) * weights_bytes / sizes.weights_bytes
    kind = main_type(quantization)
    speed = None if here.speed is None or kind is None else predicted_speed_as(headers, kind, here.speed)
    scaled = with_weights(sizes, weights_bytes)
    found = _verdict(name, quantization, size_bytes, bits, scaled, here, wish, speed, "")
    return msgspec.structs.replace(found, is_exact=False)


def with_alternatives(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Return verdicts on the quantisations of one model, those that do not fit with a hint at the best one that does."""
    fitting = [each for each in verdicts if each.fits]
    if not fitting:
        return list(verdicts)
    best = max(fitting, key=lambda each: each.size_bytes)
    hint = f"{best.quantization} of the same model fits, with {best.context_tokens:,} tokens of context"
    return [
        each if each.fits else msgspec.structs.replace(each, remedy=f"{each.remedy}: {hint}".removeprefix(": "))
        for each in verdicts
    ]


def _verdict(
    name: str,
    quantization: str,
    size_bytes: int,
    bits: float,
    sizes: ModelSizes,
    here: Here,
    wish: Wish,
    speed: Speed | None,
    faster: str,
) -> Verdict:
    found = fit(sizes, here.budget, layout, wish)
    choice = found.plan.choice
    return Verdict(
        name=name,
        quantization=quantization,
        size_bytes=size_bytes,
        bits_per_weight=round(bits, 2),
        loss_nats=expected_loss_nats(quantization),
        quality=loss_text(quantization),
        fits=found.fits,
        context_tokens=found.context_tokens,
        largest_context=largest_context(sizes, here.budget, layout, found, wish.draft),
        kv_type=choice.kv.type.value,
        full_window=choice.kv.full_window,
        gpu_layers=choice.gpu_layers,
        cpu_expert_layers=choice.cpu_expert_layers,
        devices=tuple(_share(need, here.budget) for need in found.plan.devices),
        compromises=tuple(each.text for each in found.compromises) if found.fits else (),
        remedy=remedy(found, here.budget),
        speed=speed,
        faster=faster,
        is_exact=found.plan.is_exact,
    )


def _share(need: DeviceNeed, budget: Budget) -> DeviceShare:
    allowed = budget.ram_bytes if need.device == RAM else dict(budget.gpus)[need.device]
    other = need.compute_bytes + need.output_bytes + need.process_bytes
    return DeviceShare(need.device, need.weights_bytes, need.kv_bytes, other, allowed)
