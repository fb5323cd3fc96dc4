#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/model/output_constraints.h"
#include "engine/model/slot_table.h"
#include "engine/model/token_counts.h"
#include "kernels/backend.h"

namespace pagoda::engine {

// One row of logits: what comes at `position`, given everything before it.
struct LogitRow {
  int32_t slot = 0;
  uint64_t generation = 0;
  int32_t position = 0;
  // Row of the batch whose hidden state the logits are made of.
  int32_t batch_row = 0;
  // Scores the known token at `position` instead of sampling one: by the raw logits or, where
  // processed log-probabilities are asked for, as if it were the next one to be sampled (but
  // min_tokens, which says how an output ends).
  bool is_prompt = false;
  // The sequence's step has a draft.
  bool is_drafted = false;
  // Tokens of the draft that come before `position`.
  int32_t num_drafts_before = 0;

  // Log-probabilities wanted beside the token's own; -1: none at all.
  int32_t num_logprobs = -1;
};

// True when sampling for the sequence needs the values of all tokens before, so that the last one
// must have come back from the device: penalties, constraints, and bad words of more than one
// token. (min_tokens needs their number only.)
bool NeedsHistory(const internal::v1::RowSampling& sampling);

// The parameters of a chunk of logit rows on the device. Thread-compatible.
class SamplingInputs {
 public:
  static absl::StatusOr<SamplingInputs> Allocate(kernels::Backend& backend,
                                                 const StepLimits& limits,
                                                 int32_t max_logit_rows,
                                                 int num_sets);

  // Enqueues the copies for `rows` and sets the input fields of `params`. batch_rows() gets
  // `padded_rows` entries if that is more. REQUIRES: both are at most max_logit_rows; what used
  // `set_idx` before has ended; tokens are known for sequences that need history.
  absl::Status Build(kernels::Backend& backend,
                     absl::Span<const LogitRow> rows,
                     const SlotTable& slots,
                     OutputConstraints* constraints,
                     int set_idx,
                     int32_t padded_rows,
                     kernels::SampleParams* params);
  // [rows] on the device: row of the batch of each logit row.
  const int32_t* batch_rows() const { return batch_rows_.device(); }

 private:
  // An array that is filled on the host and copied to the device; both grow.
  template <typename T>
  class List {
   public:
    absl::Status Reserve(kernels::Backend& backend, size_t count, int num_sets);
    absl::Status Copy(kernels::Backend& backend, int set_idx);
    std::vector<T>& values() { return values_; }
    const T* device() const { return device_.as<T>(); }
    // The staged copy of the last Copy; stays as it is until the set is used again.
    const T* host(int set_idx) const { return staging_[static_cast<size_t>(set_idx)].as<T>(); }

   private:
    std::vector<T> values_;
    kernels::Buffer device_;
    std::vector<kernels::Buffer> staging_;
    size_t capacity_ = 0;
  };

  // The distinct tokens of a prompt in order of first occurrence, so that those before any position
  // are the first of them; in penalties_, from `begin` on.
  struct PromptTokens {
    int32_t slot = -1;
    int32_t begin = 0;
    int32_t num_counted = 0;  // tokens of the prompt
    absl::flat_hash_set<TokenId> seen;
  };

  void AddRow(const LogitRow& row, const SlotState& slot, OutputConstraints* constraints);
  void AddProcessing(const LogitRow& row,
                     const SlotState& slot,
                     OutputConstraints* constraints,
                     kernels::SampleRow* sample);
  void AddIds(const LogitRow& row,
              const SlotState& slot,
              OutputConstraints* constraints,
              kernels::SampleRow* sample);
  void AddMasked(const LogitRow& row, const SlotState& slot);
  // Makes the row's token the one that has to come, where one has.
  void ForceToken(const LogitRow& row,
                  const SlotState& slot,
                  OutputConstraints* constraints,
                  kernels::SampleRow* sample);
  void AddPenalties(const LogitRow& row, const SlotState& slot, kernels::SampleRow* sample);
  // Of prompt, output and the drafts before the row's position.
  void AddOutputCounts(const LogitRow& row, const SlotState& slot);
  // Extends prompt_tokens_ to those before the row's position.
  void AddPromptTokens(const LogitRow& row, const SlotState& slot);

  int num_sets_ = 0;
  List<int32_t> batch_rows_;
  List<kernels::SampleRow> sample_rows_;
  List<int32_t> allowed_;
  List<int32_t> masked_;
  List<int32_t> bias_ids_;
  List<float> bias_values_;
  List<kernels::PenaltyEntry> penalties_;
  std::vector<TokenCounts> counts_;  // by slot
  PromptTokens prompt_tokens_;       // of the last row that was a prompt's
};

}  // namespace pagoda::engine
