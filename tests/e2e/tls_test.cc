// TLS and mutual TLS of both APIs, by a client of OpenSSL's own.

#include <arpa/inet.h>
#include <csignal>
#include <cstdio>
#include <memory>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <string>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/http_client.h"
#include "tests/e2e/test_daemon.h"
#include "tests/fixtures/certificates.h"
#include "tests/fixtures/model_files.h"

namespace pagoda::e2e::tls_test {
namespace {

using ::testing::HasSubstr;

// What GET of the path answers over TLS, whole; empty when no connection comes about. `cert`: what
// the client shows; empty: nothing.
std::string SecureGet(int port,
                      const std::string& path,
                      const std::string& ca,
                      const std::string& cert = "",
                      const std::string& key = "") {
  SSL_CTX* const context = SSL_CTX_new(TLS_client_method());
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  EXPECT_EQ(SSL_CTX_load_verify_locations(context, ca.c_str(), nullptr), 1);
  if (!cert.empty()) {
    EXPECT_EQ(SSL_CTX_use_certificate_chain_file(context, cert.c_str()), 1);
    EXPECT_EQ(SSL_CTX_use_PrivateKey_file(context, key.c_str(), SSL_FILETYPE_PEM), 1);
  }
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port))};
  inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
  std::string answer;
  SSL* const connection = SSL_new(context);
  SSL_set_fd(connection, fd);
  SSL_set1_host(connection, "localhost");
  const std::string request =
      absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
      SSL_connect(connection) == 1 &&
      SSL_write(connection, request.data(), static_cast<int>(request.size())) > 0) {
    char bytes[4096];
    for (int n = 0; (n = SSL_read(connection, bytes, sizeof(bytes))) > 0;)
      answer.append(bytes, static_cast<size_t>(n));
    // The server says that nothing follows, so that nobody can cut its answer short.
    if (!answer.empty()) {
      EXPECT_NE(SSL_get_shutdown(connection) & SSL_RECEIVED_SHUTDOWN, 0);
    }
  }
  SSL_free(connection);
  SSL_CTX_free(context);
  close(fd);
  return answer;
}

class Tls : public ::testing::Test {
 protected:
  std::unique_ptr<TestDaemon> Start(std::vector<std::string> flags, bool shows_client = false) {
    flags.insert(flags.begin(),
                 {"--device=sim",
                  "--sim-base-us=0",
                  "--sim-per-token-us=0",
                  "--tls-cert-file=" + files_.server_cert,
                  "--tls-key-file=" + files_.server_key});
    auto started = TestDaemon::Start({.flags = std::move(flags),
                                      .wait_until_serving = false,
                                      .over_tcp = true,
                                      .with_http = true});
    EXPECT_TRUE(started.ok()) << started.status();
    if (!started.ok()) std::abort();
    std::unique_ptr<TestDaemon> daemon = *std::move(started);
    const bool serves = TestDaemon::Eventually(absl::Seconds(30), [&] {
      return Health(
                 *daemon, files_.ca, shows_client ? files_.client_cert : "", files_.client_key) ==
             0;
    });
    EXPECT_TRUE(serves) << daemon->Log();
    return daemon;
  }

  // Exit code of `pagoda health`.
  int Health(const TestDaemon& daemon,
             const std::string& ca,
             const std::string& cert = "",
             const std::string& key = "") {
    std::vector<std::string> arguments = {
        "health", "--timeout=3", absl::StrCat("--address=", daemon.grpc_address())};
    if (!ca.empty()) arguments.push_back("--tls-ca=" + ca);
    if (!cert.empty())
      arguments.insert(arguments.end(), {"--tls-cert=" + cert, "--tls-key=" + key});
    return RunPagoda(arguments).exit_code;
  }

  const fixtures::TemporaryDir dir_;
  const fixtures::CertificateFiles files_ = fixtures::MakeCertificates(dir_.path());
};

TEST_F(Tls, BothApisAreEncrypted) {
  const auto daemon = Start({});
  EXPECT_THAT(SecureGet(daemon->http_port(), "/v1/models", files_.ca), HasSubstr("fable-7m"));
  // Who trusts another authority, or does not encrypt, gets nothing.
  EXPECT_EQ(SecureGet(daemon->http_port(), "/v1/models", files_.other_ca), "");
  EXPECT_NE(Health(*daemon, files_.other_ca), 0);
  EXPECT_NE(Health(*daemon, ""), 0);
  HttpClient plain(daemon->http_port());
  plain.Get("/health");
  EXPECT_EQ(plain.Read().status, 0);
  const CommandResult text = RunPagoda({"generate",
                                        "hello",
                                        "--max-tokens=3",
                                        absl::StrCat("--address=", daemon->grpc_address()),
                                        "--tls-ca=" + files_.ca});
  EXPECT_EQ(text.exit_code, 0) << text.err;
}

TEST_F(Tls, ClientsShowACertificateWhereOneIsAskedFor) {
  const auto daemon = Start({"--tls-client-ca-file=" + files_.ca}, /*shows_client=*/true);
  const int port = daemon->http_port();
  EXPECT_THAT(SecureGet(port, "/health", files_.ca, files_.client_cert, files_.client_key),
              HasSubstr("200 OK"));
  EXPECT_EQ(SecureGet(port, "/health", files_.ca), "");
  EXPECT_EQ(SecureGet(port, "/health", files_.ca, files_.other_cert, files_.other_key), "");
  EXPECT_EQ(SecureGet(port, "/health", files_.ca, files_.expired_cert, files_.expired_key), "");
  EXPECT_EQ(Health(*daemon, files_.ca, files_.client_cert, files_.client_key), 0);
  EXPECT_NE(Health(*daemon, files_.ca), 0);
  EXPECT_NE(Health(*daemon, files_.ca, files_.other_cert, files_.other_key), 0);
}

// Certificates are replaced by files of the same names; connections that are open go on.
TEST_F(Tls, NewFilesAreTaken) {
  const auto daemon = Start({});
  const std::string later = dir_.path() + "/later";
  ASSERT_EQ(mkdir(later.c_str(), 0700), 0);
  const fixtures::CertificateFiles next = fixtures::MakeCertificates(later);
  ASSERT_EQ(std::rename(next.server_cert.c_str(), files_.server_cert.c_str()), 0);
  ASSERT_EQ(std::rename(next.server_key.c_str(), files_.server_key.c_str()), 0);
  daemon->Signal(SIGHUP);
  EXPECT_TRUE(TestDaemon::Eventually(absl::Seconds(20), [&] {
    return !SecureGet(daemon->http_port(), "/health", next.ca).empty();
  }));
  EXPECT_EQ(SecureGet(daemon->http_port(), "/health", files_.ca), "");
  EXPECT_TRUE(
      TestDaemon::Eventually(absl::Seconds(20), [&] { return Health(*daemon, next.ca) == 0; }));
}

TEST_F(Tls, WrongFilesAreRefusedAtTheStart) {
  const CommandResult result = RunPagoda({"serve",
                                          DefaultModelDir(),
                                          "--device=sim",
                                          "--tls-cert-file=" + files_.server_cert,
                                          "--tls-key-file=" + files_.client_key});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("is not the key of the certificate in"));
}

}  // namespace
}  // namespace pagoda::e2e::tls_test
