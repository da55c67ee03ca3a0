"""What can go wrong in the doors themselves; model files and the engine have trees of their own.

AppError
├── SettingsError           settings.toml or a PINYON_ variable is wrong
├── UsageError              what was asked makes no sense as asked
├── ModelSlotError          a model is loaded with another context, and is busy
├── BusyError               a request was not accepted, and may be sent again later
│   ├── NoRoomError             models that are busy have the memory
│   └── ShuttingDownError
├── FolderInUseError        another process uses the folder of KV
├── MeasuringError          how fast this machine is could not be measured
├── ServerError             about the running server: it cannot start, or cannot be reached
├── GenerationFailedError   a request ended in Failed; carries the event's kind
└── AnswerError             an answer came, and is not what was asked for: cut off, no code in it, out of time

Of the engine's tree, but known before there is one:
DoesNotFitError
└── TooLargeError           the model takes more memory than there is for models
"""

from pinyon.engine.errors import DoesNotFitError
from pinyon.engine.events import Failed, FailureKind


class AppError(Exception):
    """Base of this tree; its text is written for the user."""


class SettingsError(AppError):
    pass


class UsageError(AppError):
    pass


class ModelSlotError(AppError):
    pass


class BusyError(AppError):
    pass


class NoRoomError(BusyError):
    pass


class ShuttingDownError(BusyError):
    pass


class FolderInUseError(AppError):
    pass


class MeasuringError(AppError):
    pass


class TooLargeError(DoesNotFitError):
    pass


class ServerError(AppError):
    pass


class GenerationFailedError(AppError):
    def __init__(self, event: Failed) -> None:
        super().__init__(event.message)
        self.kind: FailureKind = event.kind


class AnswerError(AppError):
    pass
