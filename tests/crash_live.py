"""Script: change an index again and again, killed with SIGKILL at one system call later each time.

    python crash_live.py watch|rollback|states OLD_INDEX CHANGES ROOT

Copies OLD_INDEX to ROOT/1, ROOT/2, ... and makes the change in a child that dies before its first,
second, ... call that changes or syncs files, until one ends in peace. Prints a line per copy: its
number and the call that never happened, or "whole".
"""

import itertools
import os
import shutil
import sys
from pathlib import Path

from crash_points import die_at

import grace
from grace.index import state_log, watch
from grace.index.deltas import DeltaDirectory
from grace.index.versions import rollback


def watch_all(index: str, changes: str, keep: int = 2) -> watch.Watcher:
    """Apply every delta, one version each."""
    watch.MAX_DELTAS = 1
    schema = grace.Index.open(index).schema
    watcher = watch.Watcher(index, DeltaDirectory(changes, schema), keep)
    while watcher.step():
        pass
    return watcher


def change_states(index: str) -> None:
    """Two acknowledged changes around a compaction."""
    opened = grace.Index.open(index)
    opened.pause([2])
    state_log.compact(Path(index))
    opened.bid_off([2])
    state_log.compact(Path(index))


def main(change: str, old: str, changes: str, root: str) -> None:
    for number in itertools.count(1):
        copy = os.path.join(root, str(number))
        shutil.copytree(old, copy)
        child = os.fork()
        if child == 0:
            die_at(number, number)
            if change == "watch":
                watch_all(copy, changes)
            elif change == "rollback":
                rollback(copy, keep=2)
            else:
                change_states(copy)
            os._exit(0)
        if os.waitpid(child, 0)[1] == 0:
            print(number, "whole")
            return


if __name__ == "__main__":
    main(*sys.argv[1:])
