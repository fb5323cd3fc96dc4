#pragma once

#include <cstdint>

#include "engine/scheduled_step.h"
#include "pagoda/internal/v1/worker.pb.h"

namespace pagoda::engine {

class Tokenizer;
class GuidedVocabulary;

// Writes a scheduled step as the message that workers read. The one place where sequences become
// worker.proto. Engine thread only; keeps its message, so that a step in full flow allocates
// nothing.
class StepBuilder {
 public:
  // `tokenizer` outlives this; null: there are no constraints.
  explicit StepBuilder(int32_t vocab_size, const Tokenizer* tokenizer = nullptr)
      : vocab_size_(vocab_size), tokenizer_(tokenizer) {}

  // Where the vocabulary comes from when a constraint is first sent; outlives this.
  void set_vocabulary(const GuidedVocabulary* vocabulary) { vocabulary_ = vocabulary; }

  // The plan is valid until the next call.
  const internal::v1::StepPlan& Build(const ScheduledStep& step);

 private:
  void SetSampling(const Sequence& sequence, internal::v1::RowSampling* out) const;
  void SetNewSequence(const Admission& admission, internal::v1::NewSequence* out);

  const int32_t vocab_size_;
  const Tokenizer* const tokenizer_;
  const GuidedVocabulary* vocabulary_ = nullptr;
  // The worker has the vocabulary.
  bool has_sent_vocabulary_ = false;
  internal::v1::StepPlan plan_;
};

}  // namespace pagoda::engine
