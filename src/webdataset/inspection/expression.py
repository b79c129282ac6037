"""Expressions over samples: a safe subset of Python, for ``--where`` and everything else that selects samples.

Theory. The text is parsed by :mod:`ast`; each node of the few kinds that are allowed becomes one closure, and nothing
is ever given to ``eval``. There are no imports, no assignments, no lambdas, no powers and no attributes of Python
objects: ``a.b`` looks ``b`` up in a JSON object, or names a field. Every closure takes a step from a budget, and what
works on long texts or lists takes more, so that no expression runs for long or grows large, whatever stands in it and
in the samples.

Names:

* ``key``, ``shard``, ``fields`` (names of the sample's fields)
* a field: ``json`` is its parsed value, ``txt`` its text, ``cls`` a number; ``jpg`` has ``width``, ``height`` and
  ``size``, ``mp4`` has ``duration`` (seconds); names with dots are written as they are (``seg.png.width``): the
  longest name that is a field is taken
* ``json.a.b``, ``json["a b"]``, ``json.items[0]``: a path into JSON; what is missing is None

Functions: ``has(f)``, ``field(f)``, ``text(f)``, ``size(f)``, ``size()``, ``width(f)``, ``height(f)`` and
``duration(f)`` of a field by its name as text; ``like(text, "a*b?")``; ``len abs min max sum round any all int float
str``; and the methods ``lower upper strip startswith endswith split isdigit`` of texts.

An ordering with None is false. Any other operation that Python refuses is an error that names the sample.
"""

import ast
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from webdataset.core.errors import SampleError, UsageError
from webdataset.inspection.expression_values import (
    COMPARISONS,
    FUNCTIONS,
    MOST_BITS,
    OPERATORS,
    Scope,
    call_method,
    check_number,
    describe_wrong_count,
    get_attribute,
    get_item,
    iterate_values,
)

MOST_CHARACTERS: Final = 10_000
_MOST_DEPTH = 60
_RESERVED = ("key", "shard", "fields")
_METHODS = ("lower", "upper", "strip", "startswith", "endswith", "split", "isdigit")

Evaluate = Callable[[Scope], Any]

# what other languages compare with
_ASSIGNS = re.compile(r"(?<![=!<>])=(?!=)")


class Expression:
    """An expression, parsed and checked.

    Args:
        text: for example ``json.width >= 512 and "cat" in txt.lower()``.

    Attributes:
        normal: the text with the blanks, brackets and quotes that Python itself would write.
        tree: as Python parsed it.

    Raises:
        UsageError: the text is no expression, or holds what is not allowed; the message says where.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._met: dict[str, bool] = {}
        self._fields: tuple[str, ...] | None = None
        if len(text) > MOST_CHARACTERS:
            raise UsageError(f"the expression is longer than {MOST_CHARACTERS} characters")
        try:
            tree = ast.parse(text.strip(), mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            column = getattr(error, "offset", None)
            # Python says 0 where the text ends too early
            where = "" if column is None else f" at column {column}" if column else " at its end"
            said = getattr(error, "msg", None) or type(error).__name__
            hint = "; to compare, write ==" if _ASSIGNS.search(text) else ""
            hint = "; write and, or, not" if re.search(r"&&|\|\||!(?!=)", text) else hint
            raise UsageError(f"{text[:200]!r} is no expression: {said}{where}{hint}") from None
        self._evaluate = Compiler(text, self._met).compile(tree.body, 0, frozenset())
        self.tree = tree.body
        self.normal = ast.unparse(tree)

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"

    def __reduce__(self) -> tuple[type["Expression"], tuple[str]]:
        # closures cannot be sent to another process, and the text says all
        return Expression, (self.text,)

    def __eq__(self, other: object) -> bool:
        """Tell whether another expression is the same but for blanks, brackets and quotes."""
        return isinstance(other, Expression) and other.normal == self.normal

    def __hash__(self) -> int:
        return hash(self.normal)

    @property
    def absent(self) -> tuple[str, ...]:
        """The fields and paths into JSON that were None in every sample where they were looked up so far."""
        return tuple(name for name, met in self._met.items() if not met)

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of the sample that was looked at first."""
        return self._fields or ()

    def evaluate(self, payloads: Mapping[str, bytes], *, key: str = "", shard: str = "") -> Any:
        """Return what it is for one sample.

        Args:
            payloads: the bytes of each field.
            key: the sample's key.
            shard: the url of its shard.

        Raises:
            SampleError: an operation that makes no sense for this sample, or more work than is allowed.
        """
        if self._fields is None:
            self._fields = tuple(name for name in payloads if not name.startswith("__"))
        scope = Scope(payloads, key, shard)
        try:
            return self._evaluate(scope)
        except (TypeError, ValueError, ArithmeticError, RecursionError, MemoryError) as error:
            said = f"{type(error).__name__}: {error}" if isinstance(error, ArithmeticError) else str(error)
            raise SampleError(
                f"the expression {self.text[:100]!r} fails: {said}", key=key or None, url=shard or None
            ) from None

    def holds(self, payloads: Mapping[str, bytes], *, key: str = "", shard: str = "") -> bool:
        """Tell whether it is true for one sample.

        Args:
            payloads: the bytes of each field.
            key: the sample's key.
            shard: the url of its shard.

        Raises:
            SampleError: as for :meth:`evaluate`.
        """
        return bool(self.evaluate(payloads, key=key, shard=shard))


