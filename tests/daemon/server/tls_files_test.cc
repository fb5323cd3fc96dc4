#include "daemon/server/tls_files.h"

#include <cstdio>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fixtures/certificates.h"
#include "tests/fixtures/model_files.h"

namespace pagoda::daemon {
namespace {

using ::testing::HasSubstr;

class TlsFilesTest : public ::testing::Test {
 protected:
  std::string Problem(const TlsFiles& files) {
    const absl::Status status = CheckTlsFiles(files);
    EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  }
  TlsFiles Good() const {
    return {.cert = files_.server_cert, .key = files_.server_key, .client_ca = files_.ca};
  }

  const fixtures::TemporaryDir dir_;
  const fixtures::CertificateFiles files_ = fixtures::MakeCertificates(dir_.path());
};

TEST_F(TlsFilesTest, GoodOnesAreTaken) {
  EXPECT_EQ(Problem({}), "");
  EXPECT_EQ(Problem(Good()), "");
  TlsFiles files = Good();
  files.client_ca.clear();
  EXPECT_EQ(Problem(files), "");
}

TEST_F(TlsFilesTest, ProblemsNameTheFlagAndTheFile) {
  TlsFiles files = Good();
  files.key.clear();
  EXPECT_THAT(Problem(files), HasSubstr("--tls-key-file is missing"));
  files = {.client_ca = files_.ca};
  EXPECT_THAT(Problem(files), HasSubstr("--tls-cert-file is missing"));
  files = Good();
  files.cert = "/nowhere.pem";
  EXPECT_EQ(Problem(files),
            "--tls-cert-file=/nowhere.pem: cannot be read: No such file or directory");
  files = Good();
  files.key = files_.client_key;
  EXPECT_EQ(Problem(files),
            "--tls-key-file=" + files_.client_key + ": is not the key of the certificate in " +
                files_.server_cert);
  files.key = files_.server_cert;
  EXPECT_THAT(Problem(files), HasSubstr("expected a private key in PEM"));
  files = Good();
  files.cert = files_.server_key;
  EXPECT_THAT(Problem(files), HasSubstr("expected a certificate in PEM"));
  files = Good();
  files.client_ca = files_.server_key;
  EXPECT_THAT(Problem(files), HasSubstr("--tls-client-ca-file=" + files_.server_key));
  files = {.cert = files_.expired_cert, .key = files_.expired_key};
  EXPECT_THAT(Problem(files), HasSubstr("has expired"));
}

TEST_F(TlsFilesTest, ChangesAreTakenAndMistakesAreNot) {
  auto context = TlsContext::Load(Good());
  ASSERT_TRUE(context.ok()) << context.status();
  const auto first = (*context)->current();
  ASSERT_NE(first, nullptr);
  (*context)->ReloadIfChanged();
  EXPECT_EQ((*context)->current(), first);
  // The certificate first: for a moment the key is another's.
  ASSERT_EQ(std::rename(files_.client_cert.c_str(), files_.server_cert.c_str()), 0);
  (*context)->ReloadIfChanged();
  EXPECT_EQ((*context)->current(), first);
  EXPECT_FALSE((*context)->Reload().ok());
  EXPECT_EQ((*context)->current(), first);
  ASSERT_EQ(std::rename(files_.client_key.c_str(), files_.server_key.c_str()), 0);
  (*context)->ReloadIfChanged();
  EXPECT_NE((*context)->current(), first);
}

}  // namespace
}  // namespace pagoda::daemon
