#include "kernels/cuda/attention/attention_plan.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace pagoda::kernels::cuda {
namespace {

struct Batch {
  std::vector<int32_t> row_offsets = {0};
  std::vector<int32_t> context_lens;

  void Add(int32_t rows, int32_t context_len) {
    row_offsets.push_back(row_offsets.back() + rows);
    context_lens.push_back(context_len);
  }
  AttentionPlanInput Input() const {
    return {.row_offsets = row_offsets, .context_lens = context_lens};
  }
};

AttentionPlanShape Shape(int32_t num_kv_heads = 8, int32_t group_size = 4) {
  return {.max_seqs = 1024,
          .max_rows = 32768,
          .num_kv_heads = num_kv_heads,
          .group_size = group_size,
          .decode_grid = 264,
          .decode_rows_per_tile = group_size <= 8 ? 8 : 16,
          .prefill_rows_per_tile = 128};
}

class Plan {
 public:
  Plan(const AttentionPlanShape& shape, const AttentionPlanInput& input)
      : shape_(shape), buffer_(shape.size_bytes(), char{0x5a}) {
    status = MakeAttentionPlan(shape, input, buffer_.data());
    view = ViewAttentionPlan(shape, buffer_.data());
  }

  absl::Status status;
  AttentionPlanView view;

