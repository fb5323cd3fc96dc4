#include <atomic>
#include <fstream>
#include <iostream>
#include <memory>
#include <random>

#include <CLI/CLI.hpp>

#include "daemon/client/bench_load.h"
#include "daemon/client/bench_report.h"
#include "daemon/client/commands.h"
#include "daemon/client/failure.h"
#include "daemon/client/interrupt.h"
#include "pagoda/v1/inference.grpc.pb.h"

namespace pagoda::daemon {
namespace {

struct BenchCommand {
  BenchOptions options;
  std::optional<uint64_t> seed;
  std::string arrival = "poisson";
  std::string json_file;
};

void AddFlags(CLI::App& command, BenchCommand* bench) {
  BenchOptions& options = bench->options;
  AddConnectionFlags(command, &options.connection);
  command.add_option("--model", options.model, "A served name (absent: the served model)");
  const auto count = [&command](const char* name, int64_t& value, const char* help) {
    return command.add_option(name, value, help)->capture_default_str()->check(CLI::PositiveNumber);
  };
  count("--requests,-n", options.num_requests, "Requests to measure");
  count("--concurrency,-c", options.concurrency, "Requests at once");
  command.add_option("--rate", options.rate, "Requests a second, instead of a number at once")
      ->check(CLI::PositiveNumber);
  command.add_option("--arrival", bench->arrival, "Of --rate: poisson or fixed gaps")
      ->capture_default_str()
      ->check(CLI::IsMember({"poisson", "fixed"}));
  count("--input-tokens", options.input_tokens, "Random prompt tokens of each request");
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
  command.add_option("--text", options.text, "Every prompt, instead of random tokens");
  command.add_option("--temperature", options.temperature, "Absent: the model's default");
  count("--channels", options.num_channels, "Connections to spread requests over");
  count("--threads", options.num_threads, "Threads of this client");
  command.add_option("--warmup", options.num_warmup_requests, "Requests before, not measured")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command
      .add_option("--seed", bench->seed, "Of prompts and sampling (absent: another one each time)")
      ->check(CLI::NonNegativeNumber);
  command.add_option("--json", bench->json_file, "Write the report to this file as JSON");
}

// Warms up, then measures.
LoadOutcome Measure(const BenchOptions& options,
                    uint32_t vocab_size,
                    const std::atomic<bool>& interrupted) {
  BenchLoad load = {.options = options, .ids = PromptIds(vocab_size), .interrupted = &interrupted};
  for (int64_t i = 0; i < options.num_channels; ++i) {
    load.channels.push_back(OpenChannel(options.connection.address, static_cast<int>(i)));
  }
  load.first_index = options.num_requests;
  load.num_requests = options.num_warmup_requests;
  RunLoad(load);
  load.first_index = 0;
  load.num_requests = options.num_requests;
  if (options.rate) load.departures_ns = PlanDepartures(options);
  return RunLoad(load);
}

// False: the file could not be written.
bool WriteFile(const std::string& file, const std::string& content) {
  std::ofstream out(file, std::ios::binary);
  out << content;
  out.close();
  return out.good();
}

ClientExit Run(const BenchCommand& command) {
  BenchOptions options = command.options;
  options.poisson = command.arrival == "poisson";
  options.seed = command.seed ? *command.seed : std::random_device{}();
  if (options.shared_prefix_tokens >= options.input_tokens && !options.text) {
    std::cerr << "pagoda: --shared-prefix-tokens: must be less than --input-tokens\n";
    return ClientExit::kUsage;
  }
  std::atomic<bool> interrupted{false};
  const InterruptWatcher watcher([&interrupted] { interrupted = true; });

  grpc::ClientContext context;
  SetTimeout(options.connection.timeout_seconds, &context);
  v1::GetModelRequest request;
  request.set_model(options.model);
  v1::GetModelResponse model;
  const auto stub = v1::InferenceService::NewStub(OpenChannel(options.connection.address));
  const grpc::Status status = stub->GetModel(&context, request, &model);
  if (!status.ok()) {
    std::cerr << DescribeFailure(status, options.connection.address);
    return ExitOf(status);
  }
  const LoadOutcome outcome = Measure(options, model.vocab_size(), interrupted);
  const BenchResult result = Aggregate(outcome.requests, outcome.client);
  if (interrupted && outcome.requests.empty()) return ClientExit::kInterrupted;
  std::cout << ReportTable(options, result);
  if (!command.json_file.empty() &&
      !WriteFile(command.json_file, ReportJson(options, model, result))) {
    std::cerr << "pagoda: --json: cannot write " << command.json_file << "\n";
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
