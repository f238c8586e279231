"""The batcher against the simplest thing that could be right: lists that are looked through."""

import itertools
import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace.runtime import Batcher, Cancelled, Closed, Expired, Full

CAPACITY = 6
CLIENTS = st.sampled_from("abcd")


class Item:
    """Known by identity; equal to every other, so that nothing may rely on equality."""

    def __init__(self, number):
        self.number = number

    def __repr__(self):
        return f"item {self.number}"

    def __eq__(self, other):
        return True

    __hash__ = None


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Outcomes:
    """Where items went; each may go only once."""

    def __init__(self):
        self.reason = {}

    def __call__(self, item, reason):
        assert item.number not in self.reason
        self.reason[item.number] = reason


class Model:
    """Lists, looked through from end to end each time."""

    def __init__(self):
        self.items = []  # (item, client, deadline), oldest first
        self.turns = []  # clients, next first

    def of(self, client):
        return [entry for entry in self.items if entry[1] == client]

    def most(self):
        return max(len(self.of(client)) for client in self.turns)

    def remove(self, number):
        [entry] = [e for e in self.items if e[0].number == number]
        self.items = [e for e in self.items if e is not entry]
        if not self.of(entry[1]):
            self.turns.remove(entry[1])
        return entry

    def add(self, item, client, deadline):
        if client not in self.turns:
            self.turns.append(client)
        self.items.append((item, client, deadline))

    def expired(self, now):
        return [item.number for item, _, deadline in self.items if deadline <= now]

    def take(self, count):
        taken = []
        while self.items and len(taken) < count:
            client = self.turns.pop(0)
            entry = self.of(client)[0]
            self.turns.append(client)
            self.remove(entry[0].number)
            taken.append(entry[0].number)
        return taken


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("admit"), CLIENTS, st.sampled_from([0, 1, 2, 5, math.inf])),
        st.tuples(st.just("admit"), st.just("a"), st.just(math.inf)),
        st.tuples(st.just("take"), st.integers(1, CAPACITY + 1)),
        st.tuples(st.just("cancel"), st.integers(0, 50)),
        st.tuples(st.just("pass"), st.sampled_from([1, 3])),
    ),
    max_size=80,
)


@given(OPERATIONS, st.booleans())
def test_the_batcher_does_what_the_model_does(operations, drain):
    clock, outcomes, model = Clock(), Outcomes(), Model()
    batcher = Batcher(CAPACITY, outcomes, clock)
    items, where = [], {}  # where: what became of each item

    def drop_expired():
        for number in model.expired(clock.now):
            model.remove(number)
            where[number] = Expired

    for name, *arguments in operations:
        if name == "admit":
            client, seconds = arguments
            item = Item(len(items))
            items.append(item)
            if len(model.items) >= CAPACITY:
                drop_expired()
            refused = len(model.items) >= CAPACITY and len(model.of(client)) + 1 >= model.most()
            if refused:
                with pytest.raises(Full, match="6 items wait"):
                    batcher.admit(item, client, clock.now + seconds)
                where[item.number] = Full
                continue
            if len(model.items) >= CAPACITY:
                newest = {c: model.of(c)[-1][0].number for c in model.turns
                          if len(model.of(c)) == model.most()}  # fmt: skip
                batcher.admit(item, client, clock.now + seconds)
                [out] = [n for n in newest.values() if n in outcomes.reason]
                model.remove(out)
                where[out] = Full
            else:
                batcher.admit(item, client, clock.now + seconds)
            model.add(item, client, clock.now + seconds)
        elif name == "take":
            if len(model.expired(clock.now)) == len(model.items):
                continue  # it would wait
            drop_expired()
            had = {client: len(model.of(client)) for client in model.turns}
            owner = {e[0].number: e[1] for e in model.items}
            batch = [item.number for item in batcher.take(*arguments)]
            assert batch == model.take(*arguments)
            where |= dict.fromkeys(batch, "taken")
            got = Counter(owner[number] for number in batch)
            for one, other in itertools.permutations(had, 2):
                assert got[one] >= min(got[other] - 1, had[one])  # nobody is passed over
        elif name == "cancel":
            [number] = arguments
            if number < len(items):
                waits = any(e[0].number == number for e in model.items)
                assert batcher.cancel(items[number]) == waits
                if waits:
                    model.remove(number)
                    where[number] = Cancelled
        else:
            clock.now += arguments[0]
        assert len(batcher) == len(model.items) <= CAPACITY

    batcher.close(drain)
    if drain:
        drop_expired()
    while batch := batcher.take(2):
        where |= dict.fromkeys([item.number for item in batch], "taken")
        model.take(2)
    for item, _, _ in model.items:
        where[item.number] = Closed
    assert len(batcher) == 0
    assert set(where) == set(range(len(items)))
    dropped = {n: w for n, w in where.items() if w != "taken" and n in outcomes.reason}
    assert {n: type(reason) for n, reason in outcomes.reason.items()} == dropped
    assert all(where[n] is Full for n in set(where) - set(dropped) if where[n] != "taken")


