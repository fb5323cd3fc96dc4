#pragma once

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/mutex.h"
#include "pagoda/internal/v1/config.pb.h"

namespace boost::asio::ssl {
class context;
}
namespace grpc {
class ServerCredentials;
}

namespace pagoda::daemon {

// PEM files of a server: its certificate chain, the key of its first certificate, and the
// authorities of which one signs the certificate that clients must show (empty: they show none).
struct TlsFiles {
  std::string cert;
  std::string key;
  std::string client_ca;

  static TlsFiles Of(const internal::v1::FrontEndConfig& front_end);
  bool empty() const { return cert.empty() && key.empty() && client_ca.empty(); }
};

// INVALID_ARGUMENT naming the flag, the file and what is wrong with it: it cannot be read, is no
// PEM, the certificate has expired or is not yet valid, or the key is another's.
absl::Status CheckTlsFiles(const TlsFiles& files);

// What gRPC listens with; it looks at the files again every few seconds. Not encrypted where there
// are no files.
std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(const TlsFiles& files);

// What HTTP connections are encrypted with. Thread-safe.
class TlsContext {
 public:
  using Context = boost::asio::ssl::context;

  // Fails as CheckTlsFiles does.
  static absl::StatusOr<std::unique_ptr<TlsContext>> Load(const TlsFiles& files);

  // For a new connection.
  std::shared_ptr<Context> current() const;
  // Takes what the files hold now; connections keep what they began with. What is wrong is refused,
  // and all stays as it was.
  absl::Status Reload();
  // The same where a file has changed since it was last looked at. What is wrong is logged.
  void ReloadIfChanged();

 private:
  explicit TlsContext(const TlsFiles& files) : files_(files) {}
  // Of the files as they are.
  std::string Version() const;

  const TlsFiles files_;
  mutable Mutex mutex_;
  std::shared_ptr<Context> context_ ABSL_GUARDED_BY(mutex_);
  std::string version_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pagoda::daemon
