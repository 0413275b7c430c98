"""YAML files that an operator writes, checked as a whole: an error names the file, the line, and what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from sash_engine.errors import InvalidArgument
from sash_engine.words import first_wrong

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DEPTH_MAX = 32

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class Document(Generic[M]):
    """One document of a file: its value, and where it says what."""

    value: M
    _place: _Place

    def wrong(self, location: Sequence[int | str], words: str) -> InvalidArgument:
        """Return the error of what stands at a location."""
        return self._place.wrong(location, words)


@dataclass(frozen=True)
class _Place:
    setting: str
    path: Path
    node: yaml.Node | None

    def wrong(self, location: Sequence[int | str], words: str) -> InvalidArgument:
        return _wrong(self.setting, self.path, _line_of(self.node, location), words)


def documents_of(text: bytes, path: Path, setting: str, model: type[M], several: bool = False) -> Sequence[Document[M]]:
    """Read the text of a file.

    Args:
        text: what it has.
        path: of the file.
        setting: that names the file.
        model: of a document.
        several: whether there may be more than one, behind lines `---`.

    Raises:
        InvalidArgument: names the file, the line, and what is wrong.
    """
    read: list[tuple[yaml.Node | None, Any]] = []
    try:
        _check_depth(text, path, setting)
        loader = _LOADER(text)
        while loader.check_node():
            node = loader.get_node()
            read.append((node, loader.construct_document(node)))
            _check_unique(node, path, setting)
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = 1 if mark is None else mark.line + 1
        words = f"is not YAML: {getattr(error, 'problem', None) or error}"
        raise _wrong(setting, path, line, words) from None
    except RecursionError:  # a list that contains itself
        raise _wrong(setting, path, 1, "is nested too deep") from None
    if len(read) > 1 and not several:
        second: Any = read[1][0]
        raise _wrong(setting, path, second.start_mark.line + 1, "has more than one document")
    return [_checked(value, _Place(setting, path, node), model) for node, value in read or [(None, None)]]


def _checked(value: Any, place: _Place, model: type[M]) -> Document[M]:
    try:
        return Document(model.model_validate(value), place)
    except ValidationError as error:
        where, wrong = first_wrong(error)
        location = error.errors(include_url=False)[0]["loc"]
        raise place.wrong(location, f"{where or 'the file'} {wrong}") from None


def _wrong(setting: str, path: Path, line: int, wrong: str) -> InvalidArgument:
    return InvalidArgument(f"SASH_{setting.upper()}: {path}, line {line}: {wrong}", field=setting)


def _check_depth(text: bytes, path: Path, setting: str) -> None:
    """Refuse a file that is nested deep: libyaml would use up the stack, which ends the process."""
    depth = 0
    for event in yaml.parse(text, _LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEPTH_MAX:
            mark: Any = event.start_mark
            raise _wrong(setting, path, mark.line + 1, "is nested too deep")


def _check_unique(node: yaml.Node | None, path: Path, setting: str) -> None:
    """Refuse a mapping that has a name twice: YAML would silently take the last value."""
    if isinstance(node, yaml.MappingNode):
        seen = set[Any]()
        for name, value in node.value:
            if name.value in seen:
                raise _wrong(setting, path, name.start_mark.line + 1, f"{name.value!r} is there twice")
            seen.add(name.value if isinstance(name, yaml.ScalarNode) else id(name))
            _check_unique(value, path, setting)
    elif isinstance(node, yaml.SequenceNode):
        for each in node.value:
            _check_unique(each, path, setting)


def _line_of(node: yaml.Node | None, location: Sequence[int | str]) -> int:
    """The line of a value, or of the nearest thing around it that is there."""
    line = 1 if node is None else node.start_mark.line + 1
    for part in location:
        if isinstance(node, yaml.MappingNode):
            node = next((value for name, value in node.value if name.value == part), None)
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
        else:
            node = None
        if node is None:
            return line
        line = node.start_mark.line + 1
    return line
