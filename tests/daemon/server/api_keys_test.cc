#include "daemon/server/api_keys.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pagoda::daemon {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(ApiKeysTest, AcceptsEachKeyAndNothingElse) {
  const auto keys = ApiKeys::Parse("# ours\r\nsk-one\r\n\n\t sk-two\n");
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_FALSE(keys->empty());
  for (const char* shown : {"Bearer sk-one", "bearer sk-two", "BEARER  sk-one "})
    EXPECT_TRUE(keys->Accept(shown)) << shown;
  for (const char* shown : {"",
                            "Bearer",
                            "Bearer ",
                            "Bearer sk-on",
                            "Bearer sk-onee",
                            "Bearer SK-ONE",
                            "Bearer sk-one sk-two",
                            "Bearer # ours",
                            "Basic sk-one",
                            "sk-one",
                            "Bearersk-one"}) {
    EXPECT_FALSE(keys->Accept(shown)) << shown;
  }
}

TEST(ApiKeysTest, WithoutKeysNobodyIsAccepted) {
  EXPECT_TRUE(ApiKeys().empty());
  EXPECT_FALSE(ApiKeys().Accept("Bearer "));
}

TEST(ApiKeysTest, ErrorsNameTheLineButNotTheKey) {
  for (const char* text : {"a\nsecret key\n", "a\nsecret\x01\n", "a\nsecret\xC3\xA9\n"}) {
    const auto keys = ApiKeys::Parse(text);
    ASSERT_FALSE(keys.ok());
    EXPECT_THAT(std::string(keys.status().message()), HasSubstr("line 2"));
    EXPECT_THAT(std::string(keys.status().message()), Not(HasSubstr("secret")));
  }
  for (const char* text : {"", "\n \n", "# nothing\n"}) EXPECT_FALSE(ApiKeys::Parse(text).ok());
}

}  // namespace
}  // namespace pagoda::daemon
