#!/usr/bin/env python3
"""Writes pagoda.json, the Grafana dashboard, beside itself; --check only compares.

Panels are told here, in the order of reading: is it well, what does it lack, what does it do, for whom.
"""
import json
import pathlib
import sys

OUT = pathlib.Path(__file__).with_name("pagoda.json")
MODEL = 'model=~"$model", instance=~"$instance"'  # of families that name the model
HOST = 'instance=~"$instance"'  # of the others
RATE = "[$__rate_interval]"


def rate(family, labels=MODEL, more="", by=""):
    selector = ", ".join(part for part in (labels, more) if part)
    total = f"sum by ({by})" if by else "sum"
    return f"{total} (rate({family}{{{selector}}}{RATE}))"


def quantiles(family, labels=MODEL):
    buckets = rate(f"{family}_bucket", labels, by="le")
    mean = f"{rate(family + '_sum', labels)} / ({rate(family + '_count', labels)} > 0)"
    return [*((f"histogram_quantile({q}, {buckets})", f"p{q * 100:g}") for q in (0.5, 0.9, 0.99)), (mean, "mean")]


def ratio(part, whole):
    return f"({part}) / ({whole} > 0)"


FINISHED = "pagoda_requests_finished_total"
FAILED = 'code=~"INTERNAL|UNKNOWN|UNAVAILABLE|DATA_LOSS|RESOURCE_EXHAUSTED"'
STEP = "pagoda_step_duration_seconds"

