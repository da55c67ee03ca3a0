"""What can go wrong with the history.

HistoryError
├── NoConversationError     there is none with this id, or it was deleted
├── NoMessageError          there is none with this id
└── HistoryFileError        the file cannot be used
    ├── HistoryDamagedError     it is damaged, or it is not one of Pinyon's
    └── HistoryLockedError      another program holds it at the moment

Nothing that writes raises HistoryFileError: what is not on disk stays in memory, and `History.why_not_saved` says why.
"""

from pinyon.app.errors import AppError


class HistoryError(AppError):
    pass


class NoConversationError(HistoryError):
    pass


class NoMessageError(HistoryError):
    pass


class HistoryFileError(HistoryError):
    pass


class HistoryDamagedError(HistoryFileError):
    pass


class HistoryLockedError(HistoryFileError):
    pass
