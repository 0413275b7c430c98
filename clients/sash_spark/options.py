"""Options of `format("sash")`: texts by name, as Spark hands them over, read as what they mean."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping

from sash_client import InvalidArgument

__all__ = ["Options"]

_TABLE = "option."


class Options:
    """Options by name, in any case; each is read as a kind of value, or InvalidArgument names it in `field`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        lowered = {name.lower(): value for name, value in options.items()}
        # Of a table in its catalog Spark hands over each option twice, as target and option.target, and the table's own
        # properties beside them.
        of_table = {name.removeprefix(_TABLE): value for name, value in lowered.items() if name.startswith(_TABLE)}
        self._options = of_table or lowered

    def only(self, known: Collection[str]) -> None:
        """Refuse what nobody reads: a misspelt option would ask for something else in silence."""
        for name in sorted(self._options):
            if name not in known:
                raise InvalidArgument(f"no option {name!r}; there are {', '.join(sorted(known))}", field=name)

    def text(self, name: str) -> str | None:
        """A text; None where there is none."""
        return self._options.get(name) or None

    def required(self, name: str) -> str:
        """A text that must be there."""
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
        """What stands between commas, or in a JSON list (for names with commas); None where there is none."""
        found = self.text(name)
        if found is None or not found.lstrip().startswith("["):
            return None if found is None else tuple(part.strip() for part in found.split(","))
        try:
            names = json.loads(found)
        except json.JSONDecodeError as error:
            raise InvalidArgument(f"{name} is no JSON list: {error}", field=name) from None
        return tuple(map(str, names))

    def number(self, name: str, default: int, *, least: int) -> int:
        """A whole number."""
        text = self.text(name)
        if text is None:
            return default
        if not text.isdecimal() or int(text) < least:
            raise InvalidArgument(f"{name} {text!r} is no number from {least} on", field=name)
        return int(text)

    def seconds(self, name: str, default: float) -> float:
        """Seconds."""
        text = self.text(name)
        try:
            found = default if text is None else float(text)
        except ValueError:
            found = math.nan
        if not 0 < found < math.inf:
            raise InvalidArgument(f"{name} {text!r} is no number of seconds", field=name)
        return found

    def flag(self, name: str) -> bool:
        """Yes or no; no where nothing is said."""
        text = (self.text(name) or "false").lower()
        if text not in ("true", "false"):
            raise InvalidArgument(f"{name} is true or false, not {text!r}", field=name)
        return text == "true"
