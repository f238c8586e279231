"""GRACE's matchers against brute force: same partitions, same verdicts, never a false no."""

import numpy as np
import oracle
import pyarrow as pa
import pytest
import torch
from harness import UNION_MODES, build, build_rows, cli, examples, union_matcher
from hypothesis import given
from match_cases import BATCHES
from oracle_kway import KwayMatcher
from strategies import NOON, Case, cases

from grace.catalog import Schema
from grace.errors import ConfigError
from grace.index.bloom import BloomShape, bloom_bits
from grace.index.info import index_info
from grace.index.lookup import TextTable
from grace.index.rules import RangeRules, RuleTables, ValueRules
from grace.index.trie import Trie, build_trie
from grace.index.unions import UNIONS, Partitioning, build_unions
from grace.index.verdict import Verdict

small = cases(max_ads=120, max_vocab=6, num_requests=3, top_k=False)


def compiled(index, requests):
    return [index.compile(request.get("attributes"), request["at"]) for request in requests]


def all_verdicts(verdict: Verdict, trie: Trie) -> np.ndarray:
    """Return bool [B, S], by asking for the children of every inner node."""
    nodes = torch.arange(trie.first_leaf).expand(len(verdict.root), -1)
    words = verdict.children(nodes).numpy()
    bits = np.unpackbits(words.view(np.uint8), axis=2, bitorder="little").astype(bool)
    counts = np.diff(trie.child_offsets.numpy())
    real = np.arange(bits.shape[2]) < counts[:, None]
    assert not bits[:, ~real].any()  # no bit past the last child
    return np.concatenate([verdict.root.numpy()[:, None], bits[:, real]], axis=1)


def in_node_order(prefixes) -> list[oracle.Prefix]:
    return sorted(prefixes, key=lambda prefix: (len(prefix), prefix))


def brute_force(case: Case, matching: str) -> KwayMatcher:
    return KwayMatcher(case.ads, case.schema, bloom_bits, 256, matching)


@pytest.mark.parametrize("matching", UNION_MODES)
@given(case=small)
def test_partitions_and_verdicts_are_the_brute_force(matching: str, case: Case):
    index, brute = build(case), brute_force(case, matching)
    matcher = index.unions(matching)
    order = in_node_order(brute.partitions)
    assert len(order) == index.trie.num_nodes
    rows = matcher.rows
    table = [
        np.bitwise_count(part.numpy().view(np.uint64)).sum(1)
        for part in (rows.bitmask_rows, rows.bloom_rows)
    ]
    set_bits = (table[0][rows.bitmask_index] + table[1][rows.bloom_index]).tolist()
    if rows.partition_offsets is None:
        assert set_bits == [sum(map(len, brute.partitions[prefix])) for prefix in order]
    else:
        assert (
            rows.partition_offsets.tolist()
            == np.cumsum([0, *(len(brute.partitions[prefix]) for prefix in order)]).tolist()
        )
        assert set_bits == [len(row) for prefix in order for row in brute.partitions[prefix]]
    verdict = matcher.start(compiled(index, case.requests))
    assert verdict.how == matching
    for row, request in zip(all_verdicts(verdict, index.trie), case.requests, strict=True):
        assert row.tolist() == [brute.allows(prefix, request) for prefix in order]


@examples(0.5)
@given(case=small)
def test_one_partition_is_the_plain_union(case: Case):
    """The brute force of partitions agrees with the older one, which knows no partitions."""
    plain, brute = union_matcher(case), brute_force(case, "bitmask+bloom")
    for request in case.requests:
        assert plain.prefixes(request) == brute.prefixes(request)


