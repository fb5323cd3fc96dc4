#include "daemon/server/tls_files.h"

#include <boost/asio/ssl/context.hpp>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sstream>
#include <sys/stat.h>
#include <utility>

#include "absl/strings/str_cat.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_credentials_options.h"
#include "kernels/base/log.h"
#include "kernels/base/status_macros.h"

namespace pagoda::daemon {
namespace {

namespace ssl = boost::asio::ssl;

// How often gRPC looks whether its files have changed.
constexpr unsigned kGrpcRefreshSeconds = 2;
constexpr char kCertFlag[] = "--tls-cert-file";
constexpr char kKeyFlag[] = "--tls-key-file";
constexpr char kCaFlag[] = "--tls-client-ca-file";

template <auto kFree>
struct Freer {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};
using Bio = std::unique_ptr<BIO, Freer<&BIO_free>>;
using Certificate = std::unique_ptr<X509, Freer<&X509_free>>;
using PrivateKey = std::unique_ptr<EVP_PKEY, Freer<&EVP_PKEY_free>>;

absl::Status FileProblem(const char* flag, const std::string& path, absl::string_view what) {
  ERR_clear_error();
  return absl::InvalidArgumentError(absl::StrCat(flag, "=", path, ": ", what));
}

absl::StatusOr<std::string> ReadPem(const char* flag, const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::ostringstream bytes;
  if (!file.is_open() || !(bytes << file.rdbuf()))
    return FileProblem(flag, path, absl::StrCat("cannot be read: ", std::strerror(errno)));
  return std::move(bytes).str();
}

absl::StatusOr<Certificate> ReadCertificate(const char* flag, const std::string& path) {
  PAGODA_ASSIGN_OR_RETURN(const std::string pem, ReadPem(flag, path));
  const Bio bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  Certificate certificate(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
  if (certificate == nullptr)
    return FileProblem(flag, path, "expected a certificate in PEM (-----BEGIN CERTIFICATE-----)");
  return certificate;
}

// Of an encrypted key nobody is asked for the password.
int NoPassword(char*, int, int, void*) { return 0; }

absl::StatusOr<PrivateKey> ReadKey(const std::string& path) {
  PAGODA_ASSIGN_OR_RETURN(const std::string pem, ReadPem(kKeyFlag, path));
  const Bio bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  PrivateKey key(PEM_read_bio_PrivateKey(bio.get(), nullptr, &NoPassword, nullptr));
  if (key == nullptr)
    return FileProblem(
        kKeyFlag,
        path,
        "expected a private key in PEM (-----BEGIN PRIVATE KEY-----), not encrypted");
  return key;
}

absl::Status CheckMissing(const TlsFiles& files) {
  if (files.empty()) return absl::OkStatus();
  if (files.cert.empty())
    return absl::InvalidArgumentError(absl::StrCat(kCertFlag, " is missing: TLS needs one"));
  if (files.key.empty())
    return absl::InvalidArgumentError(
        absl::StrCat(kKeyFlag, " is missing: the key of ", kCertFlag, "=", files.cert));
  return absl::OkStatus();
}

std::shared_ptr<ssl::context> MakeContext(const TlsFiles& files, boost::system::error_code* error) {
  auto context = std::make_shared<ssl::context>(ssl::context::tls_server);
  context->set_options(ssl::context::default_workarounds | ssl::context::no_sslv2 |
                           ssl::context::no_sslv3 | ssl::context::no_tlsv1 |
                           ssl::context::no_tlsv1_1,
                       *error);
  if (!*error) context->use_certificate_chain_file(files.cert, *error);
  if (!*error) context->use_private_key_file(files.key, ssl::context::pem, *error);
  if (files.client_ca.empty()) return context;
  if (!*error) context->load_verify_file(files.client_ca, *error);
  if (!*error)
    context->set_verify_mode(ssl::verify_peer | ssl::verify_fail_if_no_peer_cert, *error);
  return context;
}

}  // namespace

TlsFiles TlsFiles::Of(const internal::v1::FrontEndConfig& front_end) {
  return {.cert = front_end.tls_cert_path(),
          .key = front_end.tls_key_path(),
          .client_ca = front_end.tls_client_ca_path()};
}

absl::Status CheckTlsFiles(const TlsFiles& files) {
  PAGODA_RETURN_IF_ERROR(CheckMissing(files));
  if (files.empty()) return absl::OkStatus();
  PAGODA_ASSIGN_OR_RETURN(const Certificate certificate, ReadCertificate(kCertFlag, files.cert));
  PAGODA_ASSIGN_OR_RETURN(const PrivateKey key, ReadKey(files.key));
  if (X509_check_private_key(certificate.get(), key.get()) != 1)
    return FileProblem(
        kKeyFlag, files.key, absl::StrCat("is not the key of the certificate in ", files.cert));
  if (X509_cmp_current_time(X509_get0_notAfter(certificate.get())) < 0)
    return FileProblem(kCertFlag, files.cert, "the certificate has expired");
  if (X509_cmp_current_time(X509_get0_notBefore(certificate.get())) > 0)
    return FileProblem(kCertFlag, files.cert, "the certificate is not valid yet");
  if (files.client_ca.empty()) return absl::OkStatus();
  return ReadCertificate(kCaFlag, files.client_ca).status();
}

std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(const TlsFiles& files) {
  using grpc::experimental::FileWatcherCertificateProvider;
  if (files.empty()) return grpc::InsecureServerCredentials();
  grpc::experimental::TlsServerCredentialsOptions options(
      std::make_shared<FileWatcherCertificateProvider>(
          files.key, files.cert, files.client_ca, kGrpcRefreshSeconds));
  options.watch_identity_key_cert_pairs();
  if (!files.client_ca.empty()) {
    options.watch_root_certs();
    options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  return grpc::experimental::TlsServerCredentials(options);
}

absl::StatusOr<std::unique_ptr<TlsContext>> TlsContext::Load(const TlsFiles& files) {
  std::unique_ptr<TlsContext> context(new TlsContext(files));
  PAGODA_RETURN_IF_ERROR(context->Reload());
  return context;
}

std::shared_ptr<TlsContext::Context> TlsContext::current() const {
  MutexLock lock(&mutex_);
  return context_;
}

std::string TlsContext::Version() const {
  std::string version;
  for (const std::string& path : {files_.cert, files_.key, files_.client_ca}) {
    struct stat file = {};
    if (!path.empty() && stat(path.c_str(), &file) == 0)
      absl::StrAppend(&version, file.st_ino, ".", file.st_mtim.tv_sec, ".", file.st_mtim.tv_nsec);
    version.push_back(';');
  }
  return version;
}

absl::Status TlsContext::Reload() {
  // Before reading: what changes meanwhile is seen next time.
  std::string version = Version();
  absl::Status status = CheckTlsFiles(files_);
  std::shared_ptr<Context> context;
  if (status.ok()) {
    boost::system::error_code error;
    context = MakeContext(files_, &error);
    if (error) status = FileProblem(kCertFlag, files_.cert, error.message());
  }
  MutexLock lock(&mutex_);
  version_ = std::move(version);
  if (status.ok()) context_ = std::move(context);
  return status;
}

void TlsContext::ReloadIfChanged() {
  {
    MutexLock lock(&mutex_);
    if (Version() == version_) return;
  }
  const absl::Status status = Reload();
  if (status.ok()) {
    LogInfo("TLS: took the changed files");
  } else {
    LogError("TLS: new connections get the certificate of before: %s", status.message());
  }
}

}  // namespace pagoda::daemon