def fill(batcher, *clients):
    items = [Item(f"{client}{i}") for i, client in enumerate(clients)]
    for item, client in zip(items, clients, strict=True):
        batcher.admit(item, client)
    return items


def test_clients_take_turns_and_each_keeps_its_order():
    batcher = Batcher(10, Outcomes())
    fill(batcher, *"aaaabbc")
    taken = [[item.number for item in batcher.take(3)] for _ in range(3)]
    assert taken == [["a0", "b4", "c6"], ["a1", "b5", "a2"], ["a3"]]


def test_turns_go_on_from_one_batch_to_the_next():
    batcher = Batcher(10, Outcomes())
    fill(batcher, *"aaabbbccc")
    taken = [item.number[0] for _ in range(4) for item in batcher.take(2)]
    assert taken == list("abcabcab")


def test_a_flood_keeps_nobody_out():
    outcomes = Outcomes()
    batcher = Batcher(8, outcomes)
    fill(batcher, *"a" * 8)
    for name in "bcd":
        batcher.admit(Item(name), name)
    assert set(outcomes.reason) == {"a7", "a6", "a5"}  # the newest go
    assert all(isinstance(reason, Full) for reason in outcomes.reason.values())
    with pytest.raises(Full):
        batcher.admit(Item("a8"), "a")
    assert [item.number for item in batcher.take(4)] == ["a0", "b", "c", "d"]


@given(
    st.lists(CLIENTS, max_size=CAPACITY), CLIENTS, st.integers(1, CAPACITY + 1),
    st.integers(0, CAPACITY),
)  # fmt: skip
def test_a_group_comes_whole_as_its_items_would_one_by_one_or_not_at_all(
    waiting, client, size, expired
):
    def filled():
        clock, outcomes = Clock(), Outcomes()
        batcher = Batcher(CAPACITY, outcomes, clock)
        for i, owner in enumerate(waiting):
            batcher.admit(Item(i), owner, clock.now + 1 if i < expired else math.inf)
        clock.now += 2
        return batcher, outcomes

    def left(batcher):
        batcher.close()
        return [item.number for batch in iter(lambda: batcher.take(CAPACITY), []) for item in batch]

    singly, its_outcomes = filled()
    try:
        for i in range(size):
            singly.admit(Item(100 + i), client)
        refused = any(number >= 100 for number in its_outcomes.reason)
    except Full:
        refused = True
    batcher, outcomes = filled()
    group = [Item(100 + i) for i in range(size)]
    if refused:
        with pytest.raises(Full):
            batcher.admit_all(group, client)
        assert {type(reason) for reason in outcomes.reason.values()} <= {Expired}
        still = [i for i in range(len(waiting)) if i not in outcomes.reason]
        assert sorted(left(batcher)) == still
    else:
        batcher.admit_all(group, client)
        assert outcomes.reason.keys() == its_outcomes.reason.keys()
        assert left(batcher) == left(singly)