def test_never_a_false_no():
    """Over a million pairs of node and request, against the exact matcher."""
    pairs = 0
    for seed, levels in enumerate((1, 2, 3, 4, 6)):
        case = Case(seed, levels, vocab=(3000, 60, 14, 8, 5)[seed], num_ads=3000, num_requests=32,
                    rule_rate=(0.2, 0.5, 0.9)[seed % 3], top_k=False)  # fmt: skip
        index = build(case)
        requests = compiled(index, case.requests)
        words = index.match("exact", requests).words.numpy().view(np.uint32)
        eligible = (words >> np.arange(32)[:, None] & 1).astype(bool)
        assert eligible.any()
        for matching in UNION_MODES:
            allowed = all_verdicts(index.match(matching, requests), index.trie)
            assert not (eligible & ~allowed).any()
            pairs += allowed.size
    assert pairs >= 10**6


@pytest.mark.parametrize("matching", UNION_MODES)
def test_a_batch_is_its_requests_one_by_one(matching):
    case = Case(seed=5, num_ads=200, num_requests=32, attributes=5)
    index = build(case)
    requests = compiled(index, case.requests)
    alone = np.concatenate(
        [all_verdicts(index.match(matching, [request]), index.trie) for request in requests]
    )
    for size in BATCHES:
        together = all_verdicts(index.match(matching, requests[:size]), index.trie)
        assert (together == alone[:size]).all()
    with pytest.raises(ValueError, match="a batch holds 32 requests, got 33"):
        index.match(matching, [*requests, requests[0]])


def random_tables(rng, num_signatures) -> RuleTables:
    names = [f"v{i}" for i in range(300)]

    def lists(most):
        chosen = {tuple(np.unique(rng.integers(0, most, rng.integers(1, 6)))) for _ in range(200)}
        includes = [(), *sorted(chosen)]
        values = pa.array(sorted(names[:most]), pa.large_string())
        offsets = np.cumsum([0, *map(len, includes)])
        arrays = (offsets, np.concatenate(includes).astype(np.int32),
                  np.zeros_like(offsets), np.empty(0, np.int32))  # fmt: skip
        return ValueRules(TextTable.build(values), *map(torch.from_numpy, arrays))

    low = torch.tensor([-np.inf, *range(50)], dtype=torch.float64)
    high = torch.tensor([np.inf, *range(9, 59)], dtype=torch.float64)
    rules = (lists(40), RangeRules(low, high), lists(300))
    columns = [rng.integers(0, table.num_rules, num_signatures) for table in rules]
    signatures = np.stack([*columns, np.zeros(num_signatures, np.int64)], 1).astype(np.int32)
    kinds = ("categorical", "range", "set")
    schema = {"attributes": [{"name": kind, "kind": kind} for kind in kinds]}
    return RuleTables(
        Schema.from_dict(schema), rules, torch.zeros(1, 2, dtype=torch.int64),
        torch.from_numpy(signatures),
    )  # fmt: skip


@pytest.mark.parametrize("matching", UNION_MODES)
def test_neither_threads_nor_the_width_of_offsets_show(matching):
    rng = np.random.default_rng(7)
    tables = random_tables(rng, 40_000)
    sids = np.unique(rng.integers(0, 40, (30_000, 3)), axis=0).astype(np.int32)
    trie, _ = build_trie(sids)
    offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(rng.geometric(0.6, len(sids)))]))
    ads = torch.from_numpy(rng.integers(0, 40_000, int(offsets[-1])).astype(np.int32))
    narrow = Trie(trie.level_offsets, trie.child_offsets.int(), trie.child_tokens)
    built = [
        build_unions(matching, tables, *arrays, ads, BloomShape(128, 3), UNIONS[matching], workers)
        for *arrays, workers in ((trie, offsets, 1), (trie, offsets, 3), (narrow, offsets.int(), 3))
    ]
    for name, wanted in vars(built[0].rows).items():
        for other in built[1:]:
            found = getattr(other.rows, name)
            assert (wanted is found is None) or torch.equal(found, wanted), name


