#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/text/chat_template.h"

namespace pagoda::engine {

// The chat template of a model directory: chat_template.jinja, else chat_template.json, else
// tokenizer_config.json. Where templates are named, "tool_use" renders chats with tools and
// "default" the others. Null: there is none. INVALID_ARGUMENT naming file and line for one that
// cannot be read.
absl::StatusOr<std::unique_ptr<ChatTemplate>> LoadChatTemplate(const std::string& model_dir);

}  // namespace pagoda::engine
