"""Files of a repository as models, and which one is meant. The listings are laid out as those of well-known repositories."""

import pytest
from fake_hub import FakeFile

from pinyon.models.errors import DownloadError, ModelNotFoundError
from pinyon.models.hub.address import Address
from pinyon.models.hub.repo import HubFile, chosen, grouped, read_repo, size_text


def repo_of(*names, sizes=None):
    sizes = sizes or range(1000, 1000 + len(names))
    return grouped(
        "owner/Repo-GGUF", "c" * 40, [HubFile(name, size, "a" * 64) for name, size in zip(names, sizes, strict=True)]
    )


def names_of(model):
    return [file.name for file in model.files]


def test_one_model_a_quantisation_by_size_and_the_rest_apart():
    repo = repo_of(
        "README.md", "m-Q8_0.gguf", "m-Q4_K_M.gguf", "mmproj-m-f16.gguf", "m.imatrix.gguf", "m-Q4_K_M-imatrix.gguf.txt", "m-BF16.GGUF",
        sizes=[1, 80, 40, 9, 3, 1, 160],
    )  # fmt: skip
    assert [(model.quant, model.label, model.size_bytes) for model in repo.models] == [
        ("Q4_K_M", "Q4_K_M", 40), ("Q8_0", "Q8_0", 80), ("BF16", "BF16", 160),
    ]  # fmt: skip
    assert [file.name for file in repo.projectors] == ["mmproj-m-f16.gguf"]
    assert [file.name for file in repo.imatrices] == ["m.imatrix.gguf"]


def test_shards_are_one_model_in_order_also_in_folders():
    repo = repo_of(
        "Q8_0/m-00003-of-00003.gguf", "Q8_0/m-00001-of-00003.gguf", "Q8_0/m-00002-of-00003.gguf", "m-Q4_0-00001-of-00001.gguf",
        "best-of-breed.gguf",
    )  # fmt: skip
    by_label = {model.label: names_of(model) for model in repo.models}
    assert by_label == {
        "Q8_0": [f"Q8_0/m-0000{number}-of-00003.gguf" for number in (1, 2, 3)],
        "Q4_0": ["m-Q4_0-00001-of-00001.gguf"],
        "best-of-breed": ["best-of-breed.gguf"],
    }
    assert chosen(repo, "q8_0").size_bytes == 1000 + 1001 + 1002


def test_a_missing_shard_is_named():
    repo = repo_of("m-Q8_0-00001-of-00003.gguf", "m-Q8_0-00003-of-00003.gguf", "m-Q4_0.gguf")
    with pytest.raises(
        ModelNotFoundError, match=r"lacks 1 of the 3 files of Q8_0: m-Q8_0-00002-of-00003\.gguf; nothing was"
    ):
        chosen(repo, "Q8_0")
    assert names_of(chosen(repo, "Q4_0")) == ["m-Q4_0.gguf"]


@pytest.mark.parametrize(
    ("name", "quant"),
    [
        ("Llama-3.2-1B-Instruct-Q4_K_M.gguf", "Q4_K_M"), ("qwen2.5-0.5b-instruct-q4_0.gguf", "Q4_0"), ("x-UD-Q2_K_XL.gguf", "UD-Q2_K_XL"),
        ("x.IQ3_XXS.gguf", "IQ3_XXS"), ("x-IQ4_NL-imat.gguf", "IQ4_NL"), ("x-TQ1_0.gguf", "TQ1_0"), ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("x-Q4_0_4_8.gguf", "Q4_0_4_8"), ("x-fp16.gguf", "FP16"), ("x_q6_k_v2.gguf", "Q6_K"), ("Qwen3-8B.gguf", ""), ("q8_0/x.gguf", "Q8_0"),
        ("BF16/x-Q4_1.gguf", "Q4_1"),
    ],
)  # fmt: skip
def test_quantisations_are_read_off_names(name, quant):
    assert repo_of(name).models[0].quant == quant


