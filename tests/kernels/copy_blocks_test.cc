#include "kernels/ops/copy_blocks.h"

#include <numeric>

#include "gtest/gtest.h"
#include "tests/kernels/backend_fixture.h"

namespace pagoda::kernels {
namespace {

class CopyBlocksTest : public testing::TestWithParam<BackendCase> {
 protected:
  CopyBlocksTest() : backend_(OpenForTest(GetParam())) {}
  std::unique_ptr<Backend> backend_;
};

TEST_P(CopyBlocksTest, CopiesInEveryLayerAndTouchesNothingElse) {
  const int64_t num_layers = 3, num_blocks = 7;
  for (const int64_t block_elements : {1, 3, 24, 40'000}) {
    std::vector<uint16_t> pool(num_layers * num_blocks * block_elements);
    std::iota(pool.begin(), pool.end(), uint16_t{1});
    std::vector<uint16_t> expected = pool;
    const std::vector<int32_t> pairs = {6, 0, 2, 5, 2, 1};
    for (int64_t layer = 0; layer < num_layers; ++layer) {
      for (size_t i = 0; i < pairs.size(); i += 2) {
        for (int64_t j = 0; j < block_elements; ++j) {
          expected[(layer * num_blocks + pairs[i + 1]) * block_elements + j] =
              pool[(layer * num_blocks + pairs[i]) * block_elements + j];
        }
      }
    }
    const absl::Status status = backend_->CopyBlocks({.data = pool.data(),
                                                      .pairs = pairs.data(),
                                                      .count = 3,
                                                      .num_layers = num_layers,
                                                      .num_blocks = num_blocks,
                                                      .block_bytes = 2 * block_elements});
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(pool, expected) << block_elements;
  }
}

TEST_P(CopyBlocksTest, RefusesWhatIsNoBlock) {
  std::vector<uint16_t> pool(8, 1);
  const std::vector<int32_t> pairs = {0, 4};
  CopyBlocksParams params = {.data = pool.data(),
                             .pairs = pairs.data(),
                             .count = 1,
                             .num_layers = 1,
                             .num_blocks = 4,
                             .block_bytes = 4};
  EXPECT_EQ(backend_->CopyBlocks(params).message(), "CopyBlocks.pairs entry is 4; expected 0 to 3");
  params.block_bytes = 3;
  EXPECT_EQ(backend_->CopyBlocks(params).message(),
            "CopyBlocks.block_bytes is 3; expected a multiple of 2");
  params.block_bytes = 4;
  params.pairs = nullptr;
  EXPECT_EQ(backend_->CopyBlocks(params).message(), "CopyBlocks.pairs is null; expected an array");
  params.count = 0;
  EXPECT_TRUE(backend_->CopyBlocks(params).ok());
}

INSTANTIATE_TEST_SUITE_P(Isa,
                         CopyBlocksTest,
                         testing::ValuesIn(AllBackendCases()),
                         BackendCaseName);

}  // namespace
}  // namespace pagoda::kernels
