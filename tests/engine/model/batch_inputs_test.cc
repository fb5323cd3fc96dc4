#include "engine/model/batch_inputs.h"

#include <cstdlib>
#include <cstring>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/backend.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine {
namespace {

using internal::v1::NewSequence;
using internal::v1::StepPlan;
using testing::ElementsAre;
using testing::HasSubstr;

// The arrays that BatchInputs fills, without a device: memory is the host's, copies are counted.
class CountingBackend : public kernels::Backend {
 public:
  absl::string_view name() const override { return "counting"; }
  absl::StatusOr<kernels::DeviceInfo> Info() override { return kernels::DeviceInfo(); }
  absl::StatusOr<DType> ActivationDType(DType dtype) const override { return dtype; }
  absl::StatusOr<kernels::Buffer> Allocate(size_t size_bytes, absl::string_view) override {
    return kernels::Buffer(std::calloc(1, size_bytes), size_bytes, std::free);
  }
  absl::StatusOr<kernels::Buffer> AllocateHost(size_t size_bytes, absl::string_view name) override {
    return Allocate(size_bytes, name);
  }
  absl::Status CopyToDevice(void* device, const void* host, size_t size_bytes) override {
    std::memcpy(device, host, size_bytes);
    bytes_copied += size_bytes;
    return absl::OkStatus();
  }
  absl::Status CopyToHost(void*, const void*, size_t) override { return Unused(); }
  absl::Status Synchronize() override { return absl::OkStatus(); }
  absl::StatusOr<uint64_t> RecordEvent() override { return 1; }
  absl::StatusOr<bool> EventPassed(uint64_t) override { return true; }
  kernels::WeightFormat PreferredFormat(DType, int64_t, int64_t) const override {
    return kernels::WeightFormat::kRowMajor;
  }
  size_t LinearBytes(const kernels::LinearWeight&) const override { return 0; }
  absl::Status PackLinear(const kernels::PackLinearParams&) override { return Unused(); }
  absl::Status FillNormal(const kernels::FillNormalParams&) override { return Unused(); }
  absl::Status ResolveTokens(const kernels::ResolveTokensParams& params) override {
    for (int64_t i = 0; i < params.rows; ++i) {
      const int32_t slot = params.source_slots[i];
      params.tokens[i] = slot < 0 ? params.host_tokens[i] : params.last_tokens[slot];
    }
    return absl::OkStatus();
  }
  absl::Status Scatter(const kernels::ScatterParams& params) override {
    for (int64_t i = 0; i < params.count; ++i)
      params.to[params.pairs[2 * i]] = params.pairs[2 * i + 1];
    return absl::OkStatus();
  }
  absl::Status Embedding(const kernels::EmbeddingParams&) override { return Unused(); }
  absl::Status GatherRows(const kernels::GatherRowsParams&) override { return Unused(); }
  absl::Status RmsNorm(const kernels::RmsNormParams&) override { return Unused(); }
  absl::Status SiluMul(const kernels::SiluMulParams&) override { return Unused(); }
  absl::Status Linear(const kernels::LinearParams&) override { return Unused(); }
  absl::Status CopyBlocks(const kernels::CopyBlocksParams&) override { return Unused(); }
  absl::Status PrepareAttention(const kernels::AttentionBatch&) override { return Unused(); }
  absl::Status RopeKvWrite(const kernels::RopeKvWriteParams&) override { return Unused(); }
  absl::Status PagedAttention(const kernels::PagedAttentionParams&) override { return Unused(); }
  absl::Status Sample(const kernels::SampleParams&) override { return Unused(); }

  size_t bytes_copied = 0;

 private:
  static absl::Status Unused() { return absl::UnimplementedError("not used here"); }
};

class BatchInputsTest : public testing::Test {
 protected:
  explicit BatchInputsTest(StepLimits limits = {.num_slots = 4,
                                                .max_step_tokens = 64,
                                                .max_model_len = 40,
                                                .vocab_size = 1000,
                                                .block_size = 4,
                                                .num_blocks = 100})
      : slots_(limits), inputs_(*BatchInputs::Allocate(backend_, limits, 2)) {}

