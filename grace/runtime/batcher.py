"""Admission and batching: who gets in, whose turn it is, who has waited too long."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from grace.errors import GraceError
from grace.runtime.waiting import Entry, Waiting

T = TypeVar("T")
_log = logging.getLogger(__name__)
RATE_S = 10.0  # takes older than this say nothing about the rate of now
HINT_S = 0.01, 10.0  # the least and the most that a refused client is told to wait


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


class Batcher(Generic[T]):
    """Items of many clients in, batches out.

    - Clients take turns, one item each, whatever they send; a client's own items leave in order.
    - When all places are taken, an item of a client that has at least two fewer waiting than the
      client with the most puts that one's newest item out: a flood fills the places that others
      leave, no more.
    - An item leaves once: in a batch, or to `dropped` with `Expired`, `Cancelled`, `Full` (put
      out) or `Closed`. One whose deadline has passed never leaves in a batch.

    All methods may be called from any thread. None looks through the items that wait.

    Args:
        capacity: the most items that wait.
        dropped: gets each item that leaves otherwise than in a batch, with the reason, once, on
            the thread that noticed, with no lock held. An error in it is logged.
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
        self._waiting: Waiting[T] = Waiting()
        self._wanted: list[float] = []  # for each thread that sleeps: items that would wake it
        self._taken: deque[tuple[float, int]] = deque(maxlen=16)  # when, how many

    def __len__(self) -> int:
        """Items that wait now."""
        return len(self._waiting)

    def admit(self, item: T, client: str = "", deadline: float = math.inf) -> None:
        """Let an item wait for its batch; see `admit_all`."""
        self.admit_all([item], client, deadline)

    def admit_all(self, items: Sequence[T], client: str = "", deadline: float = math.inf) -> None:
        """Let items of one client wait, all of them or none; never blocks.

        They come in one moment: where they fill a batch, no batch is formed of a part of them.

        Args:
            items: any objects, known by their identity; while one waits it may not come again.
            client: whose turn it is to count as.
            deadline: when they are of no use any more, in the clock's time.

        Raises:
            Full: if there is no place for all.
            Closed: after `close`.
            ValueError: if one of these very objects waits already, or comes twice, or the deadline
                is not a number.
        """
        if math.isnan(deadline):
            raise ValueError("deadline must be a number, got nan")
        out: list[tuple[Entry[T], GraceError]] = []
        try:
            with self._changed:
                if self._closed:
                    raise Closed("no new items are taken in")
                known = next((item for item in items if item in self._waiting), None)
                if known is not None or len(set(map(id, items))) < len(items):
                    raise ValueError(f"this item waits already: {known or items[0]!r}")
                now = self._clock()
                if len(self._waiting) + len(items) > self.capacity:
                    out += self._pop_expired(now)
                places = self.capacity - len(self._waiting)
                if places < len(items):
                    full = self._full(now)
                    displaced = self._waiting.displace_for(client, max(places, 0), len(items))
                    if displaced is None:
                        raise full
                    out += [(entry, full) for entry in displaced]
                first = deadline < self._waiting.next_deadline()
                for item in items:
                    self._waiting.add(Entry(item, client, deadline, now))
                if first or len(self._waiting) >= min(self._wanted, default=math.inf):
                    self._changed.notify_all()
        finally:
            self._drop(out)

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
                    if self._closed and not self._waiting:
                        return []
                    until, wanted = self._next_look(max_batch, max_wait, now)
                    if until <= now and ready is not None and not ready():
                        until, wanted = self._waiting.next_deadline(), math.inf
                    if until <= now:
                        return self._pop_batch(max_batch, now)
                    self._sleep(until - now, wanted)
            self._drop(expired)

    def cancel(self, item: T) -> bool:
        """Withdraw an item and free its place; whether it still waited."""
        with self._changed:
            entry = self._waiting.remove(item)
            if self._closed and not self._waiting:
                self._changed.notify_all()
        if entry is not None:
            self._drop([(entry, Cancelled("withdrawn while it waited"))])
        return entry is not None

    def wake(self) -> None:
        """Make those in `take` ask `ready` again."""
        with self._changed:
            self._changed.notify_all()

    def close(self, drain: bool = True) -> None:
        """Take nothing new in. What waits is still taken, or dropped at once without `drain`."""
        with self._changed:
            self._closed = True
            rest = [] if drain else self._waiting.pop_all()
            self._changed.notify_all()
        self._drop([(entry, Closed("closed before its batch began")) for entry in rest])

    def _next_look(self, max_batch: int, max_wait: float, now: float) -> tuple[float, float]:
        """Return when a batch is due, and how many items would make it due before that."""
        waiting = self._waiting
        if not waiting:
            return math.inf, 1
        due = waiting.oldest_since() + max_wait
        if len(waiting) >= max_batch or self._closed or waiting.next_deadline() <= due:
            due = now
        return due, max_batch

    def _sleep(self, seconds: float, wanted: float) -> None:
        self._wanted.append(wanted)
        try:
            self._changed.wait(min(seconds, threading.TIMEOUT_MAX))
        finally:
            self._wanted.remove(wanted)

    def _pop_batch(self, max_batch: int, now: float) -> list[T]:
        count = min(max_batch, len(self._waiting))
        self._taken.append((now, count))
        return [self._waiting.pop_next().item for _ in range(count)]

    def _pop_expired(self, now: float) -> list[tuple[Entry[T], GraceError]]:
        expired = self._waiting.pop_expired(now)
        return [(entry, Expired("the deadline passed in the queue")) for entry in expired]

    def _full(self, now: float) -> Full:
        """Return the refusal, with the time that all who wait will need at the rate of late."""
        while self._taken and now - self._taken[0][0] > RATE_S:
            self._taken.popleft()
        waiting = len(self._waiting)
        count = sum(count for _, count in self._taken)
        seconds = waiting * (now - self._taken[0][0]) / count if count else 1.0
        least, most = HINT_S
        return Full(f"{waiting} items wait, the most allowed", min(max(seconds, least), most))

    def _drop(self, entries: list[tuple[Entry[T], GraceError]]) -> None:
        for entry, reason in entries:
            try:
                self._dropped(entry.item, reason)
            except Exception:
                _log.exception("the callback for a dropped item failed")
