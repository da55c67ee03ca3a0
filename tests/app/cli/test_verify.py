"""`pinyon verify`: a line for each model, and an exit code that says whether one is damaged."""

import hashlib
import json

from command_line import assert_refused, pinyon
from other_stores import ollama_model


def verified(home, *names):
    done = pinyon(home, "verify", *names)
    return done.returncode, [line.split(None, 2) for line in done.stdout.decode().splitlines()], done.stderr.decode()


def test_damage_inside_a_finished_file_is_found(tmp_path, tiny):
    """R52."""
    data = tiny.read_bytes() + bytes(3 << 20)
    blob = ollama_model(tmp_path / "ollama", "mine", data)
    assert pinyon(tmp_path, "verify").stdout == b""
    pinyon(tmp_path, "add", blob, "--name", "mine", check=True)
    pinyon(tmp_path, "add", tiny, check=True)
    sound = f"SHA-256 {hashlib.sha256(data).hexdigest()}, by its name in Ollama's store"
    code, lines, progress = verified(tmp_path)
    assert code == 0
    assert lines == [
        ["mine", "sound", sound],
        ["tiny", "unproven", "header and sizes are right, but no digest is known"],
    ]
    assert "mine: 100 % of " in progress
    with blob.open("r+b") as file:
        file.seek(tiny.stat().st_size // 2)
        file.write(bytes(1 << 20))
    code, lines, _ = verified(tmp_path, "mine")
    assert (code, lines[0][:2]) == (3, ["mine", "damaged"])
    assert lines[0][2].endswith("get the file again from where it came")
    assert verified(tmp_path, "tiny")[0] == 0
    code, lines, _ = verified(tmp_path)
    assert code == 3
    done = pinyon(tmp_path, "verify", "--json")
    assert done.returncode == 3
    told = json.loads(done.stdout)
    assert [[each["name"], each["verdict"], each["detail"]] for each in told] == lines


def test_what_is_not_here_is_told(tmp_path):
    assert_refused(pinyon(tmp_path, "verify", "nope"), 3, "no model named nope")
    folder = tmp_path / "data" / "models"
    folder.mkdir(parents=True)
    (folder / "cut.json").write_text("{")
    code, lines, told = verified(tmp_path)
    assert (code, lines) == (3, [])
    assert "cut.json is damaged" in told
