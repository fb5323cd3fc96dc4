#!/usr/bin/env python3
"""Dashboard, rules and metrics against a real Prometheus: usage: prometheus_peer.py PAGODA_BINARY

Serves on the simulated device and on what tests have instead of a GPU (the targets fake_cuda_module and fake_nvml), loads both with
`pagoda bench`, the first with clients that misbehave too, kills a worker, and runs every query
of deploy/grafana/pagoda.json and deploy/prometheus/rules.yaml: each has an answer with a number in it. Needs prometheus and
promtool (Debian package prometheus); says so and passes where they are missing and cannot be installed.
"""
import contextlib
import http.client
import json
import math
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
DASHBOARD = ROOT / "deploy/grafana/pagoda.json"
RULES = ROOT / "deploy/prometheus/rules.yaml"
LOAD_SECONDS = float(os.environ.get("PAGODA_LOAD_SECONDS", "45"))
RATE_INTERVAL = "30s"  # what Grafana would say for this scrape interval and window

# Families that a daemon has to show.
CONTRACT = """
pagoda_build_info pagoda_model_info pagoda_kv_cache_config_info pagoda_up_state pagoda_requests_running
pagoda_requests_waiting pagoda_requests_swapped pagoda_requests_received_total pagoda_requests_finished_total
pagoda_requests_rejected_total pagoda_prompt_tokens_total pagoda_generation_tokens_total pagoda_spec_draft_tokens_total
pagoda_spec_accepted_tokens_total pagoda_spec_drafts_total pagoda_kv_blocks pagoda_kv_cache_usage_ratio
pagoda_prefix_cache_query_tokens_total pagoda_prefix_cache_hit_tokens_total pagoda_preemptions_total pagoda_kv_evictions_total
pagoda_time_to_first_token_seconds pagoda_inter_token_latency_seconds pagoda_request_duration_seconds
pagoda_request_queue_seconds pagoda_request_prefill_seconds pagoda_request_decode_seconds pagoda_request_tokenize_seconds
pagoda_request_prompt_tokens pagoda_request_generation_tokens pagoda_step_duration_seconds pagoda_step_tokens
pagoda_step_batch_size pagoda_load_seconds pagoda_stream_stalls_total pagoda_stream_messages_total
pagoda_stream_coalesced_tokens_total pagoda_cancel_to_free_seconds pagoda_http_connections pagoda_grpc_streams
pagoda_device_info pagoda_gpu_busy_seconds_total pagoda_collective_seconds_total pagoda_cuda_graph_replays_total
pagoda_cuda_graph_captures_total pagoda_cuda_eager_steps_total pagoda_gpu_memory_bytes
process_cpu_seconds_total process_resident_memory_bytes process_open_fds process_max_fds process_start_time_seconds
""".split()
# And where a driver's library tells them.
GPU_FAMILIES = """
pagoda_gpu_up pagoda_gpu_utilization_ratio pagoda_gpu_memory_capacity_bytes pagoda_gpu_power_watts pagoda_gpu_energy_joules_total
pagoda_gpu_temperature_celsius pagoda_gpu_sm_clock_hertz pagoda_gpu_throttled pagoda_gpu_ecc_uncorrected_errors_total
""".split()
# Of vLLM: what endpoint pickers and its users' dashboards ask for.
ALIASES = """
num_requests_running num_requests_waiting kv_cache_usage_perc cache_config_info lora_requests_info num_preemptions_total
prompt_tokens_total generation_tokens_total request_success_total prefix_cache_queries_total prefix_cache_hits_total
time_to_first_token_seconds inter_token_latency_seconds request_time_per_output_token_seconds e2e_request_latency_seconds
request_queue_time_seconds request_prefill_time_seconds request_decode_time_seconds request_inference_time_seconds
request_prompt_tokens request_generation_tokens request_params_max_tokens request_params_n iteration_tokens_total
""".split()
# Aliases that are counts of the same thing as ours.
SAME = {"vllm:prompt_tokens_total": "pagoda_prompt_tokens_total", "vllm:generation_tokens_total": "pagoda_generation_tokens_total",
        "vllm:num_preemptions_total": "pagoda_preemptions_total", "vllm:iteration_tokens_total_sum": "pagoda_step_tokens_sum",
        "vllm:time_to_first_token_seconds_count": "pagoda_time_to_first_token_seconds_count",
        "vllm:e2e_request_latency_seconds_sum": "pagoda_request_duration_seconds_sum"}

