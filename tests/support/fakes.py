"""A vocabulary of bytes and a model that is a pure function of its KV: engine tests without native models.

`KvRunner` keeps what each sequence id has been fed, checks that it is fed without gaps, and derives the next token from
all of it. So an answer shows whether a sequence saw exactly its own tokens, alone, batched or after a preemption.
"""

import hashlib
from collections.abc import Callable, Sequence

import numpy as np

from pinyon.engine.batch import Batch
from pinyon.engine.config import CHUNK_ROWS
from pinyon.engine.engine import Emitted, Engine
from pinyon.engine.events import Event
from pinyon.engine.native import Logits
from pinyon.engine.request import GenerateRequest
from pinyon.engine.scheduler import Scheduler
from pinyon.engine.vocab import Vocab

BOS, EOS, END_OF_TURN, USER_TAG = 256, 257, 258, 259
SPECIAL = {BOS: "<s>", EOS: "</s>", END_OF_TURN: "<|im_end|>", USER_TAG: "<tool>"}


class ByteTable:
    """Ids 0 to 255 are bytes; then come <s>, </s>, <|im_end|> (control) and <tool> (user-defined)."""

    size = 260

    def __init__(self, *, adds_bos: bool = False) -> None:
        self.adds_bos = adds_bos
        self.bos: int | None = BOS

    def is_eog(self, token: int) -> bool:
        return token in {EOS, END_OF_TURN}

    def control_tokens(self) -> list[int]:
        return [BOS, EOS, END_OF_TURN]

    def user_defined_tokens(self) -> list[int]:
        return [USER_TAG]

    def text(self, token: int) -> bytes:
        return SPECIAL[token].encode() if token in SPECIAL else bytes([token])

    def piece(self, token: int) -> bytes:
        return b"" if token in self.control_tokens() else self.text(token)

    def tokenize(self, text: bytes, *, parse_special: bool) -> list[int]:
        matched = SPECIAL if parse_special else {USER_TAG: SPECIAL[USER_TAG]}
        tokens: list[int] = []
        while text:
            for token, spelling in matched.items():
                if text.startswith(spelling.encode()):
                    tokens.append(token)
                    text = text[len(spelling) :]
                    break
            else:
                tokens.append(text[0])
                text = text[1:]
        return tokens


NextToken = Callable[[str, Sequence[int], int], int]
"""(request id, all tokens so far, how many were generated) -> the likeliest next token."""


def hashed(_request_id: str, tokens: Sequence[int], _generated: int) -> int:
    """A letter that depends on every token so far."""
    return ord("a") + hashlib.sha256(repr(list(tokens)).encode()).digest()[0] % 26


def scripted(**answers: Sequence[int]) -> NextToken:
    """Fixed token ids for each request id, then the end of turn."""

    def next_token(request_id: str, _tokens: Sequence[int], generated: int) -> int:
        answer = answers[request_id]
        return answer[generated] if generated < len(answer) else END_OF_TURN

    return next_token


class KvRunner:
    def __init__(self, next_token: NextToken = hashed, cells: int = 1 << 20) -> None:
        self.kv: dict[int, list[int]] = {}
        self.batches: list[list[tuple[str, int]]] = []
        self._next_token = next_token
        self._cells = cells

    def run(self, batch: Batch) -> Logits:
        self.batches.append([(piece.sequence.request.id, piece.rows) for piece in batch.slices])
        rows = []
        for piece in batch.slices:
            sequence = piece.sequence
            kv = self.kv.setdefault(sequence.sequence_id, [])
            assert len(kv) == sequence.computed, "the sequence and its cells disagree about what is computed"
            kv += sequence.tokens[len(kv) : len(kv) + piece.rows]
            if piece.wants_logits:
                assert kv == sequence.tokens
                generated = len(kv) - sequence.prompt_tokens
                rows.append(self._row(self._next_token(sequence.request.id, kv, generated)))
        assert self.used_cells <= self._cells, "more cells used than there are"
        return np.array(rows, np.float32).reshape(len(rows), ByteTable.size)

    @staticmethod
    def _row(token: int) -> Logits:
        row = np.zeros(ByteTable.size, np.float32)
        row[token] = 10
        return row

    def free(self, sequence_id: int) -> None:
        del self.kv[sequence_id]

    @property
    def used_cells(self) -> int:
        return sum(map(len, self.kv.values()))


def make_engine(
    next_token: NextToken = hashed, *, cells: int = 4096, sequence_ids: int = 8, adds_bos: bool = False
) -> tuple[Engine, KvRunner, Scheduler]:
    runner = KvRunner(next_token, cells)
    scheduler = Scheduler(cells=cells, sequence_ids=sequence_ids, chunk_rows=CHUNK_ROWS, free_cells_of=runner.free)
    return Engine(Vocab(ByteTable(adds_bos=adds_bos)), runner, scheduler, cells), runner, scheduler


def submit(engine: Engine, request: GenerateRequest) -> list[Emitted]:
    return engine.submit(request, engine.prepare(request))


def run_to_end(engine: Engine, *requests: GenerateRequest) -> dict[str, list[Event]]:
    """Submit requests together and step until all have ended; return each one's events."""
    emitted = [pair for request in requests for pair in submit(engine, request)]
    while engine.busy:
        emitted += engine.step()
    return {request.id: [event for owner, event in emitted if owner == request.id] for request in requests}
