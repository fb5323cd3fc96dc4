#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"

namespace pagoda::engine {

// A rendered chat. Only bytes that the template wrote may spell control tokens: what users wrote
// never does.
struct RenderedChat {
  std::string text;
  std::string trusted;  // as long as text; '\1' for the template's bytes
};

struct ChatInput {
  const nlohmann::ordered_json* messages = nullptr;  // array of {role, content, ...}
  const nlohmann::ordered_json* tools = nullptr;     // array, or null
  bool add_generation_prompt = true;
  // The text ends where that of the last message does.
  bool continue_final_message = false;
  // Object of further variables, or null; none may have the name of what the template gets anyway.
  const nlohmann::ordered_json* arguments = nullptr;
  int64_t now_seconds = 0;  // for templates that print the date
};

// A model's Jinja chat template. Immutable; thread-safe.
class ChatTemplate {
 public:
  // INVALID_ARGUMENT with the line for what cannot be read. Special tokens are what
  // tokenizer_config.json names, in its own keys (bos_token, eos_token, ...).
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Compile(
      absl::string_view source, const nlohmann::ordered_json& special_tokens);
  virtual ~ChatTemplate() = default;

  // INVALID_ARGUMENT: the template refused the messages (its own words) or a limit was passed.
  virtual absl::StatusOr<RenderedChat> Render(const ChatInput& input) const = 0;

  // Whether content may be a list of parts; else the template would drop it or print its Python
  // form.
  virtual bool takes_content_parts() const = 0;
};

}  // namespace pagoda::engine
