// A template, then messages as JSON, then tools as JSON.
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/text/chat_template.h"
#include "tests/fuzz/fuzz_input.h"

namespace pagoda::engine {
namespace {

using fuzz::Require;
using nlohmann::ordered_json;

constexpr char kMessages[] =
    R"([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"},
        {"role": "assistant", "content": null, "tool_calls": [{"type": "function",
         "function": {"name": "f", "arguments": {"x": 1.5}}}]}])";

ordered_json ParseOr(const std::string& text, const char* otherwise) {
  ordered_json json = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) json = ordered_json::parse(otherwise);
  return json;
}

void Check(const absl::StatusOr<RenderedChat>& chat) {
  if (!chat.ok()) {
    Require(absl::IsInvalidArgument(chat.status()), "unexpected code");
    return;
  }
  Require(chat->trusted.size() == chat->text.size(), "marks and text differ in length");
}

}  // namespace
}  // namespace pagoda::engine

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pagoda;
  using nlohmann::ordered_json;
  static const ordered_json special_tokens = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  const std::vector<std::string> parts = fuzz::SplitInput(data, size, 3);
  const auto chat_template = engine::ChatTemplate::Compile(parts[0], special_tokens);
  if (!chat_template.ok()) {
    fuzz::Require(absl::IsInvalidArgument(chat_template.status()), "unexpected code");
    return 0;
  }
  const ordered_json messages = engine::ParseOr(parts[1], engine::kMessages);
  const ordered_json tools = engine::ParseOr(parts[2], "[]");
  for (const bool prompt : {false, true}) {
    engine::Check((*chat_template)
                      ->Render({.messages = &messages,
                                .tools = tools.empty() ? nullptr : &tools,
                                .add_generation_prompt = prompt,
                                .now_seconds = 1'700'000'000}));
  }
  return 0;
}
