import pytest
from model_cases import small_config

from grace.errors import ConfigError
from grace.model import ModelConfig
from grace.model.config import config_from_table


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"model_dim": 0}, "model_dim must be at least 1, got 0"),
        ({"model_dim": 10**30}, "model_dim must be at most 65536, got 1000000"),
        ({"num_context_tokens": 65_537}, "num_context_tokens must be at most 65536, got 65537"),
        ({"vocab_size": 10**5000}, "vocab_size must be at most 2147483647, got a int"),
        ({"num_heads": 2.0}, "num_heads must be a int, got 2.0"),
        ({"num_levels": True}, "num_levels must be a int, got True"),
        ({"dropout": 1}, "dropout must be at least 0 and below 1, got 1"),
        ({"dropout": float("nan")}, "dropout must be"),
        ({"num_recent_tokens": 6}, "at most num_context_tokens (5), got 6"),
        ({"num_recent_tokens": -1}, "num_recent_tokens must be at least 0, got -1"),
    ],
)
def test_wrong_sizes_are_refused(sizes, message):
    with pytest.raises(ConfigError) as caught:
        small_config(**sizes)
    assert message in str(caught.value)


def test_tables_are_checked_for_unknown_and_missing_keys():
    with pytest.raises(ConfigError, match=r"\[model\]: unknown key 'layers'; known keys: num_lev"):
        config_from_table(ModelConfig, {"layers": 3}, "[model]")
    with pytest.raises(ConfigError, match=r"\[model\]: the key 'vocab_size' is missing"):
        config_from_table(ModelConfig, {"num_levels": 3}, "[model]")
    assert config_from_table(ModelConfig, {"num_levels": 3, "vocab_size": 9}, "").num_levels == 3
