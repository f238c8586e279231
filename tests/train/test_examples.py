from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from train_cases import INDEX, NUM_ADS, SPEC, features, train_rows, valid_rows, walk

from grace.errors import DataError, TrainError
from grace.model import FeatureSpec
from grace.train.examples import ExampleSet
from grace.train.rows import ExampleRows


def build(rows: list[dict] | Path, spec: FeatureSpec = SPEC) -> ExampleSet:
    read = ExampleRows.read(rows)
    return ExampleSet.build(read, read.fit(spec), INDEX)


def clicks(*ads) -> dict:
    return {"features": {"history": [{"ad_id": ad} for ad in ads]}}


@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.integers(1, 5))
def test_cuts_are_distinct_shuffled_and_followed_by_their_targets(seed, num_cuts, num_targets):
    rng = np.random.default_rng(seed)
    # Ads beyond NUM_ADS are unknown: neither history nor target.
    ads = [rng.integers(0, NUM_ADS + 20, rng.integers(0, 8)).tolist() for _ in range(6)]
    examples = build([*(clicks(*row) for row in ads), clicks(1, 2)])
    known = [[ad for ad in row if ad < NUM_ADS] for row in ads] + [[1, 2]]
    assert examples.unknown_events == sum(map(len, ads)) - sum(map(len, known[:-1]))
    drawn = examples.draw(np.random.default_rng(seed), num_cuts, num_targets)
    offsets = examples.table.events["history"].offsets
    cuts = set()
    for row, end, targets in zip(drawn.rows, drawn.ends, drawn.ads, strict=True):
        cut = int(end - offsets[row])
        assert 1 <= cut < len(known[row])
        cuts.add((int(row), cut))
        following = known[row][cut : cut + num_targets]
        expected = INDEX.find_ads(following).tolist()
        assert targets.tolist() == expected + [-1] * (num_targets - len(following))
    assert len(cuts) == len(drawn)
    assert len(drawn) == sum(min(num_cuts, max(0, len(row) - 1)) for row in known)
    again = examples.draw(np.random.default_rng(seed), num_cuts, num_targets)
    assert np.array_equal(drawn.ends, again.ends)


def test_every_cut_is_drawn_about_as_often():
    examples = build([clicks(*range(6))])
    draws = [examples.draw(np.random.default_rng(i), 2, 1).ends for i in range(1000)]
    counts = np.bincount(np.concatenate(draws), minlength=6)[1:]
    assert counts.sum() == 2000
    assert counts.min() > 320  # 400 expected, standard deviation 16


def test_inputs_are_the_history_before_the_cut_and_the_sids_after_it():
    examples = build(train_rows(3))
    drawn = examples.draw(np.random.default_rng(0), 2, 3)
    inputs, sids = examples.inputs(drawn, slice(1, 4))
    for i in range(3):
        row, ads = int(drawn.rows[1 + i]), drawn.ads[1 + i]
        cut = int(drawn.ends[1 + i] - examples.table.events["history"].offsets[row])
        request = features(row, 9) | {"history": features(row, 9)["history"][:cut]}
        expected, _ = examples.table.spec.encode([request], INDEX)
        assert all(torch.equal(inputs[name][i], expected[name][0]) for name in expected)
        for ad, sid in zip(ads, sids[i], strict=True):
            wanted = [-1] * 3 if ad < 0 else INDEX.sids[INDEX.ad_sid[ad]].tolist()
            assert sid.tolist() == wanted


def test_a_row_with_a_target_is_one_example_with_its_whole_history():
    examples = build([valid_rows(1)[0], {"features": {}, "target": 999}, *train_rows(1)])
    assert examples.unknown_targets == 1
    drawn = examples.draw(np.random.default_rng(0), 100, 2)
    assert len(drawn) == 1 + 8
    place = drawn.rows.tolist().index(0)
    assert drawn.ads[place].tolist() == [INDEX.find_ads([walk(0, 10)[-1]])[0], -1]
    inputs, _ = examples.inputs(drawn, slice(place, place + 1))
    expected, _ = examples.table.spec.encode([features(0, 9)], INDEX)
    assert torch.equal(inputs["history.tokens"], expected["history.tokens"])


def test_rows_need_no_sequence_when_all_have_targets():
    spec = FeatureSpec.from_dict({"fields": [{"name": "age", "kind": "numeric"}]})
    rows = [{"features": {"age": 3}, "target": ad} for ad in (1, 999, 2)]
    examples = build(rows, spec)
    drawn = examples.draw(np.random.default_rng(0), 1, 1)
    assert sorted(drawn.rows.tolist()) == [0, 2]
    assert examples.inputs(drawn, slice(0, 2))[1].shape == (2, 1, 3)
    with pytest.raises(DataError, match="row 2: a row needs a `target`: the features have 0"):
        build([rows[0], {"features": {}}], spec)


def test_no_target_left_is_an_error():
    for rows in ([clicks(1)], [clicks(1, 999)], [{"features": {}, "target": "x"}]):
        with pytest.raises(TrainError, match="rows: no target is left"):
            build(rows)


def test_the_digest_tells_data_apart():
    digests = {build(train_rows(n, length)).digest() for n in (3, 4) for length in (5, 6)}
    digests.add(build(valid_rows(3)).digest())
    assert len(digests) == 5
    assert build(train_rows(3, 5)).digest() in digests


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "row 2: not JSON"),
        (b"\xff", "not UTF-8"),
        (b"[]", 'row 2: expected an object {"features"'),
        (b'{"target": 3}', "row 2: expected an object"),
        (b'{"features": {}, "taget": 3}', "row 2: unknown key 'taget'"),
        (b'{"features": {}, "target": 1.5}', "row 2: target: expected a string or an integer"),
        (b'{"features": {"age": "x"}, "target": 1}', "row 2: features.age: expected a number"),
        (b'{"features": {"job": "x"}, "target": 1}', "row 2: features.job: the model reads no"),
        (b'{"features": {"history": [{"ad_id": 1, "at": 2}, {"ad_id": 1, "at": 1}]}}',
         "row 2: features.history[1].at: expected events oldest first"),
    ],
)  # fmt: skip
def test_a_wrong_row_is_named(tmp_path, line, message):
    path = tmp_path / "train.jsonl"
    path.write_bytes(b'{"features": {"age": 3}, "target": 1}\n' + line + b"\n")
    with pytest.raises(DataError) as caught:
        build(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_blank_lines_count_and_files_must_hold_rows(tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text('\n{"features": {}, "target": 1, "id": "u", "attributes": {}}\n\n')
    assert ExampleRows.read(path).numbers == [2]
    path.write_text("\n")
    with pytest.raises(DataError, match="there are no rows"):
        ExampleRows.read(path)
    with pytest.raises(DataError, match="gone"):
        ExampleRows.read(tmp_path / "gone")
