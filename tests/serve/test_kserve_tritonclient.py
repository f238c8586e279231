"""Unchanged tritonclient clients against a real engine: their answers are the Retriever's."""

import asyncio
import json

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.grpc.aio as triton_grpc_aio
import tritonclient.http as triton_http
import tritonclient.http.aio as triton_http_aio
from kserve_cases import (
    LEVELS,
    REQUESTS,
    as_texts,
    expected,
    make_config,
    make_engine,
    make_index,
    serving,
)  # fmt: skip
from tritonclient.utils import InferenceServerException

CLIENTS = {"http": triton_http, "grpc": triton_grpc}


@pytest.fixture(scope="module", params=["text ids", "integer ids"])
def index(request):
    return make_index(integers=request.param == "integer ids")


@pytest.fixture(scope="module")
def addresses(index):
    engine = make_engine(index)
    with serving(engine, make_config()) as (http, grpc):
        yield {"http": http, "grpc": grpc}
    assert engine.drain(10)


@pytest.fixture(params=["http", "grpc"])
def transport(request):
    return request.param


@pytest.fixture
def client(transport, addresses):
    with CLIENTS[transport].InferenceServerClient(addresses[transport]) as client:
        yield client


def request_tensor(module, requests, **options):
    tensor = module.InferInput("request", [len(requests)], "BYTES")
    tensor.set_data_from_numpy(np.array(as_texts(requests), dtype=np.object_), **options)
    return tensor


def texts(result, name):
    """Return a BYTES output as text; where it came as JSON the client has left it text."""
    values = result.as_numpy(name).tolist()
    return [value if isinstance(value, str) else value.decode() for value in values]


def assert_answers(result, index, requests):
    """Compare every output with `Retriever.retrieve` over the same index."""
    wanted = expected(index, requests)
    assert result.as_numpy("counts").tolist() == [len(w.ads) for w in wanted]
    ads = [ad for w in wanted for ad in w.ads]
    assert texts(result, "ad_ids") == [str(ad.ad_id) for ad in ads]
    assert result.as_numpy("sids").shape == (len(ads), len(LEVELS))
    assert list(map(tuple, result.as_numpy("sids").tolist())) == [ad.sid for ad in ads]
    assert result.as_numpy("scores").dtype == np.float32
    assert result.as_numpy("scores").tolist() == [ad.score for ad in ads]
    assert [json.loads(f) for f in result.as_numpy("funnel")] == [w.funnel for w in wanted]
    errors = [w.error and f"{w.error['field']}: {w.error['message']}" for w in wanted]
    assert texts(result, "error") == [error or "" for error in errors]
    assert texts(result, "version") == [str(index.version)] * len(requests)


def test_all_requests_of_a_call_are_answered_as_the_retriever_answers_them(
    client, transport, index
):
    tensor = request_tensor(CLIENTS[transport], REQUESTS)
    result = client.infer("grace", [tensor], request_id="call-7")
    assert_answers(result, index, REQUESTS)
    assert sum(result.as_numpy("counts")) > 10
    response = result.get_response()
    assert (response["id"] if transport == "http" else response.id) == "call-7"


def test_wrong_requests_among_others_fail_alone(client, transport, index):
    requests = [REQUESTS[0], {"id": "x", "atributes": {}}, REQUESTS[1], {"id": None}]
    result = client.infer("grace", [request_tensor(CLIENTS[transport], requests)])
    assert_answers(result, index, requests)
    assert result.as_numpy("error").tolist()[1].startswith(b"atributes: ")


def test_text_that_is_no_json_fails_alone_too(client, transport, index):
    module = CLIENTS[transport]
    texts = [b"{", as_texts(REQUESTS)[0], b"\xff", b"[1]", b"[" * 40 + b"]" * 40, b'{"id": NaN}']
    tensor = module.InferInput("request", [len(texts)], "BYTES")
    tensor.set_data_from_numpy(np.array(texts, dtype=np.object_))
    result = client.infer("grace", [tensor])
    assert [bool(e) for e in result.as_numpy("error")] == [True, False] + [True] * 4
    assert (
        result.as_numpy("counts").tolist() == [0, len(expected(index, REQUESTS)[0].ads)] + [0] * 4
    )
    tensor = module.InferInput("request", [2], "BYTES")
    tensor.set_data_from_numpy(np.array([b"{", b"null"], dtype=np.object_))
    result = client.infer("grace", [tensor])
    assert result.as_numpy("sids").shape == (0, len(LEVELS))


def test_a_single_wrong_request_fails_the_call(client, transport):
    tensor = request_tensor(CLIENTS[transport], [{"id": 1, "attributes": {"age": "old"}}])
    with pytest.raises(InferenceServerException, match="age") as caught:
        client.infer("grace", [tensor])
    assert caught.value.status() == (
        "400" if transport == "http" else "StatusCode.INVALID_ARGUMENT"
    )


def test_requested_outputs_are_all_that_is_given(client, transport, index):
    module = CLIENTS[transport]
    outputs = [module.InferRequestedOutput(name) for name in ("scores", "counts")]
    result = client.infer("grace", [request_tensor(module, REQUESTS)], outputs=outputs)
    response = result.get_response()
    given = response["outputs"] if transport == "http" else response.outputs
    names = [o["name"] if transport == "http" else o.name for o in given]
    assert names == ["scores", "counts"]
    assert result.as_numpy("counts").tolist() == [len(w.ads) for w in expected(index, REQUESTS)]
    outputs = [module.InferRequestedOutput("prices")]
    with pytest.raises(InferenceServerException, match=r"outputs: .* got 'prices'"):
        client.infer("grace", [request_tensor(module, REQUESTS)], outputs=outputs)


