"""Which memory of which device a model takes with given choices, before it is loaded."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Final

from pinyon.models.memory.compute import compute_bytes, graph_bytes, output_bytes, work_bytes
from pinyon.models.memory.kv import KvChoice, KvType, layer_bytes, possible_types
from pinyon.models.memory.sizes import LayerWeights, ModelSizes

RAM: Final = "RAM"
_PROCESS_BYTES: Final = 50 << 20
"""An engine process without its model, measured on Linux: 23 MiB of its own and 23 MiB of libraries' files once a worker has imported
what it needs, the rest what llama.cpp's libraries take when a model is loaded and a first step computed."""
_TOKEN_BYTES: Final = 165
_MERGE_BYTES: Final = 155
"""What llama.cpp keeps of each entry of a vocabulary, and of each merge of two entries. Measured with four vocabularies."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A device beside the RAM. `share` is its part of the layers that go to GPUs, in llama.cpp's way: by what is free."""

    name: str
    share: float


@dataclass(frozen=True, slots=True)
class Choice:
    """What can be chosen: the context, how many of the last layers go to GPUs, the output as one of them,
    and of how many of the first ones the experts stay in RAM.
    """

    kv: KvChoice
    gpu_layers: int = 0
    cpu_expert_layers: int = 0


@dataclass(frozen=True, slots=True)
class DeviceNeed:
    """Bytes on one device. `mapped_bytes` of the weights are pages of the file, that the system can drop and read again."""

    device: str
    weights_bytes: int = 0
    mapped_bytes: int = 0
    kv_bytes: int = 0
    compute_bytes: int = 0
    output_bytes: int = 0
    process_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.kv_bytes + self.compute_bytes + self.output_bytes + self.process_bytes

    @property
    def resident_bytes(self) -> int:
        """Without the pages of the file."""
        return self.total_bytes - self.mapped_bytes


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What a choice takes, the RAM first. What is not `is_exact` is an estimate for KV, too: see KeptLayers."""

    choice: Choice
    devices: tuple[DeviceNeed, ...]
    is_exact: bool

    @property
    def total_bytes(self) -> int:
        return sum(device.total_bytes for device in self.devices)

    @property
    def ram(self) -> DeviceNeed:
        return self.devices[0]


@dataclass(slots=True)
class _Sum:
    """What gathers on a device: weights, those of them that the CPU rewrites, and KV."""

    weights: int = 0
    repacked: int = 0
    kv: int = 0
    layers: list[int] = field(default_factory=list)


def memory_plan(sizes: ModelSizes, choice: Choice, gpus: Sequence[Gpu] = ()) -> MemoryPlan:
    """Return what a model takes with a choice: weights, KV, buffers and, in RAM, the process.

    The last `gpu_layers` layers go to the GPUs, split by their shares; the table of embeddings stays in RAM. A GPU has a
    compute buffer of its own as soon as it has a layer (llama_model::load_tensors, llama_context::sched_reserve).
    """
    places = _places(len(sizes.layers), choice.gpu_layers, gpus)
    sums = [_Sum() for _ in range(1 + len(gpus))]
    kv = layer_bytes(sizes.kept, choice.kv)
    for index, layer in enumerate(sizes.layers):
        place = places[index]
        sums[place].layers.append(index)
        sums[place].kv += kv[index]
        _add_layer(sums, place, layer, keeps_experts=index < choice.cpu_expert_layers)
    _add_ends(sums, sizes, places[-1])
    return MemoryPlan(
        choice,
        (
            _ram(sizes, choice, sums[0]),
            *(_gpu(sizes, choice, gpu, each) for gpu, each in zip(gpus, sums[1:], strict=True)),
        ),
        sizes.kept.is_exact,
    )


def with_draft(plan: MemoryPlan, draft: ModelSizes, gpus: Sequence[Gpu] = ()) -> MemoryPlan:
    """Return a plan with room for a second model that drafts answers for the first one: in its process, with a context like its own.

    Of the same cells, sequences, rows and type, F16 where the second one's heads take no other. It goes to the GPUs whole if
    any layer of the first one does.
    """
    kv = plan.choice.kv
    if kv.type not in possible_types(draft.kept):
        kv = replace(kv, type=KvType.F16)
    layers = len(draft.layers) + 1 if plan.choice.gpu_layers else 0
    second = memory_plan(draft, Choice(kv, layers), gpus)
    devices = tuple(_together(*needs) for needs in zip(plan.devices, second.devices, strict=True))
    return MemoryPlan(plan.choice, devices, plan.is_exact and second.is_exact)


def _together(first: DeviceNeed, second: DeviceNeed) -> DeviceNeed:
    return DeviceNeed(
        first.device,
        weights_bytes=first.weights_bytes + second.weights_bytes,
        mapped_bytes=first.mapped_bytes + second.mapped_bytes,
        kv_bytes=first.kv_bytes + second.kv_bytes,
        compute_bytes=first.compute_bytes + second.compute_bytes,
        output_bytes=first.output_bytes + second.output_bytes,
        process_bytes=first.process_bytes + second.process_bytes - (_PROCESS_BYTES if first.device == RAM else 0),
    )


def _places(layers: int, gpu_layers: int, gpus: Sequence[Gpu]) -> list[int]:
    """Return the device of each layer and, last, of the output: 0 is the RAM, GPUs count from 1."""
    on_gpus = min(gpu_layers, layers + 1) if gpus else 0
    first = layers + 1 - on_gpus
    whole = sum(gpu.share for gpu in gpus)
    ends = [share / whole for share in accumulate(gpu.share for gpu in gpus)]
    places = [0] * first
    for number in range(on_gpus):
        places.append(1 + next((place for place, end in enumerate(ends) if number / on_gpus < end), len(ends) - 1))
    return places


def _add_layer(sums: list[_Sum], place: int, layer: LayerWeights, *, keeps_experts: bool) -> None:
    """Add a layer's weights; experts that stay in RAM for a layer elsewhere are not rewritten."""
    moved = layer.experts if keeps_experts else 0
    sums[place].weights += layer.bytes - moved
    sums[0].weights += moved
    if place == 0:
        sums[0].repacked += layer.repacked - (layer.repacked_experts if keeps_experts else 0)