# (row, [(title, unit, kind, [(query, legend)], description)])
ROWS = [
    ("Is it well", [
        ("Requests that ended", "reqps", "stack", [(rate(FINISHED, by="outcome"), "{{outcome}}")],
         "Every generation call ends once, with one outcome."),
        ("Failed requests", "percentunit", "lines",
         [(f"{rate(FINISHED, more=FAILED, by='code')} / on () group_left () ({rate(FINISHED)} > 0)"
           f" or 0 * {rate(FINISHED)}", "{{code}}")],
         "Share of all that ended; without clients' own mistakes and cancellations."),
        ("Time to first token", "s", "lines", quantiles("pagoda_time_to_first_token_seconds"),
         "From a call's arrival, before it is tokenised."),
        ("Between tokens", "s", "lines", quantiles("pagoda_inter_token_latency_seconds"), "Weighted by tokens."),
        ("Whole requests", "s", "lines", quantiles("pagoda_request_duration_seconds"), ""),
        ("First tokens within 0.5 s", "percentunit", "lines",
         [(ratio(rate("pagoda_time_to_first_token_seconds_bucket", more='le="0.5"'),
                 rate("pagoda_time_to_first_token_seconds_count")), "within")], "An example of a goal."),
    ]),
    ("What it lacks", [
        ("Sequences", "short", "stack",
         [(f"sum (pagoda_requests_{state}{{{MODEL}}})", state) for state in ("running", "waiting", "swapped")],
         "Swapped ones were preempted and wait to be computed again."),
        ("Waiting time", "s", "lines", quantiles("pagoda_request_queue_seconds"), "From arrival to the first step."),
        ("KV blocks", "short", "stack", [(f"sum by (state) (pagoda_kv_blocks{{{HOST}}})", "{{state}}")],
         "Cached blocks hold the beginnings of prompts and can be taken at any time."),
        ("KV cache in use", "percentunit", "lines", [(f"pagoda_kv_cache_usage_ratio{{{MODEL}}}", "{{instance}}")], ""),
        ("Preemptions and evictions", "ops", "lines",
         [(rate("pagoda_preemptions_total", HOST), "sequences computed again"),
          (rate("pagoda_kv_evictions_total", HOST), "cached blocks taken")], ""),
        ("Requests turned away", "reqps", "stack", [(rate("pagoda_requests_rejected_total", HOST, by="reason"), "{{reason}}")],
         "Before the engine took them."),
    ]),
    ("What it does", [
        ("Tokens", "cps", "lines",
         [(rate("pagoda_prompt_tokens_total", more='source="computed"'), "prompt, computed"),
          (rate("pagoda_prompt_tokens_total", more='source="cached"'), "prompt, cached"),
          (rate("pagoda_generation_tokens_total"), "generated")], ""),
        ("Requests by API", "reqps", "stack", [(rate("pagoda_requests_received_total", by="api"), "{{api}}")], ""),
        ("Steps", "ops", "stack", [(rate(f"{STEP}_count", HOST, by="phase"), "{{phase}}")], ""),
        ("Mean time of a step", "s", "lines",
         [(f"{rate(STEP + '_sum', HOST, by='phase')} / ({rate(STEP + '_count', HOST, by='phase')} > 0)", "{{phase}}")], ""),
        ("Sequences in a step", "short", "lines", quantiles("pagoda_step_batch_size", HOST), ""),
        ("Tokens in a step", "short", "lines", quantiles("pagoda_step_tokens", HOST), ""),
        ("Phases of a request, mean", "s", "stack",
         [(f"{rate(f'pagoda_request_{phase}_seconds_sum')} / ({rate(f'pagoda_request_{phase}_seconds_count')} > 0)", phase)
          for phase in ("tokenize", "queue", "prefill", "decode")], "Tokenising overlaps with waiting."),
    ]),
    ("Its devices", [
        ("Busy", "percentunit", "lines",
         [(f"sum by (instance, gpu) (rate(pagoda_gpu_busy_seconds_total{{{HOST}}}{RATE}))", "{{instance}} {{gpu}}")],
         "Share of the time in which the device has a step to do."),
        ("Meeting other ranks", "percentunit", "lines",
         [(f"sum by (instance, gpu) (rate(pagoda_collective_seconds_total{{{HOST}}}{RATE}))", "{{instance}} {{gpu}}")],
         "Share of the time in which tensor-parallel ranks exchange data or wait to; where that is measured."),
        ("Graphs", "ops", "lines",
         [(rate("pagoda_cuda_graph_replays_total", HOST), "launched"), (rate("pagoda_cuda_graph_captures_total", HOST), "recorded"),
          (rate("pagoda_cuda_eager_steps_total", HOST), "steps without")], ""),
        ("Memory", "bytes", "stack", [(f"sum by (kind) (pagoda_gpu_memory_bytes{{{HOST}}})", "{{kind}}")],
         "What workers hold, and what nobody has taken; other processes have the rest."),
        ("GPUs that do not answer", "short", "lines", [(f"sum (1 - pagoda_gpu_up{{{HOST}}})", "silent")], ""),
        ("Kernels run", "percentunit", "lines", [(f"pagoda_gpu_utilization_ratio{{{HOST}}}", "{{instance}} {{gpu}}")],
         "As the driver says; full does not mean fast."),
        ("Power", "watt", "lines", [(f"pagoda_gpu_power_watts{{{HOST}}}", "{{instance}} {{gpu}}")], ""),
        ("Temperature", "celsius", "lines", [(f"pagoda_gpu_temperature_celsius{{{HOST}}}", "{{instance}} {{gpu}}")], ""),
        ("Slowed down", "short", "lines", [(f"sum (pagoda_gpu_throttled{{{HOST}}})", "throttled"),
                                           (f"sum (increase(pagoda_gpu_ecc_uncorrected_errors_total{{{HOST}}}{RATE}))",
                                            "memory errors")], "By heat or power; errors that could not be corrected."),
        ("Joules a token", "short", "lines",
         [(f"{rate('pagoda_gpu_energy_joules_total', HOST)} / ({rate('pagoda_generation_tokens_total')} > 0)", "generated")],
         "All energy of the GPUs over the tokens that were generated."),
        ("Devices", "short", "table", [(f"pagoda_device_info{{{HOST}}}", "")], ""),
    ]),
    ("What it saves", [
        ("Prompt tokens from the cache", "percentunit", "lines",
         [(ratio(rate("pagoda_prefix_cache_hit_tokens_total"), rate("pagoda_prefix_cache_query_tokens_total")), "hit")],
         "Of those looked up."),
        ("Drafted tokens accepted", "percentunit", "lines",
         [(f"{rate('pagoda_spec_accepted_tokens_total')} / clamp_min({rate('pagoda_spec_draft_tokens_total')}, 1e-9)",
           "accepted")], "Zero where nothing is drafted: --ngram-draft-tokens."),
        ("Prompt lengths", "short", "heatmap", [(rate("pagoda_request_prompt_tokens_bucket", by="le"), "{{le}}")], ""),
        ("Output lengths", "short", "heatmap", [(rate("pagoda_request_generation_tokens_bucket", by="le"), "{{le}}")], ""),
    ]),
    ("Its clients", [
        ("Cancelled and late", "reqps", "lines",
         [(f"{rate(FINISHED, more=f'outcome={chr(34)}{outcome}{chr(34)}')} or vector(0)", outcome)
          for outcome in ("cancelled", "deadline")], ""),
        ("From cancelling to free blocks", "s", "lines",
         [(f"histogram_quantile(0.99, {rate('pagoda_cancel_to_free_seconds_bucket', HOST, by='le')})", "p99")], ""),
        ("Open", "short", "lines",
         [(f"sum (pagoda_grpc_streams{{{HOST}}})", "gRPC calls"), (f"sum (pagoda_http_streams{{{HOST}}})", "HTTP calls"),
          (f"sum (pagoda_http_connections{{{HOST}}})", "HTTP connections")], ""),
        ("Slow readers", "ops", "lines",
         [(rate("pagoda_stream_stalls_total", HOST), "streams ended"),
          (rate("pagoda_stream_coalesced_tokens_total", HOST), "tokens that waited")], ""),
        ("Messages", "ops", "stack", [(rate("pagoda_stream_messages_total", HOST, by="api"), "{{api}}")], ""),
    ]),
    ("The processes", [
        ("State", "short", "lines", [(f"sum by (state) (pagoda_up_state{{{HOST}}})", "{{state}}")], "Instances in each."),
        ("Workers replaced", "short", "lines",
         [(f"sum by (cause) (increase(pagoda_worker_restarts_total{{{HOST}}}{RATE}))", "{{cause}}"),
          (f"sum (increase(pagoda_recovered_sequences_total{{{HOST}}}{RATE}))", "sequences computed again"),
          (f"sum (increase(pagoda_requests_quarantined_total{{{HOST}}}{RATE}))", "requests quarantined")], ""),
        ("Memory of the daemon", "bytes", "lines", [(f"process_resident_memory_bytes{{{HOST}}}", "{{instance}}")],
         "Without workers, which hold weights and KV cache."),
        ("CPU of the daemon", "short", "lines", [(f"rate(process_cpu_seconds_total{{{HOST}}}{RATE})", "{{instance}}")], "Cores."),
        ("Descriptors", "percentunit", "lines", [(f"process_open_fds{{{HOST}}} / process_max_fds{{{HOST}}}", "{{instance}}")], ""),
        ("Up for", "s", "stat", [(f"time() - process_start_time_seconds{{{HOST}}}", "{{instance}}")], ""),
        ("Loading took", "s", "stat", [(f"pagoda_load_seconds{{{HOST}}}", "{{instance}} {{phase}}")], ""),
        ("Versions", "short", "table", [(f"pagoda_build_info{{{HOST}}}", "")], ""),
        ("Models", "short", "table", [(f"pagoda_model_info{{{MODEL}}}", "")], ""),
        ("KV caches", "short", "table", [(f"pagoda_kv_cache_config_info{{{HOST}}}", "")], ""),
    ]),
]