@pytest.mark.parametrize("matching", UNION_MODES)
def test_a_rule_of_many_places(matching):
    many = [f"place {number}" for number in range(100_000)]
    schema = [{"name": "place", "kind": "set"}]
    rules = [{"include": many}, {"include": ["here"]}, {"exclude": ["here"]}]
    ads = [{"ad_id": i, "sid": [i, 0], "rules": {"place": rule}} for i, rule in enumerate(rules)]
    index = build_rows(ads, schema)
    asked = [{"place": ["place 77777"]}, {"place": ["here"]}, {"place": []}, {}]
    requests = [index.compile(attributes, NOON.isoformat()) for attributes in asked]
    allowed = all_verdicts(index.match(matching, requests), index.trie)
    leaves = allowed[:, index.trie.first_leaf :]
    assert leaves[:, 0].tolist() == [True, True, False, False]  # its filter is full
    assert leaves[1].tolist() == [True, True, True]
    assert leaves[2:].tolist() == [[False] * 3] * 2
    assert allowed[:, 0].tolist() == [True, True, False, False]


@pytest.mark.parametrize("matching", UNION_MODES)
def test_all_none_and_no_attribute(matching):
    ads = [{"ad_id": i, "sid": [i % 3, i % 7, i]} for i in range(50)]
    only = [ad | {"rules": {"country": {"include": ["CA"]}}} for ad in ads]
    schema = [{"name": "country", "kind": "categorical"}]
    for rows, attributes, country, passes in (
        (ads, schema, "US", True), (only, schema, "US", False), (only, schema, "CA", True),
        (ads, [], None, True),
    ):  # fmt: skip
        index = build_rows(rows, attributes)
        request = index.compile({"country": country} if attributes else {}, NOON.isoformat())
        allowed = all_verdicts(index.match(matching, [request]), index.trie)
        assert (allowed == passes).all()


def test_the_last_number_of_partitions_stands_for_longer_prefixes():
    assert UNIONS["static-kway"].per_level(4).tolist() == [1, 64, 64, 32, 8]
    assert UNIONS["static-kway"].per_level(2).tolist() == [1, 64, 64]
    assert UNIONS["static-kway"].per_level(6).tolist() == [1, 64, 64, 32, 8, 8, 8]
    assert Partitioning((32,)).per_level(1).tolist() == [1, 32]


def test_a_matcher_is_built_once():
    index = build(Case())
    assert index.unions("static-kway") is index.unions("static-kway")


@pytest.mark.parametrize("matching", UNION_MODES)
@examples(0.25)
@given(case=small)
def test_info_counts_the_rows_of_each_level(matching: str, case: Case):
    index, brute = build(case), brute_force(case, matching)
    info = index_info(index, matching)
    assert info.matching == matching
    matcher = index.unions(matching)
    num_bits = matcher.layout.num_bits + matcher.rows.bloom_rows.shape[1] * 64
    assert len(info.per_level) == index.num_levels + 1
    for level in info.per_level:
        rows = [
            row
            for prefix, partitions in brute.partitions.items()
            if len(prefix) == level.level
            for row in partitions
        ]
        assert level.bitmask.rows == level.bloom.rows == len(rows)
        set_bits = level.bitmask.fill_rate * matcher.layout.num_bits
        set_bits += level.bloom.fill_rate * matcher.rows.bloom_rows.shape[1] * 64
        assert set_bits == pytest.approx(np.mean([len(row) for row in rows]), abs=num_bits * 1e-9)
        for part in (level.bitmask, level.bloom):
            assert part.distinct_rows <= part.rows
            assert part.num_bytes * part.distinct_rows == part.distinct_bytes * part.rows


def test_info_command(tmp_path):
    build(Case(num_ads=100), tmp_path / "index")
    shown = cli("index", "info", "--index", tmp_path / "index", "--matching", "static-kway")
    assert shown.code == 0
    assert "Storage of static-kway" in shown.out
    cli("index", "info", "--index", tmp_path / "index", "--matching", "exact").check_refused(
        "matching must be one of bitmask+bloom, static-kway, dynamic-kway"
    )
    with pytest.raises(ConfigError, match="got 'valid'"):
        index_info(build(Case()), "valid")
