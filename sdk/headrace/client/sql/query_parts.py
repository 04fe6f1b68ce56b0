"""What a query needs of each topic: columns, and ranges of their values. From DuckDB's syntax tree of the query.

All of it only narrows what is read; DuckDB evaluates the whole query over that. A part of the tree that is not
understood narrows nothing.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.wire.errors import InvalidRequestError

_COMPARISONS = {
    "COMPARE_EQUAL": ("low", "high"),
    "COMPARE_GREATERTHAN": ("low",),
    "COMPARE_GREATERTHANOREQUALTO": ("low",),
    "COMPARE_LESSTHAN": ("high",),
    "COMPARE_LESSTHANOREQUALTO": ("high",),
}
_FLIPPED = {"low": "high", "high": "low"}
_NO_CONSTANT = {"COLUMN_REF", "SUBQUERY", "PARAMETER", "COLLATE"}
"""Classes of nodes in expressions that are no bound; a collation compares in an order of its own."""
_VOLATILE = {"random", "uuid", "uuidv4", "uuidv7", "gen_random_uuid", "nextval"}
"""Functions that have another value for each row."""
_JOINS = frozenset({"REGULAR", "CROSS", "NATURAL"})
"""Kinds of joins that pair all rows that fit: others, such as ASOF, pair a row with one that depends on all."""
_SIDES = {**dict.fromkeys(("INNER", "LEFT", "RIGHT", "FULL"), ("left", "right")), "SEMI": ("left",), "ANTI": ("left",)}
"""By the type of a join: sides whose columns are those of the result."""
_NEEDED = {"INNER": ("left", "right"), "LEFT": ("right",), "RIGHT": ("left",)}
"""By the type of a join: sides whose rows are left out if they have no partner."""
Node = dict[str, Any]
Comparison = tuple[list[str], str, Any]
"""Names of a column, which may begin with its table; `low` or `high`; an expression without columns."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Bound of a column: the value of an expression without columns, included."""

    read: int
    """Place in the query, among its uses of tables, of the one whose rows need to fulfil it."""
    column: str
    """Its name; if that is not qualified in the query, another table may have it."""
    end: str
    """`low` or `high`."""
    expression: Any
    """Node of the syntax tree."""


@dataclass(frozen=True, slots=True)
class QueryParts:
    """Query as far as it narrows what is read."""

    tables: Counter[str]
    """How often each table is read; more than once if it may be."""
    reads: tuple[str, ...]
    """Table of each use."""
    names: frozenset[str]
    """Every name that may be a column of any table: also those of tables and aliases, which narrow less."""
    whole: frozenset[str] = frozenset()
    """Tables of which all columns are read, for `*` and the like."""
    bounds: tuple[Bound, ...] = ()

    def bounds_of(self, table: str) -> list[list[Bound]]:
        """Return the bounds of each use of a table. A row that fulfils those of no use is not needed."""
        uses = [number for number, each in enumerate(self.reads) if each == table]
        return [[bound for bound in self.bounds if bound.read == number] for number in uses]

    def columns_of(self, table: str) -> frozenset[str] | None:
        """Return names among which are all columns that are read of a table; `None` if all are."""
        return None if table in self.whole else self.names


def query_parts(connection: Any, query: str) -> QueryParts:
    """Parse a query.

    Args:
        connection: DuckDB connection; nothing is executed over data.
        query: one SELECT statement.

    Raises:
        InvalidRequestError: If it is not one SELECT statement, with DuckDB's reason.
    """
    tree = json.loads(connection.execute("select json_serialize_sql(?)", [query]).fetchall()[0][0])
    if tree.get("error"):
        raise InvalidRequestError(f"the query: {tree['error_message']}", action="Pass one SELECT statement.")
    if len(tree["statements"]) != 1:
        problem = "the query has several statements" if tree["statements"] else "the query is empty"
        raise InvalidRequestError(problem, action="Pass one SELECT statement.")
    node = tree["statements"][0]["node"]
    entries = [entry for each in _nodes(node) for entry in _entries(each.get("cte_map"))]
    reads = [*_reads(node, frozenset())]
    tables = Counter(each["table_name"] for each in reads)
    repeated = {each.get("table_name") for entry in entries if _is_repeated(entry["value"]) for each in _nodes(entry)}
    tables.update(name for name in tables if name in repeated)
    uses = tuple(each["table_name"] for each in reads)
    return QueryParts(tables, uses, _names(node), _whole_tables(node, reads), tuple(_bounds(node, reads)))


