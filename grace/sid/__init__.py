"""Items → semantic IDs: item vectors, quantisers, collisions, and a report on all three."""

from grace.sid.behaviour import behaviour_embeddings
from grace.sid.catalogue import fit_catalog
from grace.sid.codebooks import load_autoencoder, load_codebooks, save_codebooks
from grace.sid.embeddings import Source, combine, sentence_embeddings, text_embeddings
from grace.sid.fit import SidFit, assign_sids, fit_sids
from grace.sid.report import LevelReport, PrefixReport, SidReport, SourceReport
from grace.sid.rq_vae import RqVaeConfig

__all__ = [
    "LevelReport",
    "PrefixReport",
    "RqVaeConfig",
    "SidFit",
    "SidReport",
    "Source",
    "SourceReport",
    "assign_sids",
    "behaviour_embeddings",
    "combine",
    "fit_catalog",
    "fit_sids",
    "load_autoencoder",
    "load_codebooks",
    "save_codebooks",
    "sentence_embeddings",
    "text_embeddings",
]
