#include <cctype>
#include <iostream>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>
#include <google/protobuf/util/json_util.h>

#include "daemon/client/commands.h"
#include "daemon/client/connection.h"
#include "daemon/client/failure.h"
#include "pagoda/v1/admin.grpc.pb.h"

namespace pagoda::daemon {
namespace {

struct AdminCommand {
  std::string socket;
  std::string level;
  uint32_t replica = 0;
  ConnectionFlags connection = {.timeout_seconds = 10.0};
};

// Calls a method with `request`, prints what `print` makes of the answer.
template <typename Request, typename Response, typename Print>
ClientExit AskAdmin(const AdminCommand& command,
                    grpc::Status (v1::AdminService::Stub::*method)(grpc::ClientContext*,
                                                                   const Request&,
                                                                   Response*),
                    const Request& request,
                    Print print) {
  ConnectionFlags connection = command.connection;
  connection.address = "unix:" + command.socket;
  grpc::ClientContext context;
  PrepareCall(connection, &context);
  const auto stub = v1::AdminService::NewStub(OpenChannel(connection));
  Response response;
  const grpc::Status status = ((*stub).*method)(&context, request, &response);
  if (!status.ok()) {
    std::cerr << DescribeFailure(status, connection.address);
    return ExitOf(status);
  }
  return print(response);
}

ClientExit Drain(const AdminCommand& command) {
  return AskAdmin(command, &v1::AdminService::Stub::Drain, v1::DrainRequest(), [](const auto&) {
    std::cout << "draining\n";
    return ClientExit::kOk;
  });
}

ClientExit SetLogLevel(const AdminCommand& command) {
  v1::SetLogLevelRequest request;
  v1::LogLevel level = v1::LOG_LEVEL_UNSPECIFIED;
  std::string name = "LOG_LEVEL_";
  for (const char c : command.level) name += static_cast<char>(std::toupper(c));
  v1::LogLevel_Parse(name, &level);
  request.set_level(level);
  return AskAdmin(command, &v1::AdminService::Stub::SetLogLevel, request, [](const auto&) {
    return ClientExit::kOk;
  });
}

ClientExit ShowConfig(const AdminCommand& command) {
  return AskAdmin(command,
                  &v1::AdminService::Stub::GetConfig,
                  v1::GetConfigRequest(),
                  [](const v1::GetConfigResponse& response) {
                    std::cout << response.yaml();
                    return ClientExit::kOk;
                  });
}

ClientExit Flush(const AdminCommand& command) {
  return AskAdmin(command,
                  &v1::AdminService::Stub::FlushPrefixCache,
                  v1::FlushPrefixCacheRequest(),
                  [](const v1::FlushPrefixCacheResponse& response) {
                    std::cout << response.flushed_blocks() << " blocks flushed\n";
                    return ClientExit::kOk;
                  });
}

ClientExit ShowState(const AdminCommand& command) {
  v1::DumpStateRequest request;
  request.set_replica(command.replica);
  return AskAdmin(command,
                  &v1::AdminService::Stub::DumpState,
                  request,
                  [](const v1::DumpStateResponse& response) {
                    google::protobuf::util::JsonPrintOptions options;
                    options.always_print_primitive_fields = true;
                    options.add_whitespace = true;
                    std::string json;
                    if (!google::protobuf::util::MessageToJsonString(response, &json, options).ok())
                      return ClientExit::kServerFailed;
                    std::cout << json;
                    return ClientExit::kOk;
                  });
}

}  // namespace

void RegisterAdminCommand(CLI::App& app, int* exit_code) {
  CLI::App* admin = app.add_subcommand(
      "admin", "Operate a running daemon through its --admin-socket, as the user that runs it");
  const auto command = std::make_shared<AdminCommand>();
  admin->add_option("--socket", command->socket, "The daemon's --admin-socket")
      ->envname("PAGODA_ADMIN_SOCKET")
      ->type_name("PATH")
      ->required();
  admin->require_subcommand(1);
  const auto add = [&](const char* name, const char* help, ClientExit (*run)(const AdminCommand&)) {
    CLI::App* action = admin->add_subcommand(name, help);
    action->callback([=] { *exit_code = static_cast<int>(run(*command)); });
    return action;
  };
  add("drain", "Stop it as SIGTERM does: running requests may finish; twice: at once", &Drain);
  add("log-level", "Change what it logs, until the next reload", &SetLogLevel)
      ->add_option("LEVEL", command->level, "debug, info, warning or error")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}))
      ->required();
  add("config", "Print the configuration that it runs with; secrets are left out", &ShowConfig);
  add("flush-prefix-cache", "Forget all cached prefixes", &Flush);
  add("state", "Print what waits and runs, as JSON; no prompts and no outputs", &ShowState)
      ->add_option("--replica", command->replica, "Of the daemon's replicas, from 0")
      ->capture_default_str();
}

}  // namespace pagoda::daemon