TYPES = {"lines": "timeseries", "stack": "timeseries", "heatmap": "heatmap", "stat": "stat", "table": "table"}
DATASOURCE = {"type": "prometheus", "uid": "$datasource"}


def panel(number, title, unit, kind, queries, description):
    form = {"lines": "time_series", "stack": "time_series", "heatmap": "heatmap", "stat": "time_series", "table": "table"}[kind]
    result = {
        "id": number, "type": TYPES[kind], "title": title, "description": description, "datasource": DATASOURCE,
        "targets": [{"refId": chr(ord("A") + i), "expr": query, "legendFormat": legend, "format": form,
                     "instant": kind in ("table", "stat"), "datasource": DATASOURCE}
                    for i, (query, legend) in enumerate(queries)],
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
    }
    if kind == "stack":
        result["fieldConfig"]["defaults"]["custom"] = {"stacking": {"mode": "normal"}, "fillOpacity": 30}
    if kind == "table":
        result["transformations"] = [{"id": "organize", "options": {"excludeByName": {
            "Time": True, "Value": True, "__name__": True, "job": True}}}]
    if kind == "heatmap":
        result["options"] = {"calculate": False, "yAxis": {"unit": unit}}
    return result


def variable(name, query, label):
    return {"name": name, "label": label, "type": "query", "datasource": DATASOURCE, "query": query, "refresh": 2,
            "includeAll": True, "allValue": ".*", "multi": True, "current": {"text": "All", "value": "$__all"}}


def dashboard():
    panels, number, top = [], 0, 0
    for row, members in ROWS:
        number += 1
        panels.append({"id": number, "type": "row", "title": row, "collapsed": False, "panels": [],
                       "gridPos": {"x": 0, "y": top, "w": 24, "h": 1}})
        top += 1
        for i, member in enumerate(members):
            number += 1
            place = {"x": i % 3 * 8, "y": top + i // 3 * 8, "w": 8, "h": 8}
            panels.append({**panel(number, *member), "gridPos": place})
        top += (len(members) + 2) // 3 * 8
    return {
        "uid": "pagoda", "title": "Pagoda", "tags": ["pagoda", "llm"], "timezone": "browser", "schemaVersion": 39,
        "refresh": "10s", "time": {"from": "now-1h", "to": "now"}, "editable": True, "graphTooltip": 1,
        "templating": {"list": [
            {"name": "datasource", "label": "Data", "type": "datasource", "query": "prometheus"},
            variable("model", "label_values(pagoda_model_info, model)", "Model"),
            variable("instance", "label_values(pagoda_model_info, instance)", "Instance"),
        ]},
        "panels": panels,
    }


def main():
    text = json.dumps(dashboard(), indent=1) + "\n"
    if sys.argv[1:] == ["--check"]:
        if OUT.read_text() != text:
            sys.exit(f"{OUT} is not what this script makes; run it")
        return
    OUT.write_text(text)


if __name__ == "__main__":
    main()