@pytest.mark.parametrize(
    ("names", "choice", "expected"),
    [
        (["m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-Q4_0.gguf"], None, "m-Q4_K_M.gguf"),
        (["m-Q8_0.gguf", "m-Q4_K_S.gguf", "m-Q4_0.gguf"], None, "m-Q4_K_S.gguf"),
        (["m-UD-Q4_K_M.gguf", "m-Q4_K_S.gguf"], None, "m-UD-Q4_K_M.gguf"),
        (["m-Q8_0.gguf", "m-F16.gguf"], None, "m-Q8_0.gguf"),
        (["whatever.gguf"], None, "whatever.gguf"),
        (["m-Q8_0.gguf", "m-Q4_K_M.gguf"], "q8_0", "m-Q8_0.gguf"),
        (["m-Q8_0.gguf", "m-UD-Q8_0.gguf"], "Q8_0", "m-Q8_0.gguf"),
        (["a/m-Q8_0.gguf", "b/m-Q8_0.gguf"], "b/m-Q8_0.gguf", "b/m-Q8_0.gguf"),
        (["a/m-Q8_0.gguf", "b/m-Q8_0.gguf"], "b", "b/m-Q8_0.gguf"),
        (["a/x-Q8_0.gguf", "b/y-Q8_0.gguf"], "y-Q8_0.gguf", "b/y-Q8_0.gguf"),
        (["x.gguf", "y.gguf"], "Y", "y.gguf"),
        (["m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf"], "m-Q8_0-00002-of-00002.gguf", "m-Q8_0-00001-of-00002.gguf"),
    ],
)  # fmt: skip
def test_which_model_is_meant(names, choice, expected):
    assert chosen(repo_of(*names), choice).files[0].name == expected


@pytest.mark.parametrize(
    ("names", "choice", "message"),
    [
        (["m-Q8_0.gguf", "m-Q6_K.gguf"], "Q4", r"has no Q4; it has Q8_0 \(0 MB\), Q6_K \(0 MB\)"),
        (["a-Q8_0.gguf", "b-Q8_0.gguf"], "Q8_0", r"has 2 models that this fits: a-Q8_0\.gguf .*, b-Q8_0\.gguf .*; write owner/Repo-GGUF:FILE"),
        (["a-Q4_K_M.gguf", "b-Q4_K_M.gguf"], None, "has 2 models that this fits"),
        (["m-F16.gguf", "m-F32.gguf"], None, r"say which model of owner/Repo-GGUF: it has F16 \(0 MB\), F32"),
        (["m-Q8_0.gguf", "mmproj.gguf"], "mmproj.gguf", r"mmproj\.gguf is no model by itself; .* has Q8_0"),
        (["model.safetensors"], None, "has no GGUF file of a model: `pinyon search Repo-GGUF`"),
        (["\x1b[2J-Q8_0.gguf", "x.gguf", "y.gguf"], "z", r"has no z; it has"),
    ],
)  # fmt: skip
def test_what_is_not_one_model_is_told_with_what_there_is(names, choice, message):
    with pytest.raises(ModelNotFoundError, match=message) as refusal:
        chosen(repo_of(*names), choice)
    assert str(refusal.value).isprintable()


def test_the_hub_is_asked_once_with_sizes_and_digests(hub):
    made = hub.add("owner/repo", {"m-Q4_0.gguf": b"x" * 99, "config.json": b"{}"})
    repo = read_repo(Address("owner/repo"))
    assert (repo.repo_id, repo.commit) == ("owner/repo", made.commit)
    assert repo.models[0].files == (HubFile("m-Q4_0.gguf", 99, made.files["m-Q4_0.gguf"].told_sha256),)
    assert [(one.method, one.path) for one in hub.asked] == [("GET", "/api/models/owner/repo?blobs=true")]


def test_a_revision_is_asked_for(hub):
    made = hub.add("owner/repo", {"m-Q4_0.gguf": b"x"})
    assert read_repo(Address("owner/repo", made.commit)).commit == made.commit
    with pytest.raises(
        ModelNotFoundError, match=r"owner/repo has no such revision: http://.*/owner/repo/tree/main shows"
    ):
        read_repo(Address("owner/repo", "gone"))


@pytest.mark.parametrize("digest", ["../../../somewhere", "A" * 64, "0" * 63])
def test_a_digest_that_is_none_is_refused(hub, digest):
    hub.add("owner/repo", {"m-Q4_0.gguf": FakeFile(b"GGUF", told_sha256=digest)})
    with pytest.raises(DownloadError, match=r"m-Q4_0\.gguf has the size 4 and the SHA-256"):
        read_repo(Address("owner/repo"))


def test_sizes_for_people():
    assert [size_text(size) for size in (98_362_432, 4_920_000_000)] == ["98 MB", "4.9 GB"]
