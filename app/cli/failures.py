"""Exit codes are an interface. Which error ends a command with which code, and the one line that the user reads."""

import traceback
from enum import IntEnum
from pathlib import Path

from pinyon.app.cli.terminal import tell
from pinyon.app.errors import (
    AnswerError,
    AppError,
    BusyError,
    GenerationFailedError,
    MeasuringError,
    ModelSlotError,
    NoRoomError,
    ServerError,
)
from pinyon.app.history.errors import HistoryFileError
from pinyon.app.settings import Folders
from pinyon.engine.errors import EngineError
from pinyon.engine.events import FailureKind
from pinyon.models.errors import ModelError, TemplateError


class ExitCode(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    MODEL = 3
    DOES_NOT_FIT = 4
    INTERRUPTED = 130


_OF_FAILURE = {
    FailureKind.INVALID_REQUEST: ExitCode.USAGE,
    FailureKind.LOAD_FAILED: ExitCode.MODEL,
    FailureKind.CONTEXT_OVERFLOW: ExitCode.DOES_NOT_FIT,
    FailureKind.DOES_NOT_FIT: ExitCode.DOES_NOT_FIT,
    FailureKind.OVERLOADED: ExitCode.FAILED,
    FailureKind.CLIENT_LIMIT: ExitCode.FAILED,
    FailureKind.ENGINE_CRASH: ExitCode.FAILED,
    FailureKind.ENGINE_STUCK: ExitCode.FAILED,
    FailureKind.ENGINE_ERROR: ExitCode.FAILED,
}


def exit_code(error: BaseException | None) -> ExitCode:
    """Return the code with which a command ends that failed so."""
    match error:
        case EngineError() | GenerationFailedError():
            return _OF_FAILURE[error.kind]
        case NoRoomError():
            return ExitCode.DOES_NOT_FIT
        case TemplateError() | BusyError() | MeasuringError() | ServerError() | AnswerError() | HistoryFileError():
            return ExitCode.FAILED
        case ModelError() | ModelSlotError():
            return ExitCode.MODEL
        case AppError():
            return ExitCode.USAGE
        case _:
            return ExitCode.FAILED


def report(error: Exception) -> ExitCode:
    """Print the error's one line to stderr and return the exit code. Of a fault in Pinyon itself a log keeps the rest."""
    if isinstance(error, EngineError | ModelError | AppError | OSError):
        tell(str(error))
    else:
        log = _log_fault(error)
        tell(f"a fault in Pinyon itself ({type(error).__name__}: {error}); see {log}")
    return exit_code(error)


def _log_fault(error: Exception) -> Path | None:
    """Keep the traceback; None where even that cannot be written."""
    try:
        log = Folders.of_user().logs / "faults.log"
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8", errors="backslashreplace") as file:
            traceback.print_exception(error, file=file)
    except (OSError, AppError):
        return None
    return log
