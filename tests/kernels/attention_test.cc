#include "kernels/ops/attention.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "gtest/gtest.h"
#include "tests/kernels/backend_fixture.h"
#include "tests/reference/attention.h"

namespace pagoda::kernels {
namespace {

struct Options {
  int32_t num_q_heads = 6;
  int32_t num_kv_heads = 2;
  int32_t head_dim = 16;
  int32_t block_size = 16;
  DType cache_dtype = DType::kFloat32;
  int32_t window = 0;
  float soft_cap = 0.0f;
  bool alibi = false;
  float k_scale = 1.0f;
  float v_scale = 1.0f;
};

// A paged cache with some sequences in it, and queries for any of their positions. What no sequence
// uses is NaN, and what no table entry needs leads far outside.
class World {
 public:
  World(Backend& backend, const Options& options, std::vector<int32_t> lengths)
      : backend_(backend), o_(options), lengths_(std::move(lengths)) {
    const auto num_seqs = static_cast<int32_t>(lengths_.size());
    int32_t num_blocks = 3;
    for (const int32_t length : lengths_) {
      const int32_t blocks = (length + o_.block_size - 1) / o_.block_size;
      num_blocks += blocks;
      table_stride_ = std::max<int64_t>(table_stride_, blocks + 2);
    }
    tables_.assign(num_seqs * table_stride_, 1 << 30);
    std::vector<int32_t> free(num_blocks);
    std::iota(free.begin(), free.end(), 0);
    std::shuffle(free.begin(), free.end(), std::mt19937(17));
    cache_view_ = {.dtype = o_.cache_dtype,
                   .num_blocks = num_blocks,
                   .block_size = o_.block_size,
                   .num_kv_heads = o_.num_kv_heads,
                   .head_dim = o_.head_dim,
                   .head_stride = int64_t{o_.block_size} * o_.head_dim,
                   .k_scale = o_.k_scale,
                   .v_scale = o_.v_scale};
    cache_view_.v_offset = o_.num_kv_heads * cache_view_.head_stride;
    cache_view_.block_stride = 2 * cache_view_.v_offset;
    const size_t element_bytes = DTypeBytes(o_.cache_dtype);
    cache_.assign(num_blocks * cache_view_.block_stride * element_bytes,
                  0xff);  // NaN in both types
    cache_view_.data = cache_.data();
    for (int32_t s = 0; s < num_seqs; ++s) {
      keys_.push_back(RandomFloats(Elements(s), 100 + s));
      values_.push_back(RandomFloats(Elements(s), 200 + s));
      queries_.push_back(RandomFloats(lengths_[s] * QWidth(), 300 + s));
      for (int32_t b = 0; b * o_.block_size < lengths_[s]; ++b) {
        tables_[s * table_stride_ + b] = free.back();
        free.pop_back();
      }
      for (int32_t p = 0; p < lengths_[s]; ++p) StoreToken(s, p);
    }
    for (int32_t h = 0; h < o_.num_q_heads; ++h)
      slopes_.push_back(0.5f / static_cast<float>(h + 1));
  }

  int64_t QWidth() const { return int64_t{o_.num_q_heads} * o_.head_dim; }

  // Table entries that no row at or after `position` can need lead outside, as after their blocks
  // were freed.
  void ForgetBefore(int32_t seq, int32_t position) {
    for (int32_t b = 0; (b + 1) * o_.block_size <= position - o_.window + 1; ++b) {
      tables_[seq * table_stride_ + b] = -7;
    }
  }

  struct Rows {
    int32_t seq;
    int32_t first;
    int32_t count;
  };

  // Attention of the given rows as one batch: each is the end of its sequence as it was then.
  std::vector<float> Run(const std::vector<Rows>& batch_rows) {
    std::vector<int32_t> offsets = {0}, contexts, positions, slots, tables;
    std::vector<float> q;
    for (const Rows& rows : batch_rows) {
      offsets.push_back(offsets.back() + rows.count);
      contexts.push_back(rows.first + rows.count);
      for (int32_t p = rows.first; p < rows.first + rows.count; ++p) positions.push_back(p);
      const auto from = queries_[rows.seq].begin() + rows.first * QWidth();
      q.insert(q.end(), from, from + rows.count * QWidth());
      const auto table = tables_.begin() + rows.seq * table_stride_;
      tables.insert(tables.end(), table, table + table_stride_);
      // Blocks of tokens that do not exist yet.
      for (int64_t b = (contexts.back() + o_.block_size - 1) / o_.block_size; b < table_stride_;
           ++b) {
        *(tables.end() - table_stride_ + b) = 1 << 30;
      }
    }
    slots.assign(positions.size(), 0);
    const AttentionBatch batch = {.num_seqs = static_cast<int32_t>(batch_rows.size()),
                                  .num_rows = offsets.back(),
                                  .row_offsets = offsets.data(),
                                  .context_lens = contexts.data(),
                                  .block_tables = tables.data(),
                                  .block_table_stride = table_stride_,
                                  .positions = positions.data(),
                                  .kv_slots = slots.data(),
                                  .host_row_offsets = offsets.data(),
                                  .host_context_lens = contexts.data()};
    std::vector<float> out(offsets.back() * QWidth(), NAN);
    absl::Status status = backend_.PrepareAttention(batch);
    EXPECT_TRUE(status.ok()) << status;
    status = backend_.PagedAttention({.q = q.data(),
                                      .q_stride = QWidth(),
                                      .out = out.data(),
                                      .num_q_heads = o_.num_q_heads,
                                      .batch = &batch,
                                      .cache = cache_view_,
                                      .scale = Scale(),
                                      .window = o_.window,
                                      .soft_cap = o_.soft_cap,
                                      .alibi_slopes = o_.alibi ? slopes_.data() : nullptr});
    EXPECT_TRUE(status.ok()) << status;
    return out;
  }

