"""From the shell to the first token: `pinyon run` in a fresh process, over what llama.cpp itself needs for that token.

`native_s` is load + prefill + first decode of the same prompt in a bare process, its interpreter's start not counted.
Runs alternate; the difference is the median of the pairs'.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import finish, parse_arguments, say

from pinyon.models.machine.cores import read_cores

PROMPT = "Explain in one sentence why the sky is blue."
RENDERED = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    f"<|im_start|>user\n{PROMPT}<|im_end|>\n<|im_start|>assistant\n"
)
"""What a ChatML template makes of it."""
HERE = Path(__file__).parent
BARE = f"""
import sys, time
sys.path.insert(0, {str(HERE)!r})
from bare import BareModel
path, threads, text = sys.argv[1], int(sys.argv[2]), sys.argv[3]
started = time.perf_counter()
model = BareModel(path, cells=8192, sequences=64, threads=threads)
model.generate([model.tokenize(text)], 1)
print(time.perf_counter() - started)
"""


def first_token_s(model: str, home: str) -> float:
    """Return seconds from the command's start to the first byte on stdout."""
    command = (sys.executable, "-m", "pinyon", "run", "-m", model, "--seed", "1", "--max-tokens", "8", PROMPT)
    environment = {**os.environ, "PINYON_HOME": home}
    started = time.perf_counter()
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        first = os.read(process.stdout.fileno(), 1)
        elapsed = time.perf_counter() - started
        _, errors = process.communicate()
    if process.returncode or not first:
        raise SystemExit(f"invalid run: {errors.decode()}")
    return elapsed


def native_s(model: str, threads: int, text: str) -> float:
    command = (sys.executable, "-c", BARE, model, str(threads), text)
    return float(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


def main() -> None:
    arguments = parse_arguments(__doc__, rounds=9)
    threads = read_cores().threads
    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as home:
        subprocess.run(
            (sys.executable, "-m", "pinyon", "add", arguments.model),
            check=True,
            env={**os.environ, "PINYON_HOME": home},
            stdout=subprocess.DEVNULL,
        )
        for turn in range(arguments.rounds + 1):
            bare_s = native_s(arguments.model, threads, RENDERED)
            run_s = first_token_s(arguments.model, home)
            if turn:  # the first pair warms the page cache
                ours.append(run_s)
                theirs.append(bare_s)
                say(f"pinyon run {run_s:.3f} s, native {bare_s:.3f} s")
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    quartiles = statistics.quantiles(differences, n=4)
    finish(
        {
            "model": Path(arguments.model).name,
            "first_token_s": round(statistics.median(ours), 3),
            "native_s": round(statistics.median(theirs), 3),
            "difference_s": round(statistics.median(differences), 3),
            "difference_noise_s": round(quartiles[2] - quartiles[0], 3),
        }
    )


if __name__ == "__main__":
    main()