def value_of(connection: Any, expression: Any, type_name: str) -> Any:
    """Return the value of an expression without columns, cast to a type of DuckDB; `None` if it is null.

    Raises:
        TypeError: If it is not a text, and the type is: DuckDB compares the two as numbers, times and so on.
        ValueError: If Python has no such value, as of a time after the year 9999, which DuckDB then gives as a text.
        duckdb.Error: If it cannot be computed or cast.
    """
    tree = json.loads(connection.execute("select json_serialize_sql('select 1')").fetchall()[0][0])
    tree["statements"][0]["node"]["select_list"] = [expression]
    found = connection.execute("from json_execute_serialized_sql(?)", [json.dumps(tree)]).fetchall()[0][0]
    if type_name == "VARCHAR" and not isinstance(found, str | None):
        raise TypeError(f"{found!r} is not compared as a text")
    value = connection.execute(f"select cast(? as {type_name})", [found]).fetchall()[0][0]
    if type_name != "VARCHAR" and isinstance(value, str):
        raise ValueError(f"Python has no {type_name} {value}")
    return value


def _nodes(tree: Any) -> Iterator[Node]:
    """Yield all objects of a tree."""
    if isinstance(tree, dict):
        yield tree
        for each in tree.values():
            yield from _nodes(each)
    elif isinstance(tree, list):
        for each in tree:
            yield from _nodes(each)


def _reads(tree: Any, named: frozenset[str]) -> Iterator[Node]:
    """Yield the tables of a tree that are none of its WITHs, nor of `named`, those around it in lower case.

    The name of a WITH is the table of this name within it, unless it recurs, and in the WITHs before it.
    """
    if isinstance(tree, list):
        for each in tree:
            yield from _reads(each, named)
    elif isinstance(tree, dict):
        if tree.get("type") == "BASE_TABLE" and tree["table_name"].lower() not in named:
            yield tree
        for entry in _entries(tree.get("cte_map")):
            with_it = named | {entry["key"].lower()}
            yield from _reads(entry["value"], with_it if _recurs(entry["value"]) else named)
            named = with_it
        for key, each in tree.items():
            if key != "cte_map":
                yield from _reads(each, named)


def _entries(cte_map: Any) -> list[Node]:
    return cte_map.get("map", []) if isinstance(cte_map, dict) else []


def _is_repeated(cte: Node) -> bool:
    """Return whether the tables of a WITH are read as often as it is used, or as it recurs."""
    return _recurs(cte) or "NEVER" in str(cte.get("materialized"))


def _recurs(cte: Node) -> bool:
    return any(each.get("type") == "RECURSIVE_CTE_NODE" for each in _nodes(cte))


def _names(node: Any) -> frozenset[str]:
    names: set[str] = set()
    for each in _nodes(node):
        if each.get("type") == "JOIN":
            names.update(each.get("using_columns") or ())
        if each.get("class") == "COLUMN_REF":
            names.update(each.get("column_names", ()))
    return frozenset(names)


