#include "kernels/ops/moe.h"

#include <cmath>

#include "gtest/gtest.h"
#include "tests/kernels/backend_fixture.h"
#include "tests/reference/layers.h"

namespace pagoda::kernels {
namespace {

struct Routing {
  std::vector<int32_t> group_offsets, entry_rows, row_experts, row_entries;
  std::vector<float> row_weights;
};

class MoeTest : public testing::TestWithParam<BackendCase> {
 protected:
  MoeTest() : backend_(OpenForTest(GetParam())) {}

  Routing Route(const std::vector<float>& logits,
                int64_t rows,
                int32_t num_experts,
                int32_t top_k,
                bool normalise) {
    const auto entries = static_cast<size_t>(rows * top_k);
    Routing routing = {.group_offsets = std::vector<int32_t>(num_experts + 1, -1),
                       .entry_rows = std::vector<int32_t>(entries, -1),
                       .row_experts = std::vector<int32_t>(entries, -1),
                       .row_entries = std::vector<int32_t>(entries, -1),
                       .row_weights = std::vector<float>(entries, NAN)};
    const absl::Status status =
        backend_->RouteExperts({.logits = logits.data(),
                                .rows = rows,
                                .num_experts = num_experts,
                                .top_k = top_k,
                                .normalise = normalise,
                                .routing = {.group_offsets = routing.group_offsets.data(),
                                            .entry_rows = routing.entry_rows.data(),
                                            .row_experts = routing.row_experts.data(),
                                            .row_entries = routing.row_entries.data(),
                                            .row_weights = routing.row_weights.data()}});
    EXPECT_TRUE(status.ok()) << status;
    return routing;
  }

  std::unique_ptr<Backend> backend_;
};

TEST_P(MoeTest, RoutesToTheBestExperts) {
  for (const bool normalise : {false, true}) {
    for (const auto& [rows, num_experts, top_k] :
         {std::tuple<int, int, int>{1, 1, 1}, {3, 8, 2}, {50, 128, 8}, {200, 5, 5}}) {
      SCOPED_TRACE(testing::Message() << rows << " rows, " << top_k << " of " << num_experts);
      const std::vector<float> logits = RandomFloats(rows * num_experts, 1, 2.0f);
      const Routing routing = Route(logits, rows, num_experts, top_k, normalise);
      EXPECT_EQ(routing.group_offsets.front(), 0);
      EXPECT_EQ(routing.group_offsets.back(), rows * top_k);
      for (int r = 0; r < rows; ++r) {
        const reference::ChosenExperts chosen = reference::ChooseExperts(
            {logits.begin() + r * num_experts, logits.begin() + (r + 1) * num_experts},
            top_k,
            normalise);
        for (int j = 0; j < top_k; ++j) {
          const int at = r * top_k + j, expert = chosen.experts[j];
          ASSERT_EQ(routing.row_experts[at], expert);
          ASSERT_NEAR(routing.row_weights[at], chosen.weights[j], 1e-6);
          const int32_t entry = routing.row_entries[at];
          ASSERT_GE(entry, routing.group_offsets[expert]);
          ASSERT_LT(entry, routing.group_offsets[expert + 1]);
          ASSERT_EQ(routing.entry_rows[entry], r);
        }
      }
      // Entries of one expert are in order of rows.
      for (int e = 0; e < num_experts; ++e) {
        for (int i = routing.group_offsets[e] + 1; i < routing.group_offsets[e + 1]; ++i) {
          ASSERT_LT(routing.entry_rows[i - 1], routing.entry_rows[i]);
        }
      }
    }
  }
}

TEST_P(MoeTest, LowerExpertOnTies) {
  const Routing routing = Route({1.0f, 3.0f, 3.0f, 3.0f}, 1, 4, 2, true);
  EXPECT_EQ(routing.row_experts, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(routing.row_weights, (std::vector<float>{0.5f, 0.5f}));
}

struct MoeShape {
  int64_t rows, n, k;
  int32_t num_groups, top_k;
};

TEST_P(MoeTest, GroupedLinearGathersAndMatchesReference) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const MoeShape s : {MoeShape{1, 16, 2, 3, 1},
                             MoeShape{7, 48, 33, 4, 2},
                             MoeShape{3, 256, 64, 64, 8},
                             MoeShape{150, 160, 96, 8, 2}}) {
      SCOPED_TRACE(testing::Message() << DTypeName(dtype) << " rows " << s.rows << " n " << s.n
                                      << " k " << s.k << " groups " << s.num_groups);
      std::vector<float> w = RandomFloats(s.num_groups * s.n * s.k, 1);
      std::vector<float> x = RandomFloats(s.rows * (s.k + 2), 2);
      RoundAll(dtype, &w);
      RoundAll(dtype, &x);
      const PackedWeight packed = Pack(*backend_, w, s.num_groups * s.n, s.k, dtype);
      const Routing routing =
          Route(RandomFloats(s.rows * s.num_groups, 3), s.rows, s.num_groups, s.top_k, true);
      const int64_t num_entries = s.rows * s.top_k;
      std::vector<float> y(num_entries * s.n, NAN);
      const absl::Status status =
          backend_->GroupedLinear({.x = x.data(),
                                   .entry_rows = routing.entry_rows.data(),
                                   .group_offsets = routing.group_offsets.data(),
                                   .weight = packed.weight,
                                   .num_groups = s.num_groups,
                                   .y = y.data(),
                                   .num_entries = num_entries,
                                   .x_stride = s.k + 2});
      ASSERT_TRUE(status.ok()) << status;
      for (int32_t g = 0; g < s.num_groups; ++g) {
        const auto begin = w.begin() + g * s.n * s.k;
        const std::vector<double> weight(begin, begin + s.n * s.k);
        for (int32_t i = routing.group_offsets[g]; i < routing.group_offsets[g + 1]; ++i) {
          const auto row = x.begin() + routing.entry_rows[i] * (s.k + 2);
          const std::vector<double> expected = reference::Linear(weight, {row, row + s.k});
          for (int64_t j = 0; j < s.n; ++j) {
            ASSERT_NEAR(y[i * s.n + j], expected[j], 1e-5 * std::sqrt(s.k) * 4) << i << " " << j;
          }
        }
      }
      // An element is what Linear of its row and expert alone gives, to the bit.
      const int32_t entry = static_cast<int32_t>(num_entries / 2);
      int32_t group = 0;
      while (routing.group_offsets[group + 1] <= entry) ++group;
      const PackedWeight alone =
          Pack(*backend_,
               {w.begin() + group * s.n * s.k, w.begin() + (group + 1) * s.n * s.k},
               s.n,
               s.k,
               dtype);
      std::vector<float> expected(s.n);
      ASSERT_TRUE(backend_
                      ->Linear({.x = x.data() + routing.entry_rows[entry] * (s.k + 2),
                                .weight = alone.weight,
                                .y = expected.data(),
                                .m = 1,
                                .x_stride = s.k,
                                .y_stride = s.n})
                      .ok());
      EXPECT_TRUE(SameBits({y.begin() + entry * s.n, y.begin() + (entry + 1) * s.n}, expected));
    }
  }
}

