"""Quantisers besides plain k-means: equal clusters, RQ-VAE, and random SIDs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sid_rows import gaussian

from grace.errors import ConfigError, SidError
from grace.sid import (
    RqVaeConfig,
    assign_sids,
    fit_sids,
    load_autoencoder,
    load_codebooks,
    save_codebooks,
)
from grace.sid.balance import assign_evenly
from grace.sid.rq_vae import Autoencoder, MovingCodebook

SMALL = RqVaeConfig(
    hidden=(32,), latent=8, steps=200, batch_size=64, learning_rate=3e-3, decay=0.9, revive_every=10
)
QUANTIZERS = ("kmeans", "balanced-kmeans", "rq-vae")


def planted(clusters: int, size: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Well separated clusters of equal size, rows shuffled; and which cluster each row is of."""
    rng = np.random.default_rng(seed)
    centres = 10 * np.eye(clusters, 8, dtype=np.float32)
    label = rng.permutation(np.repeat(np.arange(clusters), size))
    noise = rng.standard_normal((len(label), 8)).astype(np.float32)
    return centres[label] + 0.1 * noise, label


@pytest.mark.parametrize("quantizer", QUANTIZERS)
def test_planted_clusters_are_the_first_code(quantizer):
    vectors, label = planted(8, 25)
    fit = fit_sids(vectors, levels=2, codes=8, quantizer=quantizer, rq_vae=SMALL)
    pairs = set(zip(label.tolist(), fit.sids[:, 0].tolist(), strict=True))
    assert len(pairs) == 8
    assert fit.report.quantizer == quantizer
    assert fit.report.levels[0].reconstruction_error < 0.1


@pytest.mark.parametrize("quantizer", [*QUANTIZERS, "random"])
@pytest.mark.parametrize("collisions", ["resolve", "reassign", "extra-token"])
def test_every_item_gets_a_sid_of_its_own(quantizer, collisions):
    vectors = np.concatenate((gaussian(150), gaussian(20), gaussian(20)))  # 40 items have twins
    fit = fit_sids(
        vectors, levels=3, codes=16, collisions=collisions, quantizer=quantizer, rq_vae=SMALL
    )
    assert fit.report.distinct_sids == 190
    assert fit.sids.shape == (190, 4 if collisions == "extra-token" else 3)
    assert 0 <= fit.sids.min() <= fit.sids.max() < 16
    assert fit.sids.dtype == np.int32


@pytest.mark.parametrize("quantizer", [*QUANTIZERS, "random"])
def test_the_same_seed_gives_the_same_sids(quantizer):
    vectors = gaussian(200)
    fits = [
        fit_sids(vectors, 3, 16, seed=seed, quantizer=quantizer, rq_vae=SMALL) for seed in (3, 3, 4)
    ]
    np.testing.assert_array_equal(fits[0].sids, fits[1].sids)
    assert fits[0].report == fits[1].report
    assert (fits[0].sids != fits[2].sids).any()


@pytest.mark.parametrize("quantizer", ["balanced-kmeans", "rq-vae"])
def test_the_order_of_rows_does_not_matter(quantizer):
    vectors = gaussian(100)
    shuffled = np.random.default_rng(0).permutation(100)
    fits = [
        fit_sids(rows, 2, 16, quantizer=quantizer, rq_vae=SMALL)
        for rows in (vectors, vectors[shuffled])
    ]
    np.testing.assert_array_equal(fits[0].sids[shuffled], fits[1].sids)


