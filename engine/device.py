"""A device that ggml can compute on."""

from enum import IntEnum

import msgspec


class DeviceKind(IntEnum):
    """`ggml_backend_dev_type` of ggml-backend.h. An integrated GPU has no memory but the machine's; META is several devices as one."""

    CPU = 0
    GPU = 1
    INTEGRATED_GPU = 2
    ACCELERATOR = 3
    META = 4

    @property
    def is_gpu(self) -> bool:
        return self in {DeviceKind.GPU, DeviceKind.INTEGRATED_GPU}


class Device(msgspec.Struct, frozen=True):
    name: str
    description: str
    kind: DeviceKind
    free_bytes: int
    total_bytes: int
