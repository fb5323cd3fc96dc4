#include <iostream>
#include <memory>

#include <CLI/CLI.hpp>

#include "daemon/client/commands.h"
#include "daemon/client/connection.h"
#include "daemon/client/failure.h"
#include "grpc/health/v1/health.grpc.pb.h"

namespace pagoda::daemon {
namespace {

struct HealthCommand {
  // A probe must end, so unlike other calls it has a limit from the start.
  ConnectionFlags connection = {.timeout_seconds = 5.0};
  std::string service;
};

ClientExit Run(const HealthCommand& command) {
  grpc::ClientContext context;
  PrepareCall(command.connection, &context);
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(command.service);
  grpc::health::v1::HealthCheckResponse response;
  const auto stub = grpc::health::v1::Health::NewStub(OpenChannel(command.connection));
  const grpc::Status status = stub->Check(&context, request, &response);
  if (!status.ok()) {
    std::cerr << DescribeFailure(status, command.connection.address);
    return ExitOf(status);
  }
  std::cout << grpc::health::v1::HealthCheckResponse::ServingStatus_Name(response.status()) << "\n";
  const bool is_serving = response.status() == grpc::health::v1::HealthCheckResponse::SERVING;
  return is_serving ? ClientExit::kOk : ClientExit::kServerFailed;
}

}  // namespace

void RegisterHealthCommand(CLI::App& app, int* exit_code) {
  CLI::App* subcommand =
      app.add_subcommand("health", "Ask whether a daemon serves; exits 0 when it does");
  const auto command = std::make_shared<HealthCommand>();
  AddConnectionFlags(*subcommand, &command->connection);
  subcommand->add_option(
      "--service", command->service, "A service's full name (absent: the daemon as a whole)");
  subcommand->callback([command, exit_code] { *exit_code = static_cast<int>(Run(*command)); });
}

}  // namespace pagoda::daemon
