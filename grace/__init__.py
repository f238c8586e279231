"""Grace: generative retrieval that stays inside the catalogue and inside what a request may see.

import grace

index = grace.build_index("catalog.jsonl", "schema.yaml", out="index")
retriever = grace.Retriever(index, "model", grace.BeamPlan((1, 256, 256), 256))
results = retriever.retrieve([{"id": "u1", "attributes": {"age": 34}, "features": {}}])
"""

from grace.decode import BeamPlan
from grace.errors import GraceError
from grace.index import Index, build_index
from grace.retrieve import Ad, Result, Retriever

__all__ = ["Ad", "BeamPlan", "GraceError", "Index", "Result", "Retriever", "build_index"]