def _whole_tables(node: Any, reads: Sequence[Node]) -> frozenset[str]:
    """Return the tables of which a query may read a column that it does not name."""
    whole = {each["table_name"] for each in reads if each.get("column_name_alias")}
    every = {each["table_name"] for each in reads}
    for each in _nodes(node):
        kind = each.get("class")
        if kind == "STAR":
            whole |= {read["table_name"] for read in reads if _is_named(read, each.get("relation_name"))} or every
        elif kind == "COLUMN_REF" and len(each["column_names"]) == 1:  # A table by its name is a row of it.
            whole |= {read["table_name"] for read in reads if _is_named(read, each["column_names"][0])}
        elif kind == "POSITIONAL_REFERENCE" or each.get("type") == "PIVOT" or each.get("ref_type") == "NATURAL":
            return frozenset(every)
    return frozenset(whole)


def _is_named(read: Node, name: str | None) -> bool:
    return (name or "").lower() == str(read.get("alias") or read["table_name"]).lower()


# --- bounds ---


def _bounds(node: Any, reads: Sequence[Node]) -> Iterator[Bound]:
    """Yield the bounds in conditions that all rows fulfil which a SELECT takes of its tables.

    They are the WHERE clause, whatever the kinds of joins, since a comparison refuses the nulls of an outer join's row
    without a partner; and the condition of a join for the sides whose rows need a partner.
    """
    numbers = {id(read): number for number, read in enumerate(reads)}
    for select in _nodes(node):
        if select.get("type") != "SELECT_NODE" or select.get("sample"):
            continue
        source = select.get("from_table") or {}
        for condition, needed in [(select.get("where_clause"), _reads_of(source)), *_join_conditions(source)]:
            of_topics = [read for read in needed if id(read) in numbers]
            for names, end, expression in _comparisons(condition):
                for read in of_topics:
                    if len(names) == 1 or (len(names) == 2 and _is_named(read, names[0])):
                        yield Bound(numbers[id(read)], names[-1], end, expression)


def _reads_of(source: Node) -> list[Node]:
    """Return the tables of a FROM clause whose rows a condition on their columns may leave out."""
    if source.get("type") == "BASE_TABLE":
        return [] if source.get("sample") or source.get("column_name_alias") else [source]
    if source.get("type") != "JOIN" or source.get("ref_type") not in _JOINS:
        return []
    sides = _SIDES.get(source.get("join_type", ""), ())
    return [read for side in sides for read in _reads_of(source[side])]


def _join_conditions(source: Node) -> Iterator[tuple[Any, list[Node]]]:
    """Yield the conditions of joins, each with the tables whose rows need to fulfil it."""
    if source.get("type") == "JOIN" and source.get("ref_type") in _JOINS:
        needed = _NEEDED.get(source.get("join_type", ""), ())
        yield source.get("condition"), [read for side in needed for read in _reads_of(source[side])]
        for side in ("left", "right"):
            yield from _join_conditions(source[side])


def _comparisons(condition: Any) -> Iterator[Comparison]:
    """Yield the comparisons in a conjunction."""
    waiting = [condition]
    while waiting:
        each = waiting.pop()
        if not isinstance(each, dict):
            continue
        if each.get("type") == "CONJUNCTION_AND":
            waiting += each.get("children", [])
        elif each.get("class") == "COMPARISON":
            yield from _comparison(each)
        elif each.get("class") == "BETWEEN":
            for end, key in (("low", "lower"), ("high", "upper")):
                yield from _bound(each.get("input"), (end,), each.get(key))


def _comparison(node: Node) -> Iterator[Comparison]:
    ends = _COMPARISONS.get(node.get("type", ""), ())
    yield from _bound(node.get("left"), ends, node.get("right"))
    yield from _bound(node.get("right"), tuple(_FLIPPED[end] for end in ends), node.get("left"))


def _bound(column: Any, ends: tuple[str, ...], expression: Any) -> Iterator[Comparison]:
    if not isinstance(column, dict) or column.get("class") != "COLUMN_REF":
        return
    if any(each.get("class") in _NO_CONSTANT or each.get("function_name") in _VOLATILE for each in _nodes(expression)):
        return
    for end in ends:
        yield column["column_names"], end, expression
