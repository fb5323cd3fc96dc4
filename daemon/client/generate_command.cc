#include <iostream>
#include <memory>
#include <unistd.h>

#include <CLI/CLI.hpp>

#include "daemon/client/commands.h"
#include "daemon/client/connection.h"
#include "daemon/client/failure.h"
#include "daemon/client/generate_flags.h"
#include "daemon/client/generation_printer.h"
#include "daemon/client/interrupt.h"
#include "pagoda/v1/inference.grpc.pb.h"

namespace pagoda::daemon {
namespace {

struct GenerateCommand {
  ConnectionFlags connection;
  GenerateFlags generate;
  bool json = false;
  bool unary = false;
  bool print_token_ids = false;
  bool stats = false;
};

ClientExit UsageFailure(const absl::Status& status) {
  std::cerr << "pagoda: " << PrintableText({status.message().data(), status.message().size()})
            << "\n";
  return ClientExit::kUsage;
}

grpc::Status Stream(v1::InferenceService::Stub& stub,
                    const v1::StreamGenerateRequest& request,
                    grpc::ClientContext& context,
                    GenerationPrinter& printer) {
  const auto reader = stub.StreamGenerate(&context, request);
  v1::StreamGenerateResponse response;
  while (reader->Read(&response)) printer.Print(response);
  return reader->Finish();
}

grpc::Status Unary(v1::InferenceService::Stub& stub,
                   const v1::GenerateRequest& request,
                   grpc::ClientContext& context,
                   GenerationPrinter& printer) {
  v1::GenerateResponse response;
  const grpc::Status status = stub.Generate(&context, request, &response);
  if (status.ok()) printer.Print(response);
  return status;
}

ClientExit Run(const GenerateCommand& command) {
  v1::GenerateRequest unary_request;
  v1::StreamGenerateRequest stream_request;
  const absl::Status built = command.unary ? BuildRequest(command.generate, &unary_request)
                                           : BuildRequest(command.generate, &stream_request);
  if (!built.ok()) return UsageFailure(built);

  grpc::ClientContext context;
  const InterruptWatcher watcher([&context] { context.TryCancel(); });
  PrepareCall(command.connection, &context);
  const auto stub = v1::InferenceService::NewStub(OpenChannel(command.connection));
  GenerationPrinter printer({.json = command.json,
                             .token_ids = command.print_token_ids || command.generate.omit_text,
                             .is_terminal = isatty(STDOUT_FILENO) == 1},
                            &std::cout);
  const grpc::Status status = command.unary ? Unary(*stub, unary_request, context, printer)
                                            : Stream(*stub, stream_request, context, printer);
  printer.Finish();
  if (command.stats) std::cerr << printer.Summary();
  if (watcher.interrupted()) return ClientExit::kInterrupted;
  if (!status.ok()) std::cerr << DescribeFailure(status, command.connection.address);
  return ExitOf(status);
}

}  // namespace

void RegisterGenerateCommand(CLI::App& app, int* exit_code) {
  CLI::App* subcommand = app.add_subcommand("generate", "Generate text with a running daemon");
  const auto command = std::make_shared<GenerateCommand>();
  AddConnectionFlags(*subcommand, &command->connection);
  AddGenerateFlags(*subcommand, &command->generate);
  subcommand->add_flag("--json", command->json, "Print every message as JSON, one a line");
  subcommand->add_flag("--unary", command->unary, "One answer at the end instead of a stream");
  subcommand->add_flag("--print-token-ids",
                       command->print_token_ids,
                       "Print token ids, one a line, instead of text");
  subcommand->add_flag("--stats", command->stats, "Usage and timings on standard error at the end");
  subcommand->callback([command, exit_code] { *exit_code = static_cast<int>(Run(*command)); });
}

}  // namespace pagoda::daemon
