"""Items → semantic IDs: item vectors, residual k-means, collisions, and a report on all three."""

from grace.sid.behaviour import behaviour_embeddings
from grace.sid.catalogue import fit_catalog, load_codebooks, save_codebooks
from grace.sid.embeddings import Source, combine, sentence_embeddings, text_embeddings
from grace.sid.fit import SidFit, assign_sids, fit_sids
from grace.sid.report import LevelReport, SidReport, SourceReport

__all__ = [
    "LevelReport",
    "SidFit",
    "SidReport",
    "Source",
    "SourceReport",
    "assign_sids",
    "behaviour_embeddings",
    "combine",
    "fit_catalog",
    "fit_sids",
    "load_codebooks",
    "save_codebooks",
    "sentence_embeddings",
    "text_embeddings",
]
