import yaml
from model_cases import SCHEMA
from train_cases import INDEX, SPEC, train_rows, valid_rows, write_jsonl
from typer.testing import CliRunner

import grace
from grace.cli import app
from grace.model import load_model


def test_the_command_trains_and_says_what_it_left_out(tmp_path):
    rows = [{"ad_id": INDEX.ad_id(p), "sid": INDEX.sids[INDEX.ad_sid[p]].tolist(), "rules": {}}
            for p in range(INDEX.num_ads)]  # fmt: skip
    grace.build_index(rows, SCHEMA, out=tmp_path / "index")
    (tmp_path / "features.yaml").write_text(
        yaml.safe_dump({"fields": [{"name": f.name, "kind": f.kind} for f in SPEC.fields]})
    )
    (tmp_path / "config.toml").write_text(
        "[model]\nmodel_dim = 8\n[train]\nepochs = 1\ncuts_per_row = 1\n"
    )
    write_jsonl(tmp_path / "train.jsonl", train_rows())
    write_jsonl(tmp_path / "valid.jsonl", [*valid_rows(), {"features": {}, "target": "none"}])
    files = {"index": "index", "features": "features.yaml", "train": "train.jsonl",
             "valid": "valid.jsonl", "config": "config.toml", "out": "run"}  # fmt: skip
    options = [text for name, file in files.items() for text in (f"--{name}", tmp_path / file)]
    command = ["train", *map(str, options)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert "epoch 1 of 1: validation loss" in result.output
    assert "skipped, not in the index: 1 targets, 0 events" in result.output
    assert load_model(tmp_path / "run").config.model_dim == 8
    resumed = CliRunner().invoke(app, [*command, "--resume"])
    assert resumed.output == result.output
    refused = CliRunner().invoke(app, command)
    assert refused.exit_code == 2
    assert "holds a run; pass --resume" in refused.output