def test_an_item_comes_once():
    batcher, item = Batcher(3, Outcomes()), Item(0)
    with pytest.raises(ValueError, match="waits already"):
        batcher.admit_all([item, item])
    batcher.admit(item)
    with pytest.raises(ValueError, match="waits already: item 0"):
        batcher.admit_all([Item(1), item])
    assert len(batcher) == 1


def test_two_equal_clients_do_not_push_each_other_out():
    batcher = Batcher(5, Outcomes())
    fill(batcher, *"aaabb")
    with pytest.raises(Full):
        batcher.admit(Item("b"), "b")


def test_a_full_batcher_makes_room_by_what_has_expired():
    clock, outcomes = Clock(), Outcomes()
    batcher = Batcher(2, outcomes, clock)
    batcher.admit(Item(0), "a", clock.now + 1)
    batcher.admit(Item(1), "a")
    clock.now += 1
    batcher.admit(Item(2), "a")
    assert [type(r) for r in outcomes.reason.values()] == [Expired]
    assert [item.number for item in batcher.take(9)] == [1, 2]


def test_a_refusal_says_when_to_come_back():
    clock = Clock()
    batcher = Batcher(4, Outcomes(), clock)

    def hint():
        with pytest.raises(Full) as refusal:
            batcher.admit(Item(0), "a")
        return refusal.value.retry_after

    fill(batcher, *"aaaa")
    assert hint() == 1.0  # nothing is known yet
    for _ in range(20):  # 4 items each 0.2 s
        batcher.take(4)
        fill(batcher, *"aaaa")
        clock.now += 0.2
    assert hint() == pytest.approx(0.2)
    clock.now += 5.0  # nobody takes any more
    assert hint() > 0.5
    clock.now += 1e6
    assert hint() == 1.0


def test_a_callback_that_fails_loses_nobody(caplog):
    seen = []

    def dropped(item, reason):
        seen.append(item.number)
        raise RuntimeError

    batcher = Batcher(4, dropped)
    fill(batcher, *"abc")
    batcher.close(drain=False)
    assert seen == ["a0", "b1", "c2"]
    assert batcher.take(1) == []
    assert "the callback for a dropped item failed" in caplog.text


def test_a_callback_may_call_the_batcher():
    kept = []

    def dropped(item, reason):
        kept.append(item)
        batcher.admit(Item("again"), "b")

    batcher = Batcher(1, dropped)
    [item] = fill(batcher, "a")
    assert batcher.cancel(item)
    assert [item.number for item in batcher.take(1)] == ["again"]


def test_memory_stays_bounded_while_items_come_and_go():
    batcher = Batcher(4, lambda item, reason: None)
    for i in range(1000):
        item = Item(i)
        batcher.admit(item, f"client {i}", 1e9 + i)
        assert batcher.cancel(item)
    waiting = batcher._waiting
    assert len(waiting._by_deadline) <= 16
    assert not waiting._by_age
    assert not waiting._by_turn
    assert not waiting._by_count


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="capacity must be at least 1, got 0"):
        Batcher(0, print)
    batcher = Batcher(4, Outcomes())
    with pytest.raises(ValueError, match="max_batch must be at least 1, got 0"):
        batcher.take(0)
    with pytest.raises(ValueError, match="deadline must be a number"):
        batcher.admit(Item(0), "a", math.nan)
    item = Item(1)
    batcher.admit(item)
    with pytest.raises(ValueError, match="this item waits already: item 1"):
        batcher.admit(item)
    assert batcher.take(1) == [item]
    batcher.admit(item)  # it left, so it may come again
    batcher.close()
    with pytest.raises(Closed):
        batcher.admit(Item(2))
