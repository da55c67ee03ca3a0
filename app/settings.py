"""The user's settings: `settings.toml`, then `PINYON_*` variables over it. Unknown names are errors, not ignored."""

import os
import tomllib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from platformdirs import PlatformDirs

from pinyon.app.errors import SettingsError
from pinyon.engine.config import ANSWER_WITHIN_S, KvType, Limits
from pinyon.engine.request import Speculate

_LIMITS = Limits()
_OTHER_VARIABLES = {"PINYON_HOME", "PINYON_PREBUILT"}


@dataclass(frozen=True, slots=True)
class Folders:
    """Where Pinyon keeps things. Nothing is created before it is needed."""

    config: Path
    data: Path
    state: Path
    runtime: Path
    cache: Path

    @classmethod
    def of_user(cls, environment: Mapping[str, str] = os.environ) -> "Folders":
        """The platform's folders, or subfolders of PINYON_HOME where that is set."""
        if home := environment.get("PINYON_HOME"):
            try:
                root = Path(home).expanduser().absolute()
            except RuntimeError as error:
                raise SettingsError(f"PINYON_HOME is {home!r}: {error}") from error
            return cls(root / "config", root / "data", root / "state", root / "runtime", root / "cache")
        dirs = PlatformDirs("pinyon", appauthor=False)
        return cls(
            dirs.user_config_path,
            dirs.user_data_path,
            dirs.user_state_path,
            _runtime_folder(dirs),
            dirs.user_cache_path,
        )

    @property
    def models(self) -> Path:
        return self.data / "models"

    @property
    def history_file(self) -> Path:
        return self.data / "history.db"

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    @property
    def batches(self) -> Path:
        """Which outputs batches are writing."""
        return self.state / "batches"

    @property
    def kv(self) -> Path:
        return self.cache / "kv"

    @property
    def calibration(self) -> Path:
        return self.cache / "calibration"

    @property
    def weight_speed(self) -> Path:
        """What weights of each type cost on this machine."""
        return self.cache / "weight-speed.json"

    @property
    def sizes(self) -> Path:
        """What is known of the sizes of models."""
        return self.cache / "sizes"

    @property
    def templates(self) -> Path:
        return self.config / "templates"

    @property
    def server_file(self) -> Path:
        return self.runtime / "server.json"

    @property
    def settings_file(self) -> Path:
        return self.config / "settings.toml"


def _runtime_folder(dirs: PlatformDirs) -> Path:
    """The system's folder for what lives as long as a session; where it has none (containers, cron), one of our own.

    platformdirs would warn there and take a folder in /tmp, where others can be first.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return dirs.user_runtime_path
        except Warning:
            return dirs.user_state_path / "run"


MAX_THREADS = 512
_AtLeastZero = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
_AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`model` is used where none is named; `context` and `threads` None mean what suits the model and the machine.

    `cache_ram_mib` and `cache_disk_mib` cap what computed prompts may take beside the context; 0 switches that off.
    `deterministic` and `speculate` are for requests that do not say. `history` keeps conversations. `urls` allows commands to attach what a
    URL names. `max_queued` answers may wait, `max_queued_per_client` of one client; a step keeps nobody who reads waiting for more
    than `stall_ms`, and a request for more than `long_request_share` of the context is long, as in the engine's limits; an engine that gives no
    sign of life for `engine_timeout_s` is started again. `kv_type` and `gpu_layers` None are chosen so that the model fits, with `headroom_mib`
    left free on a device, by its name or "RAM"; a server keeps a model for `keep_alive_s` after its last request. `theme` and `keys` (by the action's id) are the chat's.
    """

    model: str | None = None
    context: _AtLeastOne | None = None
    threads: Annotated[int, msgspec.Meta(ge=1, le=MAX_THREADS)] | None = None
    cache_ram_mib: _AtLeastZero | None = None
    cache_disk_mib: _AtLeastZero | None = None
    deterministic: bool = False
    speculate: Speculate = Speculate.AUTO
    history: bool = True
    urls: bool = False
    max_queued: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = _LIMITS.queue
    max_queued_per_client: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = _LIMITS.client_queue
    stall_ms: Annotated[int, msgspec.Meta(ge=10, le=60_000)] = round(1000 * _LIMITS.stall_s)
    long_request_share: Annotated[float, msgspec.Meta(gt=0, le=1)] = _LIMITS.long_share
    engine_timeout_s: Annotated[int, msgspec.Meta(ge=5, le=3600)] = ANSWER_WITHIN_S
    kv_type: KvType | None = None
    gpu_layers: _AtLeastZero | None = None
    keep_alive_s: Annotated[int, msgspec.Meta(ge=0, le=1 << 31)] = 300
    headroom_mib: dict[str, _AtLeastZero] = {}
    theme: str | None = None
    keys: dict[str, str] = {}


def load_settings(folders: Folders, environment: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings in force.

    Raises:
        SettingsError: a file that is not TOML, an unknown name or a value of the wrong kind; the message names it.
    """
    from_file = _read_toml(folders.settings_file)
    _convert(from_file, str(folders.settings_file), strict=True)
    from_variables = {
        name.removeprefix("PINYON_").lower(): value
        for name, value in environment.items()
        if name.startswith("PINYON_") and name not in _OTHER_VARIABLES
    }
    _convert(from_variables, "a PINYON_ variable", strict=False)
    return _convert({**from_file, **from_variables}, "the settings", strict=False)


def _read_toml(path: Path) -> dict[str, object]:
    try:
        if path.exists() and not path.is_file():
            raise SettingsError(f"{path} is not a regular file")
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise SettingsError(f"{path} cannot be read as settings: {error}") from error


def _convert(values: Mapping[str, object], source: str, *, strict: bool) -> Settings:
    try:
        return msgspec.convert(values, Settings, strict=strict)
    except msgspec.ValidationError as error:
        known = ", ".join(Settings.__struct_fields__)
        raise SettingsError(f"{source}: {error}; the settings are {known}") from error
