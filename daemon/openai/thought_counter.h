#pragma once

#include <cstdint>
#include <vector>

#include "daemon/openai/output_parser.h"
#include "engine/text/tokenizer.h"
#include "google/protobuf/repeated_field.h"

namespace pagoda::daemon::openai {

// Counts the tokens of a choice that are thoughts: those that begin before the closing tag has
// ended. Thread-compatible.
class ThoughtCounter {
 public:
  // `tokenizer`, which outlives the counter, may be null: then nothing is counted.
  explicit ThoughtCounter(const engine::Tokenizer* tokenizer) : tokenizer_(tokenizer) {}

  // Tokens that have come, whose text the parser has been fed, or will be: text lags.
  void Add(const google::protobuf::RepeatedField<uint32_t>& ids, const OutputParser& parser);
  // No more come. Before the parser's Finish.
  void Finish(const OutputParser& parser);
  uint64_t num_tokens() const { return num_tokens_; }

 private:
  const engine::Tokenizer* const tokenizer_;
  bool is_decided_ = false;
  size_t num_bytes_ = 0;         // of all tokens
  std::vector<size_t> waiting_;  // where tokens begin of which it is not known what they are
  uint64_t num_tokens_ = 0;
};

}  // namespace pagoda::daemon::openai
