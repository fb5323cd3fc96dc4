#include "daemon/server/served_model.h"

#include <algorithm>
#include <utility>

#include "daemon/openai/reasoning_parser.h"

namespace pagoda::daemon {

bool ServedModel::Answers(absl::string_view model) const {
  return model.empty() || std::find(names.begin(), names.end(), model) != names.end();
}

namespace {

std::vector<engine::ThoughtTags> ThoughtTagsOf(const engine::Tokenizer& tokenizer,
                                               int32_t num_known_ids) {
  const auto encode = [&](absl::string_view text) {
    auto ids = tokenizer.Encode(text, {.add_special_tokens = false, .parse_special_tokens = true});
    return ids.ok() ? *std::move(ids) : std::vector<engine::TokenId>();
  };
  std::vector<engine::ThoughtTags> all;
  for (const openai::ThoughtTagPair& pair : openai::ThoughtTagPairs()) {
    engine::ThoughtTags tags = {.open = std::string(pair.open), .close = std::string(pair.close)};
    tags.close_ids = encode(pair.close);
    const std::vector<engine::TokenId> open = encode(pair.open);
    if (open.size() == 1) tags.open_id = open.front();
    const bool can_close =
        !tags.close_ids.empty() &&
        std::all_of(tags.close_ids.begin(), tags.close_ids.end(), [&](engine::TokenId id) {
          return id >= 0 && id < num_known_ids;
        });
    if (can_close) all.push_back(std::move(tags));
  }
  return all;
}

}  // namespace

void DeriveModelFacts(ServedModel* model) {
  auto& eos = model->eos_token_ids;
  eos = model->config.eos_token_ids;
  eos.insert(
      eos.end(), model->generation.eos_token_ids.begin(), model->generation.eos_token_ids.end());
  model->num_known_ids = model->config.vocab_size;
  model->max_token_bytes = 0;
  if (const engine::Tokenizer* tokenizer = model->tokenizer.get()) {
    if (const auto id = tokenizer->eos_token_id()) eos.push_back(*id);
    model->num_known_ids = std::min(model->num_known_ids, tokenizer->vocab_size());
    for (engine::TokenId id = 0; id < tokenizer->vocab_size(); ++id) {
      model->max_token_bytes = std::max(model->max_token_bytes, tokenizer->TokenBytes(id).size());
    }
  }
  if (model->tokenizer != nullptr)
    model->thought_tags = ThoughtTagsOf(*model->tokenizer, model->num_known_ids);
  std::sort(eos.begin(), eos.end());
  eos.erase(std::unique(eos.begin(), eos.end()), eos.end());
  // An id that the model cannot sample ends nothing.
  eos.erase(std::remove_if(
                eos.begin(),
                eos.end(),
                [model](engine::TokenId id) { return id < 0 || id >= model->config.vocab_size; }),
            eos.end());
}

}  // namespace pagoda::daemon
