"""Prompts with gaps, for `-t`: TOML files in the `templates` folder beside the settings."""

import string
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from pinyon.app.attachments import joined
from pinyon.app.errors import UsageError
from pinyon.models.disk import printable

INPUT: Final = "input"
"""The variable that stands for what comes through the pipe, from files and from the command line."""
SUFFIX: Final = ".toml"


class Template(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file. `$name` in `prompt` and `system` is a variable, `$input` what the command was given, `$$` a dollar sign.

    A prompt without `$input` comes after what was given. `defaults` are the variables' values where none is given,
    `options` are as `-o`, and `schema` is as `--schema`.
    """

    prompt: str = ""
    system: str | None = None
    model: str | None = None
    schema: str | None = None
    extract: bool = False
    options: dict[str, float | int | str] = {}
    defaults: dict[str, str] = {}

    @property
    def variables(self) -> set[str]:
        """The names of what has to be filled in, `input` apart."""
        names = {*string.Template(self.prompt).get_identifiers()}
        return (names | {*string.Template(self.system or "").get_identifiers()}) - {INPUT}

    @property
    def takes_input(self) -> bool:
        return INPUT in string.Template(self.prompt).get_identifiers()

    def filled(self, given: str, variables: Mapping[str, str]) -> tuple[str, str | None]:
        """Return the prompt and the instructions with every variable replaced; `given` is the input.

        Raises:
            UsageError: a variable without a value, a value without a variable, or no input where one is asked for.
        """
        values = self._values(variables)
        if missing := sorted(self.variables - values.keys()):
            raise UsageError(
                f"the template's variable {missing[0]} has no value: give one with `-p {missing[0]}=VALUE`"
            )
        if self.takes_input and not given.strip():
            raise UsageError("the template asks for text where it says $input: give it, or pipe it in")
        values[INPUT] = given
        prompt = string.Template(self.prompt).substitute(values)
        if not self.takes_input:
            prompt = joined((given, prompt))
        return prompt, self.system and string.Template(self.system).substitute(values)

    def drafted(self, variables: Mapping[str, str]) -> tuple[str, str | None]:
        """Return the same for somebody who goes on writing: without the input, and with the names of what has no value yet.

        Raises:
            UsageError: a value without a variable.
        """
        values = {**self._values(variables), INPUT: ""}
        prompt = string.Template(self.prompt).safe_substitute(values).strip()
        return prompt, self.system and string.Template(self.system).safe_substitute(values)

    def _values(self, variables: Mapping[str, str]) -> dict[str, str]:
        if unknown := sorted(variables.keys() - self.variables):
            raise UsageError(f"the template has no variable {unknown[0]}; it has {self._named_variables()}")
        return {**self.defaults, **variables}

    def _named_variables(self) -> str:
        return ", ".join(sorted(self.variables)) or "none"


def read_template(name: str, folder: Path) -> Template:
    """Return a template by its name in the folder, or by its file's path.

    Raises:
        UsageError: there is none, or its file is no template.
    """
    path = Path(name) if name.endswith(SUFFIX) else folder / f"{name}{SUFFIX}"
    try:
        template = msgspec.convert(tomllib.loads(path.read_text("utf-8-sig")), Template)
    except FileNotFoundError:
        known = ", ".join(template_names(folder)) or "none yet"
        raise UsageError(f"there is no template {printable(path)}; {printable(folder)} has {known}") from None
    except OSError as error:
        raise UsageError(f"the template {printable(path)} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        raise UsageError(f"{printable(path)} is no template: {error}") from None
    for text in (template.prompt, template.system or ""):
        if not string.Template(text).is_valid():
            raise UsageError(f"{printable(path)} has a $ without a name after it: a dollar sign is written as $$")
    return template


def template_names(folder: Path) -> list[str]:
    """Return the names of the templates that are here."""
    return sorted(printable(path.stem) for path in folder.glob(f"*{SUFFIX}"))
