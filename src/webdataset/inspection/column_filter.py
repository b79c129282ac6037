"""Decides by columns of a table which samples an expression excludes, with the expression's own evaluator.

Theory. A column is an expression that was evaluated when the table was made. Where it stands in another expression, its
value is looked up; whatever else a sample's bytes would be needed for is unknown. A sample is excluded where the
expression comes out false without anything unknown having been met. All others are read, and decide for themselves. So
what a table does not hold, an operation that fails, or a row that could not be made, costs bytes and never a sample.
"""

import ast
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from webdataset.core.errors import UsageError
from webdataset.inspection.expression import MOST_CHARACTERS, Compiler, Evaluate, Expression
from webdataset.inspection.expression_values import FieldSource, FieldValue, Scope

RESERVED: Final = ("key", "shard", "fields")


class UnknownValue(Exception):
    """Something that no column holds. Never leaves this module."""


class RowFields(FieldSource):
    """The fields of a sample of which sizes are known, and no bytes.

    Args:
        sizes: bytes by field, in the order of the shard; None: not even which fields there are.
    """

    def __init__(self, sizes: Mapping[str, int] | None) -> None:
        self._given = sizes

    @property
    def _sizes(self) -> Mapping[str, int]:
        if self._given is None:
            raise UnknownValue("fields")
        return self._given

    def __getitem__(self, name: str) -> bytes:
        if name not in self._sizes:
            raise KeyError(name)
        raise UnknownValue(name)

    def __contains__(self, name: object) -> bool:
        """Tell whether there is such a field."""
        return name in self._sizes

    def __iter__(self) -> Iterator[str]:
        return iter(self._sizes)

    def __len__(self) -> int:
        """Return the number of fields."""
        return len(self._sizes)

    def size(self, name: str) -> int | None:
        """Return the bytes of a field; None where there is none."""
        return self._sizes.get(name)


class RowScope(Scope):
    """One row: a sample whose columns are known.

    Args:
        fields: sizes by field.
        key: of the sample.
        shard: the url of its shard.
        columns: values by column.
    """

    __slots__ = ("columns",)

    def __init__(self, fields: RowFields, key: str, shard: str, columns: Mapping[str, object]) -> None:
        super().__init__(fields, key, shard)
        self.columns = columns


class ColumnFilter:
    """An expression over rows of a table.

    Args:
        expression: the expression.
        columns: names of the table's columns, as :func:`parse_columns` returns them.

    Attributes:
        used: the columns that the expression reads.
        reads_fields: whether it may look at fields, so that their names and sizes help.
    """

    def __init__(self, expression: Expression, columns: Collection[str]) -> None:
        compiler = _ColumnCompiler(expression.normal, columns)
        self._evaluate = compiler.compile(expression.tree, 0, frozenset())
        self.used = sorted(compiler.used)
        self.reads_fields = compiler.reads_fields

    def excludes(self, row: RowScope) -> bool:
        """Tell whether the expression is certain not to hold for a sample.

        Args:
            row: what is known of the sample.
        """
        try:
            return not self._evaluate(row)
        except Exception:  # noqa: BLE001  the sample itself decides, and says what is wrong
            return False


class _ColumnCompiler(Compiler):
    """Turns nodes into closures over rows.

    Args:
        text: the expression, for messages.
        columns: names of columns.
    """

    def __init__(self, text: str, columns: Collection[str]) -> None:
        super().__init__(text, {})
        self._columns = columns
        self.used: set[str] = set()
        self.reads_fields = False

    def compile(self, node: ast.AST, depth: int, local: frozenset[str]) -> Evaluate:
        """Return the closure of a node: the value of a column where one stands there."""
        names = _list_names(node)
        # variables of a loop may be called like fields
        column = ast.unparse(node)
        if names & local or column not in self._columns:
            self.reads_fields = self.reads_fields or isinstance(node, ast.Name | ast.Attribute | ast.Call)
            return super().compile(node, depth, local)
        self.used.add(column)

        def look_up(scope: RowScope) -> object:
            scope.spend()
            return scope.columns[column]

        return look_up  # type: ignore[return-value]  # every scope here is a row


def _list_names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def parse_columns(text: str) -> list[str]:
    """Return the columns in a list such as ``json.width, jpg.height, len(txt)``, each in its normal form.

    Args:
        text: expressions, separated by commas.

    Raises:
        UsageError: a part that is no expression, or that stands in every table by itself.
    """
    if len(text) > MOST_CHARACTERS:
        raise UsageError(f"the list of columns is longer than {MOST_CHARACTERS} characters")
    try:
        parts = ast.parse(f"({text.strip().rstrip(',')},)", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise UsageError(f"{text[:200]!r} is no list of expressions, such as json.width,json.lang") from None
    names = [Expression(ast.unparse(part)).normal for part in parts.elts] if isinstance(parts, ast.Tuple) else []
    if not names:
        raise UsageError(f"{text[:200]!r} is no list of expressions, such as json.width,json.lang")
    for name in names:
        if name in RESERVED or name.startswith("wds_"):
            raise UsageError(f"{name!r} stands in every columns file, or is kept for it: leave it out")
        if "shard" in _list_names(ast.parse(name, mode="eval")):
            raise UsageError(f"{name!r} is another value where the shard has another url: leave 'shard' out of columns")
    return list(dict.fromkeys(names))


def check_value(value: object, column: str) -> object:
    """Return the value of a column of one sample.

    Args:
        value: what the column's expression gave.
        column: its name.

    Raises:
        UsageError: a field of bytes.
    """
    waiting = [value]
    while waiting:
        each = waiting.pop()
        # lists of the expression may hold fields, and JSON cannot
        waiting += each if isinstance(each, list) else ()
        if isinstance(each, FieldValue):
            raise UsageError(
                f"the column {column!r} is a field of bytes: name what is to be known of it, as {column}.size"
            )
    return value
