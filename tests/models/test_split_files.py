"""A model in several files is one model, whichever of them is named; and what is no whole model is told with its parts."""

import shutil
from dataclasses import replace

import pytest
from split_models import split_gguf

from pinyon.models import split_files
from pinyon.models.errors import GgufFormatError, ModelFileError, ModelNotFoundError
from pinyon.models.gguf_header import check_runnable, read_header
from pinyon.models.gguf_reader import ValueType
from pinyon.models.split_files import headers_of, model_files

from .gguf_files import Gguf, tiny

U16, I32 = ValueType.UINT16, ValueType.INT32


@pytest.fixture
def parts(tiny_file, tmp_path):
    return split_gguf(tiny_file, tmp_path / "Tiny-Q4_0", 3)


@pytest.fixture
def tiny_file(tmp_path):
    path = tmp_path / "whole" / "whole.gguf"
    path.parent.mkdir()
    path.write_bytes(tiny().encode())
    return path


def part(number: int | None, count: int, said: int | None, base: Gguf) -> Gguf:
    if number is not None:
        base = base.with_value("split.no", U16, number)
    base = base.with_value("split.count", U16, count)
    return base if said is None else base.with_value("split.tensors.count", I32, said)


def write(folder, prefix, *files: Gguf):
    paths = [folder / f"{prefix}-{number:05}-of-{len(files):05}.gguf" for number in range(1, len(files) + 1)]
    for path, file in zip(paths, files, strict=True):
        path.write_bytes(file.encode())
    return paths


@pytest.mark.parametrize("named", range(3))
def test_any_part_stands_for_the_whole(parts, tiny_file, named):
    files = model_files(parts[named])
    assert files.paths == parts
    assert [each.size_bytes for each in files.checked] == [path.stat().st_size for path in parts]
    whole = read_header(tiny_file)
    assert [tensor.name for header in files.headers for tensor in header.tensors] == [t.name for t in whole.tensors]
    assert files.headers[0].name == whole.name
    assert headers_of(parts[named]) == files.headers
    assert files.stem == "Tiny-Q4_0"
    check_runnable(*files.headers)


def test_the_first_part_may_have_no_tensors(tiny_file, tmp_path):
    headers = headers_of(split_gguf(tiny_file, tmp_path / "tiny", 3, empty_first=True)[1])
    assert [len(header.tensors) for header in headers] == [0, 2, 2]
    check_runnable(*headers)


def test_parts_under_another_stem_are_the_same_model(parts, tmp_path):
    for path in parts:
        path.rename(path.with_name(path.name.replace("Tiny-Q4_0", "my [model] é")))
    assert (
        model_files(tmp_path / "my [model] é-00002-of-00003.gguf").paths[0].name == "my [model] é-00001-of-00003.gguf"
    )


@pytest.mark.parametrize("name", ["best-of-breed.gguf", "x-00001-of-00001.gguf", "x-00002-of-00003.gguf"])
def test_the_name_alone_makes_no_part(tiny_file, name):
    path = tiny_file.rename(tiny_file.with_name(name))
    files = model_files(path)
    assert (files.paths, len(files.headers)) == ((path,), 1)


def test_one_of_one_is_a_whole_model(tmp_path):
    (path,) = write(tmp_path, "x", part(0, 1, None, tiny()))
    assert model_files(path).paths == (path,)
    assert model_files(path).stem == "x"


def test_missing_parts_are_named(parts):
    parts[1].unlink()
    for path in (parts[0], parts[2]):
        with pytest.raises(
            ModelFileError, match=r"part 2 of 3 .* is missing: Tiny-Q4_0-00002-of-00003\.gguf should be in"
        ):
            headers_of(path)
    parts[2].unlink()
    with pytest.raises(ModelFileError, match=r"2 parts of 3 .* are missing: .*-00002-of-.*-00003-of-"):
        headers_of(parts[0])
    with pytest.raises(ModelNotFoundError):
        headers_of(parts[1])