passed = failed = 0


def check(name, condition, detail=""):
    global passed, failed
    passed, failed = passed + bool(condition), failed + (not condition)
    if not condition or not name.startswith("answer:"):
        print(f"{'ok' if condition else 'FAILED'}: {name} {'' if condition else detail}", flush=True)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def get(url, timeout=10):
    with urllib.request.urlopen(url, timeout=timeout) as reply:
        return reply.read().decode()


def wait_for(url, seconds=60):
    deadline = time.time() + seconds
    while time.time() < deadline:
        with contextlib.suppress(OSError):
            return get(url)
        time.sleep(0.1)
    raise SystemExit(f"nothing answers at {url}")


# Few blocks, so that sequences are preempted; a short queue, so that some are turned away.
SIM = ["--device=sim", "--kv-cache-memory=12MiB", "--max-num-seqs=24", "--max-waiting-requests=24", "--ngram-draft-tokens=4"]
GPU = ["--device=cuda", "--dtype=float32", "--kv-cache-memory=64MiB"]


class Daemon:
    def __init__(self, binary, flags, **environment):
        self.grpc, self.http, self.metrics = (f"127.0.0.1:{free_port()}" for _ in range(3))
        self.process = subprocess.Popen(
            [binary, "serve", str(ROOT / "deploy/models/fable-7m"), *flags, "--log-level=warning",
             f"--grpc-address={self.grpc}", f"--http-address={self.http}", f"--metrics-address={self.metrics}"],
            env={**os.environ, **environment})
        wait_for(f"http://{self.http}/health")

    def scrape(self):
        return get(f"http://{self.metrics}/metrics")

    def kill_worker(self):
        children = pathlib.Path(f"/proc/{self.process.pid}/task").glob("*/children")
        for pid in {int(pid) for child in children for pid in child.read_text().split()}:
            os.kill(pid, signal.SIGKILL)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def gpu_daemon(binary):
    """One on what tests have instead of a GPU and its driver's library, where they were built."""
    fakes = pathlib.Path(binary).parent.parent / "tests/fakes"
    if not (fakes / "module/pagoda_cuda.so").exists() or not (fakes / "nvml/libnvidia-ml.so.1").exists():
        raise SystemExit(f"{fakes} has no fake_cuda_module and no fake_nvml: build them, panels of GPUs need them")
    return Daemon(binary, [*GPU, f"--backend-dir={fakes / 'module'}"], PAGODA_FAKE_DRIVER="serves=1",
                  LD_LIBRARY_PATH=str(fakes / "nvml"))


