"""Files of Compose, Kubernetes, Prometheus, Grafana and systemd: what they name exists, and tools accept them."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from deploy.grafana.make import FILE, dashboard
from deploy.helm.make import CHART, MODES, VALUES, applies, files, manifests, place, tool
from docs.generate.service import ask
from sash.settings import Settings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
BASE = DEPLOY / "kubernetes" / "base"
OVERLAYS = sorted(path.parent for path in (DEPLOY / "kubernetes").rglob("kustomization.yaml"))
SETTINGS = {f"SASH_{name.upper()}" for name in Settings.model_fields}
RECORDED = re.compile(r"\bsash:\w+:\w+")
KUBERNETES = "1.33"


def needs(name):
    return pytest.mark.skipif(not shutil.which(tool(name)), reason=f"{name} is not installed")


def done(*command):
    ran = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def read(path):
    return yaml.safe_load(path.read_text())


@pytest.fixture(scope="module")
def series():
    """The names of all series of a service, and of the one that only a service of several processes has."""
    families = list(text_string_to_metric_families(ask().metrics))
    counted = {f"{family.name}_total" for family in families if family.type == "counter"}  # also what has no labels yet
    return {sample.name for family in families for sample in family.samples} | counted | {"sash_process_up"}


def names_in(expression):
    return set(re.findall(r"\b(?:sash|process)_\w+", re.sub(r'"[^"]*"', "", expression)))


# -------------------------------------------------------------------- Compose


def test_compose():
    document = read(DEPLOY / "compose.yaml")
    services, image = document["services"], re.compile(r"[\w./-]+:v?\d+(\.\d+)+")
    assert set(services) == {"sash", "valkey", "prometheus", "grafana"}
    assert set(services["sash"]["environment"]) <= SETTINGS
    assert "yes" in services["valkey"]["command"][services["valkey"]["command"].index("--appendonly") :]
    for name, service in services.items():
        assert name == "sash" or image.fullmatch(service["image"]), "an image has a version"
        assert set(service["networks"]) <= set(document["networks"])
        assert set(service.get("secrets", ())) <= set(document["secrets"])
        assert set(service.get("depends_on", ())) <= set(services)
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert (DEPLOY / source).exists() if source.startswith(".") else source in document["volumes"]
    build = services["sash"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()


@needs("docker")
def test_compose_is_accepted(monkeypatch):
    if subprocess.run(["docker", "compose", "version"], capture_output=True).returncode:
        pytest.skip("docker has no compose")
    monkeypatch.setenv("GRAFANA_PASSWORD", "x")
    done("docker", "compose", "-f", DEPLOY / "compose.yaml", "config", "--quiet")


# -------------------------------------------------------------------- Kubernetes


def test_kubernetes_manifests_follow_the_schemas():
    for path in BASE.glob("*.yaml"):
        if path.name != "kustomization.yaml":
            kubernetes_validate.validate(read(path), KUBERNETES, strict=True)


def test_the_schemas_would_notice():
    wrong = read(BASE / "statefulset.yaml")
    wrong["spec"]["template"]["spec"]["containers"][0]["port"] = []
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, KUBERNETES, strict=True)


@pytest.fixture(scope="module")
def built():
    """The manifests of each mode, by kind and name."""
    return {mode: {(each["kind"], each["metadata"]["name"]): each for each in manifests(mode)} for mode in MODES}


@needs("kubectl")
@pytest.mark.parametrize("mode", MODES)
def test_kubernetes_overlays_are_built_and_follow_the_schemas(built, mode):
    assert sorted(MODES.values()) == OVERLAYS
    documents = built[mode]
    kinds = {"ConfigMap", "NetworkPolicy", "PodDisruptionBudget", "Service", "StatefulSet"}
    assert {kind for kind, _ in documents} == kinds - ({"PodDisruptionBudget"} if mode == "standby" else set())
    for document in documents.values():
        kubernetes_validate.validate(document, KUBERNETES, strict=True)
    stateful = documents["StatefulSet", "sash"]["spec"]
    pod = stateful["template"]["spec"]
    (container,) = pod["containers"]
    mounted = {each["name"] for each in container["volumeMounts"]}
    claims = {each["metadata"]["name"] for each in stateful.get("volumeClaimTemplates") or ()}
    assert mounted == claims | {each["name"] for each in pod["volumes"]}
    assert ("Service", stateful["serviceName"]) in documents
    assert set(documents["ConfigMap", "sash"]["data"]) <= SETTINGS
    names = {each["name"] for each in container.get("env", ())}
    assert {name for name in names if name.startswith("SASH_")} <= SETTINGS
    if mode != "volume":
        assert not claims
        assert "SASH_DATA" in names
        assert "6379" in json.dumps(documents["NetworkPolicy", "sash"]["spec"]["egress"])


@needs("kubectl")
def test_pods_that_share_shards_reach_each_other(built):
    """By a name of each, on a port that the policy opens, and as the certificate allows."""
    documents = built["sharded"]
    stateful = documents["StatefulSet", "sash"]["spec"]
    settings = documents["ConfigMap", "sash"]["data"]
    (container,) = stateful["template"]["spec"]["containers"]
    env = {each["name"]: each.get("value") for each in container["env"]}
    peers = documents["Service", "sash-peers"]["spec"]
    assert (stateful["replicas"], stateful["serviceName"], stateful["podManagementPolicy"]) == (
        3,
        "sash-peers",
        "Parallel",
    )
    assert env["SASH_ADDRESS"] == "$(POD_NAME).sash-peers"
    assert (peers["clusterIP"], peers["publishNotReadyAddresses"]) == ("None", True)
    assert peers["selector"] == stateful["template"]["metadata"]["labels"]
    assert int(settings["SASH_SHARDS"]) >= 4 * stateful["replicas"]
    port = int(settings["SASH_PEER_PORT"])
    assert {each["name"]: each["containerPort"] for each in container["ports"]}["peer"] == port
    assert port in {each["port"] for each in peers["ports"]}
    policy = documents["NetworkPolicy", "sash"]["spec"]
    own = [{"podSelector": {"matchLabels": peers["selector"]}}]
    assert [each["ports"] for each in policy["ingress"] if each["from"] == own] == [
        [{"port": "peer", "protocol": "TCP"}]
    ]
    assert [each["ports"] for each in policy["egress"] if each["to"] == own] == [[{"port": port, "protocol": "TCP"}]]
    assert settings["SASH_TLS_PEER_NAME"] in settings["SASH_ALLOWED_HOSTS"].split(",")
    budget = documents["PodDisruptionBudget", "sash"]["spec"]
    assert (budget["maxUnavailable"], budget.get("minAvailable")) == (1, None)


@needs("kubectl")
def test_a_standby_is_waited_for(built):
    documents = built["standby"]
    stateful = documents["StatefulSet", "sash"]["spec"]
    (container,) = stateful["template"]["spec"]["containers"]
    assert documents["ConfigMap", "sash"]["data"]["SASH_STANDBY"] == "1"
    assert (stateful["replicas"], stateful["podManagementPolicy"]) == (2, "Parallel")
    assert stateful["updateStrategy"] == {"type": "OnDelete"}, "a standby is never ready"
    probe = container["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] > 365 * 86400


# -------------------------------------------------------------------- Helm


def rendered(mode, *given):
    text = done(tool("helm"), "template", "x", CHART, "--set", f"mode={mode}", *given)
    return [document for document in yaml.safe_load_all(text) if document]


def by_name(documents):
    return {(each["kind"], each["metadata"]["name"]): each for each in documents}


@needs("kubectl")
def test_the_chart_is_made_of_the_manifests():
    for path, text in files():
        assert path.read_text() == text, "python -m deploy.helm.make"


@needs("helm")
@pytest.mark.parametrize("mode", MODES)
def test_the_chart_renders_the_manifests(built, mode):
    assert by_name(rendered(mode)) == built[mode]


@needs("helm")
@pytest.mark.parametrize("mode", MODES)
def test_values_of_the_chart_are_in_their_places(built, mode):
    """Those that the mode has, and nothing else changes."""
    changes = {name: (f"{name}=other-{name}", lambda old, name=name: f"other-{name}") for name in VALUES}
    changes |= {
        "resources": ("resources.limits.memory=4Gi", lambda old: old | {"limits": {"memory": "4Gi"}}),
        "settings": ("settings.SASH_CACHE_BYTES=7", lambda old: old | {"SASH_CACHE_BYTES": "7"}),
        "replicas": ("replicas=7", lambda old: 7),
    }
    wanted = [json.loads(json.dumps(document)) for document in built[mode].values()]
    for name, (_, expected) in changes.items():
        if applies(name, mode):
            inside, last = place(wanted, VALUES[name][0])
            inside[last] = expected(inside[last])
    given = [word for setting, _ in changes.values() for word in ("--set", setting)]
    assert by_name(rendered(mode, *given)) == by_name(wanted)


@needs("helm")
def test_the_chart_has_no_other_modes():
    ran = subprocess.run([tool("helm"), "template", "x", CHART, "--set", "mode=none"], capture_output=True, text=True)
    assert ran.returncode != 0
    assert "mode is one of volume, redis, sharded, standby" in ran.stderr
    done(tool("helm"), "lint", CHART)


def test_kubernetes_manifests_agree_with_the_service_and_the_image():
    stateful, service, config = (read(BASE / f"{name}.yaml") for name in ("statefulset", "service", "configmap"))
    kustomization = read(BASE / "kustomization.yaml")
    assert {*kustomization["resources"], "kustomization.yaml"} == {path.name for path in BASE.iterdir()}
    assert set(config["data"]) <= SETTINGS
    pod = stateful["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert set(ports.values()) == {Settings.model_fields[name].default for name in ("grpc_port", "rest_port")}
    assert {port["targetPort"] for port in service["spec"]["ports"]} == set(ports)
    image = (ROOT / "Dockerfile").read_text()
    assert f"--uid {pod['securityContext']['runAsUser']}" in image
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert f"SASH_DATA={mounts['data']}\n" in image
    for name in ("SASH_TOKENS", "SASH_TLS_CERT", "SASH_TLS_KEY"):
        assert any(config["data"][name].startswith(mount + "/") for mount in mounts.values())
    waits_s = sum(float(config["data"][f"SASH_SHUTDOWN_{name}_S"]) for name in ("DELAY", "GRACE"))
    assert pod["terminationGracePeriodSeconds"] > waits_s + 10, "a last checkpoint takes its time"
    probed = {container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")}
    assert probed == {"/healthz", "/readyz"}
    labels = stateful["spec"]["selector"]["matchLabels"]
    for found in (
        stateful["spec"]["template"]["metadata"]["labels"],
        service["spec"]["selector"],
        read(BASE / "poddisruptionbudget.yaml")["spec"]["selector"]["matchLabels"],
        read(BASE / "networkpolicy.yaml")["spec"]["podSelector"]["matchLabels"],
    ):
        assert found == labels


# -------------------------------------------------------------------- Prometheus


@pytest.fixture(scope="module")
def rules():
    return [rule for group in read(DEPLOY / "prometheus" / "rules.yaml")["groups"] for rule in group["rules"]]


@needs("promtool")
def test_alerts_fire_when_they_should():
    done("promtool", "check", "config", DEPLOY / "prometheus" / "prometheus.yml")
    done("promtool", "test", "rules", DEPLOY / "prometheus" / "rules_test.yaml")


def test_each_alert_has_a_test_and_is_in_the_runbook(rules):
    tests = read(DEPLOY / "prometheus" / "rules_test.yaml")["tests"]
    fired = {case["alertname"] for test in tests for case in test["alert_rule_test"] if case.get("exp_alerts")}
    silent = {case["alertname"] for case in tests[0]["alert_rule_test"] if not case.get("exp_alerts")}
    alerts = {rule["alert"] for rule in rules if "alert" in rule}
    runbook = (ROOT / "docs/operations/runbook.md").read_text()
    assert fired == silent == alerts == set(re.findall(r"`(Sash[A-Z]\w+)`", runbook))
    anchors = {re.sub(r"\W+", "-", title.lower()) for title in re.findall(r"^#+ (.*)$", runbook, re.MULTILINE)}
    for rule in rules:
        if "alert" in rule:
            page, anchor = rule["annotations"]["runbook"].split("#")
            assert (ROOT / page).exists()
            assert anchor in anchors


def test_each_line_of_the_runbook_has_an_alert():
    table = re.findall(r"^\| (.*) \|$", (ROOT / "docs/operations/runbook.md").read_text(), re.MULTILINE)
    assert table[0].split(" | ")[1] == "alert"
    assert len(table) > 10
    for line in table[2:]:
        assert re.match(r"`Sash\w+`", line.split(" | ")[1]), line


def test_rules_name_series_that_exist(rules, series):
    recorded = {rule["record"] for rule in rules if "record" in rule}
    for rule in rules:
        assert names_in(rule["expr"]) <= series, rule
        assert set(RECORDED.findall(rule["expr"])) <= recorded


# -------------------------------------------------------------------- Grafana


def test_the_dashboard_is_made_of_the_metrics_that_there_are():
    made, told = json.loads(FILE.read_text()), dashboard(ask().metrics)
    assert [panel["title"] for panel in made["panels"]] == [panel["title"] for panel in told["panels"]], (
        "python -m deploy.grafana.make"
    )
    assert made == told


def test_the_dashboard_shows_every_metric_and_no_others(series):
    panels = json.loads(FILE.read_text())["panels"]
    shown = {name for panel in panels for line in panel.get("targets", ()) for name in names_in(line["expr"])}
    assert shown <= series
    alone = series - {"sash_process_up"}
    base = {re.sub(r"_(bucket|count|sum)$", "", name) for name in alone if name.startswith("sash_")}
    assert {re.sub(r"_(bucket|count|sum)$", "", name) for name in shown if name.startswith("sash_")} == base
    ids = [panel["id"] for panel in panels]
    assert len(set(ids)) == len(ids)


@needs("promtool")
def test_the_expressions_of_the_dashboard_are_promql(tmp_path):
    panels = json.loads(FILE.read_text())["panels"]
    lines = [line["expr"] for panel in panels for line in panel.get("targets", ())]
    rules = [
        {"record": f"x:{number}", "expr": line.replace("$__rate_interval", "1m")} for number, line in enumerate(lines)
    ]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "x", "rules": rules}]}))
    done("promtool", "check", "rules", tmp_path / "rules.yaml")


def test_grafana_finds_its_data_source_and_the_dashboards():
    (source,) = read(DEPLOY / "grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    assert source["type"] == "prometheus"
    assert source["url"].startswith("http://prometheus:")
    (windows,) = read(DEPLOY / "grafana/provisioning/datasources/sash.yaml")["datasources"]
    assert windows["url"] == "http://sash:7071/prometheus"
    variable = windows["secureJsonData"]["httpHeaderValue1"].removeprefix("Bearer $")
    assert variable in read(DEPLOY / "compose.yaml")["services"]["grafana"]["environment"]
    (provider,) = read(DEPLOY / "grafana/provisioning/dashboards/sash.yaml")["providers"]
    mounts = [each.split(":")[1] for each in read(DEPLOY / "compose.yaml")["services"]["grafana"]["volumes"]]
    assert provider["options"]["path"] in mounts


# -------------------------------------------------------------------- systemd


@needs("systemd-analyze")
def test_systemd_accepts_the_unit(tmp_path):
    unit = tmp_path / "sash.service"
    given = (DEPLOY / "sash.service").read_text()
    unit.write_text(given.replace("/opt/sash/bin/sash", shutil.which("true")))
    ran = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
    said = [line for line in ran.stderr.splitlines() if "sash.service" in line]
    assert (ran.returncode, said) == (0, [])


@needs("systemd-analyze")
def test_the_unit_is_rated_safe():
    """From 0 (nothing may be done) to 10 (everything); a unit without any protection has 9.6."""
    if "--offline" not in done("systemd-analyze", "--help"):
        pytest.skip("this systemd rates running units only")
    done("systemd-analyze", "security", "--offline=true", "--threshold=20", DEPLOY / "sash.service")