@given(st.integers(1, 60), st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_no_column_takes_more_than_its_share(rows, columns, seed):
    rng = np.random.default_rng(seed)
    distances = rng.standard_normal((rows, columns)) ** rng.integers(1, 4)
    assigned, _ = assign_evenly(distances)
    assert np.bincount(assigned, minlength=columns).max() <= -(-rows // columns)


def test_an_even_assignment_costs_hardly_more_than_the_best():
    from scipy.optimize import linear_sum_assignment

    rng = np.random.default_rng(0)
    distances = ((rng.standard_normal((120, 1, 4)) - rng.standard_normal((6, 4))) ** 2).sum(-1)
    assigned, _ = assign_evenly(distances)
    rows, columns = linear_sum_assignment(np.repeat(distances, 20, axis=1))
    best = distances[rows, columns // 20].sum()
    assert distances[np.arange(120), assigned].sum() < 1.03 * best


def test_balanced_clusters_are_even_at_every_level():
    vectors = gaussian(500) ** 3  # a dense middle that k-means leaves to few codes
    plain = fit_sids(vectors, levels=3, codes=16).report
    fit = fit_sids(vectors, levels=3, codes=16, quantizer="balanced-kmeans")
    for level, column in enumerate(fit.sids.T):
        assert np.bincount(column).max() <= 32  # 500 / 16, rounded up
        assert fit.report.levels[level].entropy_bits > plain.levels[level].entropy_bits


def test_balance_counts_vectors_not_items():
    vectors = np.concatenate((gaussian(63), np.repeat(gaussian(1, seed=1), 40, axis=0)))
    fit = fit_sids(vectors, levels=2, codes=8, quantizer="balanced-kmeans")
    assert len(np.unique(fit.sids[63:], axis=0)) == 1


def test_too_many_distances_for_memory(monkeypatch):
    monkeypatch.setattr("grace.sid.balance.MAX_PAIRS", 100)
    with pytest.raises(SidError, match="50 x 8 is more than 100; use kmeans or rq-vae"):
        fit_sids(gaussian(50), 2, 8, quantizer="balanced-kmeans")


def test_an_encoder_that_tells_nothing_is_a_collapse(monkeypatch):
    monkeypatch.setattr(
        Autoencoder, "encode", lambda self, vectors: np.zeros((len(vectors), 8), np.float32)
    )
    with pytest.raises(SidError, match="level 1 collapsed"):
        fit_sids(gaussian(100), 3, 16, quantizer="rq-vae", rq_vae=SMALL)


def test_divergence_is_an_error():
    wild = RqVaeConfig(hidden=(32,), latent=8, steps=60, batch_size=64, learning_rate=1e30)
    with pytest.raises(SidError, match="diverged"):
        fit_sids(gaussian(100), 3, 16, quantizer="rq-vae", rq_vae=wild)


@pytest.mark.parametrize("quantizer", QUANTIZERS)
def test_equal_vectors_are_refused_by_all(quantizer):
    with pytest.raises(SidError, match="all 30 items have the same vector"):
        fit_sids(np.ones((30, 4), np.float32), 2, 8, quantizer=quantizer, rq_vae=SMALL)


def test_dead_codes_are_moved_onto_vectors():
    residuals = torch.from_numpy(gaussian(64))
    far = np.full((2, 8), 1e3, np.float32)
    book = MovingCodebook(np.concatenate((residuals[:2].numpy(), far)), SMALL)
    for _ in range(400):
        book.follow(residuals)
    assert (book.share[2:] < 0.1 / 4).all()
    alive = book.centroids[:2].clone()
    book.revive(torch.Generator().manual_seed(0))
    torch.testing.assert_close(book.centroids[:2], alive)
    assert (book.centroids[2:, None] == residuals).all(-1).any(-1).all()
    book.follow(residuals)
    assert (book.share[2:] > 0.1 / 4).all()


def test_codebooks_follow_the_mean_of_what_takes_them():
    residuals = torch.from_numpy(gaussian(64))
    book = MovingCodebook(np.zeros((1, 8), np.float32), SMALL)
    for _ in range(2000):
        book.follow(residuals)
    torch.testing.assert_close(book.centroids[0], residuals.mean(0), atol=1e-4, rtol=1e-4)


def test_new_items_get_the_sids_of_a_saved_rq_vae(tmp_path):
    vectors = gaussian(200)
    fit = fit_sids(vectors, 3, 16, quantizer="rq-vae", rq_vae=SMALL)
    path = tmp_path / "books.safetensors"
    save_codebooks(path, fit.codebooks, fit.report.to_dict(), fit.autoencoder)
    books, autoencoder = load_codebooks(path), load_autoencoder(path)
    np.testing.assert_array_equal(assign_sids(vectors, books, autoencoder), fit.sids)
    with pytest.raises(SidError, match="1 dimensions, the codebooks 8"):
        assign_sids(vectors[:, :1], books)
    save_codebooks(path, fit.codebooks)
    assert load_autoencoder(path) is None


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 2**31), st.data())
def test_random_sids_are_distinct_and_in_range(codes, levels, seed, data):
    items = data.draw(st.integers(1, codes**levels))
    fit = fit_sids(np.zeros((items, 1)), levels, codes, seed, quantizer="random")
    assert len(np.unique(fit.sids, axis=0)) == items
    assert fit.sids.max() < codes
    assert fit.codebooks == ()
    assert fit.report.levels[0].relative_error is None


def test_random_sids_in_a_large_space(monkeypatch):
    monkeypatch.setattr("grace.sid.random_sids._MAX_LISTED", 1)  # drawn again until distinct
    sids = fit_sids(np.zeros((60, 1)), 2, 8, quantizer="random").sids
    assert len(np.unique(sids, axis=0)) == 60
    with pytest.raises(SidError, match="65 items, but 2 levels of 8 codes make only 64"):
        fit_sids(np.zeros((65, 1)), 2, 8, quantizer="random")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps: expected more than 0"),
        ({"latent": 0}, "latent: expected more than 0"),
        ({"decay": 1.0}, "decay: expected a number between 0 and 1"),
    ],
)
def test_wrong_settings(options, message):
    with pytest.raises(ConfigError, match=message):
        RqVaeConfig(**options)


def test_unknown_names():
    with pytest.raises(ValueError, match="kmeans, balanced-kmeans, rq-vae, random, got 'pq'"):
        fit_sids(gaussian(10), 2, 8, quantizer="pq")
    with pytest.raises(ValueError, match="reassign, extra-token, got 'drop'"):
        fit_sids(gaussian(10), 2, 8, collisions="drop")