  // A sequence of tokens first, first + 1, ... in blocks 10 * slot, 10 * slot + 1, ...
  void Add(uint32_t slot, uint32_t num_tokens, uint32_t num_blocks, uint32_t first) {
    NewSequence& sequence = *plan_.add_new_sequences();
    sequence.set_slot(slot);
    for (uint32_t i = 0; i < num_tokens; ++i) sequence.add_token_ids(first + i);
    sequence.set_num_prompt_tokens(num_tokens);
    sequence.add_block_tables();
    for (uint32_t i = 0; i < num_blocks; ++i) {
      sequence.mutable_block_tables(0)->add_block_ids(10 * slot + i);
    }
  }
  void Row(uint32_t slot, uint32_t num_tokens, bool samples) {
    plan_.add_row_slots(slot);
    plan_.add_row_num_tokens(num_tokens);
    plan_.add_row_samples(samples ? 1 : 0);
  }
  absl::Status Build() {
    plan_.set_step_id(++step_id_);
    PAGODA_ASSIGN_OR_RETURN(const absl::Span<const StepRow> rows, slots_.Apply(plan_));
    plan_.Clear();
    backend_.bytes_copied = 0;
    PAGODA_RETURN_IF_ERROR(
        inputs_.Build(backend_, rows, slots_, static_cast<int>(step_id_ % 2), padded_rows_));
    return inputs_.ResolveTokens(backend_);
  }
  std::vector<int32_t> Ints(const int32_t* array, int32_t count) const {
    return std::vector<int32_t>(array, array + count);
  }
  std::vector<int32_t> Table(int32_t seq, int32_t count) const {
    const kernels::AttentionBatch& batch = inputs_.batch();
    return Ints(batch.block_tables + seq * batch.block_table_stride, count);
  }

