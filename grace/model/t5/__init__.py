"""T5 over SID tokens: a model in the layout of Hugging Face, and as retrieval runs it."""

from grace.model.t5.config import T5Config
from grace.model.t5.hugging_face import load_hf, save_hf
from grace.model.t5.module import T5
from grace.model.t5.token_map import TokenMap, assembled, shifted

__all__ = ["T5", "T5Config", "TokenMap", "assembled", "load_hf", "save_hf", "shifted"]
