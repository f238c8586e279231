"""docs/kserve.md: its examples run as printed, against a server on the ports that they name."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import orjson
import pytest
from kserve_cases import expected, make_config, make_engine, make_index, serving

PAGE = (Path(__file__).parents[2] / "docs" / "kserve.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def index():
    return make_index()


@pytest.fixture(scope="module")
def addresses(index):
    engine = make_engine(index)
    with serving(engine, make_config()) as addresses:
        yield addresses
    engine.drain(10)


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_the_python_example_prints_the_retrievers_ads(addresses, index, transport, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    code = code.replace("tritonclient.http", f"tritonclient.{transport}")
    code = code.replace("127.0.0.1:8000", addresses[transport == "grpc"])
    names = {}
    exec(compile(code, "docs/kserve.md", "exec"), names)
    names["client"].close()
    printed = capsys.readouterr().out.splitlines()
    for line, wanted in zip(printed, expected(index, names["requests"]), strict=True):
        assert line.startswith(str([ad.ad_id for ad in wanted.ads[:3]]))


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_curl_example_answers(addresses, index):
    (command,) = re.findall(r"```sh\n(curl.*?)```", PAGE, re.DOTALL)
    arguments = shlex.split(command.replace("127.0.0.1:8000", addresses[0]))
    answer = orjson.loads(subprocess.run(arguments, capture_output=True, check=True).stdout)
    wanted = expected(index, [{"id": "u1", "attributes": {"age": 34}}])[0]
    ad_ids, scores = answer["outputs"]
    assert ad_ids["data"] == [ad.ad_id for ad in wanted.ads]
    assert scores["data"] == [ad.score for ad in wanted.ads]
