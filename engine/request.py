"""What goes into the engine: one frozen request."""

from enum import StrEnum
from typing import Self, TypeAlias

import msgspec

from pinyon.engine.errors import InvalidRequestError

SEED_LIMIT = 2**32
"""Seeds are 32-bit in llama.cpp's samplers; its highest value means "random" there and is not used here."""

MIN_DIVISOR = 1e-4
"""Logits are divided by temperature and repeat penalty in 32-bit floats, which overflow below this."""

MAX_TOKENS = 2**31 - 1
MAX_CHOICES = 8
MAX_STOPS = 17
"""Sixteen of the caller's, and the end-of-turn tag of a chat template."""
MAX_STOP_BYTES = 256
MAX_LOGIT_BIAS = 1024
MAX_TOP_LOGPROBS = 20
MAX_CONVERSATION_CHARS = 128
MAX_CLIENT_CHARS = 128


class Text(msgspec.Struct, frozen=True, tag="text"):
    """A run of prompt text. Only where `special` is set do control-token strings in it become control tokens."""

    text: str
    special: bool = False


class Tokens(msgspec.Struct, frozen=True, tag="tokens"):
    """A run of prompt tokens, used as they are."""

    ids: tuple[int, ...]


Prompt: TypeAlias = tuple[Text | Tokens, ...]


