#include <iostream>
#include <memory>

#include <CLI/CLI.hpp>
#include <google/protobuf/util/json_util.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "daemon/client/commands.h"
#include "daemon/client/connection.h"
#include "daemon/client/failure.h"
#include "pagoda/v1/inference.grpc.pb.h"

namespace pagoda::daemon {
namespace {

struct ModelCommand {
  ConnectionFlags connection;
  std::string model;
  bool json = false;
};

std::string Describe(const v1::GetModelResponse& model) {
  std::string text;
  const auto line = [&text](absl::string_view name, const std::string& value) {
    absl::StrAppendFormat(&text, "%-16s %s\n", name, value);
  };
  line("names", absl::StrJoin(model.served_names(), ", "));
  line("architecture",
       absl::StrFormat("%s, %.1f M parameters", model.architecture(), model.parameters() * 1e-6));
  line("runs on", absl::StrCat(model.device(), " in ", model.dtype()));
  line("vocabulary", absl::StrCat(model.vocab_size(), " tokens"));
  line("context", absl::StrCat(model.max_context_tokens(), " tokens"));
  line("tokenizer",
       !model.has_tokenizer()      ? "none: token ids only"
       : model.has_chat_template() ? "with chat template"
                                   : "without chat template");
  line("end of text", absl::StrJoin(model.eos_token_ids(), ", "));
  if (model.has_bos_token_id()) line("begin of text", absl::StrCat(model.bos_token_id()));
  line("KV cache",
       absl::StrFormat("%d blocks of %d tokens, %d tokens",
                       model.kv_blocks(),
                       model.kv_block_tokens(),
                       uint64_t{model.kv_blocks()} * model.kv_block_tokens()));
  line("limits",
       absl::StrFormat(
           "%d sequences, %d log-probabilities", model.max_sequences(), model.max_logprobs()));
  line("sampling", model.default_sampling().ShortDebugString());
  return PrintableText(text);
}

ClientExit Run(const ModelCommand& command) {
  grpc::ClientContext context;
  PrepareCall(command.connection, &context);
  v1::GetModelRequest request;
  request.set_model(command.model);
  v1::GetModelResponse response;
  const auto stub = v1::InferenceService::NewStub(OpenChannel(command.connection));
  const grpc::Status status = stub->GetModel(&context, request, &response);
  if (!status.ok()) {
    std::cerr << DescribeFailure(status, command.connection.address);
    return ExitOf(status);
  }
  if (!command.json) {
    std::cout << Describe(response);
    return ClientExit::kOk;
  }
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  std::string json;
  if (!google::protobuf::util::MessageToJsonString(response, &json, options).ok())
    return ClientExit::kServerFailed;
  std::cout << json << "\n";
  return ClientExit::kOk;
}

}  // namespace

void RegisterModelCommand(CLI::App& app, int* exit_code) {
  CLI::App* subcommand =
      app.add_subcommand("model", "Describe the model that a running daemon serves");
  const auto command = std::make_shared<ModelCommand>();
  AddConnectionFlags(*subcommand, &command->connection);
  subcommand->add_option("--model", command->model, "A served name (absent: the served model)");
  subcommand->add_flag("--json", command->json, "Print the message as JSON");
  subcommand->callback([command, exit_code] { *exit_code = static_cast<int>(Run(*command)); });
}

}  // namespace pagoda::daemon
