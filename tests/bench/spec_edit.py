"""How much quicker is a file rewritten with drafts from its own text? Three modules of the standard library, a few changes each, greedy.

`speedup` is plain decoding's time over that with drafts, from the first token on, the same tokens (median over the files and rounds).
"""

import os
import tempfile
import time
from importlib import util
from pathlib import Path

from common import finish, paired_ratio, parse_arguments, say

from pinyon.engine.config import EngineConfig
from pinyon.engine.events import Chunk, Finished
from pinyon.engine.loader import LoadedEngine, load_engine
from pinyon.engine.native import NativeLog
from pinyon.engine.request import GenerateRequest, SamplingParams, Speculate, Text
from pinyon.models.machine.cores import read_cores

CONTEXT_TOKENS = 8192
TASKS = {
    "bisect": "Rename the parameter `a` to `items` everywhere.",
    "sched": "Rename the method `enterabs` to `enter_at` everywhere, and add a docstring to __init__.",
    "fnmatch": "Rename the parameter `pat` to `pattern` everywhere.",
}
PROMPT = """<|im_start|>system
You are a careful programmer. You answer with the whole file, in one code block.<|im_end|>
<|im_start|>user
{task} Change nothing else.

```python
{source}```<|im_end|>
<|im_start|>assistant
```python
"""


def source_of(module: str) -> str:
    spec = util.find_spec(module)
    assert spec is not None, f"Python comes with {module}"
    assert spec.origin is not None, f"{module} has a file"
    return Path(spec.origin).read_text(encoding="utf-8")


def rewritten(
    loaded: LoadedEngine, name: str, speculate: Speculate, limit: int | None = None
) -> tuple[list[int], float, Finished]:
    """Return the tokens of a file's rewriting, the seconds from the first token to the last, and the end."""
    source = source_of(name)
    text = PROMPT.format(task=TASKS[name], source=source)
    limit = limit or round(1.2 * len(loaded.engine.tokenize((Text(source),))))
    request = GenerateRequest(
        f"{name}-{speculate}-{time.monotonic()}",
        (Text(text, special=True),),
        SamplingParams(temperature=0),
        max_tokens=limit,
        speculate=speculate,
    )
    engine = loaded.engine
    engine.submit(engine.prepare(request))
    tokens: list[int] = []
    first_s = last_s = 0.0
    while engine.busy:
        for _, event in engine.step():
            match event:
                case Chunk(token_ids=ids):
                    tokens += ids
                    last_s = time.perf_counter()
                    first_s = first_s or last_s
                case Finished():
                    return tokens, last_s - first_s, event
    raise SystemExit("invalid run: no answer")


def main() -> None:
    arguments = parse_arguments(__doc__, rounds=1)
    path = Path(arguments.model)
    plain_s, drafted_s, files = [], [], {}
    with tempfile.TemporaryDirectory() as home, (Path(home) / "log").open("w") as log:
        config = EngineConfig(os.fsencode(path), read_cores().threads, CONTEXT_TOKENS, kv_ram_cap_bytes=1 << 30)
        loaded = load_engine(config, path, NativeLog(log))
        for name in TASKS:
            rewritten(
                loaded, name, Speculate.AUTO, limit=64
            )  # the prompt is there from now on, and its costs are known
            for _ in range(arguments.rounds):
                tokens, plain, _ = rewritten(loaded, name, Speculate.OFF)
                ours, drafted, end = rewritten(loaded, name, Speculate.AUTO)
                report = end.speculation
                same = next(
                    (at for at, pair in enumerate(zip(tokens, ours, strict=False)) if pair[0] != pair[1]), len(ours)
                )
                say(
                    f"{name}: {len(tokens)} tokens in {plain:.1f} s plain, {len(ours)} in {drafted:.1f} s with drafts"
                    f" ({report.accepted} of {report.drafted} came true; the first {same} are the same)"
                )
                plain_s.append(plain / len(tokens))
                drafted_s.append(drafted / len(ours))
                files[name] = {
                    "tokens": len(ours),
                    "same": same,
                    "speedup": round(plain_s[-1] / drafted_s[-1], 2),
                    "acceptance": round(report.acceptance or 0.0, 3),
                    "tokens_per_step": round(report.tokens / report.steps, 2),
                    "estimated_gain": round(report.gain, 2),
                }
        loaded.close()
    if not all(each["tokens"] > 300 for each in files.values()):
        raise SystemExit(f"invalid run: an answer was too short: {files}")
    speedup, noise = paired_ratio(plain_s, drafted_s) if len(plain_s) > 1 else (plain_s[0] / drafted_s[0], 0.0)
    finish(
        {
            "model": path.name,
            "speedup": round(speedup, 2),
            "noise": noise,
            "least": min(each["speedup"] for each in files.values()),
            "files": files,
        }
    )


if __name__ == "__main__":
    main()
