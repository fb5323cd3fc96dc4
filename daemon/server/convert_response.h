#pragma once

#include <string>

#include "absl/container/inlined_vector.h"
#include "daemon/server/convert_request.h"
#include "daemon/server/served_model.h"
#include "engine/output.h"
#include "pagoda/v1/inference.pb.h"

namespace pagoda::daemon {

// Makes the public messages of one request from what the engine gives. Thread-compatible: the
// thread that owns the call.
class ResponseConverter {
 public:
  // `model` outlives the converter.
  ResponseConverter(const ServedModel* model, v1::Started started, std::string echo_text);

  // REQUIRES: called once.
  v1::Started MakeStarted(const engine::RequestStarted& started);
  // Appends text, tokens and their log-probabilities; leaves prompt log-probabilities alone. The
  // prompt's text comes before the first output of each sequence that is to echo.
  void AppendOutput(engine::OutputDelta* delta, v1::Delta* out);
  void FillLogprobs(const engine::TokenLogprobs& position, v1::TokenLogprobs* out) const;
  v1::Finished MakeFinished(int32_t index, const engine::SequenceFinished& finished) const;

  // Whether outputs may begin with the prompt's text.
  bool echoes() const { return !echo_text_.empty(); }
  int32_t num_sequences() const { return num_sequences_; }

 private:
  std::string TakeEcho(int32_t index);

  const ServedModel* const model_;
  // Empty after MakeStarted: it can be large, and a stream lives long.
  v1::Started started_;
  const std::string echo_text_;
  const bool omit_text_;
  const int32_t num_sequences_;
  uint32_t num_prompt_tokens_ = 0;
  uint32_t num_cached_tokens_ = 0;
  int64_t queue_ns_ = 0;
  absl::InlinedVector<bool, 8> echoed_;
};

}  // namespace pagoda::daemon
