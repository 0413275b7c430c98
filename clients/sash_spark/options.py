"""Parses the options of `format("sash")`, which Spark passes as texts."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping

from sash_client import InvalidArgument

_TABLE = "option."


class Options:
    """Options by name, in any case. A wrong value raises InvalidArgument with the option's name in `field`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        lowered = {name.lower(): value for name, value in options.items()}
        # For a table of its catalog, Spark passes each option twice (target and option.target), and the table's own
        # properties.
        of_table = {name.removeprefix(_TABLE): value for name, value in lowered.items() if name.startswith(_TABLE)}
        self._options = of_table or lowered

    def only(self, known: Collection[str]) -> None:
        """Refuse unknown options, because a misspelt option would be ignored in silence."""
        for name in sorted(self._options):
            if name not in known:
                raise InvalidArgument(f"no option {name!r}; there are {', '.join(sorted(known))}", field=name)

    def text(self, name: str) -> str | None:
        """Return a text, or None."""
        return self._options.get(name) or None

    def required(self, name: str) -> str:
        """Return a text that is required."""
        found = self.text(name)
        if found is None and not self._options:
            raise InvalidArgument(
                f"{name} is missing. Spark hands over no options of a table in its catalog: CREATE TEMPORARY VIEW … "
                "USING sash OPTIONS (…), or SELECT … FROM table WITH (…)",
                field=name,
            )
        if found is None:
            raise InvalidArgument(f'say which: .option("{name}", …)', field=name)
        return found

    def names(self, name: str) -> tuple[str, ...] | None:
        """Split a list by commas, or parse it as JSON (for names with commas); None without the option."""
        found = self.text(name)
        if found is None or not found.lstrip().startswith("["):
            return None if found is None else tuple(part.strip() for part in found.split(","))
        try:
            names = json.loads(found)
        except json.JSONDecodeError as error:
            raise InvalidArgument(f"{name} is no JSON list: {error}", field=name) from None
        return tuple(map(str, names))

    def number(self, name: str, default: int, *, least: int) -> int:
        """Parse a whole number."""
        text = self.text(name)
        if text is None:
            return default
        if not text.isdecimal() or int(text) < least:
            raise InvalidArgument(f"{name} {text!r} is no number from {least} on", field=name)
        return int(text)

    def seconds(self, name: str, default: float) -> float:
        """Parse a number of seconds."""
        text = self.text(name)
        try:
            found = default if text is None else float(text)
        except ValueError:
            found = math.nan
        if not 0 < found < math.inf:
            raise InvalidArgument(f"{name} {text!r} is no number of seconds", field=name)
        return found

    def flag(self, name: str) -> bool:
        """Parse a boolean; False without the option."""
        text = (self.text(name) or "false").lower()
        if text not in ("true", "false"):
            raise InvalidArgument(f"{name} is true or false, not {text!r}", field=name)
        return text == "true"
