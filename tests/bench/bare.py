"""The baseline of the benchmarks: llama.cpp driven by the shortest ctypes loop that computes the same rows."""

import ctypes
import time
from collections.abc import Sequence

import llama_cpp.llama_cpp as lib
import numpy as np

CHUNK_ROWS = 64
_silence = lib.llama_log_callback(lambda _level, _text, _data: None)


class BareModel:
    def __init__(self, path: str, *, cells: int, sequences: int, threads: int) -> None:
        lib.llama_log_set(_silence, None)
        lib.llama_backend_init()
        self.model = lib.llama_model_load_from_file(path.encode(), lib.llama_model_default_params())
        params = lib.llama_context_default_params()
        params.n_ctx = cells
        params.n_batch = params.n_ubatch = CHUNK_ROWS + sequences
        params.n_seq_max = params.n_outputs_max = sequences
        params.n_threads = params.n_threads_batch = threads
        params.kv_unified = True
        self.context = lib.llama_init_from_model(self.model, params)
        self.vocab = lib.llama_model_get_vocab(self.model)
        self.vocab_size = lib.llama_vocab_n_tokens(self.vocab)
        self.batch = lib.llama_batch_init(params.n_batch, 0, 1)

    def tokenize(self, text: str) -> list[int]:
        data = text.encode()
        tokens = (lib.llama_token * (len(data) + 8))()
        count = lib.llama_tokenize(self.vocab, data, len(data), tokens, len(tokens), False, True)
        return tokens[:count]

    def decode(self, rows: Sequence[tuple[int, int, int, bool]]) -> None:
        """Compute rows of (token, position, sequence id, wants logits)."""
        batch = self.batch
        for row, (token, position, sequence, wants_logits) in enumerate(rows):
            batch.token[row] = token
            batch.pos[row] = position
            batch.n_seq_id[row] = 1
            batch.seq_id[row][0] = sequence
            batch.logits[row] = wants_logits
        batch.n_tokens = len(rows)
        status = lib.llama_decode(self.context, batch)
        if status != 0:
            raise RuntimeError(f"llama_decode returned {status}")

    def generate(
        self, prompts: Sequence[Sequence[int]], tokens: int, chains: Sequence["lib.llama_sampler_p"] | None = None
    ) -> float:
        """Answer every prompt with `tokens` tokens, in lockstep; return the seconds it took.

        Greedy by argmax, or with one sampler chain a sequence.
        """
        lib.llama_memory_clear(lib.llama_get_memory(self.context), True)
        started = time.perf_counter()
        last = self._prefill(prompts, chains)
        for step in range(1, tokens):
            self.decode([(token, len(prompts[i]) + step - 1, i, True) for i, token in enumerate(last)])
            last = self._choose(range(len(prompts)), chains, range(len(prompts)))
        return time.perf_counter() - started

    def _prefill(self, prompts: Sequence[Sequence[int]], chains: Sequence["lib.llama_sampler_p"] | None) -> list[int]:
        """Short prompts share a chunk, whole; longer ones are cut."""
        first = [0] * len(prompts)
        rows: list[tuple[int, int, int, bool]] = []

        def flush() -> None:
            self.decode(rows)
            ends = [(row, entry[2]) for row, entry in enumerate(rows) if entry[3]]
            chosen = self._choose([row for row, _ in ends], chains, [sequence for _, sequence in ends])
            for (_, sequence), token in zip(ends, chosen, strict=True):
                first[sequence] = token
            rows.clear()

        for sequence, prompt in enumerate(prompts):
            for start in range(0, len(prompt), CHUNK_ROWS):
                chunk = prompt[start : start + CHUNK_ROWS]
                if len(rows) + len(chunk) > CHUNK_ROWS:
                    flush()
                rows += [(t, start + k, sequence, start + k == len(prompt) - 1) for k, t in enumerate(chunk)]
        flush()
        return first

    def _choose(
        self, rows: Sequence[int], chains: Sequence["lib.llama_sampler_p"] | None, sequences: Sequence[int]
    ) -> list[int]:
        """Return the next token of each row; greedy reads the rows that wanted logits, in order."""
        if chains is not None:
            return [
                lib.llama_sampler_sample(chains[sequence], self.context, row)
                for row, sequence in zip(rows, sequences, strict=True)
            ]
        logits = np.ctypeslib.as_array(lib.llama_get_logits(self.context), (max(1, len(rows)), self.vocab_size))
        return [int(logits[k].argmax()) for k in range(len(rows))]


def sampler_chain(temperature: float, top_p: float, seed: int) -> "lib.llama_sampler_p":
    chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
    for sampler in (
        lib.llama_sampler_init_top_p(ctypes.c_float(top_p), 1),
        lib.llama_sampler_init_temp(ctypes.c_float(temperature)),
        lib.llama_sampler_init_dist(seed),
    ):
        lib.llama_sampler_chain_add(chain, sampler)
    return chain
