"""Script: build an index again and again, killed with SIGKILL at one system call later each time.

    python crash_points.py OLD_INDEX CATALOG SCHEMA ROOT

Copies OLD_INDEX to ROOT/1, ROOT/2, ... and builds CATALOG into each in a child that dies before
its first, second, ... call that changes or syncs files, until one build ends in peace. Prints a
line per copy: its number and the call that never happened, or "whole".
"""

import itertools
import os
import shutil
import signal
import sys

import grace

CALLS = (
    "mkdir", "open", "write", "pwrite", "ftruncate", "fsync", "close", "rename", "replace", "link",
    "unlink", "rmdir",
)  # fmt: skip


def die_at(countdown: int, number: int) -> None:
    calls_left = iter(range(countdown - 1, -1, -1))

    def wrap(name: str):
        call = getattr(os, name)

        def counted(*args, **kwargs):
            if next(calls_left) == 0:
                print(number, name, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kwargs)

        return counted

    for name in CALLS:
        setattr(os, name, wrap(name))


def main(old: str, catalog: str, schema: str, root: str) -> None:
    for number in itertools.count(1):
        copy = os.path.join(root, str(number))
        shutil.copytree(old, copy)
        child = os.fork()
        if child == 0:
            die_at(number, number)
            grace.build_index(catalog, schema, out=copy)
            os._exit(0)
        if os.waitpid(child, 0)[1] == 0:
            print(number, "whole")
            return


if __name__ == "__main__":
    main(*sys.argv[1:])
