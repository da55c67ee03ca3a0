"""Everything that can go wrong in a request, as an HTTP status and OpenAI's error object.

Answers name no path and no version of a local file: what a user must not read there goes to the server's log.
"""

import logging
from dataclasses import dataclass, field
from functools import singledispatch
from http import HTTPStatus
from typing import Final, Self

import msgspec
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from pydantic_core import ErrorDetails
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from pinyon.app.api.json_answer import JsonAnswer
from pinyon.app.errors import AppError, BusyError, ModelSlotError, NoRoomError, TooLargeError
from pinyon.app.limits import RETRY_AFTER_S
from pinyon.engine.errors import EngineError
from pinyon.engine.events import Failed, FailureKind
from pinyon.models.errors import ModelError, ModelNotFoundError, TemplateError, TemplateTooExpensiveError

_log = logging.getLogger(__name__)

_STATUS_OF: Final = {
    FailureKind.INVALID_REQUEST: HTTPStatus.BAD_REQUEST,
    FailureKind.CONTEXT_OVERFLOW: HTTPStatus.BAD_REQUEST,
    FailureKind.OVERLOADED: HTTPStatus.SERVICE_UNAVAILABLE,
    FailureKind.CLIENT_LIMIT: HTTPStatus.TOO_MANY_REQUESTS,
    FailureKind.ENGINE_STUCK: HTTPStatus.GATEWAY_TIMEOUT,
}
_HIDDEN: Final = {
    FailureKind.LOAD_FAILED: "the model cannot be loaded; the server's log says why",
    FailureKind.DOES_NOT_FIT: "the model does not fit into memory with this context; the server's log has the figures",
    FailureKind.ENGINE_CRASH: "the engine died while it worked on this request, and is started again; the server's log says why",
    FailureKind.ENGINE_STUCK: "the engine gave no sign of life for so long that it was ended, and is started again; the server's log says more",
    FailureKind.ENGINE_ERROR: "the engine failed on this request; the server's log says why",
}
"""What is said instead of messages that may quote paths."""
_BRANCHES: Final = {"str", "bool"}
MANY_FAULTS: Final = 2048
"""Past so many none is told: pydantic tells only all of them at once, an object each."""
MAX_NAME_CHARS: Final = 40
"""Keys of a client's own objects can stand in a field's name, and be of any length."""


class ErrorBody(msgspec.Struct, frozen=True):
    """OpenAI's error object. The two counts are there when a prompt does not fit, the seconds when it is worth trying again."""

    message: str
    type: str
    param: str | None
    code: str | None
    prompt_tokens: int | msgspec.UnsetType = msgspec.UNSET
    context_tokens: int | msgspec.UnsetType = msgspec.UNSET
    retry_after_s: int | msgspec.UnsetType = msgspec.UNSET


class ErrorAnswer(msgspec.Struct, frozen=True):
    error: ErrorBody

    @classmethod
    def of(cls, status: int, message: str, code: str | None, param: str | None = None, **data: int) -> Self:
        kind = "invalid_request_error" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error"
        return cls(ErrorBody(message, kind, param, code, **data))


@dataclass
class ApiError(Exception):
    """An error as the client will see it."""

    status: HTTPStatus
    message: str
    code: str | None = None
    param: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    data: dict[str, int] = field(default_factory=dict)

    @property
    def answer(self) -> ErrorAnswer:
        return ErrorAnswer.of(self.status, self.message, self.code, self.param, **self.data)


def invalid(param: str, message: str) -> ApiError:
    """Return the error of a field that cannot be used as it is."""
    return ApiError(HTTPStatus.BAD_REQUEST, message, "invalid_value", param)


def model_not_found(message: str) -> ApiError:
    return ApiError(HTTPStatus.NOT_FOUND, message, "model_not_found", "model")


def unknown_model(name: str) -> ApiError:
    """Return the error of a name that no model here has."""
    return model_not_found(f"there is no model {name[:80]!r} here: GET /v1/models lists the ones that are")


def of_failure(failed: Failed) -> ApiError:
    """Return the error that ends a request with this event."""
    status = _STATUS_OF.get(failed.kind, HTTPStatus.INTERNAL_SERVER_ERROR)
    if failed.kind in _HIDDEN:
        _log.error("%s", failed.message)
    message = _HIDDEN.get(failed.kind, failed.message)
    retry = failed.data.get("retry_after_s")
    headers = {} if retry is None else {"Retry-After": str(retry)}
    return ApiError(status, message, failed.kind, failed.param, headers, failed.data)


