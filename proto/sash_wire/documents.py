"""YAML texts, read in bounded time whoever wrote them, and in steps.

YAML takes more than its length suggests: a few aliases that merge one another unfold without end, its readers recurse
(the one in C until the stack is gone), a set of one name 30,000 times takes 0.3 s, and a number in base 60 takes 0.2 s.
So this module makes what a spec may have, of the events that come one by one: mappings, lists, texts, numbers, true and
false, null, dates. `read_steps` yields after some of them.

    text ──▶ yaml.parse ──▶ events ──▶ a stack of what is open ──▶ the document
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import yaml
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

from sash_wire.errors import TooLong, WireError

MAX_SPEC_BYTES = 64 * 2**10
"""64 KiB of numbers in a list take 0.2 s to read with the reader in C."""
MAX_DEPTH = 32

_EVENTS_A_STEP = 100
"""Each takes 2 µs, and 7 µs where it is a value: 1 ms."""

_SCALAR_MAX = 400
"""Characters of a value that is no text. To read a number in base 60 takes time by the square of its length."""

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_VALUES = frozenset(f"{_TAG}{kind}" for kind in ("null", "bool", "int", "float", "timestamp", "binary"))
_TAGS = {"MappingStartEvent": f"{_TAG}map", "SequenceStartEvent": f"{_TAG}seq"}


class _Scalars(SafeConstructor, Resolver):
    """Reads single values as YAML's safe loaders do."""

    def __init__(self) -> None:
        SafeConstructor.__init__(self)
        Resolver.__init__(self)

    def value(self, event: yaml.ScalarEvent) -> Any:
        tag = event.tag
        if tag is None or tag == "!":
            tag = self.resolve(yaml.ScalarNode, event.value, event.implicit)  # type: ignore[no-untyped-call]
        if tag == f"{_TAG}str":
            return event.value
        if tag == f"{_TAG}merge":
            raise WireError("<< merges mappings: write out what is there", limit="no aliases")
        if tag not in _VALUES:
            raise _tagged(tag)
        if len(event.value) > _SCALAR_MAX:
            raise WireError(
                f"a value that is no text has {len(event.value)} characters", limit=f"{_SCALAR_MAX} characters"
            )
        return self.yaml_constructors[tag](self, yaml.ScalarNode(tag, event.value))


class _Open:
    """A mapping or list that is not complete."""

    __slots__ = ("name", "named", "value")

    def __init__(self, value: dict[Any, Any] | list[Any]) -> None:
        self.value = value
        self.name: Any = None
        self.named = False
        """Whether the name of a mapping's next value is there."""

    def put(self, item: Any) -> None:
        if isinstance(self.value, list):
            self.value.append(item)
        elif self.named:
            self.value[self.name], self.named = item, False
        elif isinstance(item, dict | list):
            raise WireError("a name is a mapping or a list")
        elif item in self.value:
            raise WireError(f"the name {item!r} is given twice")
        else:
            self.name, self.named = item, True


def read_yaml(text: str, field: str = "spec") -> Any:
    """Read YAML (or JSON); arguments and errors as `read_steps`."""
    steps = read_steps(text, field)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def read_steps(text: str, field: str = "spec") -> Generator[None, None, Any]:
    """Read YAML (or JSON), in steps.

    Args:
        text: at most 64 KiB.
        field: what to call it in an error.

    Raises:
        WireError: it is no YAML, refers to parts of itself, has a name twice or a tag that no spec needs, or is nested
            too deep.
        TooLong: it is longer than a spec may be.
    """
    size = len(text.encode(errors="surrogatepass"))
    if size > MAX_SPEC_BYTES:
        raise TooLong(f"{field} of {size} bytes is too large", field=field, limit=f"{MAX_SPEC_BYTES} bytes")
    try:
        return (yield from _read(text, field))
    except WireError as error:
        raise WireError(error.message, field=field, limit=error.limit) from None
    except Exception as error:  # values of a type that they are not raise errors of any kind: 2020-99-99, !!bool maybe
        raise WireError(f"{field} is not YAML: {error}", field=field) from None


def _read(text: str, field: str) -> Generator[None, None, Any]:
    scalars, opened, documents = _Scalars(), list[_Open](), list[Any]()
    for number, event in enumerate(yaml.parse(text, _LOADER), 1):
        if not number % _EVENTS_A_STEP:
            yield
        if isinstance(event, yaml.ScalarEvent):
            item = scalars.value(event)
        elif isinstance(event, yaml.CollectionStartEvent):
            if event.tag not in (None, "!", _TAGS[type(event).__name__]):
                raise _tagged(event.tag)
            if len(opened) == MAX_DEPTH:
                raise WireError(f"{field} is nested too deep", limit=f"{MAX_DEPTH} levels")
            opened.append(_Open({} if isinstance(event, yaml.MappingStartEvent) else []))
            continue
        elif isinstance(event, yaml.CollectionEndEvent):
            item = opened.pop().value
        elif isinstance(event, yaml.AliasEvent):
            why = f"{field} refers to a part of itself, *{str(event.anchor)[:80]}: write out what is there"
            raise WireError(why, limit="no aliases")
        else:
            continue
        if opened:
            opened[-1].put(item)
        elif documents:
            raise WireError(f"{field} has several documents", limit="1 document")
        else:
            documents.append(item)
    return documents[0] if documents else None


def _tagged(tag: str) -> WireError:
    return WireError(f"there is a tag {tag[:80]!r}: leave it out", limit="no tags")
