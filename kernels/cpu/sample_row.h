#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cpu/sample_kernels.h"
#include "kernels/ops/sample.h"

namespace pagoda::kernels::cpu {

// Samples rows one at a time, in memory that it keeps. Thread-compatible: one a thread.
class RowSampler {
 public:
  // `kernels` must outlive it.
  explicit RowSampler(const SampleKernels& kernels) : kernels_(kernels) {}

  // Writes everything that SampleParams asks for row `row_idx`.
  void Sample(const SampleParams& params, int64_t row_idx);

 private:
  // REQUIRES: OpenRow gave true.
  int32_t SampleOpened(const SampleParams& params, int64_t row_idx);

  // ---- The row as it came, and as masks, bias and penalties leave it.
  bool OpenRow(const float* logits, int32_t vocab_size);
  void CopyRow();
  void Edit(const SampleParams& params, const SampleRow& row);
  float* EditableBlock(int64_t block);
  float& Editable(int32_t id) { return EditableBlock(id / kRowBlock)[id % kRowBlock]; }
  RowView RawView() const { return {raw_blocks_.data(), raw_max_.data(), num_blocks_}; }
  RowView View() const { return {blocks_.data(), block_max_.data(), num_blocks_}; }

  // ---- Choosing.
  // The first token of the order.
  static RowToken Best(const RowView& view);
  int32_t Draw(const SampleRow& row, float max);
  void KeepTopK(int32_t top_k);
  void KeepShortList(float least);
  void KeepMass(double fraction, const RowScale& scale);
  void KeepTypical(double fraction, const RowScale& scale);
  void Collect(const RowView& view,
               const RowCut& in_play,
               const RowScale& scale,
               const RowFilter& filter);
  std::span<RowToken> List() { return {list_.data(), static_cast<size_t>(list_size_)}; }
  int32_t DrawFromList(const SampleRow& row, const RowScale& scale);
  RowToken CutInBins(const RowCut& in_play, const RowScale& scale, float center, double target);

  // ---- Scoring.
  void Score(const SampleParams& params,
             int64_t row_idx,
             int32_t token,
             const RowView& view,
             const RowScale& scale);
  // The best `count` tokens of what is in play, in no order, become the list.
  void CollectBest(const RowView& view, const RowCut& in_play, int64_t count);

  const SampleKernels& kernels_;

  int64_t num_blocks_ = 0;
  int32_t vocab_size_ = 0;
  float raw_row_max_ = 0.0f;
  std::vector<const float*> raw_blocks_;
  std::vector<float> raw_max_;
  std::vector<float> tail_;  // the last block, padded with -inf
  std::vector<const float*> blocks_;
  std::vector<float> block_max_;
  std::vector<float> edited_;     // [num_blocks * 64]; only blocks that were touched are filled
  std::vector<int64_t> touched_;  // blocks that were
  std::vector<float> minus_infinity_;  // one block

  // What is in play: before cut_ in order, or, where the list is in use, what is in it, best first.
  RowCut cut_ = kNoCut;
  bool uses_list_ = false;
  std::vector<RowToken> list_;  // [vocab_size_ or more], of which list_size_ count
  int64_t list_size_ = 0;
  std::vector<float> kth_;
  std::vector<double> bins_;
};

}  // namespace pagoda::kernels::cpu
