#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "engine/guided/constraint.h"
#include "engine/model/model_config.h"
#include "engine/request.h"
#include "engine/text/chat_template.h"
#include "engine/text/tokenizer.h"
#include "pagoda/internal/v1/config.pb.h"

namespace pagoda::daemon {

// What the front end knows of the one model that it serves. Constant once serving begins; read by
// every thread.
struct ServedModel {
  // Not empty; the first is the one that responses and metrics use.
  std::vector<std::string> names;
  engine::ModelConfig config;
  engine::GenerationConfig generation;
  // Null: served for token ids only.
  std::unique_ptr<engine::Tokenizer> tokenizer;
  // Null: chats are refused.
  std::unique_ptr<engine::ChatTemplate> chat_template;
  // Output constraints that were compiled; synchronises itself. Null: constraints are refused.
  std::unique_ptr<engine::guided::ConstraintCache> constraints =
      std::make_unique<engine::guided::ConstraintCache>();
  internal::v1::RequestLimits limits;
  // Where a request does not say; 0: none.
  int32_t default_draft_tokens = 0;
  // Most tokens of thoughts where a request does not say; absent: no limit.
  std::optional<int32_t> default_thinking_budget;
  std::string dtype;
  std::string device;
  // Most tokens of prompt and output together.
  int32_t max_context_tokens = 0;
  int32_t max_sequences = 0;
  int32_t kv_block_tokens = 0;
  int32_t num_kv_blocks = 0;
  uint64_t num_parameters = 0;
  // Most bytes of a message in either direction; a unary reply that could be larger is refused up
  // front.
  size_t max_message_bytes = 0;

  // Union of the tokenizer's, generation_config.json's and config.json's ids, sorted.
  std::vector<engine::TokenId> eos_token_ids;
  // Ids below this are accepted from clients: in both the tokenizer's and the model's vocabulary.
  int32_t num_known_ids = 0;
  // What thoughts may stand between, as the tokenizer spells it; empty without one.
  std::vector<engine::ThoughtTags> thought_tags;
  // Bytes of the longest token; bounds how few tokens a text can become.
  size_t max_token_bytes = 0;

  const std::string& name() const { return names.front(); }
  bool Answers(absl::string_view model) const;
};

// Fills what follows from config, generation and tokenizer. REQUIRES: those are set.
void DeriveModelFacts(ServedModel* model);

}  // namespace pagoda::daemon
