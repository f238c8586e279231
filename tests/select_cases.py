"""Random decode steps for the tests of the constrained selection, and checks of its GPU version."""

import numpy as np
import torch

from grace.index.trie import build_trie
from grace.kernels.constrained_select import Workspace, constrained_select
from grace.kernels.constrained_select.tiles import choose_tiles, num_bytes

OFFSETS = (torch.int32, torch.int64)
LOGITS = (torch.float32, torch.bfloat16, torch.float16)


def case(seed, batch, beams, vocab, levels, coarse, most=2000):
    """A random step: a trie, beams at one of its levels (some dead), logits, a verdict."""
    rng = np.random.default_rng(seed)
    sids = np.unique(rng.integers(0, vocab, (rng.integers(1, most), levels)), axis=0)
    trie, _ = build_trie(sids.astype(np.int32))
    level = rng.integers(0, levels)
    first, last = trie.level_offsets[level : level + 2].tolist()
    nodes = rng.integers(first, last, (batch, beams))
    for b in range(batch):  # no prefix twice in a request; a surplus beam is dead
        distinct = rng.permutation(np.unique(nodes[b]))
        nodes[b] = np.r_[distinct, np.full(beams - len(distinct), -1)]
    logits = rng.normal(size=(batch, beams, vocab)).astype(np.float32)
    if coarse:
        logits = np.round(logits)
    logits[rng.random(logits.shape) < 0.2] = -np.inf
    logits[rng.random((batch, beams)) < 0.1] = -np.inf
    columns = torch.from_numpy(logits)
    scores = torch.from_numpy(rng.normal(size=(batch, beams)).astype(np.float32))
    if coarse:
        scores = scores.round()
    words = torch.from_numpy(rng.integers(-(2**31), 2**31, trie.num_nodes).astype(np.int32))
    return {
        "columns": columns,
        "logsumexp": torch.logsumexp(columns.double(), -1),
        "scores": scores,
        "nodes": torch.from_numpy(nodes),
        "child_offsets": trie.child_offsets,
        "child_tokens": trie.child_tokens,
        "words": words if rng.random() < 0.7 else None,
    }