class SamplingParams(msgspec.Struct, frozen=True):
    """How the next token is drawn. Temperature 0 is greedy; a top_k of 0 means no limit.

    The repeat penalty sees the last `repeat_last_n` tokens of prompt and output; presence and frequency
    penalties see the output only. Without a seed the engine draws one and reports it.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None

    def checked(self, vocab_size: int) -> Self:
        """Return self, or raise InvalidRequestError naming the first field that is out of range."""
        # Comparisons are written so that NaN fails them.
        temperature_ok = self.temperature == 0 or MIN_DIVISOR <= self.temperature <= 100
        _require("temperature", self.temperature, temperature_ok, f"0, or {MIN_DIVISOR} to 100")
        _require("top_k", self.top_k, 0 <= self.top_k <= 2**31 - 1, "0 (no limit) or more")
        _require("top_p", self.top_p, 0 <= self.top_p <= 1, "0 to 1")
        _require("min_p", self.min_p, 0 <= self.min_p <= 1, "0 to 1")
        _require("typical_p", self.typical_p, 0 <= self.typical_p <= 1, "0 to 1")
        penalty_ok = MIN_DIVISOR <= self.repeat_penalty <= 100
        _require("repeat_penalty", self.repeat_penalty, penalty_ok, f"{MIN_DIVISOR} to 100; 1 is off")
        _require("repeat_last_n", self.repeat_last_n, 0 <= self.repeat_last_n <= 2**20, "0 to 1,048,576")
        _require("presence_penalty", self.presence_penalty, -2 <= self.presence_penalty <= 2, "-2 to 2")
        _require("frequency_penalty", self.frequency_penalty, -2 <= self.frequency_penalty <= 2, "-2 to 2")
        _require("seed", self.seed, self.seed is None or 0 <= self.seed < SEED_LIMIT - 1, f"0 to {SEED_LIMIT - 2}")
        _require(
            "logit_bias", len(self.logit_bias), len(self.logit_bias) <= MAX_LOGIT_BIAS, f"{MAX_LOGIT_BIAS} entries"
        )
        for token, bias in self.logit_bias:
            _require("logit_bias", token, 0 <= token < vocab_size, f"token ids from 0 to {vocab_size - 1}")
            _require("logit_bias", bias, -100 <= bias <= 100, "biases from -100 to 100")
        return self


class Grammar(msgspec.Struct, frozen=True):
    """What an answer must look like; `grammar` makes them. `source` is for llguidance; while `is_gbnf` it is still GBNF, which GrammarChecker.check translates."""

    source: str
    is_gbnf: bool = False


class Reasoning(msgspec.Struct, frozen=True):
    """How a model writes down its thoughts: from the text `start` to one of the texts `ends`.

    Where these are spelled with control tokens, their text counts too. `opened` says that the prompt ends inside a block.
    """

    start: str
    ends: tuple[str, ...]
    opened: bool = False


class Priority(StrEnum):
    """INTERACTIVE: somebody waits for it. BATCH gets what is left of the machine."""

    INTERACTIVE = "interactive"
    BATCH = "batch"


class Speculate(StrEnum):
    """Whether tokens are drafted ahead: as it pays, from the text alone, or not at all. Answers are the same."""

    AUTO = "auto"
    SUFFIX = "suffix"
    OFF = "off"


class GenerateRequest(msgspec.Struct, frozen=True):
    """One prompt, and `n` answers to generate; the seeds of the choices follow one another.

    `max_tokens` None means until the context ends. `logprobs` None means none; k means the chosen token's and those of
    the k likeliest tokens, from the model's own distribution before any sampling parameter. With `ignore_eos` the answer
    goes on after a token that would end it: benchmarks need answers of a given length.

    With `reasoning`, thoughts are told apart from the answer; stop strings and the grammar apply to the answer alone.

    Without `use_cache` nothing is reused and nothing is left for others. Of a `private` request nothing is written to disk.
    Requests share computed prefixes within a `namespace` only. What is kept of those of a `conversation` is noted as its own, so
    that it can be forgotten together.

    A `deterministic` one gives the same answer for the same prompt and seed, to the bit, whatever else was or is asked: it
    runs alone, and reuses only what was computed for such requests.

    The machine is shared fairly between clients; `client` says whose it is. Where the first token cannot be expected within
    `ttft_deadline_s` seconds, it is refused at once. `speculate` says whether tokens are drafted ahead.
    """

    id: str
    prompt: Prompt
    sampling: SamplingParams = SamplingParams()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    ignore_eos: bool = False
    n: int = 1
    grammar: Grammar | None = None
    reasoning: Reasoning | None = None
    use_cache: bool = True
    private: bool = False
    namespace: str = ""
    deterministic: bool = False
    conversation: str | None = None
    priority: Priority = Priority.INTERACTIVE
    client: str = ""
    ttft_deadline_s: float | None = None
    speculate: Speculate = Speculate.AUTO

    def checked(self, vocab_size: int) -> Self:
        """Return self, or raise InvalidRequestError naming the first field that is out of range."""
        self.sampling.checked(vocab_size)
        _require(
            "max_tokens",
            self.max_tokens,
            self.max_tokens is None or 1 <= self.max_tokens <= MAX_TOKENS,
            f"1 to {MAX_TOKENS}",
        )
        _require("n", self.n, 1 <= self.n <= MAX_CHOICES, f"1 to {MAX_CHOICES}")
        _require("stop", len(self.stop), len(self.stop) <= MAX_STOPS, f"at most {MAX_STOPS} strings")
        for stop in self.stop:
            _require("stop", stop, _can_stop(stop), f"text of 1 to {MAX_STOP_BYTES} bytes without NUL")
        _require(
            "logprobs",
            self.logprobs,
            self.logprobs is None or 0 <= self.logprobs <= MAX_TOP_LOGPROBS,
            f"0 to {MAX_TOP_LOGPROBS}",
        )
        _require(
            "conversation",
            self.conversation,
            self.conversation is None or 1 <= len(self.conversation) <= MAX_CONVERSATION_CHARS,
            f"1 to {MAX_CONVERSATION_CHARS} characters",
        )
        _require("client", self.client, len(self.client) <= MAX_CLIENT_CHARS, f"at most {MAX_CLIENT_CHARS} characters")
        _require(
            "ttft_deadline_s",
            self.ttft_deadline_s,
            self.ttft_deadline_s is None or self.ttft_deadline_s > 0,
            "more than 0",
        )
        for piece in self.prompt:
            if isinstance(piece, Tokens) and piece.ids:
                for token in (min(piece.ids), max(piece.ids)):
                    _require("prompt", token, 0 <= token < vocab_size, f"token ids from 0 to {vocab_size - 1}")
        return self


def without_traces(request: GenerateRequest) -> GenerateRequest:
    """Return a request of which nothing will be left."""
    return msgspec.structs.replace(request, use_cache=False, private=True, conversation=None)


def text_chars(prompt: Prompt) -> int:
    """Return how many characters a prompt's tokenizer has to read."""
    return sum(len(piece.text) for piece in prompt if isinstance(piece, Text))


def _can_stop(text: str) -> bool:
    """Whether an answer could contain the text: valid Unicode, not empty, of bounded size."""
    try:
        return 0 < len(text.encode()) <= MAX_STOP_BYTES and "\0" not in text
    except UnicodeEncodeError:
        return False


def _require(field: str, value: object, ok: bool, allowed: str) -> None:
    if not ok:
        shown = repr(value)
        shown = shown if len(shown) <= 80 else f"{shown[:80]}..."
        raise InvalidRequestError(f"{field} is {shown}; allowed: {allowed}", field)
