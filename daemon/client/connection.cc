#include "daemon/client/connection.h"

#include <chrono>

#include <CLI/CLI.hpp>

#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/channel_arguments.h"

namespace pagoda::daemon {
namespace {

// A daemon that vanished is noticed within about a minute, however long a prompt takes; the daemon
// allows a ping every ten seconds.
constexpr int kKeepaliveMs = 40'000;
constexpr int kKeepaliveTimeoutMs = 20'000;

}  // namespace

void AddConnectionFlags(CLI::App& command, ConnectionFlags* flags) {
  command.add_option("--address", flags->address, "The daemon: host:port or unix:PATH")
      ->envname("PAGODA_GRPC_ADDRESS")
      ->capture_default_str();
  command
      .add_option(
          "--timeout", flags->timeout_seconds, "Seconds that a call may take (default: no limit)")
      ->check(CLI::PositiveNumber);
}

std::shared_ptr<grpc::Channel> OpenChannel(const std::string& address, int index) {
  grpc::ChannelArguments arguments;
  // Answers with log-probabilities of a long prompt pass the default of 4 MiB.
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  // Channels with equal arguments share a connection.
  arguments.SetInt("pagoda.channel_index", index);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

void SetTimeout(const std::optional<double>& timeout_seconds, grpc::ClientContext* context) {
  if (!timeout_seconds) return;
  context->set_deadline(std::chrono::system_clock::now() +
                        std::chrono::microseconds(static_cast<int64_t>(*timeout_seconds * 1e6)));
}

}  // namespace pagoda::daemon
