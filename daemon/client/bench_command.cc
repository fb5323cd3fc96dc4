#include <atomic>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <memory>
#include <random>
#include <sstream>
#include <unistd.h>

#include <CLI/CLI.hpp>

#include "absl/strings/str_format.h"
#include "daemon/client/bench_compare.h"
#include "daemon/client/bench_html.h"
#include "daemon/client/bench_load.h"
#include "daemon/client/bench_progress.h"
#include "daemon/client/bench_report.h"
#include "daemon/client/bench_target.h"
#include "daemon/client/commands.h"
#include "daemon/client/failure.h"
#include "daemon/client/interrupt.h"

namespace pagoda::daemon {
namespace {

struct BenchCommand {
  BenchOptions options;
  std::optional<uint64_t> seed;
  std::string arrival = "poisson";
  std::string url, api = "completions";
  std::string prompts_file, json_file, report_file;
  std::vector<std::string> compared_files;
};

void AddFlags(CLI::App& command, BenchCommand* bench) {
  BenchOptions& options = bench->options;
  AddConnectionFlags(command, &options.connection);
  CLI::Option* const url =
      command.add_option("--url",
                         bench->url,
                         "A server of OpenAI's API, such as http://127.0.0.1:8000, instead of "
                         "--address: this daemon's HTTP port, vLLM, llama.cpp or another");
  command.add_option("--api", bench->api, "Of --url: completions or chat")
      ->capture_default_str()
      ->check(CLI::IsMember({"completions", "chat"}))
      ->needs(url);
  command.add_option("--model", options.model, "A served name (absent: the served model)");
  const auto count = [&command](const char* name, int64_t& value, const char* help) {
    return command.add_option(name, value, help)->capture_default_str()->check(CLI::PositiveNumber);
  };
  count("--requests,-n", options.num_requests, "Requests to measure");
  count("--concurrency,-c", options.concurrency, "Requests at once");
  command.add_option("--rate", options.rate, "Requests a second, instead of a number at once")
      ->check(CLI::PositiveNumber);
  command
      .add_option(
          "--arrival",
          bench->arrival,
          "Of --rate: poisson or fixed gaps; at-once: all requests together, without --rate")
      ->capture_default_str()
      ->check(CLI::IsMember({"poisson", "fixed", "at-once"}));
  count("--input-tokens",
        options.input_tokens,
        "Random prompt tokens of each request (with --url: words)");
  count("--output-tokens", options.output_tokens, "Tokens that each request generates, EOS or not");
  command.add_option("--spread", options.spread, "Vary both lengths by up to this fraction")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
  command
      .add_option("--shared-prefix-tokens",
                  options.shared_prefix_tokens,
                  "Of the prompt, the same in all requests")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  CLI::Option* const text =
      command.add_option("--text", options.text, "Every prompt, instead of random tokens");
  command
      .add_option(
          "--prompts",
          bench->prompts_file,
          "Prompts from a file, in turn: lines of {\"prompt\": TEXT, \"output_tokens\": N}, "
          "or conversations as ShareGPT has them, of which the answer's length counts")
      ->excludes(text);
  command.add_option("--temperature", options.temperature, "Absent: the model's default");
  count("--channels", options.num_channels, "Connections to spread requests over");
  count("--threads", options.num_threads, "Threads of this client");
  command.add_option("--warmup", options.num_warmup_requests, "Requests before, not measured")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command
      .add_option("--seed", bench->seed, "Of prompts and sampling (absent: another one each time)")
      ->check(CLI::NonNegativeNumber);
  const auto limit = [&command](const char* name, std::optional<double>& value, const char* of) {
    command
        .add_option(name, value, absl::StrFormat("Goodput counts requests with %s up to this", of))
        ->check(CLI::PositiveNumber);
  };
  limit("--limit-ttft-ms", options.limits.ttft_ms, "a time to first token");
  limit("--limit-tpot-ms", options.limits.tpot_ms, "a time per output token");
  limit("--limit-e2e-ms", options.limits.e2e_ms, "an end-to-end latency");
  command.add_option("--json", bench->json_file, "Write the report to this file as JSON");
  command.add_option("--report", bench->report_file, "Write it to this file as HTML, with plots");
  command
      .add_option("--compare",
                  bench->compared_files,
                  "Put no load on anything, but compare two files that --json wrote")
      ->expected(2);
}

// Warms up, then measures.
LoadOutcome Measure(const BenchOptions& options,
                    uint32_t vocab_size,
                    const std::atomic<bool>& interrupted) {
  BenchLoad load = {.options = options, .ids = PromptIds(vocab_size), .interrupted = &interrupted};
  for (int64_t i = 0; i < options.num_channels && !options.http; ++i) {
    load.channels.push_back(OpenChannel(options.connection, static_cast<int>(i)));
  }
  load.first_index = options.num_requests;
  load.num_requests = options.num_warmup_requests;
  RunLoad(load);
  load.first_index = 0;
  load.num_requests = options.num_requests;
  if (options.is_open_loop()) load.departures_ns = PlanDepartures(options);
  BenchProgress progress;
  load.progress = &progress;
  const ProgressLine line(&progress, options.num_requests, isatty(STDERR_FILENO) != 0);
  return RunLoad(load);
}

// False: the file could not be read.
bool ReadFile(const std::string& file, std::string* content) {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  *content = text.str();
  return in.good();
}

ClientExit Compare(const std::vector<std::string>& files) {
  std::string contents[2];
  for (int i : {0, 1}) {
    if (ReadFile(files[i], &contents[i])) continue;
    std::cerr << "pagoda: --compare: cannot read " << files[i] << "\n";
    return ClientExit::kUsage;
  }
  const auto table = CompareReports(files[0], contents[0], files[1], contents[1]);
  if (!table.ok()) {
    std::cerr << "pagoda: --compare: " << table.status().message() << "\n";
    return ClientExit::kUsage;
  }
  std::cout << *table;
  return ClientExit::kOk;
}

// False: the file could not be written.
bool WriteFile(const std::string& file, const std::string& content) {
  std::ofstream out(file, std::ios::binary);
  out << content;
  out.close();
  return out.good();
}

// The options of the flags; false: they do not go together, as was said then.
bool Complete(const BenchCommand& command, BenchOptions* options) {
  *options = command.options;
  options->arrival = command.arrival == "poisson" ? Arrival::kPoisson
                     : command.arrival == "fixed" ? Arrival::kFixed
                                                  : Arrival::kAtOnce;
  options->seed = command.seed ? *command.seed : std::random_device{}();
  if (options->rate && options->arrival == Arrival::kAtOnce) {
    std::cerr << "pagoda: --arrival: at-once needs no --rate\n";
    return false;
  }
  if (!command.url.empty()) {
    auto target = ParseHttpTarget(command.url);
    if (!target.ok()) {
      std::cerr << "pagoda: --url: " << target.status().message() << "\n";
      return false;
    }
    target->api = command.api == "chat" ? HttpTarget::Api::kChat : HttpTarget::Api::kCompletions;
    target->api_key = options->connection.api_key;
    // As OpenAI's own clients.
    const char* const key = std::getenv("OPENAI_API_KEY");
    if (target->api_key.empty() && key != nullptr) target->api_key = key;
    options->http = *std::move(target);
  }
  if (!command.prompts_file.empty()) {
    auto prompts = ReadPrompts(command.prompts_file);
    if (!prompts.ok()) {
      std::cerr << "pagoda: --prompts: " << prompts.status().message() << "\n";
      return false;
    }
    options->prompts = *std::move(prompts);
  }
  const bool has_own_prompts = options->text || !options->prompts.empty();
  if (options->shared_prefix_tokens >= options->input_tokens && !has_own_prompts) {
    std::cerr << "pagoda: --shared-prefix-tokens: must be less than --input-tokens\n";
    return false;
  }
  return true;
}

// What the server is; it says why where it cannot tell.
ClientExit Ask(BenchOptions* options, v1::GetModelResponse* model) {
  if (options->http) {
    auto answer = AskHttpServer(options);
    if (!answer.ok()) {
      std::cerr << "pagoda: " << PrintableText(answer.status().message()) << "\n";
      return absl::IsUnavailable(answer.status()) ? ClientExit::kUnavailable : ClientExit::kRefused;
    }
    *model = *std::move(answer);
    return ClientExit::kOk;
  }
  const grpc::Status status = AskDaemon(options, model);
  if (status.ok()) return ClientExit::kOk;
  std::cerr << DescribeFailure(status, options->connection.address);
  return ExitOf(status);
}

ClientExit Run(const BenchCommand& command) {
  if (!command.compared_files.empty()) return Compare(command.compared_files);
  BenchOptions options;
  if (!Complete(command, &options)) return ClientExit::kUsage;
  std::atomic<bool> interrupted{false};
  const InterruptWatcher watcher([&interrupted] { interrupted = true; });

  v1::GetModelResponse model;
  if (const ClientExit exit = Ask(&options, &model); exit != ClientExit::kOk) return exit;
  const LoadOutcome outcome = Measure(options, model.vocab_size(), interrupted);
  const BenchResult result = Aggregate(outcome.requests, outcome.client, options.limits);
  if (interrupted && outcome.requests.empty()) return ClientExit::kInterrupted;
  std::cout << ReportTable(options, result);
  if (!command.json_file.empty() &&
      !WriteFile(command.json_file, ReportJson(options, model, result))) {
    std::cerr << "pagoda: --json: cannot write " << command.json_file << "\n";
    return ClientExit::kUsage;
  }
  if (!command.report_file.empty() &&
      !WriteFile(command.report_file, ReportHtml(options, model, result, outcome.requests))) {
    std::cerr << "pagoda: --report: cannot write " << command.report_file << "\n";
    return ClientExit::kUsage;
  }
  if (interrupted) return ClientExit::kInterrupted;
  return result.num_failed == 0 ? ClientExit::kOk : ClientExit::kServerFailed;
}

}  // namespace

void RegisterBenchCommand(CLI::App& app, int* exit_code) {
  CLI::App* subcommand =
      app.add_subcommand("bench", "Put load on a running daemon and report latencies and rates");
  const auto command = std::make_shared<BenchCommand>();
  AddFlags(*subcommand, command.get());
  subcommand->callback([command, exit_code] { *exit_code = static_cast<int>(Run(*command)); });
}

}  // namespace pagoda::daemon