def assert_same(one, other):
    for name in ("parents", "tokens", "nodes", "scores"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name


def with_bits(step, seed, chance=0.6):
    """The step with a random bit per child in place of a word per node."""
    sizes = step["child_offsets"].diff()[step["nodes"].clamp_min(0)]
    most = int(sizes.max())
    bits = torch.rand(
        *sizes.shape, -(-most // 32), 32, generator=torch.Generator().manual_seed(seed)
    )
    values = ((bits < chance).long() << torch.arange(32)).sum(-1).to(torch.int32)
    return step | {"words": None, "allowed": values}


def most_children(step):
    """The largest number of children of a live beam, at least 1."""
    nodes = step["nodes"].clamp_min(0)
    return max(int(step["child_offsets"].diff()[nodes].max()), 1)


def check_step(step, width, device, max_children=None, workspace=None):
    """The Triton version equals the native one, in memory full of NaN."""
    batch, beams, vocab = step["columns"].shape
    expected = constrained_select(**step, width=width, backend="native")
    if workspace is None:
        tiles = choose_tiles(beams, width, max_children or vocab)
        workspace = Workspace(num_bytes(tiles, batch), device)
    workspace.poison()
    out = type(expected)(*(torch.full_like(t, -7, device=device) for t in vars(expected).values()))
    moved = {k: v if v is None else v.to(device) for k, v in step.items()}
    found = constrained_select(
        **moved, width=width, backend="triton", max_children=max_children, workspace=workspace,
        out=out,
    )  # fmt: skip
    assert found is out
    assert_same(expected, type(expected)(*(tensor.cpu() for tensor in vars(found).values())))


def check_random(device, seeds, batches, beams, vocabs, widths, most=2000):
    """Random steps: every mask, both offset dtypes, all dtypes of logits, tight and loose sizes."""
    for seed in seeds:
        rng = np.random.default_rng(seed)
        step = case(
            seed, int(rng.choice(batches)), int(rng.choice(beams)), int(rng.choice(vocabs)),
            int(rng.integers(1, 5)), coarse=bool(seed % 2), most=most,
        )  # fmt: skip
        if rng.random() < 0.5:
            step = with_bits(step, seed)
        if rng.random() < 0.3:
            step["columns"] = step["columns"].to(LOGITS[rng.integers(1, 3)])
            step["logsumexp"] = torch.logsumexp(step["columns"].double(), -1)
        step["child_offsets"] = step["child_offsets"].to(OFFSETS[rng.integers(2)])
        tight = most_children(step) if rng.random() < 0.5 else None
        check_step(step, int(rng.choice(widths)), device, tight)


def one_level(batch, beams, children, logits):
    """Beams with `children` children each, one logit for all or a function of shape [B, M, V]."""
    tokens = np.arange(beams * children).reshape(beams, children) % children
    sids = np.stack([np.arange(beams).repeat(children), tokens.reshape(-1)], 1)
    trie, _ = build_trie(sids.astype(np.int32))
    shape = (batch, beams, max(beams, children))
    columns = torch.full(shape, logits) if isinstance(logits, float) else logits(shape)
    return {
        "columns": columns,
        "logsumexp": torch.logsumexp(columns.double(), -1),
        "scores": torch.zeros(batch, beams),
        "nodes": torch.arange(1, beams + 1).expand(batch, -1).contiguous(),
        "child_offsets": trie.child_offsets,
        "child_tokens": trie.child_tokens,
        "words": None,
    }


def check_shapes_that_defeat_cuts(device, beams, children, widths):
    """Equal scores throughout, all good candidates in few beams, one group, or none at all."""
    for width in widths:
        step = one_level(2, beams, children, 0.0)
        check_step(step, width, device)
        check_step(step, width, device, children)
        peaked = one_level(2, beams, children, lambda shape: torch.randn(shape) / 64)
        peaked["scores"] = -100 * torch.arange(beams).expand(2, -1).float().contiguous()
        check_step(peaked, width, device, children)
        # Nearly all of the best are children that one group holds.
        strided = one_level(2, beams, children, lambda shape: torch.randn(shape))
        strided["columns"][..., ::8] += 50
        check_step(strided, width, device, children)
        nobody = torch.zeros(beams * (children + 1) + 1, dtype=torch.int32)
        check_step(step | {"words": nobody}, width, device, children)
        dead = torch.full_like(step["nodes"], -1)
        dead[1, beams // 2] = 1
        check_step(step | {"nodes": dead}, width, device, children)
        last = step | {"scores": torch.full_like(step["scores"], -torch.inf)}
        check_step(last, width, device)


def check_signs_and_holes(device):
    """Scores on both sides of zero, zeros of both signs, infinities, NaN where nobody looks."""
    step = one_level(1, 2, 4, 0.0)
    step["columns"] = torch.tensor(
        [[[0.0, -0.0, -torch.inf, 3e38], [-3e38, 1e-45, -1e-45, torch.nan]]]
    )
    step["logsumexp"] = torch.zeros(1, 2, dtype=torch.float64)
    for scores in ([0.0, 0.0], [-0.0, 0.0], [3e38, -3e38], [torch.inf, -torch.inf], [torch.nan, 1]):
        step["scores"] = torch.tensor([scores])
        for width in (1, 8):
            check_step(step, width, device)
    step["logsumexp"] = torch.tensor([[torch.nan, torch.inf]]).double()
    check_step(step, 4, device)
    wide = torch.randn(1, 2, 12)[:, :, ::3]  # rows that are not contiguous
    check_step(step | {"columns": wide, "logsumexp": torch.logsumexp(wide.double(), -1)}, 4, device)
