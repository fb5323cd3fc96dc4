#include "daemon/client/connection.h"

#include <chrono>
#include <fstream>
#include <sstream>

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

std::string ReadPem(const char* flag, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream bytes;
  if (!file.is_open() || !(bytes << file.rdbuf()) ||
      bytes.str().find("-----BEGIN") == std::string::npos)
    throw CLI::ValidationError(flag, "expected a PEM file that can be read");
  return bytes.str();
}

// The first word that is not in a comment: files of the daemon's keys will do.
std::string FirstKeyOf(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    std::string key;
    if (std::istringstream(line) >> key && key.front() != '#') return key;
  }
  throw CLI::ValidationError("--api-key-file", "expected a file that can be read and holds a key");
}

}  // namespace

void AddConnectionFlags(CLI::App& command, ConnectionFlags* flags) {
  command.add_option("--address", flags->address, "The daemon: host:port or unix:PATH")
      ->envname("PAGODA_GRPC_ADDRESS")
      ->capture_default_str();
  command
      .add_option(
          "--timeout", flags->timeout_seconds, "Seconds that a call may take (default: no limit)")
      ->check(CLI::PositiveNumber);
  command
      .add_option_function<std::string>(
          "--api-key-file",
          [flags](const std::string& path) { flags->api_key = FirstKeyOf(path); },
          "File whose first key calls show (absent: none)")
      ->envname("PAGODA_API_KEY_FILE")
      ->type_name("FILE");
  const auto add_pem = [&command](const char* name, std::string* pem, const char* help) {
    return command
        .add_option_function<std::string>(
            name, [name, pem](const std::string& path) { *pem = ReadPem(name, path); }, help)
        ->type_name("FILE");
  };
  CLI::Option* const ca =
      add_pem("--tls-ca",
              &flags->ca_pem,
              "PEM file of authorities, one of which signs the daemon's certificate");
  CLI::Option* const cert = add_pem(
      "--tls-cert", &flags->cert_pem, "PEM file of the certificate that the daemon asks for");
  CLI::Option* const key = add_pem("--tls-key", &flags->key_pem, "PEM file of its private key");
  cert->needs(ca)->needs(key);
  key->needs(cert);
}

std::shared_ptr<grpc::Channel> OpenChannel(const ConnectionFlags& flags, int index) {
  grpc::ChannelArguments arguments;
  // Answers with log-probabilities of a long prompt pass the default of 4 MiB.
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  // Channels with equal arguments share a connection.
  arguments.SetInt("pagoda.channel_index", index);
  auto credentials = grpc::InsecureChannelCredentials();
  if (!flags.ca_pem.empty()) {
    credentials = grpc::SslCredentials({.pem_root_certs = flags.ca_pem,
                                        .pem_private_key = flags.key_pem,
                                        .pem_cert_chain = flags.cert_pem});
  }
  return grpc::CreateCustomChannel(flags.address, credentials, arguments);
}

void PrepareCall(const ConnectionFlags& flags, grpc::ClientContext* context) {
  if (!flags.api_key.empty()) context->AddMetadata("authorization", "Bearer " + flags.api_key);
  if (!flags.timeout_seconds) return;
  const auto timeout_us = static_cast<int64_t>(*flags.timeout_seconds * 1e6);
  context->set_deadline(std::chrono::system_clock::now() + std::chrono::microseconds(timeout_us));
}

}  // namespace pagoda::daemon
