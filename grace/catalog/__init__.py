"""Ads, targeting rules and requests: read from files, checked, and spelled one way."""

from grace.catalog.changes import Changes, read_changes
from grace.catalog.reader import Catalog, read_catalog
from grace.catalog.rows import iter_rows, write_rows
from grace.catalog.rules import RangeRule, Rule, SetRule
from grace.catalog.schema import Attribute, Schema
from grace.catalog.targeting import Targeting, parse_targeting

__all__ = [
    "Attribute",
    "Catalog",
    "Changes",
    "RangeRule",
    "Rule",
    "Schema",
    "SetRule",
    "Targeting",
    "iter_rows",
    "parse_targeting",
    "read_catalog",
    "read_changes",
    "write_rows",
]