  CountingBackend backend_;
  SlotTable slots_;
  BatchInputs inputs_;
  StepPlan plan_;
  uint64_t step_id_ = 0;
  int32_t padded_rows_ = 0;
};

TEST_F(BatchInputsTest, PaddingIsRowsOfNoSequence) {
  Add(1, 3, 1, 100);
  Row(1, 3, true);
  ASSERT_TRUE(Build().ok());
  Row(1, 1, true);
  padded_rows_ = 4;
  ASSERT_TRUE(Build().ok());
  const kernels::AttentionBatch& batch = inputs_.batch();
  EXPECT_EQ(batch.num_seqs, 4);
  EXPECT_EQ(batch.num_rows, 4);
  EXPECT_TRUE(kernels::Validate(batch).ok()) << kernels::Validate(batch);
  EXPECT_THAT(Ints(batch.row_offsets, 5), ElementsAre(0, 1, 1, 1, 1));
  EXPECT_THAT(Ints(batch.context_lens, 4), ElementsAre(4, 0, 0, 0));
  EXPECT_THAT(Ints(batch.kv_slots, 4), ElementsAre(43, -1, -1, -1));
  EXPECT_THAT(Ints(batch.positions, 4), ElementsAre(3, 0, 0, 0));
  EXPECT_THAT(Ints(inputs_.tokens() + 1, 3), ElementsAre(0, 0, 0));
}

TEST_F(BatchInputsTest, LaysOutChunksAndDecodes) {
  Add(1, 3, 1, 100);
  Row(1, 3, true);
  ASSERT_TRUE(Build().ok());
  inputs_.last_tokens()[1] = 777;

  Add(2, 6, 2, 200);
  Row(2, 5, false);
  Row(1, 1, true);
  plan_.add_appended_slots(1), plan_.add_appended_counts(1), plan_.add_appended_blocks(19);
  ASSERT_TRUE(Build().ok());
  const kernels::AttentionBatch& batch = inputs_.batch();
  EXPECT_EQ(batch.num_seqs, 2);
  EXPECT_EQ(batch.num_rows, 6);
  // Slot 1 keeps its place; the plan named slot 2 first.
  EXPECT_THAT(Ints(batch.row_offsets, 3), ElementsAre(0, 1, 6));
  EXPECT_EQ(inputs_.first_batch_row(0), 1);
  EXPECT_EQ(inputs_.first_batch_row(1), 0);
  EXPECT_THAT(Ints(batch.context_lens, 2), ElementsAre(4, 5));
  EXPECT_THAT(Ints(batch.positions, 6), ElementsAre(3, 0, 1, 2, 3, 4));
  EXPECT_THAT(Ints(batch.kv_slots, 6), ElementsAre(43, 80, 81, 82, 83, 84));
  // The token of slot 1 is still on the device.
  EXPECT_THAT(Ints(inputs_.tokens(), 6), ElementsAre(777, 200, 201, 202, 203, 204));
  EXPECT_THAT(Table(0, 2), ElementsAre(10, 19));
  EXPECT_THAT(Table(1, 2), ElementsAre(20, 21));

  // Its value came: it is read from the host now.
  slots_.AppendKnownToken(1, slots_.slot(1).generation, 555);
  slots_.AppendKnownToken(1, slots_.slot(1).generation, 556);
  Row(1, 1, true);
  ASSERT_TRUE(Build().ok());
  EXPECT_THAT(Ints(inputs_.tokens(), 1), ElementsAre(556));
}

TEST_F(BatchInputsTest, PlacesAreFilledAsSequencesEnd) {
  for (uint32_t slot : {0u, 1u, 2u, 3u}) Add(slot, 5, 2, 10 * slot), Row(slot, 5, true);
  ASSERT_TRUE(Build().ok());
  plan_.add_released_slots(1);
  for (uint32_t slot : {0u, 2u, 3u}) Row(slot, 1, true);
  ASSERT_TRUE(Build().ok());
  // The last one moved to the gap.
  EXPECT_THAT(Table(0, 2), ElementsAre(0, 1));
  EXPECT_THAT(Table(1, 2), ElementsAre(30, 31));
  EXPECT_THAT(Table(2, 2), ElementsAre(20, 21));
  EXPECT_EQ(inputs_.first_batch_row(2), 1);

  // The slot of the one that left, with other blocks; slot 3 grew where it now is.
  Add(1, 2, 3, 50);
  plan_.add_appended_slots(3), plan_.add_appended_counts(1), plan_.add_appended_blocks(99);
  Row(1, 2, true);
  for (uint32_t slot : {0u, 2u, 3u}) Row(slot, 1, true);
  ASSERT_TRUE(Build().ok());
  EXPECT_THAT(Table(1, 3), ElementsAre(30, 31, 99));
  EXPECT_THAT(Table(3, 3), ElementsAre(10, 11, 12));
}

TEST_F(BatchInputsTest, OnlyTheLastSampledTokenIsOnTheDevice) {
  Add(0, 2, 2, 0);
  Row(0, 2, true);
  ASSERT_TRUE(Build().ok());
  Row(0, 1, true);
  ASSERT_TRUE(Build().ok());
  Row(0, 1, true);
  ASSERT_TRUE(Build().ok());  // two tokens unknown, the row needs the last of them
  // A sequence cannot go back to what was overwritten; only a bug could ask for it.
  const StepRow row = {.slot = 0, .first_position = 3, .num_tokens = 1, .samples = false};
  const absl::Status status = inputs_.Build(backend_, {row}, slots_, 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("position 3"));
}

// What a decode step copies does not grow with the context.
class LongBatchInputsTest : public BatchInputsTest {
 protected:
  LongBatchInputsTest()
      : BatchInputsTest({.num_slots = 4,
                         .max_step_tokens = 200000,
                         .max_model_len = 100100,
                         .vocab_size = 1000000,
                         .block_size = 16,
                         .num_blocks = 100000}) {}
};

TEST_F(LongBatchInputsTest, ADecodeStepCopiesTheSameAtAnyContext) {
  std::vector<size_t> copied;
  for (uint32_t context : {1000u, 100000u}) {
    Add(0, context, 6256, 0);
    Row(0, context, true);
    ASSERT_TRUE(Build().ok());
    Row(0, 1, true);
    ASSERT_TRUE(Build().ok());
    copied.push_back(backend_.bytes_copied);
    plan_.add_released_slots(0);
  }
  EXPECT_EQ(copied[0], copied[1]);
  // Six arrays in one copy, each padded to 256 bytes.
  EXPECT_LT(copied[0], 2048u);
}

}  // namespace
}  // namespace pagoda::engine
