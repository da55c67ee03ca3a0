"""What the headers of a large model cost that is still on the hub: a sparse file of 5 GB behind a hub on this machine.

Its vocabulary has 150,000 tokens with merges, as those of current models have. `bytes_read` is what the hub sent of the file.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import gguf
import numpy as np
from common import finish, say

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from fake_hub import FakeFile, FakeHub

REPO = "owner/Large-GGUF"
TOKENS, MERGES, LAYERS, WIDTH = 150_000, 149_000, 32, 4096


def write_model(path: Path, size_bytes: int) -> None:
    """Write a header as a converter does, and a hole in the place of the weights."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(131_072)
    writer.add_embedding_length(WIDTH)
    writer.add_head_count(32)
    writer.add_head_count_kv(8)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"token{number:06}" for number in range(TOKENS)])
    writer.add_token_types([1] * TOKENS)
    writer.add_token_merges([f"tok{number:05} en{number:05}" for number in range(MERGES)])
    kinds = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down", "attn_norm", "ffn_norm")
    rows = size_bytes // (len(kinds) * LAYERS * WIDTH * 4)
    for layer in range(LAYERS):
        for kind in kinds:
            writer.add_tensor_info(f"blk.{layer}.{kind}.weight", (rows, WIDTH), np.dtype(np.float32), rows * WIDTH * 4)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    header_bytes = -(-path.stat().st_size // 32) * 32
    os.truncate(path, header_bytes + rows * WIDTH * 4 * len(kinds) * LAYERS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=5.0)
    wanted = int(parser.parse_args().gigabytes * 1e9)
    with tempfile.TemporaryDirectory() as name, FakeHub() as hub:
        path = Path(name) / "large-Q4_K_M.gguf"
        write_model(path, wanted)
        hub.add(REPO, {path.name: FakeFile(path, told_sha256="a" * 64)})
        os.environ.update(hub.environment(Path(name)))
        say(f"{path.stat().st_size:,} bytes behind {hub.url}")
        started = time.perf_counter()
        from pinyon.models.hub.address import parse_address
        from pinyon.models.hub.remote_header import remote_headers
        from pinyon.models.hub.repo import chosen, read_repo

        repo = read_repo(parse_address(REPO))
        (header,) = remote_headers(repo, chosen(repo, None))
        seconds = time.perf_counter() - started
        size_bytes = path.stat().st_size
    if header.file_bytes != size_bytes or header.block_count != LAYERS:
        raise SystemExit("invalid run: that is another header")
    finish(
        {
            "bytes_read": hub.bytes_sent,
            "seconds": round(seconds, 3),
            "header_bytes": header.data_offset,
            "file_bytes": size_bytes,
            "requests": len(hub.asked),
        }
    )


if __name__ == "__main__":
    main()