  std::vector<double> Expected(int32_t seq, int32_t position, int32_t head) const {
    const int32_t kv_head = head / (o_.num_q_heads / o_.num_kv_heads);
    const int32_t first = o_.window > 0 ? std::max(0, position - o_.window + 1) : 0;
    reference::AttentionRow row = {
        .scale = Scale(), .soft_cap = o_.soft_cap, .alibi_slope = o_.alibi ? slopes_[head] : 0.0};
    const float* q = queries_[seq].data() + position * QWidth() + head * o_.head_dim;
    row.q.assign(q, q + o_.head_dim);
    for (int32_t p = first; p <= position; ++p) {
      row.keys.emplace_back();
      row.values.emplace_back();
      for (int32_t d = 0; d < o_.head_dim; ++d) {
        row.keys.back().push_back(
            Cached(keys_[seq][(p * o_.num_kv_heads + kv_head) * o_.head_dim + d], o_.k_scale));
        row.values.back().push_back(
            Cached(values_[seq][(p * o_.num_kv_heads + kv_head) * o_.head_dim + d], o_.v_scale));
      }
    }
    return reference::Attend(row);
  }

  // Compares rows of a result with the reference.
  void Check(const std::vector<Rows>& batch_rows, const std::vector<float>& out) const {
    // Weights and queries are rounded to bfloat16 where the cache is.
    const double tolerance = o_.cache_dtype == DType::kFloat32 ? 2e-5 : 2e-2;
    size_t row = 0;
    for (const Rows& rows : batch_rows) {
      for (int32_t p = rows.first; p < rows.first + rows.count; ++p, ++row) {
        for (int32_t h = 0; h < o_.num_q_heads; ++h) {
          const std::vector<double> expected = Expected(rows.seq, p, h);
          for (int32_t d = 0; d < o_.head_dim; ++d) {
            ASSERT_NEAR(
                out[row * QWidth() + h * o_.head_dim + d], expected[d], tolerance * o_.v_scale)
                << "sequence " << rows.seq << " position " << p << " head " << h << " element "
                << d;
          }
        }
      }
    }
  }

 private:
  size_t Elements(int32_t s) const { return size_t(lengths_[s]) * o_.num_kv_heads * o_.head_dim; }
  float Scale() const { return 1.0f / std::sqrt(static_cast<float>(o_.head_dim)); }
  double Cached(float value, float scale) const {
    return double{RoundTo(o_.cache_dtype, value)} * scale;
  }

  void StoreToken(int32_t s, int32_t p) {
    const int64_t block = tables_[s * table_stride_ + p / o_.block_size];
    for (int32_t h = 0; h < o_.num_kv_heads; ++h) {
      for (int32_t d = 0; d < o_.head_dim; ++d) {
        const int64_t at = block * cache_view_.block_stride + h * cache_view_.head_stride +
                           int64_t{p % o_.block_size} * o_.head_dim + d;
        const size_t from = (size_t(p) * o_.num_kv_heads + h) * o_.head_dim + d;
        StoreElement(at, keys_[s][from]);
        StoreElement(at + cache_view_.v_offset, values_[s][from]);
      }
    }
  }
  void StoreElement(int64_t at, float value) {
    if (o_.cache_dtype == DType::kFloat32) {
      reinterpret_cast<float*>(cache_.data())[at] = value;
    } else {
      reinterpret_cast<BFloat16*>(cache_.data())[at] = BFloat16::FromFloat(value);
    }
  }

