#include "daemon/server/served_model.h"

#include <algorithm>

namespace pagoda::daemon {

bool ServedModel::Answers(absl::string_view model) const {
  return model.empty() || std::find(names.begin(), names.end(), model) != names.end();
}

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
