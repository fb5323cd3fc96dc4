#include "daemon/server/api_keys.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pagoda::daemon {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(ApiKeysTest, FindsEachKeyAndNothingElse) {
  const auto keys = ApiKeys::Parse("# ours\r\nsk-one\r\n\n\t sk-two\n");
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_FALSE(keys->empty());
  for (const char* shown : {"Bearer sk-one", "bearer sk-two", "BEARER  sk-one "})
    EXPECT_NE(keys->Find(shown), nullptr) << shown;
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
    EXPECT_EQ(keys->Find(shown), nullptr) << shown;
  }
}

TEST(ApiKeysTest, WithoutKeysNobodyIsFound) {
  EXPECT_TRUE(ApiKeys().empty());
  EXPECT_EQ(ApiKeys().Find("Bearer "), nullptr);
}

TEST(ApiKeysTest, KeysBelongToTenantsAndClasses) {
  const auto keys = ApiKeys::Parse(
      "k1 tenant=red weight=3\nk2\ttenant=red\nk3 tenant=blue.2-x_y\nk4 class=metrics "
      "tenant=eyes\nk5 class=admin tenant=red\nk6\n");
  ASSERT_TRUE(keys.ok()) << keys.status();
  const auto caller = [&keys](const std::string& key) { return *keys->Find("Bearer " + key); };
  EXPECT_EQ(caller("k1").tenant.name, "red");
  EXPECT_EQ(caller("k1").access, AccessClass::kUser);
  // The weight is the tenant's, whatever line says it; its part is of those that generate.
  for (const char* key : {"k1", "k2", "k5"}) {
    EXPECT_EQ(caller(key).tenant.weight, 3.0);
    EXPECT_EQ(caller(key).tenant.queue_share, 0.6);
  }
  EXPECT_EQ(caller("k5").access, AccessClass::kAdmin);
  EXPECT_EQ(caller("k3").tenant.name, "blue.2-x_y");
  EXPECT_EQ(caller("k3").tenant.queue_share, 0.2);
  EXPECT_EQ(caller("k4").access, AccessClass::kMetrics);
  EXPECT_EQ(caller("k6").tenant.name, "");
  EXPECT_EQ(caller("k6").tenant.queue_share, 0.2);
}

TEST(ApiKeysTest, ErrorsSayWhatWasExpected) {
  const auto error = [](absl::string_view text) {
    return std::string(ApiKeys::Parse(text).status().message());
  };
  EXPECT_EQ(error("k tenant="),
            "line 1: expected tenant=NAME of at most 64 letters, digits, '-', '_' and '.'");
  EXPECT_THAT(error("k tenant=a/b"), HasSubstr("tenant=NAME"));
  EXPECT_THAT(error("k tenant=" + std::string(65, 'a')), HasSubstr("at most 64"));
  for (const char* weight : {"0", "-1", "1001", "x", "", "nan", "inf"})
    EXPECT_EQ(error(std::string("k weight=") + weight),
              "line 1: expected weight= with a number from 0.001 to 1000");
  EXPECT_EQ(error("k class=root"), "line 1: expected class=user, class=metrics or class=admin");
  EXPECT_EQ(error("k1 tenant=a weight=2\nk2 tenant=a weight=3"),
            "line 2: expected the weight that a line above gives the tenant");
  EXPECT_EQ(error("k1 tenant=a\nk1"), "line 2: expected a key that no line above has");
  EXPECT_EQ(error(" \n"), "expected at least one key, one a line");
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
