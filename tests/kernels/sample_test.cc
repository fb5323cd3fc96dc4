#include "kernels/ops/sample.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>

#include "gtest/gtest.h"
#include "tests/kernels/backend_fixture.h"
#include "tests/reference/sampler.h"

namespace pagoda::kernels {
namespace {

using reference::SamplerRow;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Wanted {
  int32_t num_logprobs = -1;
  bool processed = false;
  int32_t target_token = -1;
};

struct Drawn {
  int32_t token = -99;
  float logprob = 0;
  int32_t rank = 0;
  std::vector<int32_t> top_ids;
  std::vector<float> top_logprobs;
};

// Upper tail of the chi-square distribution, by Wilson and Hilferty.
double ChiSquareTail(double statistic, double degrees) {
  const double spread = 2.0 / (9.0 * degrees);
  const double z = (std::cbrt(statistic / degrees) - (1.0 - spread)) / std::sqrt(spread);
  return 0.5 * std::erfc(z / std::sqrt(2.0));
}

std::vector<double> Doubles(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

class SampleTest : public testing::TestWithParam<BackendCase> {
 protected:
  static constexpr int32_t kMaxTop = 8;

  SampleTest() : backend_(OpenForTest(GetParam())) {}

  // Samples rows (logits, parameters) together, in one call.
  std::vector<Drawn> Run(const std::vector<std::vector<float>>& logits,
                         const std::vector<SamplerRow>& rows,
                         const Wanted& wanted = {}) {
    const auto vocab = static_cast<int32_t>(logits[0].size());
    const int64_t stride = vocab + 5;  // of padding, which would win if it counted
    const auto num_rows = static_cast<int64_t>(rows.size());
    std::vector<float> all(num_rows * stride, 1e30f);
    std::vector<int32_t> allowed, masked, bias_ids;
    std::vector<float> bias_values;
    std::vector<PenaltyEntry> penalties;
    std::vector<SampleRow> params;
    for (int64_t i = 0; i < num_rows; ++i) {
      const SamplerRow& row = rows[i];
      const std::vector<float>& from = logits[i % logits.size()];
      std::copy(from.begin(), from.end(), all.begin() + i * stride);
      SampleRow p = {.temperature = static_cast<float>(row.temperature),
                     .top_p = static_cast<float>(row.top_p),
                     .min_p = static_cast<float>(row.min_p),
                     .typical_p = static_cast<float>(row.typical_p),
                     .repetition_penalty = static_cast<float>(row.repetition_penalty),
                     .frequency_penalty = static_cast<float>(row.frequency_penalty),
                     .presence_penalty = static_cast<float>(row.presence_penalty),
                     .top_k = row.top_k,
                     .seed = row.seed,
                     .position = row.position,
                     .slot = static_cast<int32_t>(i % 3 == 0 ? -1 : i),
                     .target_token = wanted.target_token,
                     .num_logprobs = wanted.num_logprobs,
                     .processed_logprobs = wanted.processed ? 1 : 0};
      p.allowed_begin = static_cast<int32_t>(allowed.size());
      allowed.insert(allowed.end(), row.allowed.begin(), row.allowed.end());
      p.allowed_end = static_cast<int32_t>(allowed.size());
      p.masked_begin = static_cast<int32_t>(masked.size());
      masked.insert(masked.end(), row.masked.begin(), row.masked.end());
      p.masked_end = static_cast<int32_t>(masked.size());
      p.bias_begin = static_cast<int32_t>(bias_ids.size());
      for (const auto& [id, value] : row.bias) {
        bias_ids.push_back(id);
        bias_values.push_back(static_cast<float>(value));
      }
      p.bias_end = static_cast<int32_t>(bias_ids.size());
      p.penalty_begin = static_cast<int32_t>(penalties.size());
      for (const auto& [id, count] : row.penalties) penalties.push_back({id, count});
      p.penalty_end = static_cast<int32_t>(penalties.size());
      params.push_back(p);
    }
    last_tokens_.assign(num_rows, -50);
    std::vector<int32_t> tokens(num_rows, -99), ranks(num_rows), top_ids(num_rows * kMaxTop, -99);
    std::vector<float> logprobs(num_rows), top_logprobs(num_rows * kMaxTop);
    const absl::Status status = backend_->Sample({.logits = all.data(),
                                                  .logits_stride = stride,
                                                  .rows = num_rows,
                                                  .vocab_size = vocab,
                                                  .row_params = params.data(),
                                                  .allowed_ids = allowed.data(),
                                                  .masked_ids = masked.data(),
                                                  .bias_ids = bias_ids.data(),
                                                  .bias_values = bias_values.data(),
                                                  .penalties = penalties.data(),
                                                  .host_row_params = params.data(),
                                                  .last_tokens = last_tokens_.data(),
                                                  .num_slots = num_rows,
                                                  .tokens = tokens.data(),
                                                  .logprobs = logprobs.data(),
                                                  .ranks = ranks.data(),
                                                  .top_ids = top_ids.data(),
                                                  .top_logprobs = top_logprobs.data(),
                                                  .max_top = kMaxTop});
    EXPECT_TRUE(status.ok()) << status;
    std::vector<Drawn> drawn;
    for (int64_t i = 0; i < num_rows; ++i) {
      EXPECT_EQ(last_tokens_[i], i % 3 == 0 || wanted.target_token >= 0 ? -50 : tokens[i]);
      drawn.push_back(
          {tokens[i],
           logprobs[i],
           ranks[i],
           {top_ids.begin() + i * kMaxTop, top_ids.begin() + (i + 1) * kMaxTop},
           {top_logprobs.begin() + i * kMaxTop, top_logprobs.begin() + (i + 1) * kMaxTop}});
    }
    return drawn;
  }
  Drawn One(const std::vector<float>& logits, const SamplerRow& row, const Wanted& wanted = {}) {
    return Run({logits}, {row}, wanted)[0];
  }

  // Draws many times and compares frequencies with the exact distribution. Of `num_tests` in a row,
  // chance alone fails one in ten thousand runs of all of them. A quick run draws a tenth as often
  // for combinations, and without vectors, which is slow.
  void CheckDistribution(const std::vector<float>& logits, SamplerRow row, int num_tests = 1) {
    const bool is_full = std::getenv("PAGODA_QUICK_TESTS") == nullptr ||
                         (num_tests == 1 && GetParam().isa != "scalar");
    const int64_t num_draws = is_full ? 100'000 : 10'000;
    std::vector<SamplerRow> rows(static_cast<size_t>(num_draws), row);
    for (int64_t i = 0; i < num_draws; ++i) {
      rows[i].seed = static_cast<uint64_t>(i / 100);
      rows[i].position = i % 100;
    }
    std::map<int32_t, int64_t> counts;
    for (const Drawn& drawn : Run({logits}, rows)) ++counts[drawn.token];
    const std::vector<double> p = reference::Distribution(Doubles(logits), row);
    double statistic = 0, rest_expected = 0, rest_seen = 0;
    int degrees = -1;
    for (size_t id = 0; id < p.size(); ++id) {
      const double expected = p[id] * static_cast<double>(num_draws);
      const auto seen = static_cast<double>(counts[static_cast<int32_t>(id)]);
      if (p[id] == 0) {
        EXPECT_EQ(seen, 0) << "id " << id << " has been filtered out";
      }
      if (expected < 5) {
        rest_expected += expected;
        rest_seen += seen;
        continue;
      }
      statistic += (seen - expected) * (seen - expected) / expected;
      ++degrees;
    }
    if (rest_expected >= 5) {
      statistic += (rest_seen - rest_expected) * (rest_seen - rest_expected) / rest_expected;
      ++degrees;
    }
    if (degrees >= 1) {
      EXPECT_GT(ChiSquareTail(statistic, degrees), 1e-4 / num_tests)
          << "chi-square " << statistic << " of " << degrees;
    }
  }

  std::unique_ptr<Backend> backend_;
  std::vector<int32_t> last_tokens_;
};

TEST_P(SampleTest, DrawsTheReferencesTokenUnderEveryFilter) {
  std::vector<std::pair<const char*, SamplerRow>> cases = {
      {"neutral", {}},
      {"hot", {.temperature = 3}},
      {"cold", {.temperature = 0.2}},
      {"top_k 1", {.top_k = 1}},
      {"top_k 7", {.top_k = 7}},
      {"top_k 3000", {.temperature = 4, .top_k = 3000}},
      {"top_k beyond the vocabulary", {.top_k = 1 << 20}},
      {"top_p", {.top_p = 0.9}},
      {"top_p of a flat row", {.temperature = 20, .top_p = 0.7}},
      {"tiny top_p", {.top_p = 1e-6}},
      {"min_p", {.min_p = 0.1}},
      {"min_p of a flat row", {.temperature = 30, .min_p = 0.5}},
      {"typical_p", {.typical_p = 0.6}},
      {"typical_p of a flat row", {.temperature = 20, .typical_p = 0.8}},
      {"top_k and top_p", {.temperature = 2, .top_p = 0.8, .top_k = 40}},
      {"large top_k and top_p", {.temperature = 9, .top_p = 0.8, .top_k = 4000}},
      {"all", {.temperature = 2, .top_p = 0.95, .min_p = 0.01, .typical_p = 0.9, .top_k = 30}},
      {"all but top_k", {.temperature = 5, .top_p = 0.99, .min_p = 0.001, .typical_p = 0.95}},
      {"lists",
       {.temperature = 1.5,
        .repetition_penalty = 1.3,
        .frequency_penalty = 0.4,
        .presence_penalty = -0.2,
        .masked = {3, 4},
        .bias = {{0, 5.0}, {1, -5.0}, {2, 1.5}, {0, 1.0}},
        .penalties = {{0, 2}, {1, 0}, {2, 7}}}},
      {"allowed",
       {.temperature = 2,
        .top_p = 0.9,
        .allowed = {0, 2, 3, 4},
        .masked = {2},
        .bias = {{0, -1.0}}}},
  };
  for (const int32_t vocab : {5, 64, 130, 1000, 5003, 33333}) {
    const std::vector<float> logits = RandomFloats(vocab, vocab, 2.5f);
    for (const auto& [name, params] : cases) {
      std::vector<SamplerRow> rows;
      for (uint64_t i = 0; i < 6; ++i) {
        rows.push_back(params);
        rows.back().seed = i * 0x123456789abcdefu;
        rows.back().position = static_cast<int64_t>(i * 1000003);
      }
      const std::vector<Drawn> drawn = Run({logits}, rows);
      for (size_t i = 0; i < rows.size(); ++i) {
        const std::vector<double> noisy = reference::NoisyLogits(Doubles(logits), rows[i]);
        ASSERT_GE(drawn[i].token, 0) << name;
        // Equal up to what float32 can tell apart.
        EXPECT_GE(noisy[drawn[i].token], *std::max_element(noisy.begin(), noisy.end()) - 1e-4)
            << name << ", vocabulary " << vocab << ", row " << i << ", token " << drawn[i].token;
      }
    }
  }
}

TEST_P(SampleTest, FrequenciesAreTheDistribution) {
  const std::vector<float> logits = RandomFloats(200, 11, 1.5f);
  CheckDistribution(logits, {});
  CheckDistribution(logits, {.temperature = 0.7, .top_p = 0.8});
  CheckDistribution(logits, {.temperature = 1.3, .top_k = 20});
  CheckDistribution(logits, {.temperature = 1.3, .min_p = 0.1});
  CheckDistribution(logits, {.temperature = 1.3, .typical_p = 0.7});
  CheckDistribution(
      logits,
      {.repetition_penalty = 2, .frequency_penalty = 0.5, .penalties = {{0, 3}, {1, 1}, {2, 0}}});
  // Long tails: a race over many tokens.
  CheckDistribution(RandomFloats(5000, 12, 3.0f), {});
}

// Many draws, so on the last backend case alone: it draws with the same kernels as the others.
class SampleCombinationsTest : public SampleTest {};

// Every parameter with every other.
TEST_P(SampleCombinationsTest, FrequenciesOfEveryCombinationAreTheDistribution) {
  const std::vector<float> logits = RandomFloats(64, 13, 1.5f);
  const std::vector<std::function<void(SamplerRow&)>> parameters = {
      [](SamplerRow& row) { row.temperature = 1.7; },
      [](SamplerRow& row) { row.top_k = 24; },
      [](SamplerRow& row) { row.top_p = 0.85; },
      [](SamplerRow& row) { row.min_p = 0.04; },
      [](SamplerRow& row) { row.typical_p = 0.8; },
      [](SamplerRow& row) {
        row.repetition_penalty = 1.4;
        row.frequency_penalty = 0.3;
        row.presence_penalty = 0.5;
        row.penalties = {{0, 2}, {1, 0}, {2, 1}, {40, 3}};
      },
      [](SamplerRow& row) {
        row.bias = {{3, 2.0}, {5, -1.0}};
        row.masked = {4, 9};
        for (int32_t id = 0; id < 64; id += 2) row.allowed.push_back(id);
        row.allowed.push_back(3);
      }};
  const int num_combinations = 1 << parameters.size();
  for (int combination = 0; combination < num_combinations; ++combination) {
    SCOPED_TRACE(combination);
    SamplerRow row;
    for (size_t i = 0; i < parameters.size(); ++i)
      if ((combination >> i & 1) != 0) parameters[i](row);
    CheckDistribution(logits, row, num_combinations);
  }
}

TEST_P(SampleTest, GreedyTakesTheBestAndTheLowestIdOnTies) {
  std::vector<float> logits = RandomFloats(1000, 3);
  logits[700] = logits[300] = logits[999] = 9.0f;
  EXPECT_EQ(One(logits, {.temperature = 0}).token, 300);
  // Filters and seeds do not matter.
  EXPECT_EQ(
      One(logits,
          {.temperature = 0, .top_p = 0.1, .min_p = 0.9, .typical_p = 0.1, .top_k = 5, .seed = 9})
          .token,
      300);
  EXPECT_EQ(One(logits, {.temperature = 0, .masked = {300}}).token, 700);
  EXPECT_EQ(One(logits, {.temperature = 0, .allowed = {5, 999, 1}}).token, 999);
  EXPECT_EQ(One(logits, {.temperature = 0, .bias = {{5, 100.0}}}).token, 5);
  EXPECT_EQ(
      One(logits, {.temperature = 0, .presence_penalty = 1, .penalties = {{300, 1}, {700, 0}}})
          .token,
      700);
}

TEST_P(SampleTest, TiesAreKeptByIdInEveryFilter) {
  const std::vector<float> flat(500, 1.0f);
  std::vector<SamplerRow> rows;
  for (uint64_t seed = 0; seed < 300; ++seed) rows.push_back({.top_k = 3, .seed = seed});
  std::map<int32_t, int> counts;
  for (const Drawn& drawn : Run({flat}, rows)) ++counts[drawn.token];
  EXPECT_EQ(counts.size(), 3u);
  EXPECT_EQ(counts.rbegin()->first, 2);
  for (SamplerRow& row : rows) row = {.top_p = 0.0099, .seed = row.seed};  // 4.95 tokens of 500
  counts.clear();
  for (const Drawn& drawn : Run({flat}, rows)) ++counts[drawn.token];
  EXPECT_EQ(counts.size(), 5u);
  EXPECT_EQ(counts.rbegin()->first, 4);
  // More ties than a short list holds.
  const std::vector<float> wide(9000, -2.0f);
  for (SamplerRow& row : rows) row = {.top_p = 0.5, .seed = row.seed};
  for (const Drawn& drawn : Run({wide}, rows)) EXPECT_LT(drawn.token, 4501);
  for (SamplerRow& row : rows) row = {.typical_p = 0.5, .seed = row.seed};
  for (const Drawn& drawn : Run({wide}, rows)) EXPECT_LT(drawn.token, 4501);
}

TEST_P(SampleTest, TopKOfOneIsGreedyAndTinyTemperaturesAreNearlySo) {
  const std::vector<float> logits = RandomFloats(3000, 8, 4.0f);
  const int32_t best = One(logits, {.temperature = 0}).token;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    EXPECT_EQ(One(logits, {.top_k = 1, .seed = seed}).token, best);
    EXPECT_EQ(One(logits, {.temperature = 1e-4, .seed = seed}).token, best);
    EXPECT_EQ(One(logits, {.temperature = 1e-30, .seed = seed}).token, best);
    EXPECT_EQ(One(logits, {.temperature = 1e-42, .top_p = 0.9, .seed = seed}).token, best);
    EXPECT_EQ(One(logits, {.top_p = 1e-9, .seed = seed}).token, best);
    EXPECT_EQ(One(logits, {.min_p = 1, .seed = seed}).token, best);
    EXPECT_EQ(One(logits, {.temperature = 1e30, .top_k = 1, .seed = seed}).token, best);
  }
}

TEST_P(SampleTest, EachFilterSeesWhatTheOneBeforeItLeft) {
  // 0.5, 0.25, 0.125, ... : top_k 2 leaves 2/3 and 1/3, of which top_p 0.6 keeps the first alone;
  // without top_k it would keep two.
  std::vector<float> logits(20);
  for (int i = 0; i < 20; ++i) logits[i] = -static_cast<float>(i) * std::log(2.0f);
  const auto support = [&](const SamplerRow& params) {
    std::vector<SamplerRow> rows(400, params);
    for (size_t i = 0; i < rows.size(); ++i) rows[i].position = static_cast<int64_t>(i);
    int32_t largest = 0;
    for (const Drawn& drawn : Run({logits}, rows)) largest = std::max(largest, drawn.token);
    return largest + 1;
  };
  EXPECT_EQ(support({.top_p = 0.6}), 2);
  EXPECT_EQ(support({.top_p = 0.6, .top_k = 2}), 1);
  // min_p comes before top_p: 0.2 leaves 4/7, 2/7, 1/7.
  EXPECT_EQ(support({.min_p = 0.2}), 3);
  EXPECT_EQ(support({.top_p = 0.8, .min_p = 0.2}), 2);
  EXPECT_EQ(support({.top_p = 0.8}), 3);
  // Temperature comes before min_p: at 0.5 the ratios are 1/4.
  EXPECT_EQ(support({.temperature = 0.5, .min_p = 0.2}), 2);
  // A bias comes before penalties: 3 becomes 3 + 5 = 8, then 8 / 2.
  std::vector<float> flat(20, 3.5f);
  flat[7] = 3.0f;
  EXPECT_EQ(
      One(flat,
          {.temperature = 0, .repetition_penalty = 2, .bias = {{7, 5.0}}, .penalties = {{7, 0}}})
          .token,
      7);
  EXPECT_EQ(
      One(flat,
          {.temperature = 0, .repetition_penalty = 2.5, .bias = {{7, 5.0}}, .penalties = {{7, 0}}})
          .token,
      0);
  // Negative logits are multiplied.
  std::vector<float> negative(20, -1.5f);
  negative[7] = -1.0f;
  EXPECT_EQ(
      One(negative, {.temperature = 0, .repetition_penalty = 1.4, .penalties = {{7, 0}}}).token, 7);
  EXPECT_EQ(
      One(negative, {.temperature = 0, .repetition_penalty = 1.6, .penalties = {{7, 0}}}).token, 0);
  // Frequency and presence count the output alone.
  EXPECT_EQ(
      One(negative,
          {.temperature = 0, .frequency_penalty = 9, .presence_penalty = 9, .penalties = {{7, 0}}})
          .token,
      7);
}

TEST_P(SampleTest, LogProbabilitiesRanksAndTopEntries) {
  for (const int32_t vocab : {3, 64, 1001, 20000}) {
    std::vector<float> logits = RandomFloats(vocab, 7, 3.0f);
    logits[vocab - 1] = logits[0];  // a tie
    const std::vector<double> raw = reference::LogSoftmax(Doubles(logits));
    for (const SamplerRow& row : {SamplerRow{.temperature = 0},
                                  SamplerRow{.temperature = 2, .seed = 5},
                                  SamplerRow{.temperature = 0.5,
                                  .top_p = 0.9,
                                  .typical_p = 0.9,
                                  .repetition_penalty = 1.5,
                                  .seed = 6,
                                  .masked = {1},
                                  .bias = {{2, 1.0}},
                                  .penalties = {{0, 1}}}}) {
      for (const bool processed : {false, true}) {
        std::vector<double> z = Doubles(logits);
        if (processed) {
          z = reference::ProcessedLogits(z, row);
          for (double& v : z) v /= row.temperature > 0 ? row.temperature : 1.0;
        }
        const std::vector<double> expected = reference::LogSoftmax(z);
        const std::vector<int32_t> ranking = reference::Ranking(z);
        for (const int32_t target : {-1, 0, vocab - 1}) {
          SCOPED_TRACE(testing::Message()
                       << "vocabulary " << vocab << " processed " << processed << " target "
                       << target << " temperature " << row.temperature);
          const Drawn drawn =
              One(logits, row, {.num_logprobs = 5, .processed = processed, .target_token = target});
          ASSERT_GE(drawn.token, 0);
          if (target >= 0) {
            EXPECT_EQ(drawn.token, target);
          }
          EXPECT_NEAR(drawn.logprob, expected[drawn.token], 2e-5);
          const auto place =
              std::find(ranking.begin(), ranking.end(), drawn.token) - ranking.begin();
          EXPECT_EQ(drawn.rank, place + 1);
          for (int32_t i = 0; i < kMaxTop; ++i) {
            const bool is_set = i < std::min(5, vocab) && std::isfinite(expected[ranking[i]]);
            ASSERT_EQ(drawn.top_ids[i], is_set ? ranking[i] : kNoTopEntry) << i;
            if (is_set) {
              EXPECT_NEAR(drawn.top_logprobs[i], expected[ranking[i]], 2e-5);
            } else {
              EXPECT_EQ(drawn.top_logprobs[i], -kInfinity);
            }
          }
        }
      }
    }
  }
}

TEST_P(SampleTest, ZeroTopEntriesStillGiveTheTokensOwn) {
  const std::vector<float> logits = RandomFloats(100, 7);
  const Drawn drawn = One(logits, {.temperature = 0}, {.num_logprobs = 0});
  EXPECT_NEAR(drawn.logprob, reference::LogSoftmax(Doubles(logits))[drawn.token], 1e-5);
  EXPECT_EQ(drawn.rank, 1);
  EXPECT_EQ(drawn.top_ids[0], kNoTopEntry);
}

TEST_P(SampleTest, NonFiniteRowsFailAlone) {
  std::vector<float> good = RandomFloats(333, 1), nan = good, plus = good, minus(333, -kInfinity),
                     mostly = minus;
  nan[200] = NAN;
  plus[332] = kInfinity;
  mostly[77] = -3.0f;
  for (const double temperature : {0.0, 1.0}) {
    const SamplerRow row = {.temperature = temperature, .seed = 3};
    const std::vector<Drawn> drawn =
        Run({good, nan, plus, minus, mostly, good}, std::vector<SamplerRow>(6, row));
    EXPECT_EQ(drawn[1].token, kNonFinite);
    EXPECT_EQ(drawn[2].token, kNonFinite);
    EXPECT_EQ(drawn[3].token, kNonFinite);
    EXPECT_EQ(drawn[4].token, 77);
    EXPECT_EQ(drawn[0].token, drawn[5].token);
    EXPECT_EQ(drawn[0].token, One(good, row).token);
  }
  // Nothing left after the masks.
  EXPECT_EQ(One(good, {.allowed = {4}, .masked = {4}}).token, kNonFinite);
  EXPECT_EQ(One(good, {.allowed = {1 << 20}}).token, kNonFinite);
  // Scoring a given token by raw logits does not ask what could be sampled.
  EXPECT_EQ(
      One(good, {.allowed = {4}, .masked = {4}}, {.num_logprobs = 1, .target_token = 9}).token, 9);
}

TEST_P(SampleTest, RowsDoNotDependOnTheirNeighbours) {
  const int32_t vocab = 2100;
  std::vector<std::vector<float>> logits;
  std::vector<SamplerRow> rows;
  for (uint32_t i = 0; i < 24; ++i) {
    logits.push_back(RandomFloats(vocab, i, 2.0f));
    SamplerRow row = {.temperature = i % 4 * 0.5, .seed = i, .position = i};
    if (i % 3 == 0) row.top_k = 1 + static_cast<int32_t>(i);
    if (i % 5 == 0) row.top_p = 0.8;
    if (i % 7 == 0) row.typical_p = 0.5;
    if (i % 2 == 0) row.masked = {1, 2, 3, 2000};
    rows.push_back(row);
  }
  const std::vector<Drawn> together = Run(logits, rows, {.num_logprobs = 4});
  for (size_t i = 0; i < rows.size(); ++i) {
    const Drawn alone = One(logits[i], rows[i], {.num_logprobs = 4});
    EXPECT_EQ(alone.token, together[i].token);
    EXPECT_EQ(alone.logprob, together[i].logprob);
    EXPECT_EQ(alone.top_logprobs, together[i].top_logprobs);
  }
}

TEST_P(SampleTest, RefusesParametersOutOfRange) {
  std::vector<float> logits(10);
  std::vector<int32_t> token(1);
  const auto message = [&](SampleRow row) {
    return std::string(backend_
                           ->Sample({.logits = logits.data(),
                                     .logits_stride = 10,
                                     .rows = 1,
                                     .vocab_size = 10,
                                     .row_params = &row,
                                     .host_row_params = &row,
                                     .tokens = token.data()})
                           .message());
  };
  EXPECT_EQ(message({}), "");
  EXPECT_EQ(message({.temperature = -1}),
            "Sample.host_row_params[0].temperature is -1; expected a finite number of at least 0");
  EXPECT_EQ(message({.top_p = 0}),
            "Sample.host_row_params[0].top_p is 0; expected above 0 and at most 1");
  EXPECT_EQ(message({.min_p = 1.5}), "Sample.host_row_params[0].min_p is 1.5; expected 0 to 1");
  EXPECT_EQ(message({.top_k = -1}),
            "Sample.host_row_params[0].top_k is -1; expected 0 (off) or more");
  EXPECT_EQ(message({.slot = 0}), "Sample.host_row_params[0].slot is 0; expected -1 to -1");
  EXPECT_EQ(message({.target_token = 10}),
            "Sample.host_row_params[0].target_token is 10; expected -1 to 9");
  EXPECT_EQ(message({.num_logprobs = 1}),
            "Sample.host_row_params[0].num_logprobs is 1; expected -1 to max_top, 0");
  EXPECT_EQ(message({.masked_begin = 2, .masked_end = 1}),
            "Sample.host_row_params[0].masked range is [2, 1); expected 0 <= begin <= end");
  EXPECT_EQ(message({.allowed_end = 2}),
            "Sample.allowed array is null; row 0 names 2 entries of it");
}

INSTANTIATE_TEST_SUITE_P(Isa, SampleTest, testing::ValuesIn(AllBackendCases()), BackendCaseName);
INSTANTIATE_TEST_SUITE_P(Isa,
                         SampleCombinationsTest,
                         testing::Values(AllBackendCases().back()),
                         BackendCaseName);

}  // namespace
}  // namespace pagoda::kernels