  Backend& backend_;
  Options o_;
  std::vector<int32_t> lengths_;
  int64_t table_stride_ = 0;
  std::vector<int32_t> tables_;
  std::vector<unsigned char> cache_;
  KvCacheView cache_view_;
  std::vector<std::vector<float>> keys_, values_, queries_;
  std::vector<float> slopes_;
};

class AttentionTest : public testing::TestWithParam<BackendCase> {
 protected:
  AttentionTest() : backend_(OpenForTest(GetParam())) {}
  std::unique_ptr<Backend> backend_;
};

TEST_P(AttentionTest, MatchesReferenceOverShapes) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const auto& [q_heads, kv_heads] : {std::pair{1, 1}, {3, 3}, {9, 3}, {8, 1}, {16, 2}}) {
      for (const int32_t head_dim : {8, 24, 64, 128}) {
        for (const int32_t block_size : {1, 7, 64}) {
          SCOPED_TRACE(testing::Message()
                       << DTypeName(dtype) << " heads " << q_heads << "/" << kv_heads << " dim "
                       << head_dim << " block " << block_size);
          World world(*backend_,
                      {.num_q_heads = q_heads,
                       .num_kv_heads = kv_heads,
                       .head_dim = head_dim,
                       .block_size = block_size,
                       .cache_dtype = dtype},
                      {1, 37, 290});
          const std::vector<World::Rows> rows = {{0, 0, 1}, {1, 20, 17}, {2, 285, 5}};
          world.Check(rows, world.Run(rows));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_P(AttentionTest, MatchesReferenceWithWindowCapAlibiAndScales) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const int32_t window : {0, 1, 5, 300}) {
      for (const float soft_cap : {0.0f, 2.0f}) {
        for (const bool alibi : {false, true}) {
          SCOPED_TRACE(testing::Message() << DTypeName(dtype) << " window " << window << " cap "
                                          << soft_cap << " alibi " << alibi);
          World world(*backend_,
                      {.cache_dtype = dtype,
                       .window = window,
                       .soft_cap = soft_cap,
                       .alibi = alibi,
                       .k_scale = 0.5f,
                       .v_scale = 3.0f},
                      {700, 33});
          if (window > 0) world.ForgetBefore(0, 520);
          const std::vector<World::Rows> rows = {{0, 520, 170}, {1, 0, 33}};
          world.Check(rows, world.Run(rows));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// One result for a row, however it came to be computed: chunks of a prompt, alone, beside others.
TEST_P(AttentionTest, BitsDependOnThePositionAlone) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const int32_t window : {0, 100}) {
      const Options options = {.num_q_heads = 6,
                               .num_kv_heads = 2,
                               .head_dim = 24,
                               .block_size = 5,
                               .cache_dtype = dtype,
                               .window = window};
      World world(*backend_, options, {600, 41});
      const std::vector<float> whole = world.Run({{0, 0, 600}});
      for (const int32_t chunk : {1, 3, 17, 64, 255, 512}) {
        std::vector<float> chunked;
        for (int32_t first = 0; first < 600; first += chunk) {
          const std::vector<float> out = world.Run({{0, first, std::min(chunk, 600 - first)}});
          chunked.insert(chunked.end(), out.begin(), out.end());
        }
        EXPECT_TRUE(SameBits(whole, chunked))
            << DTypeName(dtype) << " window " << window << " chunk " << chunk;
      }
      std::vector<float> beside = world.Run({{1, 0, 41}, {0, 500, 100}, {1, 40, 1}});
      beside.erase(beside.begin(), beside.begin() + 41 * world.QWidth());
      beside.resize(100 * world.QWidth());
      EXPECT_TRUE(SameBits({whole.end() - 100 * world.QWidth(), whole.end()}, beside));

      std::unique_ptr<Backend> other = OpenForTest({GetParam().isa, 4});
      World twin(*other, options, {600, 41});
      EXPECT_TRUE(SameBits(whole, twin.Run({{0, 0, 600}}))) << "with other threads";
    }
  }
}

TEST_P(AttentionTest, ManySequencesOfOneToken) {
  std::vector<int32_t> lengths;
  std::vector<World::Rows> rows;
  for (int32_t s = 0; s < 40; ++s) {
    lengths.push_back(1 + 37 * s % 600);
    rows.push_back({s, lengths.back() - 1, 1});
  }
  World world(*backend_, {.cache_dtype = DType::kBFloat16}, lengths);
  world.Check(rows, world.Run(rows));
}

TEST_P(AttentionTest, RopeRotatesAndWritesThePool) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const int32_t q_heads = 4, kv_heads = 2, head_dim = 24, rotary_dim = 20, block_size = 3,
                  num_blocks = 4, rows = 5;
    const int64_t width = (q_heads + 2 * kv_heads) * head_dim, stride = width + 3;
    const std::vector<float> before = RandomFloats(rows * stride, 5);
    std::vector<float> qkv = before;
    const std::vector<float> cos_sin = RandomFloats(50 * rotary_dim, 6);
    const std::vector<int32_t> positions = {0, 49, 7, 8, 9}, slots = {11, 0, 5, 3, 4};
    const AttentionBatch batch = {
        .num_seqs = 1, .num_rows = rows, .positions = positions.data(), .kv_slots = slots.data()};
    const int64_t head_stride = block_size * head_dim;
    std::vector<float> pool(num_blocks * 2 * kv_heads * head_stride);
    std::memset(pool.data(), 0xff, pool.size() * sizeof(float));  // NaN in both types
    KvCacheView cache = {.data = pool.data(),
                         .dtype = dtype,
                         .num_blocks = num_blocks,
                         .block_size = block_size,
                         .num_kv_heads = kv_heads,
                         .head_dim = head_dim,
                         .block_stride = 2 * kv_heads * head_stride,
                         .v_offset = kv_heads * head_stride,
                         .head_stride = head_stride,
                         .k_scale = 2.0f,
                         .v_scale = 0.25f};
    RopeKvWriteParams params = {.qkv = qkv.data(),
                                .qkv_stride = stride,
                                .cos_sin = cos_sin.data(),
                                .max_positions = 50,
                                .rotary_dim = rotary_dim,
                                .num_q_heads = q_heads,
                                .batch = &batch,
                                .cache = cache};
    const absl::Status status = backend_->RopeKvWrite(params);
    ASSERT_TRUE(status.ok()) << status;
    const auto stored = [&](int64_t at) {
      return dtype == DType::kFloat32
                 ? pool[at]
                 : reinterpret_cast<const BFloat16*>(pool.data())[at].ToFloat();
    };
    for (int32_t row = 0; row < rows; ++row) {
      const std::vector<double> cs(cos_sin.begin() + positions[row] * rotary_dim,
                                   cos_sin.begin() + (positions[row] + 1) * rotary_dim);
      for (int32_t h = 0; h < q_heads + 2 * kv_heads; ++h) {
        const int64_t at = row * stride + h * head_dim;
        std::vector<double> expected(before.begin() + at, before.begin() + at + head_dim);
        const bool is_v = h >= q_heads + kv_heads;
        if (!is_v) reference::Rotate(cs.data(), cs.data() + rotary_dim / 2, rotary_dim, &expected);
        for (int32_t d = 0; d < head_dim; ++d) ASSERT_NEAR(qkv[at + d], expected[d], 1e-5);
        if (h < q_heads) continue;
        const int32_t kv_head = (h - q_heads) % kv_heads;
        const int64_t cached = slots[row] / block_size * cache.block_stride +
                               (is_v ? cache.v_offset : 0) + kv_head * head_stride +
                               slots[row] % block_size * head_dim;
        const double tolerance = dtype == DType::kFloat32 ? 1e-5 : 3e-2;
        for (int32_t d = 0; d < head_dim; ++d) {
          ASSERT_NEAR(stored(cached + d) * (is_v ? 0.25 : 2.0), expected[d], tolerance);
        }
      }
    }
    EXPECT_TRUE(std::isnan(stored(0 * cache.block_stride + 1 * head_dim)))
        << "slot 1 was not named";

    const std::vector<int32_t> bad_slots = {11, 12, 5, 3, 4};
    AttentionBatch bad = batch;
    bad.kv_slots = bad_slots.data();
    params.batch = &bad;
    EXPECT_EQ(backend_->RopeKvWrite(params).message(),
              "RopeKvWrite.batch.kv_slots[1] is 12; expected -1 to 11");
  }
}

TEST_P(AttentionTest, RefusesWhatItCannotDo) {
  World world(*backend_, {}, {8});
  std::vector<int32_t> offsets = {0, 2}, contexts = {1};
  AttentionBatch batch = {.num_seqs = 1,
                          .num_rows = 2,
                          .row_offsets = offsets.data(),
                          .context_lens = contexts.data(),
                          .block_tables = contexts.data(),
                          .block_table_stride = 1,
                          .positions = contexts.data(),
                          .kv_slots = contexts.data(),
                          .host_row_offsets = offsets.data(),
                          .host_context_lens = contexts.data()};
  EXPECT_EQ(backend_->PrepareAttention(batch).message(),
            "AttentionBatch.host_context_lens[0] is 1; expected at least 2");
  batch.num_rows = 1;
  contexts[0] = 2;
  EXPECT_EQ(backend_->PrepareAttention(batch).message(),
            "AttentionBatch.host_row_offsets[1] is 2; expected 0 to 1");
}

INSTANTIATE_TEST_SUITE_P(Isa, AttentionTest, testing::ValuesIn(AllBackendCases()), BackendCaseName);

}  // namespace
}  // namespace pagoda::kernels