def _add_ends(sums: list[_Sum], sizes: ModelSizes, output_place: int) -> None:
    """Add the table of embeddings, and the output layer; where those are one tensor it is copied only to another place or order."""
    sums[0].weights += sizes.input_bytes
    if output_place:
        sums[output_place].weights += sizes.output_bytes
        return
    again = sizes.input_bytes - sizes.repacked_output_bytes if sizes.is_tied else 0
    sums[0].weights += sizes.output_bytes - again
    sums[0].repacked += sizes.repacked_output_bytes


def _ram(sizes: ModelSizes, choice: Choice, total: _Sum) -> DeviceNeed:
    vocabulary = sizes.vocabulary * _TOKEN_BYTES + sizes.merges * _MERGE_BYTES
    return DeviceNeed(
        RAM,
        weights_bytes=total.weights,
        mapped_bytes=total.weights - total.repacked,
        kv_bytes=total.kv,
        compute_bytes=compute_bytes(sizes, choice.kv) if total.layers else _rows_bytes(sizes, choice.kv),
        output_bytes=output_bytes(sizes, choice.kv),
        process_bytes=_PROCESS_BYTES
        + vocabulary
        + graph_bytes(sizes, choice.kv)
        + (work_bytes(sizes, choice.kv) if total.layers else 0),
    )


def _gpu(sizes: ModelSizes, choice: Choice, gpu: Gpu, total: _Sum) -> DeviceNeed:
    computes = compute_bytes(sizes, choice.kv) if total.weights else 0
    return DeviceNeed(gpu.name, total.weights, 0, total.kv, computes)


def _rows_bytes(sizes: ModelSizes, choice: KvChoice) -> int:
    """Return the bytes of the rows that go to a GPU, and of one mask for them."""
    return choice.batch_rows * (4 * sizes.widths.embedding + 2 * choice.cells)
