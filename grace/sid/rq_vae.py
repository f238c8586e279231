"""RQ-VAE: an autoencoder whose latent vector is quantised level by level (Zeghidour et al., 2021;
Lee et al., 2022), the tokenizer of TIGER (Rajput et al., 2023).

Codebooks start as residual k-means of the latents, then follow them as moving averages (van den
Oord et al., 2017), and a code that hardly any vector takes is moved onto one (Dhariwal et al.,
2020).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from grace.errors import ConfigError, SidError
from grace.progress import progress
from grace.sid.quantize import fit_codebooks, nearest_codes, subtract_code


@dataclass(frozen=True, kw_only=True)
class RqVaeConfig:
    """How an RQ-VAE is built and trained.

    Attributes:
        hidden: widths of the encoder's hidden layers; the decoder has them in reverse.
        latent: dimensions of what is quantised.
        steps: of the optimiser; the first tenth trains the autoencoder alone.
        batch_size: items per step, drawn with replacement.
        learning_rate: of AdamW, constant, then falling linearly to 0 over the last quarter.
        commitment: weight of the latents' pull to their codes.
        decay: of the codebooks' moving averages.
        revive_below: a code whose average share is below this part of 1/V is dead.
        revive_every: steps between revivals; none happen in the last tenth.
        device: where it trains, as torch names it.
    """

    hidden: tuple[int, ...] = (512, 256, 128)
    latent: int = 32
    steps: int = 3000
    batch_size: int = 1024
    learning_rate: float = 1e-3
    commitment: float = 0.25
    decay: float = 0.99
    revive_below: float = 0.1
    revive_every: int = 25
    device: str = "cpu"

    def __post_init__(self):
        for name in ("latent", "steps", "batch_size", "learning_rate", "revive_every"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}: expected more than 0, got {getattr(self, name)}")
        if not 0 < self.decay < 1:
            raise ConfigError(f"decay: expected a number between 0 and 1, got {self.decay}")


class Autoencoder(nn.Module):
    """Two perceptrons, mirrored: `[N, D]` ↔ `[N, latent]`."""

    def __init__(self, dimensions: int, hidden: Sequence[int], latent: int):
        super().__init__()
        widths = [dimensions, *hidden, latent]
        self.encoder = _perceptron(widths)
        self.decoder = _perceptron(widths[::-1])

    @torch.no_grad()
    def encode(self, vectors: np.ndarray) -> np.ndarray:
        """Return the latents `[N, latent]` float32 of vectors `[N, D]` float32."""
        return self.encoder(self._tensor(vectors)).float().cpu().numpy()

    @torch.no_grad()
    def decode(self, latents: np.ndarray) -> np.ndarray:
        """Return the vectors `[N, D]` float32 that latents `[N, latent]` stand for."""
        return self.decoder(self._tensor(latents)).float().cpu().numpy()

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(next(self.parameters()).device)


def _perceptron(widths: Sequence[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


@dataclass(frozen=True, eq=False)
class RqVae:
    """A trained RQ-VAE and the codes of the vectors it was trained on.

    Attributes:
        autoencoder: on the CPU.
        codebooks: L arrays `[K, latent]` float32.
        latents: `[U, latent]` float32.
        codes: `[U, L]` int32, the nearest codes of the latents.
    """

    autoencoder: Autoencoder
    codebooks: tuple[np.ndarray, ...]
    latents: np.ndarray
    codes: np.ndarray


def fit_rq_vae(
    vectors: np.ndarray, counts: np.ndarray, levels: int, codes: int, seed: int, config: RqVaeConfig
) -> RqVae:
    """Train an RQ-VAE.

    The same seed, device and versions give the same codes: nothing in a step adds in an order of
    its own. Another number of CPU threads may not.

    Args:
        vectors: `[U, D]` float32, distinct, finite.
        counts: `[U]` int64, items with each vector; they are drawn as often.
        levels: L.
        codes: V.
        seed: of weights, batches, k-means starts and revivals.
        config: sizes and schedule.

    Raises:
        SidError: if training diverges. Collapse is `refuse_collapse`'s to find.
    """
    device = torch.device(config.device)
    generator = torch.Generator(device).manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Autoencoder(vectors.shape[1], config.hidden, config.latent).to(device)
    data = torch.from_numpy(vectors).to(device)
    rows = torch.from_numpy(np.repeat(np.arange(len(vectors)), counts)).to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=config.learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min(1.0, 4 * (1 - step / config.steps))
    )
    alone = config.steps // 10
    books: list[MovingCodebook] = []
    with progress("training the RQ-VAE", config.steps) as advance:
        for step in range(config.steps):
            if step == alone:
                books = _start_codebooks(model, vectors, counts, levels, codes, seed, config)
            drawn = torch.randint(
                len(rows), (config.batch_size,), generator=generator, device=device
            )
            batch = data[rows[drawn]]
            latent = model.encoder(batch)
            quantised, commitment = _quantise(latent, books)
            decoded = model.decoder(latent + (quantised - latent).detach() if books else latent)
            loss = (decoded - batch).square().sum(1).mean() + config.commitment * commitment
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            schedule.step()
            if step % config.revive_every == 0 and step < 0.9 * config.steps:
                for book in books:
                    book.revive(generator)
            advance(1)
    if not torch.isfinite(loss).item():
        raise SidError(
            "the RQ-VAE diverged: its loss is not a finite number; lower its learning rate"
        )
    model = model.cpu().eval()
    codebooks = tuple(book.centroids.cpu().numpy() for book in books)
    latents = model.encode(vectors)
    return RqVae(model, codebooks, latents, _nearest(latents, codebooks))


def reconstruction_errors(vectors: np.ndarray, counts: np.ndarray, fitted: RqVae) -> list[float]:
    """Return Σ|x − decoder(Σ c)|² / Σ|x − mean|² after each level, over the items."""
    mean = np.average(vectors.astype(np.float64), axis=0, weights=counts)
    spread = float(counts @ ((vectors - mean) ** 2).sum(axis=1))
    total = np.zeros_like(fitted.latents)
    errors = []
    for level, codebook in enumerate(fitted.codebooks):
        total = total + codebook[fitted.codes[:, level]]
        left = (vectors - fitted.autoencoder.decode(total)).astype(np.float64)
        errors.append(float(counts @ (left**2).sum(axis=1)) / spread if spread > 0 else 0.0)
    return errors


class MovingCodebook:
    """One level: centroids as moving averages of the residuals that take them."""

    def __init__(self, centroids: np.ndarray, config: RqVaeConfig):
        self.centroids = torch.from_numpy(centroids).to(config.device)
        self.share = torch.full_like(self.centroids[:, 0], 1 / len(centroids))
        self.sums = self.centroids * self.share[:, None]
        self.config = config
        self.latest = self.centroids[:0]

    def follow(self, residuals: Tensor) -> Tensor:
        """Return the nearest centroids of residuals `[B, D]`, then move the averages to them."""
        centroids = self.centroids
        distances = centroids.square().sum(1) - 2 * residuals @ centroids.T
        codes = distances.argmin(1)
        # One product instead of a scatter, which on a GPU adds in any order.
        takes = nn.functional.one_hot(codes, len(centroids)).to(residuals.dtype) / len(residuals)
        decay = self.config.decay
        self.share = decay * self.share + (1 - decay) * takes.sum(0)
        self.sums = decay * self.sums + (1 - decay) * takes.T @ residuals
        self.centroids = self.sums / self.share.clamp_min(1e-8)[:, None]
        self.latest = residuals
        return centroids[codes]

    def revive(self, generator: torch.Generator) -> None:
        """Move dead codes onto residuals of the latest batch, drawn at random."""
        if not len(self.latest):
            return
        even = 1 / len(self.centroids)
        dead = self.share < self.config.revive_below * even
        drawn = torch.randint(
            len(self.latest), (len(dead),), generator=generator, device=dead.device
        )
        self.centroids = torch.where(dead[:, None], self.latest[drawn], self.centroids)
        self.share = torch.where(dead, even, self.share)
        self.sums = torch.where(dead[:, None], even * self.centroids, self.sums)


def _quantise(latent: Tensor, books: Sequence[MovingCodebook]) -> tuple[Tensor, Tensor]:
    """Return the sum of the centroids `[B, D]` and the commitment: how far they are, by level."""
    residual, quantised = latent, torch.zeros_like(latent)
    commitment = latent.new_zeros(())
    for book in books:
        centroids = book.follow(residual.detach())
        commitment = commitment + (residual - centroids).square().sum(1).mean()
        residual = residual - centroids
        quantised = quantised + centroids
    return quantised, commitment


def _start_codebooks(
    model: Autoencoder,
    vectors: np.ndarray,
    counts: np.ndarray,
    levels: int,
    codes: int,
    seed: int,
    config: RqVaeConfig,
) -> list[MovingCodebook]:
    latents = model.encode(vectors)
    if not np.isfinite(latents).all():
        raise SidError("the RQ-VAE diverged: its latents are not finite; lower its learning rate")
    centroids, _ = fit_codebooks(latents, counts, levels, codes, seed)
    return [MovingCodebook(codebook, config) for codebook in centroids]


def _nearest(latents: np.ndarray, codebooks: Sequence[np.ndarray]) -> np.ndarray:
    codes = np.empty((len(latents), len(codebooks)), np.int32)
    residuals = latents
    for level, codebook in enumerate(codebooks):
        codes[:, level] = nearest_codes(residuals, codebook)
        residuals = subtract_code(residuals, codebook[codes[:, level]])
    return codes
