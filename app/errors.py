"""What can go wrong in the doors themselves; model files and the engine have trees of their own.

AppError
├── SettingsError           settings.toml or a PINYON_ variable is wrong
├── UsageError              what was asked makes no sense as asked
├── ModelSlotError          another model is loaded already
├── BusyError               a request was not accepted, and may be sent again later
│   └── ShuttingDownError
├── FolderInUseError        another process uses the folder of KV
├── MeasuringError          how fast this machine is could not be measured
├── ServerError             about the running server: it cannot start, or cannot be reached
├── GenerationFailedError   a request ended in Failed; carries the event's kind
└── AnswerError             an answer came, and is not what was asked for: cut off, no code in it, out of time
"""

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


class ShuttingDownError(BusyError):
    pass


class FolderInUseError(AppError):
    pass


class MeasuringError(AppError):
    pass


class ServerError(AppError):
    pass


class GenerationFailedError(AppError):
    def __init__(self, event: Failed) -> None:
        super().__init__(event.message)
        self.kind: FailureKind = event.kind


class AnswerError(AppError):
    pass
