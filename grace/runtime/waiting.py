"""Items that wait, in every order that matters: turns, age, deadlines, and whose are most."""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class Entry(Generic[T]):
    """One item that waits.

    Attributes:
        deadline: when it is of no use any more, in seconds; infinite if never.
        since: when it was added.
        waits: whether it still does.
    """

    item: T
    client: str
    deadline: float
    since: float
    waits: bool = True


class Waiting(Generic[T]):
    """A set of entries, known by the identity of their items. Not for several threads at once.

    No method looks through the entries: each costs the same however many there are, but for the
    logarithm of a heap where an entry has a deadline.
    """

    def __init__(self) -> None:
        self._by_age: OrderedDict[int, Entry[T]] = OrderedDict()  # oldest first
        self._by_turn: OrderedDict[str, OrderedDict[int, Entry[T]]] = OrderedDict()  # next first
        self._by_count: dict[int, OrderedDict[str, None]] = {}  # clients by how many they have
        self._most = 0  # the largest of these counts
        self._by_deadline: list[tuple[float, int, Entry[T]]] = []  # a heap; some may be long gone
        self._added = 0

    def __len__(self) -> int:
        return len(self._by_age)

    def __contains__(self, item: T) -> bool:
        return id(item) in self._by_age

    def add(self, entry: Entry[T]) -> None:
        """Put an entry behind all others of its client; a new client goes behind all others."""
        key = id(entry.item)
        self._by_age[key] = entry
        own = self._by_turn.setdefault(entry.client, OrderedDict())
        own[key] = entry
        self._recount(entry.client, len(own) - 1, len(own))
        if entry.deadline < math.inf:
            self._added += 1  # of two equal deadlines the one added first goes first
            heapq.heappush(self._by_deadline, (entry.deadline, self._added, entry))
            if len(self._by_deadline) > 2 * len(self._by_age) + 16:
                self._by_deadline = [d for d in self._by_deadline if d[2].waits]
                heapq.heapify(self._by_deadline)

    def remove(self, item: T) -> Entry[T] | None:
        """Take an item out, wherever it stands, and return its entry; None if it is not here."""
        entry = self._by_age.get(id(item))
        if entry is not None:
            self._remove(entry)
        return entry

    def pop_all(self) -> list[Entry[T]]:
        """Take everything out, oldest first."""
        return [self._remove(entry) for entry in list(self._by_age.values())]

    def pop_next(self) -> Entry[T]:
        """Take out the oldest entry of the client whose turn it is."""
        client, own = next(iter(self._by_turn.items()))
        self._by_turn.move_to_end(client)
        return self._remove(next(iter(own.values())))

    def pop_expired(self, now: float) -> list[Entry[T]]:
        """Take out every entry whose deadline is not after `now`, earliest deadline first."""
        expired = []
        heap = self._by_deadline
        while heap and (not heap[0][2].waits or heap[0][0] <= now):
            entry = heapq.heappop(heap)[2]
            if entry.waits:
                expired.append(self._remove(entry))
        return expired

    def displace_for(self, client: str, places: int, wanted: int) -> list[Entry[T]] | None:
        """Take out the newest entries of clients with the most, so that others may have theirs.

        Args:
            client: whose the others are.
            places: that are free.
            wanted: how many others there are, more than `places`.

        Returns:
            The entries; None, and nothing changes, if for one of the others `client` would not
            stay below the client that has the most then.
        """
        own = len(self._by_turn.get(client, ())) + places
        if own + 1 >= self._most:
            return None
        missing = wanted - places
        if missing > 1 and not self._would_give(client, own, missing):
            return None
        displaced = []
        for _ in range(missing):
            greediest = next(reversed(self._by_count[self._most]))
            displaced.append(self._remove(next(reversed(self._by_turn[greediest].values()))))
        return displaced

    def _would_give(self, client: str, own: int, missing: int) -> bool:
        """Whether clients with more than `own` have so many to give; asked before any is taken."""
        counts = [-len(entries) for name, entries in self._by_turn.items() if name != client]
        heapq.heapify(counts)
        for others in range(own + 1, own + missing + 1):
            if not counts or others >= -counts[0]:
                return False
            heapq.heapreplace(counts, counts[0] + 1)
        return True

    def oldest_since(self) -> float:
        """Return when the oldest entry was added; there must be one."""
        return next(iter(self._by_age.values())).since

    def next_deadline(self) -> float:
        """Return the earliest deadline, infinite without any. After entries were removed it may be
        one of theirs, until `pop_expired` is called."""
        return self._by_deadline[0][0] if self._by_deadline else math.inf

    def _remove(self, entry: Entry[T]) -> Entry[T]:
        entry.waits = False
        key = id(entry.item)
        del self._by_age[key]
        own = self._by_turn[entry.client]
        del own[key]
        if not own:
            del self._by_turn[entry.client]
        self._recount(entry.client, len(own) + 1, len(own))
        return entry

    def _recount(self, client: str, before: int, after: int) -> None:
        """Note that a client has one entry more or one less."""
        if before:
            clients = self._by_count[before]
            del clients[client]
            if not clients:
                del self._by_count[before]
        if after:
            self._by_count.setdefault(after, OrderedDict())[client] = None
        if after > self._most or (before == self._most and before not in self._by_count):
            self._most = after