TEST_P(MoeTest, CombineExpertsAddsWeightedEntries) {
  const int64_t rows = 40, width = 100;
  const int32_t top_k = 3, num_experts = 6;
  const Routing routing =
      Route(RandomFloats(rows * num_experts, 1), rows, num_experts, top_k, true);
  const std::vector<float> x = RandomFloats(rows * top_k * width, 2);
  const std::vector<float> before = RandomFloats(rows * width, 3);
  std::vector<float> y = before;
  ASSERT_TRUE(backend_
                  ->CombineExperts({.x = x.data(),
                                    .row_entries = routing.row_entries.data(),
                                    .row_weights = routing.row_weights.data(),
                                    .y = y.data(),
                                    .rows = rows,
                                    .width = width,
                                    .top_k = top_k})
                  .ok());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < width; ++i) {
      double expected = static_cast<double>(before[r * width + i]);
      for (int32_t j = 0; j < top_k; ++j) {
        const int64_t entry = routing.row_entries[r * top_k + j];
        expected += static_cast<double>(routing.row_weights[r * top_k + j]) *
                    static_cast<double>(x[entry * width + i]);
      }
      ASSERT_NEAR(y[r * width + i], expected, 1e-6 * (1 + std::abs(expected)));
    }
  }
  // As if there had been zeros.
  std::vector<float> zeros(y.size(), 0.0f), fresh(y.size(), NAN);
  for (const bool adds : {true, false}) {
    ASSERT_TRUE(backend_
                    ->CombineExperts({.x = x.data(),
                                      .row_entries = routing.row_entries.data(),
                                      .row_weights = routing.row_weights.data(),
                                      .y = adds ? zeros.data() : fresh.data(),
                                      .rows = rows,
                                      .width = width,
                                      .top_k = top_k,
                                      .adds = adds})
                    .ok());
  }
  EXPECT_TRUE(SameBits(fresh, zeros));
}

TEST_P(MoeTest, RefusesWhatItCannotDo) {
  std::vector<float> data(64);
  std::vector<int32_t> offsets = {0, 2, 1, 1};
  EXPECT_EQ(backend_->RouteExperts({.logits = data.data(), .rows = 1, .num_experts = 4, .top_k = 5})
                .message(),
            "RouteExperts.top_k is 5; expected 1 to 4");
  const PackedWeight packed = Pack(*backend_, std::vector<float>(48 * 2), 48, 2, DType::kFloat32);
  GroupedLinearParams params = {.x = data.data(),
                                .group_offsets = offsets.data(),
                                .weight = packed.weight,
                                .num_groups = 5,
                                .y = data.data(),
                                .num_entries = 1,
                                .x_stride = 2};
  EXPECT_EQ(backend_->GroupedLinear(params).message(),
            "GroupedLinear.weight.n is 48; expected a multiple of 5");
  params.num_groups = 2;
  EXPECT_EQ(backend_->GroupedLinear(params).message(),
            "GroupedLinear.weight.n / num_groups is 24; expected a multiple of 16");
  params.num_groups = 3;
  EXPECT_EQ(backend_->GroupedLinear(params).message(),
            "GroupedLinear.group_offsets entry is 2; expected 0 to 1");
}

INSTANTIATE_TEST_SUITE_P(Isa, MoeTest, testing::ValuesIn(AllBackendCases()), BackendCaseName);

}  // namespace
}  // namespace pagoda::kernels