 private:
  AttentionPlanShape shape_;
  std::vector<char> buffer_;
};

struct PieceSeen {
  int32_t cta;
  int32_t first_tile;
  int32_t num_tiles;
  int32_t first_cta;
  int32_t last_cta;
  int32_t slot;
};

// Walks the tasks the way the kernel does.
std::map<std::pair<int32_t, int32_t>, std::vector<PieceSeen>> Walk(const AttentionPlanShape& shape,
                                                                   const Plan& plan) {
  std::map<std::pair<int32_t, int32_t>, std::vector<PieceSeen>> items;
  for (int32_t cta = 0; cta < shape.decode_grid; ++cta) {
    const DecodeTask& task = plan.view.tasks[cta];
    int32_t seq_pos = task.seq_pos, unit = task.unit, tile = task.tile, left = task.num_tiles;
    DecodeSeq seq = task.seq;
    while (left > 0) {
      const int32_t tiles = std::min(seq.num_tiles - tile, left);
      const bool begins = tile == 0;
      const bool ends = tile + tiles == seq.num_tiles;
      items[{seq.seq_idx, unit}].push_back(
          {.cta = cta,
           .first_tile = tile,
           .num_tiles = tiles,
           .first_cta = begins ? cta : task.head_first_cta,
           .last_cta = ends ? cta : (begins ? task.tail_last_cta : task.head_last_cta),
           .slot = 2 * cta + (begins ? 1 : 0)});
      left -= tiles;
      tile = 0;
      if (++unit == seq.num_row_tiles * shape.num_kv_heads) {
        unit = 0;
        if (++seq_pos < plan.view.header->num_decode_seqs) seq = plan.view.seqs[seq_pos];
      }
    }
  }
  return items;
}

void CheckCovered(const AttentionPlanShape& shape, const Plan& plan, int32_t min_tiles) {
  ASSERT_TRUE(plan.status.ok()) << plan.status;
  const auto items = Walk(shape, plan);
  size_t num_items = 0;
  for (int32_t i = 0; i < plan.view.header->num_decode_seqs; ++i) {
    num_items += plan.view.seqs[i].num_row_tiles * shape.num_kv_heads;
  }
  EXPECT_EQ(items.size(), num_items);
  std::set<int32_t> slots;
  for (int32_t i = 0; i < plan.view.header->num_decode_seqs; ++i) {
    const DecodeSeq& seq = plan.view.seqs[i];
    for (int32_t unit = 0; unit < seq.num_row_tiles * shape.num_kv_heads; ++unit) {
      const auto& pieces = items.at({seq.seq_idx, unit});
      int32_t tile = 0;
      for (size_t k = 0; k < pieces.size(); ++k) {
        const PieceSeen& piece = pieces[k];
        EXPECT_EQ(piece.first_tile, tile);
        tile += piece.num_tiles;
        EXPECT_EQ(piece.first_cta, pieces.front().cta);
        EXPECT_EQ(piece.last_cta, pieces.back().cta);
        // What the merge assumes: one piece in each block from first to last, at these slots.
        EXPECT_EQ(piece.cta, pieces.front().cta + static_cast<int32_t>(k));
        EXPECT_EQ(piece.slot, 2 * piece.cta + (k == 0 ? 1 : 0));
        if (pieces.size() > 1) {
          EXPECT_GE(piece.num_tiles, min_tiles);
          EXPECT_TRUE(slots.insert(piece.slot).second);
        }
      }
      EXPECT_EQ(tile, seq.num_tiles);
    }
  }
}

int32_t MostTiles(const AttentionPlanShape& shape, const Plan& plan) {
  int32_t most = 0;
  for (int32_t i = 0; i < shape.decode_grid; ++i)
    most = std::max(most, plan.view.tasks[i].num_tiles);
  return most;
}

TEST(AttentionPlanTest, UniformBatchIsBalanced) {
  Batch batch;
  for (int i = 0; i < 64; ++i) batch.Add(1, 4096);
  const Plan plan(Shape(), batch.Input());
  CheckCovered(Shape(), plan, 2);
  EXPECT_EQ(plan.view.header->num_decode_ctas, 264);
  // 64 sequences * 8 heads * 64 tiles / 264 = 124.1.
  EXPECT_LE(MostTiles(Shape(), plan), 127);
}

TEST(AttentionPlanTest, OneLongSequenceIsSpread) {
  Batch batch;
  batch.Add(1, 131072);
  for (int i = 0; i < 31; ++i) batch.Add(1, 4096);
  const Plan plan(Shape(), batch.Input());
  CheckCovered(Shape(), plan, 2);
  EXPECT_LE(MostTiles(Shape(), plan), 125);  // 32256 / 264 = 122.2
}

TEST(AttentionPlanTest, SmallWorkUsesFewBlocks) {
  Batch batch;
  batch.Add(1, 64);
  const Plan plan(Shape(), batch.Input());
  CheckCovered(Shape(), plan, 2);
  EXPECT_LE(plan.view.header->num_decode_ctas, 8);
}

TEST(AttentionPlanTest, WholeItemsAreNeverCut) {
  Batch batch;
  batch.Add(1, 100000);
  for (int i = 0; i < 40; ++i) batch.Add(1, 10 + 37 * i);
  AttentionPlanInput input = batch.Input();
  input.whole_items = true;
  const Plan plan(Shape(), input);
  CheckCovered(Shape(), plan, 1);
  for (const auto& [item, pieces] : Walk(Shape(), plan)) EXPECT_EQ(pieces.size(), 1u);
}

TEST(AttentionPlanTest, WindowSkipsTiles) {
  Batch batch;
  batch.Add(1, 1000);
  AttentionPlanInput input = batch.Input();
  input.window = 100;
  const Plan plan(Shape(), input);
  CheckCovered(Shape(), plan, 2);
  // Keys 900 to 999.
  EXPECT_EQ(plan.view.seqs[0].first_tile, 900 / 64);
  EXPECT_EQ(plan.view.seqs[0].num_tiles, 16 - 14);
}

TEST(AttentionPlanTest, LongRowsArePrefilledLongestFirst) {
  Batch batch;
  batch.Add(1, 300);
  batch.Add(100, 100);
  batch.Add(40, 5000);
  batch.Add(0, 77);
  const AttentionPlanShape shape = Shape();
  const Plan plan(shape, batch.Input());
  CheckCovered(shape, plan, 2);
  EXPECT_EQ(plan.view.header->num_decode_seqs, 1);
  ASSERT_EQ(plan.view.header->num_prefill_tiles, 4 + 2);  // 32 tokens each
  const PrefillTile* tiles = plan.view.prefill_tiles;
  EXPECT_EQ(std::make_pair(tiles[0].seq_idx, tiles[0].first_row), std::make_pair(2, 32));
  EXPECT_EQ(std::make_pair(tiles[1].seq_idx, tiles[1].first_row), std::make_pair(2, 0));
  EXPECT_EQ(std::make_pair(tiles[2].seq_idx, tiles[2].first_row), std::make_pair(1, 64));
  std::set<std::pair<int32_t, int32_t>> all;
  for (int i = 0; i < 6; ++i) all.insert({tiles[i].seq_idx, tiles[i].first_row});
  EXPECT_EQ(all.size(), 6u);
}

TEST(AttentionPlanTest, RandomBatchesAreCovered) {
  std::mt19937 random(7);
  for (int round = 0; round < 400; ++round) {
    const int32_t heads = std::vector<int32_t>{1, 2, 3, 8, 10, 32}[random() % 6];
    const int32_t group = std::vector<int32_t>{1, 4, 7, 16, 32}[random() % 5];
    const AttentionPlanShape shape = Shape(heads, group);
    Batch batch;
    const int num_seqs = 1 + random() % (round % 10 == 0 ? 1024 : 20);
    for (int i = 0; i < num_seqs; ++i) {
      const int32_t rows = random() % 3 == 0 ? random() % 4 : 1;
      const int32_t context = rows + random() % (random() % 8 == 0 ? 100000 : 600);
      batch.Add(rows, context);
    }
    AttentionPlanInput input = batch.Input();
    input.max_decode_rows = 1 + random() % 4;
    input.min_tiles_per_split = 1 + random() % 5;
    input.window = random() % 3 == 0 ? 1 + random() % 500 : 0;
    const Plan plan(shape, input);
    CheckCovered(shape, plan, input.min_tiles_per_split);
  }
}

TEST(AttentionPlanTest, RefusesWhatDoesNotFit) {
  Batch batch;
  batch.Add(5, 4);
  EXPECT_EQ(Plan(Shape(), batch.Input()).status.code(), absl::StatusCode::kInvalidArgument);
  Batch long_batch;
  long_batch.Add(40000, 40000);
  EXPECT_EQ(Plan(Shape(), long_batch.Input()).status.code(), absl::StatusCode::kInvalidArgument);
  Batch good;
  good.Add(1, 4);
  EXPECT_EQ(Plan(Shape(1, 200), good.Input()).status.code(), absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace pagoda::kernels::cuda
