"""The baseline of the benchmarks: llama.cpp driven by a short ctypes loop that computes the same rows."""

import ctypes
import time
from collections.abc import Sequence

import llama_cpp.llama_cpp as lib
import numpy as np

CHUNK_ROWS = 512
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
        """Answer every prompt with `tokens` tokens; return the seconds it took.

        Greedy by argmax, or with one sampler chain a sequence. The rows of each step are the engine's: one for every
        started answer, and whole prompts (of at most a chunk) as far as a chunk goes.
        """
        lib.llama_memory_clear(lib.llama_get_memory(self.context), True)
        answers: list[list[int]] = [[] for _ in prompts]
        running: list[int] = []
        waiting = list(range(len(prompts)))
        started = time.perf_counter()
        while running or waiting:
            rows = [(answers[i][-1], len(prompts[i]) + len(answers[i]) - 1, i, True) for i in running]
            room = CHUNK_ROWS
            while waiting and len(prompts[waiting[0]]) <= room:
                sequence = waiting.pop(0)
                prompt = prompts[sequence]
                room -= len(prompt)
                rows += [(token, k, sequence, k == len(prompt) - 1) for k, token in enumerate(prompt)]
                running.append(sequence)
            self.decode(rows)
            outputs = [row for row, (_, _, _, wants_logits) in enumerate(rows) if wants_logits]
            for sequence, token in zip(running, self._choose(outputs, running, chains), strict=True):
                answers[sequence].append(token)
            running = [sequence for sequence in running if len(answers[sequence]) < tokens]
        return time.perf_counter() - started

    def _choose(
        self, rows: Sequence[int], sequences: Sequence[int], chains: Sequence["lib.llama_sampler_p"] | None
    ) -> list[int]:
        """Return the next token for each row that wanted logits; `sequences` are the rows' own."""
        if chains is not None:
            sample, context = lib.llama_sampler_sample, self.context
            return [sample(chains[sequence], context, row) for row, sequence in zip(rows, sequences, strict=True)]
        logits = np.ctypeslib.as_array(lib.llama_get_logits(self.context), (len(rows), self.vocab_size))
        return [int(row.argmax()) for row in logits]


def sampler_chain(temperature: float, top_p: float, seed: int) -> "lib.llama_sampler_p":
    chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
    for sampler in (
        lib.llama_sampler_init_top_p(ctypes.c_float(top_p), 1),
        lib.llama_sampler_init_temp(ctypes.c_float(temperature)),
        lib.llama_sampler_init_dist(seed),
    ):
        lib.llama_sampler_chain_add(chain, sampler)
    return chain
