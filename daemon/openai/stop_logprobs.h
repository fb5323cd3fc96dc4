#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "daemon/openai/logprobs_json.h"
#include "pagoda/v1/inference.pb.h"

// Tokens of a stop string are generated, but the text leaves them out; so do its log-probabilities.
namespace pagoda::daemon::openai {

// How many of the last positions begin inside the stop string with which they end. It may begin in
// `before`, the bytes of tokens before the first position.
size_t NumStopPositions(const Positions& positions,
                        absl::string_view stop,
                        absl::string_view before = "");

// The log-probabilities of a stream's choice, of which those are held back that may turn out to be
// a stop string's. Thread-compatible.
class HeldLogprobs {
 public:
  // Bytes of the longest stop string; 0: nothing is held back.
  explicit HeldLogprobs(size_t max_stop_bytes) : max_stop_bytes_(max_stop_bytes) {}

  // What a delta has added: positions, and bytes of text.
  void Add(const google::protobuf::RepeatedPtrField<v1::TokenLogprobs>& positions,
           size_t text_bytes);
  // The choice has ended; `stop` matched and is left out of the text, if it is not empty.
  void Finish(absl::string_view stop);
  // How many of the first may be given out.
  size_t num_ready() const;
  // Gives them out; valid until the next call.
  Positions Take();

 private:
  struct Held {
    v1::TokenLogprobs position;
    size_t begin;  // byte of the tokens' texts
  };

  const size_t max_stop_bytes_;
  bool is_finished_ = false;
  size_t token_bytes_ = 0;
  size_t text_bytes_ = 0;
  size_t last_begin_ = 0;  // of the last token
  std::deque<Held> held_;
  std::vector<Held> taken_;
  std::string taken_bytes_;  // the last of them, as many as a stop string may begin in
};

}  // namespace pagoda::daemon::openai
