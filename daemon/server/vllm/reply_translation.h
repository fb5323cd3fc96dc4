#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/optional.h"
#include "pagoda/v1/inference.pb.h"
#include "vllm/grpc/engine/vllm_engine.pb.h"

namespace pagoda::daemon {

namespace engine_pb = ::vllm::grpc::engine;

// Makes the messages of one Generate call from the events of pagoda.v1. Thread-compatible: the
// thread that owns the call.
class ReplyTranslator {
 public:
  // Without `stream`, everything waits for the end of its sequence.
  explicit ReplyTranslator(bool stream) : stream_(stream) {}

  // The message that goes out for an event; absent: none, what it said comes with a later one.
  absl::optional<engine_pb::GenerateResponse> Translate(v1::StreamGenerateResponse event);

  // A message has said that a sequence was aborted.
  bool has_told_abort() const { return has_told_abort_; }

 private:
  // What one sequence has gathered, or whether its first chunk has gone out.
  struct Sequence {
    bool has_begun = false;
    engine_pb::GenerateComplete complete;
  };

  void NoteStarted(const v1::Started& started);
  absl::optional<engine_pb::GenerateResponse> TranslateDelta(const v1::Delta& delta);
  absl::optional<engine_pb::GenerateResponse> TranslateFinished(const v1::Finished& finished);
  void AppendOutput(const v1::Delta& delta, engine_pb::OutputLogProbs* out) const;
  void AppendPrompt(const v1::Delta& delta);
  Sequence& SequenceAt(uint32_t index);

  const bool stream_;
  uint32_t num_prompt_tokens_ = 0;
  uint32_t num_cached_tokens_ = 0;
  bool has_top_logprobs_ = false;
  bool has_prompt_logprobs_ = false;
  bool has_top_prompt_logprobs_ = false;
  bool has_told_abort_ = false;
  // Comes in pieces, and is told with each sequence.
  engine_pb::InputLogProbs prompt_logprobs_;
  std::vector<Sequence> sequences_;
};

}  // namespace pagoda::daemon