def test_top_k_of_the_call_counts_where_a_request_has_none(client, transport, index):
    tensor = request_tensor(CLIENTS[transport], REQUESTS)
    result = client.infer("grace", [tensor], parameters={"top_k": 2})
    assert_answers(result, index, [{"top_k": 2} | request for request in REQUESTS])


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"top_k": -1}, "top_k"),
        ({"topk": 1}, "topk: unknown parameter"),
        ({"top_k": "3"}, "top_k"),
    ],
)
def test_wrong_parameters_are_named(client, transport, parameters, message):
    tensor = request_tensor(CLIENTS[transport], REQUESTS)
    with pytest.raises(InferenceServerException, match=message):
        client.infer("grace", [tensor], parameters=parameters)


def test_columns_make_the_same_requests(client, transport, index):
    module = CLIENTS[transport]
    requests = [r for r in REQUESTS if r["id"] != 2]
    columns = {
        "id": np.array([r["id"].encode() for r in requests], np.object_),
        "attributes": np.array(as_texts([r["attributes"] for r in requests]), np.object_),
        "features": np.array(as_texts([r["features"] for r in requests]), np.object_),
        "at": np.array([b"2026-03-01T12:00:00Z"] * 3, np.object_),
        "top_k": np.array([4, 5, 6], np.int64),
    }
    inputs = []
    for name, values in columns.items():
        datatype = "INT64" if values.dtype == np.int64 else "BYTES"
        inputs.append(module.InferInput(name, [3], datatype))
        inputs[-1].set_data_from_numpy(values)
    same = [
        r | {"top_k": 4 + i, "at": "2026-03-01T12:00:00Z"} for i, r in enumerate(requests)
    ]  # fmt: skip
    assert_answers(client.infer("grace", inputs), index, same)
    with pytest.raises(InferenceServerException, match="give it alone"):
        client.infer("grace", [inputs[0], request_tensor(module, requests)])
    two = module.InferInput("top_k", [2], "INT32")
    two.set_data_from_numpy(np.array([1, 2], np.int32))
    with pytest.raises(InferenceServerException, match="same number"):
        client.infer("grace", [inputs[0], two])


def test_json_in_and_out_over_http(addresses, index):
    with triton_http.InferenceServerClient(addresses["http"]) as client:
        tensor = request_tensor(triton_http, REQUESTS, binary_data=False)
        names = ("ad_ids", "scores", "sids", "counts", "version", "funnel", "error")
        for binary in (False, True):
            outputs = [triton_http.InferRequestedOutput(name, binary_data=binary) for name in names]
            assert_answers(client.infer("grace", [tensor], outputs=outputs), index, REQUESTS)
        for algorithm in ("gzip", "deflate"):
            result = client.infer("grace", [tensor], request_compression_algorithm=algorithm)
            assert_answers(result, index, REQUESTS)


def test_what_the_server_and_the_model_say_of_themselves(client, transport, index):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("grace")
    assert client.is_model_ready("grace", str(index.version))
    assert not client.is_model_ready("grace", "1999")
    assert not client.is_model_ready("grice")
    as_json = {} if transport == "http" else {"as_json": True}
    assert client.get_server_metadata(**as_json)["name"] == "grace"
    model = client.get_model_metadata("grace", **as_json)
    assert model["versions"] == [str(index.version)]
    assert [tensor["name"] for tensor in model["inputs"]] == ["request"]
    shapes = {o["name"]: [int(s) for s in o["shape"]] for o in model["outputs"]}
    assert shapes["sids"] == [-1, len(LEVELS)]
    config = client.get_model_config("grace", **as_json)
    config = config.get("config", config)
    assert config["name"] == "grace"
    assert {i["name"] for i in config["input"]} > {"request", "features"}
    assert {o["data_type"] for o in config["output"]} == {"TYPE_STRING", "TYPE_FP32", "TYPE_INT64"}


@pytest.mark.parametrize(("name", "version"), [("grice", ""), ("grace", "1999")])
def test_another_model_or_version_is_not_found(client, transport, name, version):
    status = "404" if transport == "http" else "StatusCode.NOT_FOUND"
    tensor = request_tensor(CLIENTS[transport], REQUESTS)
    with pytest.raises(InferenceServerException) as caught:
        client.infer(name, [tensor], model_version=version)
    assert caught.value.status() == status
    with pytest.raises(InferenceServerException) as caught:
        client.get_model_metadata(name, version)
    assert caught.value.status() == status


def test_the_served_version_may_be_named(client, transport, index):
    tensor = request_tensor(CLIENTS[transport], REQUESTS)
    result = client.infer("grace", [tensor], model_version=str(index.version))
    assert_answers(result, index, REQUESTS)


def test_asyncio_clients_many_calls_at_once(addresses, index):
    async def ask(module, url):
        async with module.InferenceServerClient(url) as client:
            calls = [client.infer("grace", [request_tensor(module, REQUESTS)]) for _ in range(8)]
            return await asyncio.gather(*calls)

    for module, url in ((triton_http_aio, "http"), (triton_grpc_aio, "grpc")):
        for result in asyncio.run(ask(module, addresses[url])):
            assert_answers(result, index, REQUESTS)
