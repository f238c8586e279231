"""The index of a catalogue: trie, matchers, SID -> ads, and the last filter."""

from grace.index.index import MATCHERS, Index, build_index

__all__ = ["MATCHERS", "Index", "build_index"]