class Compiler:
    """Turns the nodes of one expression into closures.

    Args:
        text: the expression, for messages.
        met: the closures note here the names that they look up, and whether any sample had one.
    """

    def __init__(self, text: str, met: dict[str, bool]) -> None:
        self._text = text
        self._met = met

    def _watch(self, name: str, look_up: Evaluate) -> Evaluate:
        met = self._met

        def watch(scope: Scope) -> object:
            found = look_up(scope)
            if found is not None:
                met[name] = True
            else:
                met.setdefault(name, False)
            return found

        return watch

    def refuse(self, node: ast.AST, what: str) -> UsageError:
        """Return the error about a node.

        Args:
            node: what is not allowed.
            what: what is wrong with it.
        """
        column = getattr(node, "col_offset", 0) + 1
        return UsageError(f"{what}, at column {column} of {self._text[:200]!r}; the help says what may be written")

    def compile(self, node: ast.AST, depth: int, local: frozenset[str]) -> Evaluate:
        """Return the closure of a node.

        Args:
            node: of the parsed expression.
            depth: how deep it stands.
            local: variables of the comprehensions around it.

        Raises:
            UsageError: a node that is not allowed.
        """
        if depth > _MOST_DEPTH:
            raise self.refuse(node, f"this is nested more than {_MOST_DEPTH} deep")
        method = getattr(self, f"_compile_{type(node).__name__.lower()}", None)
        if method is None:
            raise self.refuse(node, f"{type(node).__name__} is not allowed")

        def below(child: ast.AST, more: Iterable[str] = ()) -> Evaluate:
            return self.compile(child, depth + 1, local | frozenset(more))

        inner: Evaluate = method(node, below, local)

        def step(scope: Scope) -> Any:
            scope.spend()
            return inner(scope)

        return step

    def _compile_constant(self, node: ast.Constant, _below: Any, _local: Any) -> Evaluate:
        if not isinstance(node.value, str | int | float | None) or isinstance(node.value, bytes):
            raise self.refuse(node, f"a {type(node.value).__name__} is not allowed")
        if isinstance(node.value, int) and node.value.bit_length() > MOST_BITS:
            raise self.refuse(node, "this number is too large")
        return lambda _: node.value

    def _compile_name(self, node: ast.Name, _below: Any, local: frozenset[str]) -> Evaluate:
        name = node.id
        if name in local:
            return lambda scope: scope.variables[name]
        if name == "fields":
            return Scope.list_fields
        if name in _RESERVED:
            return lambda scope: getattr(scope, name)
        return self._watch(name, lambda scope: scope.field(name))

    def _compile_attribute(self, node: ast.Attribute, below: Any, local: frozenset[str]) -> Evaluate:
        path = _list_path(node)
        if path is None or path[0] in local or path[0] in _RESERVED:
            value, name = below(node.value), node.attr
            return lambda scope: get_attribute(scope, value(scope), name)
        if len(path) > _MOST_DEPTH:
            raise self.refuse(node, f"a path has at most {_MOST_DEPTH} names")
        prefixes = [(".".join(path[:stop]), path[stop:]) for stop in range(len(path), 0, -1)]

        def look_up(scope: Scope) -> Any:
            for name, rest in prefixes:
                if name in scope.payloads:
                    found = scope.field(name)
                    for attribute in rest:
                        found = get_attribute(scope, found, attribute)
                    return found
            return None

        return self._watch(".".join(path), look_up)

    def _compile_subscript(self, node: ast.Subscript, below: Any, _local: Any) -> Evaluate:
        value = below(node.value)
        if isinstance(node.slice, ast.Slice):
            bounds = [None if part is None else below(part) for part in (node.slice.lower, node.slice.upper)]
            if node.slice.step is not None:
                raise self.refuse(node, "a step in a slice is not allowed")
            return lambda scope: get_item(scope, value(scope), slice(*(part and part(scope) for part in bounds)))
        index = below(node.slice)
        return lambda scope: get_item(scope, value(scope), index(scope))

    def _compile_boolop(self, node: ast.BoolOp, below: Any, _local: Any) -> Evaluate:
        parts = [below(value) for value in node.values]
        stops = isinstance(node.op, ast.Or)

        def decide(scope: Scope) -> Any:
            found = None
            for part in parts:
                found = part(scope)
                if bool(found) is stops:
                    break
            return found

        return decide

    def _compile_unaryop(self, node: ast.UnaryOp, below: Any, _local: Any) -> Evaluate:
        value = below(node.operand)
        if isinstance(node.op, ast.Not):
            return lambda scope: not value(scope)
        if not isinstance(node.op, ast.USub):
            raise self.refuse(node, f"{type(node.op).__name__} is not allowed")
        subtract = OPERATORS[ast.Sub]
        return lambda scope: subtract(scope, 0, value(scope))

    def _compile_binop(self, node: ast.BinOp, below: Any, _local: Any) -> Evaluate:
        apply = OPERATORS.get(type(node.op))
        if apply is None:
            raise self.refuse(node, f"{type(node.op).__name__} is not allowed")
        left, right = below(node.left), below(node.right)
        return lambda scope: check_number(apply(scope, left(scope), right(scope)))

    def _compile_compare(self, node: ast.Compare, below: Any, _local: Any) -> Evaluate:
        for sign, value in zip(node.ops, node.comparators, strict=True):
            if isinstance(sign, ast.Is | ast.IsNot) and not (isinstance(value, ast.Constant) and value.value is None):
                raise self.refuse(value, "'is' stands before None alone: write ==")
        first = below(node.left)
        rest = [(COMPARISONS[type(sign)], below(value)) for sign, value in zip(node.ops, node.comparators, strict=True)]

        def compare(scope: Scope) -> bool:
            left = scope.weigh(first(scope))
            for holds, value in rest:
                right = scope.weigh(value(scope))
                if not holds(left, right):
                    return False
                left = right
            return True

        return compare

    def _compile_ifexp(self, node: ast.IfExp, below: Any, _local: Any) -> Evaluate:
        test, yes, no = below(node.test), below(node.body), below(node.orelse)
        return lambda scope: yes(scope) if test(scope) else no(scope)

    def _compile_tuple(self, node: ast.Tuple | ast.List | ast.Set, below: Any, _local: Any) -> Evaluate:
        parts = [below(value) for value in node.elts]
        return lambda scope: [part(scope) for part in parts]

    _compile_list = _compile_set = _compile_tuple

    def _compile_generatorexp(self, node: ast.GeneratorExp | ast.ListComp, below: Any, local: Any) -> Evaluate:
        if len(node.generators) != 1:
            raise self.refuse(node, "one 'for' is allowed")
        loop = node.generators[0]
        if not isinstance(loop.target, ast.Name) or loop.is_async or loop.target.id in (*_RESERVED, *local):
            raise self.refuse(node, "a loop has one variable, with a name of its own")
        name = loop.target.id
        source, value = below(loop.iter), below(node.elt, (name,))
        tests = [below(test, (name,)) for test in loop.ifs]

        def run(scope: Scope) -> list[Any]:
            found = []
            for each in iterate_values(source(scope)):
                scope.variables[name] = each
                if all(test(scope) for test in tests):
                    found.append(value(scope))
            return found

        return run

    _compile_listcomp = _compile_generatorexp

    def _compile_call(self, node: ast.Call, below: Any, _local: Any) -> Evaluate:
        if node.keywords or any(isinstance(value, ast.Starred) for value in node.args):
            raise self.refuse(node, "a call has plain arguments alone")
        arguments = [below(value) for value in node.args]
        if isinstance(node.func, ast.Name):
            function = FUNCTIONS.get(node.func.id)
            if function is None:
                raise self.refuse(node, f"there is no function {node.func.id!r}")
            wrong = describe_wrong_count(node.func.id, len(arguments))
            if wrong is not None:
                raise self.refuse(node, wrong)
            return lambda scope: function(scope, *(argument(scope) for argument in arguments))
        if not isinstance(node.func, ast.Attribute) or node.func.attr not in _METHODS:
            raise self.refuse(node, f"methods are {', '.join(_METHODS)} of texts")
        value, name = below(node.func.value), node.func.attr
        return lambda scope: call_method(scope, value(scope), name, [argument(scope) for argument in arguments])


def _list_path(node: ast.AST) -> list[str] | None:
    """Return the names of ``a.b.c``, or None where the left end is no name."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [node.id, *reversed(names)] if isinstance(node, ast.Name) else None
