"""Everything that can go wrong with model files, before an engine is involved.

ModelError
├── ModelNotFoundError       no model of that name, or no file at that path
├── ModelFileError           the file cannot be used as a model
│   ├── GgufFormatError      not a GGUF, truncated, or a header that contradicts itself
│   │   └── HeaderIncompleteError   only the first bytes are here and the header goes on
│   └── UnsupportedModelError       a sound file that Pinyon does not run (adapter, projector, ...)
├── StoreError               the models folder: name taken, record unreadable, not enough space
├── DownloadError            fetching failed: network, checksum, missing tool
│   ├── HubAccessError       the hub wants a token, another one, or a licence accepted
│   ├── HubBusyError         too many requests, or the hub in trouble; says when to try again where it is known
│   └── HubConnectionError   the hub cannot be reached, or the connection broke
└── TemplateError            a chat template is missing, refuses the messages, or is too expensive
    ├── TemplateMissingError
    ├── TemplateRejectedError
    └── TemplateTooExpensiveError
Every message says what happened, with the numbers, and what to do.
"""


class ModelError(Exception):
    """Base of this tree; its text is written for the user."""


class ModelNotFoundError(ModelError):
    pass


class ModelFileError(ModelError):
    pass


class GgufFormatError(ModelFileError):
    pass


class HeaderIncompleteError(GgufFormatError):
    """The bytes given end inside the header of a longer file.

    `needed_bytes` is a lower bound on how many first bytes of the file are required.
    """

    def __init__(self, needed_bytes: int) -> None:
        super().__init__(f"the header goes on past the bytes given: at least {needed_bytes:,} bytes are needed")
        self.needed_bytes = needed_bytes


class UnsupportedModelError(ModelFileError):
    pass


class StoreError(ModelError):
    pass


class DownloadError(ModelError):
    pass


class HubAccessError(DownloadError):
    pass


class HubBusyError(DownloadError):
    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class HubConnectionError(DownloadError):
    pass


class TemplateError(ModelError):
    pass


class TemplateMissingError(TemplateError):
    pass


class TemplateRejectedError(TemplateError):
    pass


class TemplateTooExpensiveError(TemplateError):
    pass
