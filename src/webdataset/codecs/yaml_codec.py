"""YAML fields: plain values only, through PyYAML's safe loader.

libyaml does the work where PyYAML has it. Tags that name Python objects, or anything else beyond plain values, are
refused; so are documents nested or expanded (by aliases) beyond bounds, before a value is made of them.
"""

import io
from typing import Any

import yaml

from webdataset.core.errors import DecodingError, FieldTooLarge, UnsafeContent

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_DEEPEST = 64
# beyond, aliases may not multiply what the text holds
_MOST_VALUES = 1_000_000
_MOST_GROWTH = 10
_PLAIN = "tag:yaml.org,2002:"
_NUMBERS = {f"{_PLAIN}int", f"{_PLAIN}float"}
# digits, as for Python's int(); sums of sixties take quadratic time
_LONGEST_NUMBER = 4300


def yaml_loads(data: bytes) -> Any:
    """Parse one YAML document.

    Args:
        data: text in UTF-8 or UTF-16.

    Returns:
        Plain values: dicts, lists, text, numbers, booleans, None, dates, bytes, sets. An empty text is None.

    Raises:
        UnsafeContent: a tag that does not name a plain value.
        FieldTooLarge: nested deeper than 64, or aliases that multiply the values beyond bounds.
        DecodingError: a key that stands twice in one mapping.
        yaml.YAMLError: not YAML, or several documents.
    """
    _check_depth(data)
    loader = _Loader(data)
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        _Measure(len(data)).size(root)
        return loader.construct_document(root)
    except yaml.constructor.ConstructorError as error:
        if error.problem is not None and "could not determine a constructor for the tag" in error.problem:
            raise UnsafeContent(
                f"YAML with a tag that is no plain value: {error.problem}{_error_position(error)}"
            ) from None
        raise
    finally:
        loader.dispose()


def _error_position(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark
    return "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"


def _check_depth(data: bytes) -> None:
    """Refuse deep nesting by the events, which need no stack (making nodes of them does)."""
    if sum(map(data.count, (b"[", b"{", b"-", b":", b"?"))) < _DEEPEST:
        return
    depth = 0
    try:
        for event in yaml.parse(data, Loader=_Loader):
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
                if depth > _DEEPEST:
                    mark: Any = event.start_mark
                    raise FieldTooLarge(f"YAML nested deeper than {_DEEPEST}, in line {mark.line + 1}")
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
    except yaml.scanner.ScannerError as error:
        # newer versions of libyaml have a limit of their own, and look ahead
        if "nesting depth" not in str(error.problem):
            raise
        raise FieldTooLarge(f"YAML nested deeper than {_DEEPEST}{_error_position(error)}") from error


class _Measure:
    """Counts a document's values with its aliases written out, each node once."""

    def __init__(self, length: int) -> None:
        self._sizes: dict[int, int | None] = {}
        self._most = max(_MOST_VALUES, length) if length > _MOST_VALUES else min(_MOST_VALUES, length * _MOST_GROWTH)

    def size(self, node: yaml.Node) -> int:
        """Return how many values a node stands for."""
        if isinstance(node, yaml.ScalarNode):
            if len(node.value) > _LONGEST_NUMBER and node.tag in _NUMBERS:
                raise FieldTooLarge(f"YAML number of {len(node.value)} digits, in line {node.start_mark.line + 1}")
            return 1
        if id(node) in self._sizes:
            known = self._sizes[id(node)]
            if known is None:
                raise FieldTooLarge(f"YAML that contains itself, in line {node.start_mark.line + 1}")
            return known
        self._sizes[id(node)] = None
        if isinstance(node, yaml.MappingNode):
            _check_keys(node)
            total = 1 + sum(self.size(key) + self.size(value) for key, value in node.value)
        else:
            total = 1 + sum(map(self.size, node.value))
        if total > self._most:
            raise FieldTooLarge(f"YAML whose aliases stand for more than {self._most} values")
        self._sizes[id(node)] = total
        return total


def _check_keys(node: yaml.MappingNode) -> None:
    seen = set()
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode) and key.tag != f"{_PLAIN}merge":
            if (key.tag, key.value) in seen:
                raise DecodingError(f"YAML key {key.value!r} stands twice, again in line {key.start_mark.line + 1}")
            seen.add((key.tag, key.value))


def yaml_dumps(value: object) -> bytes:
    """Write plain values as one YAML document: UTF-8 text in block style, keys in their order.

    Raises:
        yaml.YAMLError: a value that is not plain.
    """
    stream = io.BytesIO()
    yaml.dump(value, stream, Dumper=_Dumper, sort_keys=False, allow_unicode=True, encoding="utf-8")
    return stream.getvalue()
