#include "daemon/server/api_keys.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <random>
#include <utility>
#include <vector>
#include <x86intrin.h>

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

// ---- S4: how long a key takes to be refused says nothing of those that there are

constexpr size_t kKeyBytes = 64;
using Shown = std::array<char, kKeyBytes>;

// Whether `compare` takes longer for one of two keys than for the other, in standard deviations
// (Mann and Whitney): the order is drawn, so that whatever else goes on hits both alike, and both
// are shown at one place.
template <typename Compare>
double TimingEffect(const Shown& one, const Shown& other, int num_tries, Compare compare) {
  std::mt19937 random(1);
  std::vector<std::pair<uint64_t, bool>> times;
  times.reserve(static_cast<size_t>(num_tries));
  Shown shown;
  for (int i = 0; i < num_tries; ++i) {
    const bool is_other = random() % 2 == 1;
    shown = is_other ? other : one;
    _mm_lfence();
    const uint64_t start = __rdtsc();
    compare(shown);
    _mm_lfence();
    times.emplace_back(__rdtsc() - start, is_other);
  }
  std::sort(times.begin(), times.end());
  double rank_sum = 0, num_other = 0, num_tied = 0;
  for (size_t begin = 0, end = 0; begin < times.size(); begin = end) {
    while (end < times.size() && times[end].first == times[begin].first) ++end;
    const double count = static_cast<double>(end - begin);
    num_tied += count * count * count - count;
    for (size_t i = begin; i < end; ++i) {
      if (!times[i].second) continue;
      rank_sum += static_cast<double>(begin + end + 1) / 2;
      num_other += 1;
    }
  }
  const double n = num_tries, num_one = n - num_other;
  const double variance = num_one * num_other / 12 * (n + 1 - num_tied / (n * (n - 1)));
  return (rank_sum - num_other * (n + 1) / 2) / std::sqrt(variance);
}

TEST(ApiKeysTest, S4RefusingTakesAsLongWhateverAKeyBeginsWith) {
  const int num_tries = std::getenv("PAGODA_QUICK_TESTS") == nullptr ? 1'000'000 : 200'000;
  constexpr double kCertain = 6;  // of a thousand million runs one
  Shown right, nearly, different;
  right.fill('k');
  nearly = right;
  nearly.back() = 'x';
  different.fill('x');
  const auto keys = ApiKeys::Parse(std::string(right.data(), right.size()));
  ASSERT_TRUE(keys.ok()) << keys.status();
  int num_found = 0;
  const auto find = [&](const Shown& shown) {
    char header[7 + kKeyBytes] = {'B', 'e', 'a', 'r', 'e', 'r', ' '};
    std::copy(shown.begin(), shown.end(), header + 7);
    num_found += keys->Find(absl::string_view(header, sizeof(header))) != nullptr ? 1 : 0;
  };
  EXPECT_LT(std::abs(TimingEffect(nearly, different, num_tries, find)), kCertain);
  EXPECT_EQ(num_found, 0);
  // Comparing from the beginning to the first difference would show.
  const volatile char* const stored = right.data();
  const auto compare = [&](const Shown& shown) {
    size_t i = 0;
    while (i < kKeyBytes && shown[i] == stored[i]) ++i;
    num_found += i == kKeyBytes ? 1 : 0;
  };
  EXPECT_GT(std::abs(TimingEffect(nearly, different, num_tries, compare)), 10 * kCertain);
}

}  // namespace
}  // namespace pagoda::daemon
