"""Ads, targeting rules and requests: read from files, checked, and spelled one way."""

from grace.catalog.reader import read_catalog, read_changes
from grace.catalog.row_writer import write_rows
from grace.catalog.rows import iter_rows
from grace.catalog.rules import RangeRule, Rule, SetRule
from grace.catalog.schema import Attribute, Schema
from grace.catalog.tables import Catalog, Changes, RangeTable, ValueTable
from grace.catalog.targeting import Targeting, parse_targeting

__all__ = [
    "Attribute",
    "Catalog",
    "Changes",
    "RangeRule",
    "RangeTable",
    "Rule",
    "Schema",
    "SetRule",
    "Targeting",
    "ValueTable",
    "iter_rows",
    "parse_targeting",
    "read_catalog",
    "read_changes",
    "write_rows",
]
