#include "daemon/server/vllm/tokenizer_bundle.h"

#include <cstdlib>
#include <fstream>
#include <sys/stat.h>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fixtures/model_files.h"

namespace pagoda::daemon {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(TokenizerBundleTest, HoldsTheFilesOfTheTokenizerAlone) {
  const fixtures::TemporaryDir dir;
  dir.Write("tokenizer.json", "{}");
  dir.Write("vocab.json", "");
  dir.Write("chat.jinja", "{{ x }}");
  dir.Write("spiece.model", std::string("\0\1", 2));
  dir.Write("model.safetensors", "weights");
  dir.Write("README.md", "text");
  ASSERT_EQ(mkdir(absl::StrCat(dir.path(), "/folder.model").c_str(), 0755), 0);
  const auto bundle = MakeTokenizerBundle(dir.path());
  ASSERT_TRUE(bundle.ok()) << bundle.status();
  EXPECT_EQ(bundle->sha256.size(), 64u);
  // Names stand in the clear; what is in the archive is checked in zip_archive_test and
  // by Python among the peers.
  EXPECT_THAT(bundle->zip,
              AllOf(HasSubstr("tokenizer.json"),
                    HasSubstr("vocab.json"),
                    HasSubstr("chat.jinja"),
                    HasSubstr("spiece.model"),
                    Not(HasSubstr("safetensors")),
                    Not(HasSubstr("README")),
                    Not(HasSubstr("folder")),
                    Not(HasSubstr("/"))));
  // The same files, the same fingerprint.
  EXPECT_EQ(MakeTokenizerBundle(dir.path())->sha256, bundle->sha256);
  dir.Write("tokenizer.json", "{ }");
  EXPECT_NE(MakeTokenizerBundle(dir.path())->sha256, bundle->sha256);
}

TEST(TokenizerBundleTest, RefusesMoreThanGatewaysTake) {
  const fixtures::TemporaryDir dir;
  for (int i = 0; i < 51; ++i) dir.Write(absl::StrCat(i, ".jinja"), "x");
  const auto bundle = MakeTokenizerBundle(dir.path());
  EXPECT_TRUE(absl::IsFailedPrecondition(bundle.status())) << bundle.status();
  EXPECT_TRUE(absl::IsFailedPrecondition(MakeTokenizerBundle("/nowhere").status()));
}

TEST(TokenizerBundleTest, IsMadeOnce) {
  const fixtures::TemporaryDir dir;
  dir.Write("tokenizer.json", "{}");
  TokenizerBundleCache cache(dir.path());
  const auto first = cache.Get();
  ASSERT_TRUE(first.ok());
  dir.Write("tokenizer.json", "{ }");
  EXPECT_EQ(*cache.Get(), *first);
}

}  // namespace
}  // namespace pagoda::daemon
