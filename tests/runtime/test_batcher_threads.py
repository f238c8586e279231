"""The batcher among threads: who waits for what, and what wakes them. Nothing here is timed."""

import random
import threading
import time
from collections import Counter

from grace.runtime import Batcher, Cancelled, Closed, Expired, Full

WAIT_S = 20.0  # for what must happen; only a failing test waits so long
LONG = 1000.0  # what no test waits for


class Taker(threading.Thread):
    """Takes one batch; `batch` is there when it has ended."""

    def __init__(self, batcher, *arguments):
        super().__init__(daemon=True)
        self.call = lambda: batcher.take(*arguments)
        self.batch = None
        self.start()

    def run(self):
        self.batch = self.call()

    def result(self):
        self.join(WAIT_S)
        assert not self.is_alive()
        return self.batch


def quiet(item, reason):
    pass


def asleep(batcher, count=1):
    """Wait until so many threads sleep inside `take`."""
    end = time.monotonic() + WAIT_S
    while len(batcher._wanted) < count:
        assert time.monotonic() < end
        time.sleep(0.001)


def test_an_item_wakes_a_taker_at_once_without_max_wait():
    batcher = Batcher(4, quiet)
    taker = Taker(batcher, 4, 0.0)
    asleep(batcher)
    batcher.admit("x")
    assert taker.result() == ["x"]


def test_a_full_batch_ends_the_wait():
    batcher = Batcher(4, quiet)
    taker = Taker(batcher, 2, LONG)
    asleep(batcher)
    batcher.admit("x", "a")
    asleep(batcher)
    batcher.admit("y", "b")
    assert taker.result() == ["x", "y"]


def test_max_wait_counts_from_the_first_item_not_from_the_call():
    now = [0.0]
    batcher = Batcher(4, quiet, lambda: now[0])
    batcher.admit("x")
    now[0] = 5.0
    batcher.admit("y")
    assert Taker(batcher, 4, 5.0).result() == ["x", "y"]


def test_max_wait_ends_by_itself():
    batcher = Batcher(4, quiet)
    batcher.admit("x")
    assert Taker(batcher, 4, 0.01).result() == ["x"]


def test_nobody_waits_at_the_cost_of_a_deadline():
    batcher = Batcher(4, quiet, lambda: 0.0)
    batcher.admit("x")
    taker = Taker(batcher, 4, LONG)
    asleep(batcher)
    batcher.admit("y", "", LONG / 2)  # it would be gone before the wait is over
    assert taker.result() == ["x", "y"]


def test_closing_ends_every_wait():
    batcher = Batcher(4, quiet)
    takers = [Taker(batcher, 4, LONG) for _ in range(2)]
    asleep(batcher, 2)
    batcher.close()
    assert [taker.result() for taker in takers] == [[], []]

    batcher = Batcher(4, quiet)
    batcher.admit("x")
    taker = Taker(batcher, 4, LONG)
    asleep(batcher)
    batcher.close()
    assert taker.result() == ["x"]


def test_items_stay_until_a_batch_could_run():
    """A later item of another client is in the batch: it is formed when there is room for it."""
    room = threading.Event()
    batcher = Batcher(4, quiet)
    batcher.admit("x", "a")
    batcher.admit("y", "a")
    taker = Taker(batcher, 2, 0.0, room.is_set)
    asleep(batcher)
    batcher.admit("z", "b")
    assert taker.is_alive()
    assert len(batcher) == 3
    room.set()
    batcher.wake()
    assert taker.result() == ["x", "z"]


def test_what_expires_while_no_batch_can_run_is_dropped_then():
    """The deadline of the second comes first, and while the taker already sleeps."""
    gone = {}
    both = threading.Event()

    def dropped(item, reason):
        gone[item] = type(reason)
        if len(gone) == 2:
            both.set()

    batcher = Batcher(4, dropped)
    batcher.admit("x", "a", time.monotonic() + 0.03)
    batcher.admit("stays", "a")
    taker = Taker(batcher, 4, 0.0, lambda: False)
    batcher.admit("y", "b", time.monotonic() + 0.01)
    assert both.wait(WAIT_S)
    assert gone == {"x": Expired, "y": Expired}
    batcher.close(drain=False)
    assert taker.result() == []
    assert gone["stays"] is Closed


def test_cancelling_the_last_item_ends_a_closed_batcher():
    batcher = Batcher(4, quiet)
    batcher.admit(item := object())
    asked = threading.Semaphore(0)
    taker = Taker(batcher, 4, 0.0, lambda: asked.release())  # which is no yes
    assert asked.acquire(timeout=WAIT_S)
    batcher.close()
    assert asked.acquire(timeout=WAIT_S)  # it was woken, and sleeps before the lock is free again
    assert batcher.cancel(item)
    assert taker.result() == []


def test_many_threads_lose_nothing_and_get_nothing_twice():
    lock, outcomes = threading.Lock(), Counter()
    capacity, per_thread, clients = 16, 150, 6
    reasons = Counter()

    def note(item, reason):
        with lock:
            outcomes[item] += 1
            reasons[reason] += 1

    batcher = Batcher(capacity, lambda item, reason: note(item, type(reason)))

    def produce(client):
        dice = random.Random(client)
        for i in range(per_thread):
            item = (client, i)
            deadline = time.monotonic() + dice.choice([0.0, 0.001, LONG])
            try:
                batcher.admit(item, str(client), deadline)
            except Full:
                note(item, "refused")
                continue
            assert len(batcher) <= capacity
            if dice.random() < 0.2:
                batcher.cancel(item)
            if dice.random() < 0.1:
                time.sleep(0.0005)

    taken = []  # by each taker, in order

    def consume(size, wait):
        mine = []
        taken.append(mine)
        while batch := batcher.take(size, wait):
            assert len(batch) <= size
            for item in batch:
                note(item, "taken")
            mine += batch

    producers = [threading.Thread(target=produce, args=(c,)) for c in range(clients)]
    takers = [threading.Thread(target=consume, args=a) for a in ((4, 0.0), (3, 0.001))]
    for thread in producers + takers:
        thread.start()
    for thread in producers:
        thread.join(WAIT_S)
    batcher.close()
    for thread in takers:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    assert len(batcher) == 0
    assert outcomes == Counter((c, i) for c in range(clients) for i in range(per_thread))
    assert {"taken", Expired, Cancelled} <= set(reasons)
    for mine in taken:  # what one thread took of a client is in the client's order
        for client in range(clients):
            numbers = [i for c, i in mine if c == client]
            assert numbers == sorted(numbers)