def test_many_missing_parts_are_counted(tmp_path):
    path = tmp_path / "x-00001-of-00900.gguf"
    path.write_bytes(part(0, 900, 4, tiny()).encode())
    with pytest.raises(ModelFileError, match=r"899 parts of 900 .*-00004-of-00900\.gguf and 896 more should be in"):
        headers_of(path)
    path.write_bytes(part(0, 65_535, 4, tiny()).encode())
    with pytest.raises(GgufFormatError, match=r"'split\.count' is 65,535; up to 1,000"):
        headers_of(path)


@pytest.mark.parametrize(
    "name", ["renamed.gguf", "Tiny-00001-of-00002.gguf", "-00001-of-00003.gguf", "T-00002-of-00003.gguf"]
)
def test_a_part_whose_name_hides_the_others_is_told_the_name(parts, name):
    path = parts[0].rename(parts[0].with_name(name))
    with pytest.raises(ModelFileError, match=r"give it back the name that ends in '-00001-of-00003\.gguf'"):
        headers_of(path)


FEW = replace(tiny(), tensors=tiny().tensors[:2])
REST = Gguf((), tiny().tensors[2:])


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        (part(0, 2, 4, FEW), part(1, 3, 4, REST), "part 2 of 2 says that it is part 2 of 3"),
        (part(0, 2, 4, FEW), part(0, 2, 4, REST), "part 2 of 2 says that it is part 1 of 2"),
        (part(0, 2, 4, FEW), part(None, 2, 4, REST), "part 2 of 2 does not say which part it is"),
        (part(0, 2, 4, FEW), REST, "part 2 of 2 does not say which part it is"),
        (part(None, 2, 4, FEW), part(1, 2, 4, REST), "part 1 of 2 does not say which part it is"),
        (part(0, 2, 4, FEW), part(1, 2, 4, tiny()), "part 2 holds the tensor 'token_embd.weight', which an earlier"),
        (part(0, 2, 5, FEW), part(1, 2, 4, REST), r"'split\.tensors\.count' is 5 in part 1, and the 2 parts hold 4"),
        (part(0, 2, None, FEW), part(1, 2, 4, REST), r"'split\.tensors\.count' is missing in part 1"),
        (part(0, 2, 4, FEW), part(1, 2, -1, REST), r"'split\.tensors\.count' is -1 in part 2"),
        (part(0, 2, 4, FEW), replace(part(1, 2, 4, REST), tensor_count=1 << 40), "part|claims"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(tmp_path, first, second, reason):
    paths = write(tmp_path, "x", first, second)
    with pytest.raises(GgufFormatError, match=reason) as refusal:
        headers_of(paths[0])
    assert str(refusal.value).startswith(str(tmp_path / "x-0000"))


def test_a_total_that_only_the_first_part_states_will_do(tmp_path):
    paths = write(tmp_path, "x", part(0, 2, 4, FEW), part(1, 2, None, REST))
    assert len(headers_of(paths[0])) == 2


@pytest.mark.parametrize("key", ["split.no", "split.count", "split.tensors.count"])
def test_numbers_on_which_llama_cpp_aborts_are_refused(tmp_path, key):
    file = part(0, 2, 4, FEW).with_value(key, ValueType.UINT32, 1)
    with pytest.raises(GgufFormatError, match=f"'{key}' is stored as UINT32, not as"):
        headers_of(write(tmp_path, "x", file)[0])


def test_a_damaged_part_is_named(parts):
    parts[2].write_bytes(parts[2].read_bytes()[:-200])
    with pytest.raises(GgufFormatError, match=r"Tiny-Q4_0-00003-of-00003\.gguf: truncated"):
        headers_of(parts[0])


def test_each_part_is_read_once(parts, monkeypatch):
    read = []
    monkeypatch.setattr(split_files, "read_header", lambda path: read.append(path) or read_header(path))
    model_files(parts[1])
    assert sorted(read) == list(parts)


def test_a_copy_of_one_part_finds_nothing_elsewhere(parts, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    lonely = tmp_path / "elsewhere" / parts[0].name
    shutil.copy(parts[0], lonely)
    with pytest.raises(ModelFileError, match="2 parts of 3"):
        headers_of(lonely)
