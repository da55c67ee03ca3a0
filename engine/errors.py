"""Everything that can go wrong between a request and its last event.

EngineError
├── InvalidRequestError      a parameter is out of range, or the prompt is empty
├── ContextOverflowError     the prompt does not fit into the context
├── OverloadedError          there is too much to do for this request to be in time
│   └── ClientLimitError        too much of it is the same client's
├── ModelLoadError           llama.cpp refused the file
│   ├── DoesNotFitError         the asked context is more than the model or the memory has room for
│   └── ModelQuarantinedError   the worker died twice in a row while loading it
├── EngineCrashedError       the worker process died
│   └── EngineStuckError        it was killed, since it gave no sign of life
├── EngineStartError         the operating system does not let a worker start
├── NativeError              a llama.cpp call failed; the request fails, the engine goes on
│   └── BindingError         llama-cpp-python is not the version this code is written for
└── ProtocolError            a frame between service and worker is malformed or too large
Every message says what happened, with the numbers, and what to do. `kind` travels in events and frames.
"""

import math
from typing import ClassVar

from pinyon.engine.events import Failed, FailureKind


class EngineError(Exception):
    """Base of this tree; its text is written for the user."""

    kind: ClassVar[FailureKind] = FailureKind.ENGINE_ERROR
    param: str | None = None
    """The request's field that is to blame, where it is one."""

    def as_event(self) -> Failed:
        """Return the terminal event of a request that ends with this error."""
        return Failed(self.kind, str(self), self.figures(), self.param)

    def figures(self) -> dict[str, int]:
        """Return the message's numbers by name."""
        return {}


class InvalidRequestError(EngineError):
    kind = FailureKind.INVALID_REQUEST

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ContextOverflowError(EngineError):
    """The prompt has `prompt_tokens` tokens and the context holds `context_tokens`; one must be left for the answer.

    With `is_estimate` the prompt has at least so many: it was too long to be counted.
    """

    kind = FailureKind.CONTEXT_OVERFLOW

    def __init__(self, prompt_tokens: int, context_tokens: int, *, is_estimate: bool = False) -> None:
        super().__init__(
            f"the prompt has {'at least ' if is_estimate else ''}{prompt_tokens:,} tokens, the context holds {context_tokens:,} and needs at least one "
            "for the answer: shorten the prompt or load the model with a larger context"
        )
        self.prompt_tokens = prompt_tokens
        self.context_tokens = context_tokens

    def figures(self) -> dict[str, int]:
        return {"prompt_tokens": self.prompt_tokens, "context_tokens": self.context_tokens}


class OverloadedError(EngineError):
    """Trying again is worth while after `retry_after_s` seconds, a whole number."""

    kind = FailureKind.OVERLOADED

    def __init__(self, message: str, wait_s: float) -> None:
        self.retry_after_s = max(1, math.ceil(wait_s))
        super().__init__(f"{message}: try again in {self.retry_after_s} s")

    def figures(self) -> dict[str, int]:
        return {"retry_after_s": self.retry_after_s}


class ClientLimitError(OverloadedError):
    kind = FailureKind.CLIENT_LIMIT


class ModelLoadError(EngineError):
    kind = FailureKind.LOAD_FAILED


class DoesNotFitError(ModelLoadError):
    kind = FailureKind.DOES_NOT_FIT


class ModelQuarantinedError(ModelLoadError):
    pass


class EngineCrashedError(EngineError):
    kind = FailureKind.ENGINE_CRASH


class EngineStuckError(EngineCrashedError):
    kind = FailureKind.ENGINE_STUCK


class EngineStartError(EngineError):
    pass


class NativeError(EngineError):
    pass


class BindingError(NativeError):
    pass


class ProtocolError(EngineError):
    pass


def error_of(failed: Failed) -> EngineError:
    """Return the error that a call to the worker ended with."""
    match failed.kind:
        case FailureKind.INVALID_REQUEST:
            return InvalidRequestError(failed.message, failed.param)
        case FailureKind.CONTEXT_OVERFLOW:
            error = ContextOverflowError(failed.data["prompt_tokens"], failed.data["context_tokens"])
            error.args = (failed.message,)  # which knows whether the tokens were counted
            return error
        case _:
            return EngineError(failed.message)
