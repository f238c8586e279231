"""deploy/: the manifest is valid and agrees with itself and with `grace serve`; so is the image."""

import json
import re
import tomllib
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

from grace.serve.config_file import make_config
from grace.serve.kserve.http import routes
from grace.serve.metrics import Metrics
from grace.serve.security import OPEN_PATHS

ROOT = Path(__file__).parents[2]
KUBERNETES = "1.33"
# What KServe adds to a pod's spec to make a predictor.
EXTENSIONS = {"minReplicas", "maxReplicas", "timeout", "annotations"}
DOCUMENTS = list(yaml.safe_load_all((ROOT / "deploy" / "kserve.yaml").read_text()))
BY_KIND = {document["kind"]: document for document in DOCUMENTS}


def predictor():
    return BY_KIND["InferenceService"]["spec"]["predictor"]


def container():
    (only,) = predictor()["containers"]
    return only


def serve_config():
    return make_config(tomllib.loads(BY_KIND["ConfigMap"]["data"]["serve.toml"]))


@pytest.mark.parametrize("kind", [kind for kind in BY_KIND if kind != "InferenceService"])
def test_core_objects_follow_kubernetes_schema(kind):
    kubernetes_validate.validate(BY_KIND[kind], KUBERNETES, strict=True)


def test_the_inference_service_follows_its_schema_and_its_pod_kubernetes():
    service = BY_KIND["InferenceService"]
    schema = json.loads((Path(__file__).parent / "inferenceservice.schema.json").read_text())
    jsonschema.validate(service, schema)
    spec = {key: value for key, value in predictor().items() if key not in EXTENSIONS}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "grace"}, "spec": spec}
    kubernetes_validate.validate(pod, KUBERNETES, strict=True)


def test_a_misspelt_key_would_be_noticed():
    wrong = json.loads(json.dumps(BY_KIND["HorizontalPodAutoscaler"]))
    wrong["spec"]["maxReplica"] = wrong["spec"].pop("maxReplicas")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, KUBERNETES, strict=True)


def test_objects_refer_to_each_other():
    name = BY_KIND["InferenceService"]["metadata"]["name"]
    scaler = BY_KIND["HorizontalPodAutoscaler"]["spec"]
    assert scaler["scaleTargetRef"]["name"] == f"{name}-predictor"
    for key in ("minReplicas", "maxReplicas"):
        assert scaler[key] == predictor()[key]
    label = {"serving.kserve.io/inferenceservice": name}
    assert label.items() <= BY_KIND["Service"]["spec"]["selector"].items()
    assert BY_KIND["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == label
    volumes = {volume["name"]: volume for volume in predictor()["volumes"]}
    assert {mount["name"] for mount in container()["volumeMounts"]} == set(volumes)
    claim = volumes["data"]["persistentVolumeClaim"]["claimName"]
    assert claim == BY_KIND["PersistentVolumeClaim"]["metadata"]["name"]
    assert volumes["config"]["configMap"]["name"] == BY_KIND["ConfigMap"]["metadata"]["name"]


def test_ports_probes_and_paths_are_those_of_the_configuration():
    config = serve_config()
    ports = {port["name"]: port["containerPort"] for port in container()["ports"]}
    assert ports == {"http1": config.http.port, "grpc": config.grpc.port}
    assert BY_KIND["Service"]["spec"]["ports"][0]["targetPort"] == config.grpc.port
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = container()[probe]["httpGet"]
        assert asked["port"] == config.http.port
        assert asked["path"] in OPEN_PATHS  # also where tokens are set
        assert asked["path"] in {route.path for route in routes(None, config)}
    annotations = predictor()["annotations"]
    assert annotations["prometheus.io/port"] == str(config.http.port)
    mounts = {mount["name"]: mount["mountPath"] for mount in container()["volumeMounts"]}
    for directory in (config.index.directory, config.model.directory):
        assert directory.startswith(mounts["data"] + "/")
    assert container()["args"] == ["serve", "--config", mounts["config"] + "/serve.toml"]
    assert predictor()["terminationGracePeriodSeconds"] > config.http.drain_timeout_s
    assert container()["resources"]["limits"]["nvidia.com/gpu"] == 1


def test_the_autoscaler_counts_what_the_server_tells(shared):
    (metric,) = BY_KIND["HorizontalPodAutoscaler"]["spec"]["metrics"]
    text = Metrics(shared[0]).render()[0].decode()
    assert re.search(rf"^{metric['pods']['metric']['name']} ", text, re.MULTILINE)
    batches = 2 * serve_config().batching.max_batch
    assert metric["pods"]["target"]["averageValue"] == str(batches)


def test_the_image_copies_what_is_there_and_starts_what_the_manifest_starts():
    lines = (ROOT / "deploy" / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    steps = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    assert {word for word, _ in steps} <= {
        "FROM", "ARG", "RUN", "ENV", "WORKDIR", "COPY", "USER", "EXPOSE", "ENTRYPOINT", "CMD",
    }  # fmt: skip
    for word, rest in steps:
        if word == "COPY" and not rest.startswith("--from"):
            assert all((ROOT / source).exists() for source in rest.split()[:-1]), rest
    said = dict(steps)
    assert json.loads(said["ENTRYPOINT"]) + json.loads(said["CMD"]) == [
        "grace",
        *container()["args"],
    ]
    assert int(said["USER"]) == predictor()["securityContext"]["runAsUser"]
    assert said["EXPOSE"].split() == [str(p["containerPort"]) for p in container()["ports"]]
