"""What the service and the process that checks a grammar say to each other."""

from typing import Final

READY: Final = b"ready\n"
"""The child's first line. The service then sends a Grammar as JSON and closes the pipe."""

ACCEPTED: Final = 0
"""Exit status after the source that a worker compiles was written."""

REFUSED: Final = 3
"""Exit status after the reason was written. Every other status, or a signal, is a crash."""