class Prometheus:
    def __init__(self, folder, targets):
        shutil.copy(RULES, folder / "rules.yaml")
        (folder / "prometheus.yaml").write_text(
            "global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}\n"
            "rule_files: [rules.yaml]\n"
            f"scrape_configs: [{{job_name: pagoda, static_configs: [{{targets: {targets}}}]}}]\n")
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.log = open(folder / "prometheus.log", "w")
        self.process = subprocess.Popen(
            ["prometheus", f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/data",
             f"--web.listen-address=127.0.0.1:{port}"], stdout=self.log, stderr=self.log)
        wait_for(f"{self.url}/-/ready")

    def query(self, expression):
        """Values of an instant query; raises HTTPError for what is no PromQL."""
        data = json.loads(get(f"{self.url}/api/v1/query?" + urllib.parse.urlencode({"query": expression})))["data"]
        return [float(sample["value"][1]) for sample in data["result"]]

    def rules(self):
        groups = json.loads(get(f"{self.url}/api/v1/rules"))["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def stop(self):
        self.process.terminate()
        self.process.wait(30)
        self.log.close()


def post(address, body):
    connection = http.client.HTTPConnection(address, timeout=30)
    connection.request("POST", "/v1/completions", body if isinstance(body, bytes) else json.dumps(body),
                       {"Content-Type": "application/json"})
    return connection, connection.getresponse()


def misbehave(address, stop):
    """One of each: a good request, a broken one, a wrong one, one too long, and one whose client leaves."""
    prompt = "Once upon a time there was a king. " * 8
    bodies = [{"prompt": prompt, "max_tokens": 32}, b"{", {"prompt": prompt, "temperature": -1},
              {"prompt": [5] * 4000, "max_tokens": 1}, {"model": "nobody", "prompt": prompt}]
    while not stop.is_set():
        for body in bodies:
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection, reply = post(address, body)
                reply.read()
                connection.close()
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection, reply = post(address, {"prompt": prompt, "max_tokens": 500, "ignore_eos": True, "stream": True})
            reply.readline()
            connection.sock.shutdown(socket.SHUT_RDWR)
            connection.close()
        time.sleep(0.2)


def bench(binary, address, requests, concurrencies, stop):
    while not stop.is_set():
        for flags in ([f"--concurrency={each}"] for each in concurrencies):
            subprocess.run([binary, "bench", f"--address={address}", f"--requests={requests}", "--warmup=0", "--input-tokens=120",
                            "--shared-prefix-tokens=64", "--output-tokens=48", "--spread=0.5", *flags],
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def load(binary, daemon, gpu):
    stop = threading.Event()
    clients = [threading.Thread(target=misbehave, args=(daemon.http, stop)),
               threading.Thread(target=bench, args=(binary, daemon.grpc, 150, (16, 80), stop)),
               threading.Thread(target=bench, args=(binary, gpu.grpc, 10, (1,), stop))]
    for client in clients:
        client.start()
    time.sleep(LOAD_SECONDS / 2)
    daemon.kill_worker()
    time.sleep(LOAD_SECONDS / 2)
    return stop, clients


def queries():
    """(where, query as Grafana would send it) of every target of the dashboard."""
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", []):
            text = target["expr"].replace("$__rate_interval", RATE_INTERVAL)
            yield f"{panel['title']} {target['refId']}", re.sub(r"\$(model|instance)\b", ".*", text)


def ask(prometheus, query, deadline):
    """Values of a query, asked again while there is none and the load goes on: a machine may stop its clients for a while."""
    while True:
        values = prometheus.query(query)
        if any(math.isfinite(value) for value in values) or time.time() > deadline:
            return values
        time.sleep(1)


def check_answers(prometheus):
    deadline = time.time() + LOAD_SECONDS + 60
    number = 0
    for where, query in queries():
        number += 1
        try:
            values = ask(prometheus, query, deadline)
        except urllib.error.HTTPError as error:
            values = error.read().decode()
        check(f"answer: panel {where}", isinstance(values, list) and any(math.isfinite(v) for v in values), f"{values}: {query}")
    check(f"{number} queries of the dashboard were asked", number > 40, number)
    for rule in prometheus.rules():
        check(f"answer: rule {rule['name']} is evaluated", rule["health"] == "ok", rule)
        if rule["type"] == "recording":
            values = ask(prometheus, rule["name"], deadline)
            check(f"answer: {rule['name']}", any(math.isfinite(v) for v in values), values)
    names = {rule["name"] for rule in prometheus.rules() if rule["type"] == "alerting"}
    check("there are six alerts", len(names) == 6, names)


def total(text, family, **labels):
    parts = [f'{name}="{value}"' for name, value in labels.items()]
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines()
               if re.match(rf"{re.escape(family)}[{{ ]", line) and all(part in line for part in parts))


def check_counts(daemon):
    """After the load: everything that came has ended, and what had to happen did."""
    for _ in range(300):
        text = daemon.scrape()
        if total(text, "pagoda_requests_received_total") == total(text, "pagoda_requests_finished_total"):
            break
        time.sleep(0.1)
    check("every request that came has ended", total(text, "pagoda_requests_received_total")
          == total(text, "pagoda_requests_finished_total") > 0, total(text, "pagoda_requests_received_total"))
    for family, labels in (("pagoda_preemptions_total", {}), ("pagoda_worker_restarts_total", {"cause": "killed"}),
                           ("pagoda_requests_rejected_total", {"reason": "queue_full"}),
                           ("pagoda_requests_finished_total", {"outcome": "cancelled"}),
                           ("pagoda_prefix_cache_hit_tokens_total", {}), ("pagoda_kv_evictions_total", {})):
        check(f"the load brought about {family} {labels or ''}", total(text, family, **labels) > 0)
    check("no blocks are left in use", total(text, "pagoda_kv_blocks", state="used") == 0)
    families = set(re.findall(r"^# TYPE (\S+)", text, re.M))
    check("every family of the contract is there", families.issuperset(CONTRACT), sorted(set(CONTRACT) - families))
    aliases = {f"vllm:{name}" for name in ALIASES}
    check("and every alias", families >= aliases, sorted(aliases - families))
    for alias, ours in SAME.items():
        check(f"{alias} is {ours}", total(text, alias) == total(text, ours) > 0, (total(text, alias), total(text, ours)))
    requests = total(text, "vllm:request_params_n_count")
    check("a request asks once", requests >= total(text, "vllm:request_inference_time_seconds_count") > 0, requests)
    return text


def check_gpu(daemon):
    text = daemon.scrape()
    families = set(re.findall(r"^# TYPE (\S+)", text, re.M))
    check("every family of GPUs is there", families.issuperset(CONTRACT + GPU_FAMILIES),
          sorted(set(CONTRACT + GPU_FAMILIES) - families))
    check("graphs are launched", total(text, "pagoda_cuda_graph_replays_total") > 0)
    check("every step launches a graph or none", total(text, "pagoda_cuda_graph_replays_total")
          + total(text, "pagoda_cuda_eager_steps_total") == total(text, "pagoda_steps_total"))
    return text


def check_lint(text):
    """promtool, for our families: aliases have others' names, which it does not like."""
    ours, keep = [], False
    for line in text.splitlines():
        if line.startswith("# HELP"):
            keep = line.split()[2].startswith(("pagoda_", "process_"))
        if keep:
            ours.append(line)
    result = subprocess.run(["promtool", "check", "metrics"], input="\n".join(ours) + "\n", capture_output=True, text=True)
    check("promtool check metrics", result.returncode == 0 and not result.stdout + result.stderr, result.stdout + result.stderr)


def promtool(*arguments):
    result = subprocess.run(["promtool", *arguments], capture_output=True, text=True)
    check(f"promtool {' '.join(arguments[:2])}", result.returncode == 0, result.stdout + result.stderr)


def have_prometheus():
    if shutil.which("prometheus") and shutil.which("promtool"):
        return True
    if os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", "prometheus"],
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})
    return bool(shutil.which("prometheus") and shutil.which("promtool"))


def main():
    binary = os.path.abspath(sys.argv[1])
    if not have_prometheus():
        print("SKIPPED: no prometheus and promtool here (Debian package prometheus)")
        return 0
    subprocess.run([sys.executable, ROOT / "deploy/grafana/make_dashboard.py", "--check"], check=True)
    promtool("check", "rules", str(RULES))
    promtool("test", "rules", str(ROOT / "tests/peers/prometheus_rules_test.yaml"))
    promtool("check", "config", "--syntax-only", str(ROOT / "deploy/compose/prometheus.yaml"))
    with tempfile.TemporaryDirectory() as folder:
        daemon, gpu = Daemon(binary, SIM), gpu_daemon(binary)
        prometheus = Prometheus(pathlib.Path(folder), [daemon.metrics, gpu.metrics])
        stop, clients = load(binary, daemon, gpu)
        check_answers(prometheus)
        stop.set()
        for client in clients:
            client.join()
        check_lint(check_counts(daemon))
        check_lint(check_gpu(gpu))
        check("every scrape succeeded", prometheus.query("min_over_time(up[5m])") == [1.0, 1.0])
        prometheus.stop()
        check("SIGTERM ends the daemons with exit code 0", [daemon.stop(), gpu.stop()] == [0, 0])
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
