"""A catalogue file in, the same catalogue with SIDs out."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from grace.catalog import iter_rows, write_rows
from grace.catalog.batches import BATCH_ROWS
from grace.catalog.rows import SUFFIXES
from grace.catalog.values import describe
from grace.errors import CatalogError, ConfigError
from grace.files import atomic_write
from grace.sid.behaviour import behaviour_embeddings
from grace.sid.codebooks import save_codebooks
from grace.sid.embeddings import (
    Source,
    combine,
    count_unknown,
    sentence_embeddings,
    text_embeddings,
)
from grace.sid.fit import Collisions, Quantizer, SidFit, fit_sids
from grace.sid.items import Histories, read_embeddings, read_items
from grace.sid.report import SourceReport
from grace.sid.rq_vae import RqVaeConfig

SENTENCE_TRANSFORMER = "sentence-transformer:"
MAX_WINDOW = 2**31


def fit_catalog(
    catalog: object,
    out: str | os.PathLike,
    *,
    text: Sequence[str] = (),
    text_encoder: str = "tfidf",
    text_weight: float = 1.0,
    text_cache: str | os.PathLike | None = None,
    attributes: Sequence[str] = (),
    attributes_weight: float = 1.0,
    embedding_column: str | None = None,
    embedding_file: str | os.PathLike | None = None,
    embedding_weight: float = 1.0,
    behaviour: object = None,
    behaviour_weight: float = 1.0,
    window: int = 5,
    dimensions: int = 64,
    levels: int = 3,
    codes: int = 64,
    seed: int = 0,
    quantizer: Quantizer = "kmeans",
    rq_vae: RqVaeConfig | None = None,
    device: str = "auto",
    collisions: Collisions = "cluster",
    replace_sid: bool = False,
    codebooks: str | os.PathLike | None = None,
) -> SidFit:
    """Make SIDs for a catalogue and write it with its `sid` column filled.

    Memory holds ids, texts and vectors; the other columns stream through in a second pass. The
    result does not depend on the order of the rows: work goes in the order of the ad ids.

    Args:
        catalog: path or table, as `iter_rows` takes it; an iterable must be one that can be read
            twice.
        out: `.parquet` or `.jsonl` file, written whole or not at all. May be the catalogue itself.
        text: text columns. Where no source is named: title and description, as far as they exist.
        text_encoder: `tfidf`, `minilm`, or `sentence-transformer:<folder or name>`.
        text_weight: the text's share of squared distances; the same for the others.
        text_cache: folder where `minilm` keeps its vectors; that of `out` by default.
        attributes: columns of labels, a source of their own: TF-IDF and an SVD.
        embedding_column: column of lists of floats.
        embedding_file: `.npy` file `[N, D]` instead, rows by ascending ad id.
        behaviour: rows `{"items": [ad_id, ...]}`, one a user, oldest first: path or iterable. Give
            it training events only, or the held-out ones leak into the SIDs.
        window: how far apart two events of a history may be to count as neighbours.
        dimensions: of the text's and attributes' (TF-IDF) and the behaviour's vectors.
        levels: L, tokens of a SID.
        codes: V, codes per level.
        seed: of the SVDs and of the quantiser.
        quantizer: see `fit_sids`. `random` needs no source.
        rq_vae: see `fit_sids`; its device is `device`.
        device: where `minilm` and an RQ-VAE run: `auto` takes a GPU where there is one.
        collisions: see `fit_sids`.
        replace_sid: replace SIDs that the catalogue has, instead of refusing it.
        codebooks: where to save the codebooks, a `.safetensors` file.

    Returns:
        The fit; rows of `sids` are in the catalogue's order.

    Raises:
        CatalogError, DataError: on input that is wrong, naming its row.
        SidError: as `fit_sids`. ConfigError: on options that do not fit.
    """
    positive = {
        "text_weight": text_weight,
        "attributes_weight": attributes_weight,
        "embedding_weight": embedding_weight,
        "behaviour_weight": behaviour_weight,
        "window": window,
        "dimensions": dimensions,
    }
    _check_options(catalog, out, text_encoder, positive)
    check_paths(catalog, behaviour, out, {"codebooks": codebooks}, embedding_file)
    if embedding_column and embedding_file:
        raise ConfigError("embedding_file: there is an embedding_column already; name one")
    torch_device = _device(device)
    named = text or attributes or embedding_column or embedding_file or behaviour is not None
    any_text = None if not named and quantizer != "random" else text
    items = read_items(catalog, any_text, attributes, embedding_column, replace_sid)
    order = sorted(range(len(items.ad_ids)), key=items.ad_ids.__getitem__)
    histories = None
    sources = []
    if items.texts is not None:
        texts = [items.texts[position] for position in order]
        if text_encoder == "minilm":
            from grace.sid.minilm import cached_minilm_embeddings

            cache = Path(out).parent if text_cache is None else text_cache
            vectors = cached_minilm_embeddings(texts, cache, torch_device)
        else:
            vectors = _encode(texts, text_encoder, dimensions, seed)
        sources.append(Source(name="text", vectors=vectors, weight=text_weight))
    if items.attributes is not None:
        labels = [items.attributes[position] for position in order]
        vectors = text_embeddings(labels, dimensions, seed)
        sources.append(Source(name="attributes", vectors=vectors, weight=attributes_weight))
    if items.embeddings is not None or embedding_file is not None:
        if embedding_file is None:
            vectors = items.embeddings[order]
        else:
            vectors = read_embeddings(embedding_file, len(order))
        sources.append(Source(name="embedding", vectors=vectors, weight=embedding_weight))
    if behaviour is not None:
        positions = {items.ad_ids[position]: rank for rank, position in enumerate(order)}
        histories = Histories(behaviour, positions)
        vectors = behaviour_embeddings(histories, len(order), dimensions, window, seed)
        sources.append(Source(name="behaviour", vectors=vectors, weight=behaviour_weight))
    vectors = combine(sources) if sources else np.zeros((len(order), 1), np.float32)
    rq_vae = dataclasses.replace(rq_vae or RqVaeConfig(), device=torch_device)
    fit = fit_sids(vectors, levels, codes, seed, collisions, quantizer, rq_vae)
    report = dataclasses.replace(
        fit.report,
        sources=tuple(_describe(source) for source in sources),
        unknown_behaviour_items=histories.unknown if histories else 0,
    )
    sids = np.empty_like(fit.sids)
    sids[order] = fit.sids
    write_catalog(catalog, out, items.ad_ids, sids)
    if codebooks is not None:
        save_codebooks(codebooks, fit.codebooks, report.to_dict(), fit.autoencoder)
    return SidFit(sids, report, fit.codebooks, fit.autoencoder)


def write_catalog(
    catalog: object, out: str | os.PathLike, ad_ids: Sequence[str | int], sids: np.ndarray
) -> None:
    """Write a catalogue's rows with these SIDs, as a stream, whole or not at all.

    Parquet to Parquet keeps every other column as it is, byte types included.

    Args:
        catalog: path or table, as `iter_rows` takes it.
        out: `.parquet` or `.jsonl` file.
        ad_ids: the ids of the catalogue's rows, in order.
        sids: `[N, L]` int32, in the same order.

    Raises:
        CatalogError: if the catalogue no longer has the rows that `ad_ids` says.
    """
    is_file = isinstance(catalog, (str, os.PathLike))
    if is_file and Path(catalog).suffix == Path(out).suffix == ".parquet":
        _write_parquet(Path(catalog), Path(out), ad_ids, sids)
    else:
        write_rows(out, _rows_with_sids(catalog, ad_ids, sids))


def check_paths(
    catalog: object,
    behaviour: object,
    out: str | os.PathLike,
    others: dict[str, str | os.PathLike | None],
    embedding_file: str | os.PathLike | None = None,
) -> None:
    """Refuse, before any work, outputs that cannot be written or would overwrite another file.

    Args:
        catalog: the catalogue; where it is a file, `out` may be the same.
        behaviour: the histories, which nothing may overwrite if they are a file.
        out: the catalogue to write.
        others: what is written beside it, by option; None is not written.
        embedding_file: vectors, which nothing may overwrite either.

    Raises:
        ConfigError: naming the path as it was given.
    """
    taken = {}
    read = {"catalog": catalog, "behaviour": behaviour, "embedding_file": embedding_file}
    for name, path in read.items():
        if isinstance(path, (str, os.PathLike)):
            taken[name] = path
    for name, path in {"out": out, **others}.items():
        if path is None:
            continue
        if Path(path).is_dir():
            raise ConfigError(f"{name}: {path} is a directory; name a file")
        for folder in (Path(path).parent, Path(os.path.realpath(path)).parent):
            if not folder.is_dir():
                raise ConfigError(f"{path}: there is no folder {folder}; make it first")
        for other, used in taken.items():
            if (name, other) != ("out", "catalog") and _is_same_file(path, used):
                raise ConfigError(f"{name}: {path} is the file of {other} too; name another")
        taken[name] = path


def _is_same_file(left: str | os.PathLike, right: str | os.PathLike) -> bool:
    if os.path.realpath(left) == os.path.realpath(right):
        return True
    return Path(left).is_file() and Path(right).is_file() and os.path.samefile(left, right)


def _check_options(
    catalog: object,
    out: str | os.PathLike,
    text_encoder: str,
    positive: dict[str, float],
) -> None:
    if isinstance(catalog, Iterator):
        raise TypeError("catalog is read twice; pass a list or a file, not an iterator")
    if Path(out).suffix not in SUFFIXES:
        raise ConfigError(f"out: expected a name ending in {' or '.join(SUFFIXES)}, got {out}")
    named = text_encoder.startswith(SENTENCE_TRANSFORMER)
    if text_encoder not in ("tfidf", "minilm") and not named:
        raise ConfigError(
            f"text_encoder: expected tfidf, minilm or {SENTENCE_TRANSFORMER}<folder or name>, "
            f"got {text_encoder!r}"
        )
    for name, number in positive.items():
        if not number > 0:
            raise ConfigError(f"{name}: expected a number above 0, got {number}")
    if positive["window"] > MAX_WINDOW:
        raise ConfigError(f"window: expected at most 2^31, got {describe(positive['window'])}")


def _device(device: str) -> str:
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"device: {device!r} cannot be used here: {reason}") from None
    return device


def _encode(texts: list[str], encoder: str, dimensions: int, seed: int) -> np.ndarray:
    if encoder == "tfidf":
        return text_embeddings(texts, dimensions, seed)
    return sentence_embeddings(texts, encoder.removeprefix(SENTENCE_TRANSFORMER))


def _describe(source: Source) -> SourceReport:
    return SourceReport(
        name=source.name,
        weight=source.weight,
        dimensions=source.vectors.shape[1],
        items_without=count_unknown(source.vectors),
    )


def _rows_with_sids(
    catalog: object, ad_ids: Sequence[str | int], sids: np.ndarray
) -> Iterator[dict]:
    position = 0
    for position, (number, row) in enumerate(iter_rows(catalog), start=1):
        if position > len(ad_ids) or row.get("ad_id") != ad_ids[position - 1]:
            raise CatalogError("changed while SIDs were made; run again", number)
        yield {**row, "sid": sids[position - 1].tolist()}
    if position != len(ad_ids):
        raise CatalogError(f"lost rows while SIDs were made: {position} of {len(ad_ids)} are left")


def _write_parquet(catalog: Path, out: Path, ad_ids: Sequence[str | int], sids: np.ndarray) -> None:
    try:
        with pq.ParquetFile(catalog) as source, atomic_write(out) as file:
            schema = _with_sid_field(source.schema_arrow)
            with pq.ParquetWriter(file, schema) as writer:
                start = 0
                for batch in source.iter_batches(BATCH_ROWS):
                    stop = start + batch.num_rows
                    if batch.column("ad_id").to_pylist() != ad_ids[start:stop]:
                        raise CatalogError("changed while SIDs were made; run again", start + 1)
                    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
                    columns["sid"] = _sid_column(sids[start:stop])
                    writer.write_batch(
                        pa.RecordBatch.from_arrays(
                            [columns[name] for name in schema.names], schema=schema
                        )
                    )
                    start = stop
            if start != len(ad_ids):
                raise CatalogError(f"lost rows while SIDs were made: {start} are left")
    except (pa.ArrowException, OSError) as error:
        raise CatalogError(f"{catalog} to {out}: {error}") from None


def _with_sid_field(schema: pa.Schema) -> pa.Schema:
    field = pa.field("sid", pa.list_(pa.int32()))
    position = schema.get_field_index("sid")
    return schema.append(field) if position < 0 else schema.set(position, field)


def _sid_column(sids: np.ndarray) -> pa.Array:
    offsets = np.arange(len(sids) + 1, dtype=np.int32) * sids.shape[1]
    return pa.ListArray.from_arrays(offsets, sids.ravel())
