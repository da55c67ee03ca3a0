"""How long a start takes until it knows what is kept on disk: from 10,000 files to an index. Their size does not matter: only heads are read."""

import argparse
import tempfile
import time
from pathlib import Path

from common import finish, say

from pinyon.engine.block import BLOCK_TOKENS
from pinyon.engine.block_disk import BlockDisk
from pinyon.engine.block_store import BlockStore

ROOT = b"\0" * 32
CAP_BYTES = 1 << 30
PAYLOAD = bytes(1 << 10)
CHAIN_BLOCKS = 50
"""The blocks of one conversation."""


def write(folder: Path, blocks: int) -> None:
    store = BlockStore(CAP_BYTES)
    store.attach(BlockDisk(folder, ROOT), [], CAP_BYTES)
    parent = store.root("")
    for number in range(blocks):
        if number % CHAIN_BLOCKS == 0:
            parent = store.root("")
        tokens = range(number * BLOCK_TOKENS, (number + 1) * BLOCK_TOKENS)
        block = store.add(parent, tokens, PAYLOAD, 0.1)
        assert block is not None, "there is room"
        parent = block
        store.work()
    store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=10_000)
    blocks = parser.parse_args().blocks
    with tempfile.TemporaryDirectory() as name:
        say(f"writing {blocks} files")
        write(Path(name), blocks)
        started = time.perf_counter()
        disk = BlockDisk(Path(name), ROOT)
        found = [*disk.scan()]
        scanned = time.perf_counter()
        BlockStore(CAP_BYTES).attach(disk, found, CAP_BYTES)
        attached = time.perf_counter()
        disk.close()
    if len(found) != blocks:
        raise SystemExit(f"invalid run: {len(found)} of {blocks} blocks were found")
    finish({"blocks": blocks, "scan_s": round(scanned - started, 3), "attach_s": round(attached - scanned, 3)})


if __name__ == "__main__":
    main()
