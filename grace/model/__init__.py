"""The encoder-decoder: features in, logits of SID tokens out."""

from grace.model.checkpoint import load_model, save_model
from grace.model.config import ModelConfig
from grace.model.encoder_decoder import DecodeBuffers, EncoderDecoder
from grace.model.features import FeatureSpec

__all__ = [
    "DecodeBuffers",
    "EncoderDecoder",
    "FeatureSpec",
    "ModelConfig",
    "load_model",
    "save_model",
]
