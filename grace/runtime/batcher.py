"""Admission and batching: who gets in, whose turn it is, who has waited too long."""

from __future__ import annotations

import heapq
import logging
import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from grace.errors import GraceError

T = TypeVar("T")
_log = logging.getLogger(__name__)


class Full(GraceError):
    """As many items wait as may; `retry_after` says in how many seconds to come back."""

    def __init__(self, message: str, retry_after: float):
        super().__init__(message)
        self.retry_after = retry_after


class Closed(GraceError):
    """Nothing new is taken in any more."""


class Expired(GraceError):
    """The deadline passed while the item waited."""


class Cancelled(GraceError):
    """The item was withdrawn while it waited."""


@dataclass(slots=True)
class _Entry(Generic[T]):
    item: T
    client: str
    deadline: float
    since: float
    waits: bool = True


class Batcher(Generic[T]):
    """Items of many clients in, batches out.

    - Clients take turns, one item each, whatever they send; a client's own items leave in order.
    - When all places are taken, an item of a client that has at least two fewer waiting than the one with the
      most puts that one's newest item out: a flood fills the places that others leave, no more.
    - An item leaves once: in a batch, or to `dropped` with `Expired`, `Cancelled`, `Full` (put
      out) or `Closed`. One whose deadline has passed never leaves in a batch.

    All methods may be called from any thread. Each costs the same however many items wait, but for
    the logarithm that a deadline costs.

    Args:
        capacity: the most items that wait.
        dropped: gets each item that leaves otherwise than in a batch, with the reason, once, on
            the thread that noticed, with no lock held.
        clock: seconds that never go back; deadlines are in its time.
    """

    def __init__(
        self,
        capacity: int,
        dropped: Callable[[T, GraceError], None],
        clock: Callable[[], float] = time.monotonic,
    ):
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        self.capacity = capacity
        self._dropped = dropped
        self._clock = clock
        self._changed = threading.Condition()
        self._closed = False
        self._entries: OrderedDict[int, _Entry[T]] = OrderedDict()  # by id(item), oldest first
        self._turns: OrderedDict[str, OrderedDict[int, _Entry[T]]] = OrderedDict()  # next first
        self._by_count: dict[int, OrderedDict[str, None]] = {}  # clients by how many they have
        self._most = 0  # the largest of those counts
        self._deadlines: list[tuple[float, int, _Entry[T]]] = []  # a heap; may hold some long gone
        self._admitted = 0
        self._taken: deque[tuple[float, int]] = deque(maxlen=16)  # when, how many

    def __len__(self) -> int:
        return len(self._entries)

    def admit(self, item: T, client: str = "", deadline: float = math.inf) -> None:
        """Let an item wait for its batch; never blocks.

        Args:
            item: any object; while it waits, it may not come again.
            client: whose turn it is to count as.
            deadline: when it is of no use any more, in the clock's time.

        Raises:
            Full: if there is no place.
            Closed: after `close`.
            ValueError: if this very object waits already, or the deadline is not a number.
        """
        if math.isnan(deadline):
            raise ValueError("deadline must be a number, got nan")
        expired: list[_Entry[T]] = []
        displaced: list[_Entry[T]] = []
        try:
            with self._changed:
                if self._closed:
                    raise Closed("no new items are taken in")
                if id(item) in self._entries:
                    raise ValueError(f"this item waits already: {item!r}")
                now = self._clock()
                if len(self._entries) >= self.capacity:
                    expired = self._pop_expired(now)
                if len(self._entries) >= self.capacity:
                    displaced.append(self._make_room(client, now))
                self._add(_Entry(item, client, deadline, now))
                full = self._full(now) if displaced else None
                self._changed.notify_all()
        finally:
            self._drop(expired, Expired("the deadline passed in the queue"))
        if full is not None:
            self._drop(displaced, full)

    def take(
        self, max_batch: int, max_wait: float = 0.0, ready: Callable[[], bool] | None = None
    ) -> list[T]:
        """Wait for a batch: one item at least, none whose deadline has passed.

        Whoever waits here also drops items at the moment of their deadline.

        Args:
            max_batch: the most items.
            max_wait: seconds after its admission that the oldest item waits for others. 0 takes
                what there is. Nobody waits when the batch is full, when no more will come, or when
                waiting would cost an item its deadline.
            ready: whether a batch could run now. Until it says so items go on waiting, so they
                are chosen as late as possible; call `wake` when it may have changed. It is asked
                with a lock held and must not block.

        Returns:
            Items in order of their turns; empty once the batcher is closed and nothing waits.
        """
        if max_batch < 1:
            raise ValueError(f"max_batch must be at least 1, got {max_batch}")
        while True:
            with self._changed:
                now = self._clock()
                expired = self._pop_expired(now)
                if not expired:
                    if self._closed and not self._entries:
                        return []
                    pause = self._pause(max_batch, max_wait, now)
                    if pause == 0 and ready is not None and not ready():
                        pause = self._until_deadline(now)
                    if pause is None or pause > 0:
                        self._changed.wait(pause)
                        continue
                    return self._pop_batch(max_batch, now)
            self._drop(expired, Expired("the deadline passed in the queue"))

    def cancel(self, item: T) -> bool:
        """Withdraw an item and free its place; whether it still waited."""
        with self._changed:
            entry = self._entries.get(id(item))
            if entry is None:
                return False
            self._remove(id(item), entry)
            self._changed.notify_all()
        self._drop([entry], Cancelled("withdrawn while it waited"))
        return True

    def wake(self) -> None:
        """Make those in `take` ask `ready` again."""
        with self._changed:
            self._changed.notify_all()

    def close(self, drain: bool = True) -> None:
        """Take nothing new in. What waits is still taken, or dropped at once without `drain`."""
        with self._changed:
            self._closed = True
            rest = [] if drain else list(self._entries.values())
            for entry in rest:
                self._remove(id(entry.item), entry)
            self._changed.notify_all()
        self._drop(rest, Closed("closed before its batch began"))

    def _add(self, entry: _Entry[T]) -> None:
        key = id(entry.item)
        self._entries[key] = entry
        own = self._turns.setdefault(entry.client, OrderedDict())
        own[key] = entry
        self._move(entry.client, len(own) - 1, len(own))
        self._admitted += 1
        if entry.deadline < math.inf:
            heapq.heappush(self._deadlines, (entry.deadline, self._admitted, entry))
            if len(self._deadlines) > 2 * len(self._entries) + 16:
                self._deadlines = [d for d in self._deadlines if d[2].waits]
                heapq.heapify(self._deadlines)

    def _remove(self, key: int, entry: _Entry[T]) -> None:
        entry.waits = False
        del self._entries[key]
        own = self._turns[entry.client]
        del own[key]
        if not own:
            del self._turns[entry.client]
        self._move(entry.client, len(own) + 1, len(own))

    def _move(self, client: str, before: int, after: int) -> None:
        """Note that a client has one item more or one less."""
        if before:
            clients = self._by_count[before]
            del clients[client]
            if not clients:
                del self._by_count[before]
        if after:
            self._by_count.setdefault(after, OrderedDict())[client] = None
        if after > self._most or (before == self._most and before not in self._by_count):
            self._most = after

    def _make_room(self, client: str, now: float) -> _Entry[T]:
        if len(self._turns.get(client, ())) + 1 >= self._most:
            raise self._full(now)
        greediest = next(reversed(self._by_count[self._most]))
        key, newest = next(reversed(self._turns[greediest].items()))
        self._remove(key, newest)
        return newest

    def _full(self, now: float) -> Full:
        waiting = len(self._entries)
        count = sum(count for _, count in self._taken)
        passed = now - self._taken[0][0] if self._taken else 0.0
        after = waiting * passed / count if count and passed > 0 else 1.0
        return Full(f"{waiting} items wait, the most allowed", min(max(after, 0.01), 10.0))

    def _pop_expired(self, now: float) -> list[_Entry[T]]:
        expired = []
        heap = self._deadlines
        while heap and (not heap[0][2].waits or heap[0][0] <= now):
            entry = heapq.heappop(heap)[2]
            if entry.waits:
                self._remove(id(entry.item), entry)
                expired.append(entry)
        return expired

    def _pause(self, max_batch: int, max_wait: float, now: float) -> float | None:
        """Return the seconds until a batch is due: 0 now, None when something must come first."""
        if not self._entries:
            return None
        if len(self._entries) >= max_batch or self._closed:
            return 0.0
        due = next(iter(self._entries.values())).since + max_wait
        if due <= now or (self._deadlines and self._deadlines[0][0] <= due):
            return 0.0
        return min(due - now, threading.TIMEOUT_MAX)

    def _until_deadline(self, now: float) -> float | None:
        if not self._deadlines:
            return None
        return min(self._deadlines[0][0] - now, threading.TIMEOUT_MAX)

    def _pop_batch(self, max_batch: int, now: float) -> list[T]:
        batch: list[T] = []
        while self._entries and len(batch) < max_batch:
            client, own = next(iter(self._turns.items()))
            key, entry = next(iter(own.items()))
            self._turns.move_to_end(client)
            self._remove(key, entry)
            batch.append(entry.item)
        self._taken.append((now, len(batch)))
        return batch

    def _drop(self, entries: list[_Entry[T]], reason: GraceError) -> None:
        for entry in entries:
            try:
                self._dropped(entry.item, reason)
            except Exception:
                _log.exception("the callback for a dropped item failed")