@singledispatch
def of_exception(error: Exception) -> ApiError:
    """Return the error for anything that a route can raise."""
    _log.error("a fault in Pinyon itself", exc_info=error)
    return ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, "a fault in Pinyon itself; the server's log has the details")


@of_exception.register
def _(error: ApiError) -> ApiError:
    return error


@of_exception.register
def _(error: EngineError) -> ApiError:
    return of_failure(error.as_event())


@of_exception.register
def _(error: TooLargeError) -> ApiError:
    return ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, str(error), error.kind, "model")


@of_exception.register
def _(error: AppError) -> ApiError:
    return ApiError(HTTPStatus.BAD_REQUEST, str(error))


@of_exception.register
def _(error: BusyError) -> ApiError:
    headers = {"Retry-After": str(RETRY_AFTER_S)}
    return ApiError(HTTPStatus.SERVICE_UNAVAILABLE, str(error), "shutting_down", headers=headers)


@of_exception.register
def _(error: NoRoomError) -> ApiError:
    headers, data = {"Retry-After": str(RETRY_AFTER_S)}, {"retry_after_s": RETRY_AFTER_S}
    return ApiError(HTTPStatus.SERVICE_UNAVAILABLE, str(error), FailureKind.OVERLOADED, "model", headers, data)


@of_exception.register
def _(error: ModelSlotError) -> ApiError:
    return ApiError(HTTPStatus.BAD_REQUEST, str(error), "model_not_loaded", "model")


@of_exception.register
def _(error: ModelError) -> ApiError:
    return of_failure(Failed(FailureKind.LOAD_FAILED, str(error)))


@of_exception.register
def _(error: ModelNotFoundError) -> ApiError:
    _log.error("%s", error)  # it may name the path where the file was
    return model_not_found("the model is not here: GET /v1/models lists the ones that are; the server's log says more")


@of_exception.register
def _(error: TemplateError) -> ApiError:
    return ApiError(HTTPStatus.BAD_REQUEST, str(error), "template_error", "messages")


@of_exception.register
def _(error: TemplateTooExpensiveError) -> ApiError:
    return ApiError(HTTPStatus.UNPROCESSABLE_ENTITY, str(error), "template_too_expensive", "messages")


@of_exception.register
def _(error: HTTPException) -> ApiError:
    known = {
        HTTPStatus.NOT_FOUND: "there is no such route: this server has OpenAI's API under /v1, for example /v1/chat/completions; /docs tells the rest",
        HTTPStatus.METHOD_NOT_ALLOWED: "the route does not take this method",
    }
    status = HTTPStatus(error.status_code)
    return ApiError(status, known.get(status, error.detail), headers=dict(error.headers or {}))


@of_exception.register
def _(error: RequestValidationError) -> ApiError:
    first = error.errors()[0]
    param = str(first["loc"][-1])
    return invalid(param, f"{param}: {first['msg']}")


@of_exception.register
def _(error: ValidationError) -> ApiError:
    """Tell one fault that pydantic found, by the name of its field: the deepest, which is in the branch of a union that was meant."""
    if (count := error.error_count()) > MANY_FAULTS:
        return ApiError(HTTPStatus.BAD_REQUEST, f"the body: {count:,} of its values are wrong", "invalid_value")
    found = max(error.errors(include_url=False, include_context=False, include_input=False), key=_depth)
    if found["type"] == "json_invalid":
        return ApiError(HTTPStatus.BAD_REQUEST, f"the body is not JSON: {found['msg']}", "invalid_json")
    # Names of union branches stand in the path too; they are no fields.
    names = (part for part in found["loc"] if isinstance(part, int) or (part.isidentifier() and part not in _BRANCHES))
    param = ".".join(str(name)[:MAX_NAME_CHARS] for name in names)
    message = found["msg"].removeprefix("Value error, ")
    return ApiError(HTTPStatus.BAD_REQUEST, f"{param or 'the body'}: {message}", "invalid_value", param or None)


def _depth(found: ErrorDetails) -> tuple[int, bool]:
    """At the same depth, a branch that was of the right type was meant."""
    return len(found["loc"]), not found["type"].endswith("_type")


async def handle(_request: Request, error: Exception) -> Response:
    """Answer a request whose route raised."""
    told = of_exception(error)
    return JsonAnswer(told.answer, told.status, told.headers)
