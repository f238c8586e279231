"""Ray Serve on a CPU: two replicas, one killed under load; a new version published meanwhile."""

import asyncio
import http.client
import json

import pytest
from kserve_cases import free_port
from web_cases import ADS, REQUEST, SCHEMA, save_artefacts

import grace
from grace.errors import ConfigError
from grace.serve.config_file import make_config

ray = pytest.importorskip("ray", reason="Ray is an extra: pip install 'grace[ray]'")
serve = pytest.importorskip("ray.serve", reason="Ray Serve is an extra: pip install 'grace[ray]'")

from grace.serve.ray import app, ask, build  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ray")
    save_artefacts(folder)
    (folder / "serve.toml").write_text(
        '[index]\ndirectory = "index"\n[model]\ndirectory = "model"\n'
    )
    return folder


@pytest.fixture(scope="module")
def running(folder):
    """An application with two replicas: its handle and its HTTP port."""
    port = free_port()
    ray.init(
        address="local", num_cpus=4, include_dashboard=False, object_store_memory=100_000_000,
        log_to_driver=False, configure_logging=False,
    )  # fmt: skip
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        options = {"config": str(folder / "serve.toml"), "min_replicas": "2"}
        yield serve.run(app(options)), port
        serve.shutdown()
    finally:
        ray.shutdown()


def replicas():
    named = ray.util.list_named_actors(all_namespaces=True)
    names = [actor["name"] for actor in named if "#grace#" in actor["name"]]
    return [ray.get_actor(name, namespace="serve") for name in names]


def expected(folder):
    index = grace.Index.open(folder / "index")
    result = grace.Retriever(index, str(folder / "model")).retrieve([REQUEST])[0]
    return index.version, [ad.ad_id for ad in result.ads]


def test_a_killed_replica_costs_no_answer(running, folder):
    handle, _ = running
    version, ad_ids = expected(folder)
    assert ad_ids
    assert len(replicas()) == 2

    async def load():
        answers = []

        async def client(number):
            for i in range(30):
                answers.append(
                    await ask(handle, REQUEST | {"id": f"{number}-{i}"}, timeout_ms=30_000)
                )

        clients = [asyncio.ensure_future(client(number)) for number in range(4)]
        while len(answers) < 20:
            await asyncio.sleep(0.01)
        ray.kill(replicas()[0])
        await asyncio.gather(*clients)
        return answers

    answers = asyncio.run(load())
    assert {a["id"] for a in answers} == {f"{n}-{i}" for n in range(4) for i in range(30)}
    assert all([ad["ad_id"] for ad in a["ads"]] == ad_ids for a in answers)
    assert {a["version"] for a in answers} == {version}


class DyingHandle:
    """Whose replicas die with the first requests."""

    def __init__(self, deaths):
        self.deaths = deaths
        self.retrieve = self

    async def remote(self, raw, client, timeout_ms):
        self.deaths -= 1
        if self.deaths >= 0:
            raise ray.exceptions.ActorDiedError
        return json.dumps({"id": raw["id"]}).encode()


def test_a_request_is_asked_again_a_few_times():
    assert asyncio.run(ask(DyingHandle(3), {"id": 5})) == {"id": 5}
    with pytest.raises(ray.exceptions.RayActorError):
        asyncio.run(ask(DyingHandle(4), {"id": 5}))


def test_a_wrong_request_is_told_and_not_tried_again(running):
    answer = asyncio.run(ask(running[0], {"id": 1, "atributes": {}}))
    assert answer["error"]["field"] == "atributes"


def test_the_proxy_speaks_as_grace_serve_does(running, folder):
    connection = http.client.HTTPConnection("127.0.0.1", running[1], timeout=30)
    head = {"content-type": "application/json"}
    connection.request("POST", "/v1/retrieve", json.dumps(REQUEST), head)
    answer = json.loads(connection.getresponse().read())
    assert [ad["ad_id"] for ad in answer["ads"]] == expected(folder)[1]
    connection.request("GET", "/v2/models/grace")
    assert json.loads(connection.getresponse().read())["versions"] == [expected(folder)[0]]
    connection.close()


def test_replicas_move_to_a_new_version_by_themselves(running, folder):
    handle, _ = running
    old = expected(folder)
    grace.build_index(ADS[:100], SCHEMA, out=folder / "index")
    new = expected(folder)
    assert old != new

    async def follow():
        streak = 0
        for _ in range(2000):
            answer = await ask(handle, REQUEST, timeout_ms=30_000)
            got = answer["version"], [ad["ad_id"] for ad in answer["ads"]]
            assert got in (old, new)  # never a mixture
            streak = streak + 1 if got == new else 0
            if streak == 40:
                return
            await asyncio.sleep(0.005)
        raise AssertionError("a replica stayed behind")

    asyncio.run(follow())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "config: expected a TOML file"),
        ({"config": "serve.toml", "replicas": "2"}, "replicas: unknown option"),
        ({"config": "serve.toml", "min_replicas": "-1"}, "min_replicas: expected a number"),
        ({"config": "nowhere.toml"}, r"nowhere\.toml: cannot be read"),
    ],
)
def test_wrong_options_are_named(folder, monkeypatch, options, message):
    monkeypatch.chdir(folder)
    with pytest.raises(ConfigError, match=message):
        app(options)


def test_what_ray_cannot_do_is_refused():
    tables = {"index": {"directory": "i"}, "model": {"directory": "m"}}
    with pytest.raises(ConfigError, match="min_replicas must be from 1 to max_replicas"):
        build(make_config(tables), 3, 2)
    tls = {"http": {"tls_cert": "c", "tls_key": "k"}}
    with pytest.raises(ConfigError, match=r"http\.tls_cert"):
        build(make_config(tables | tls))
