#include "daemon/client/bench_prompts.h"

#include <fstream>
#include <sstream>

#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace pagoda::daemon {
namespace {

using nlohmann::json;

constexpr int64_t kMaxOutputTokens = 1 << 20;

absl::Status Wrong(absl::string_view where, absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat(where, ": expected ", expected));
}

absl::StatusOr<BenchPrompt> PromptOfLine(absl::string_view line, absl::string_view where) {
  const json value = json::parse(line, nullptr, /*allow_exceptions=*/false);
  const auto is_text = [&value](const char* name) {
    return value.contains(name) && value[name].is_string();
  };
  if (!value.is_object() || !is_text("prompt")) {
    return Wrong(where, "a JSON object with a text \"prompt\"");
  }
  BenchPrompt prompt = {.text = value["prompt"].get<std::string>()};
  if (prompt.text.empty()) return Wrong(where, "a \"prompt\" that is not empty");
  const auto tokens = value.find("output_tokens");
  if (tokens == value.end()) return prompt;
  if (!tokens->is_number_integer() || tokens->get<int64_t>() < 1 ||
      tokens->get<int64_t>() > kMaxOutputTokens) {
    return Wrong(where, absl::StrCat("\"output_tokens\" of 1 to ", kMaxOutputTokens));
  }
  prompt.output_tokens = tokens->get<int64_t>();
  return prompt;
}

absl::StatusOr<std::vector<BenchPrompt>> PromptsOfLines(const std::string& file,
                                                        absl::string_view text) {
  std::vector<BenchPrompt> prompts;
  int64_t line_number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++line_number;
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    auto prompt = PromptOfLine(line, absl::StrCat(file, ": line ", line_number));
    if (!prompt.ok()) return prompt.status();
    prompts.push_back(*std::move(prompt));
  }
  return prompts;
}

absl::StatusOr<std::vector<BenchPrompt>> PromptsOfConversations(const std::string& file,
                                                                const json& conversations) {
  std::vector<BenchPrompt> prompts;
  for (size_t i = 0; i < conversations.size(); ++i) {
    const json& conversation = conversations[i];
    const auto turns =
        conversation.is_object() ? conversation.find("conversations") : conversation.end();
    if (!conversation.is_object() || turns == conversation.end() || !turns->is_array()) {
      return Wrong(absl::StrCat(file, ": element ", i), "an object with a list \"conversations\"");
    }
    std::string human;
    for (const json& turn : *turns) {
      if (!turn.is_object() || !turn.value("from", json()).is_string() ||
          !turn.value("value", json()).is_string()) {
        return Wrong(absl::StrCat(file, ": element ", i),
                     "turns with texts \"from\" and \"value\"");
      }
      const std::string from = turn["from"], value = turn["value"];
      if (from == "human" && human.empty()) human = value;
      if (from == "gpt" && !human.empty() && !value.empty()) {
        prompts.push_back({.text = human, .reply = value});
        break;
      }
    }
  }
  return prompts;
}

}  // namespace

absl::StatusOr<std::vector<BenchPrompt>> ReadPrompts(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream content;
  content << in.rdbuf();
  if (!in.good()) return absl::InvalidArgumentError(absl::StrCat(file, ": cannot be read"));
  const std::string text = content.str();
  absl::StatusOr<std::vector<BenchPrompt>> prompts;
  if (absl::StripLeadingAsciiWhitespace(text).substr(0, 1) == "[") {
    const json conversations = json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!conversations.is_array()) return Wrong(file, "valid JSON");
    prompts = PromptsOfConversations(file, conversations);
  } else {
    prompts = PromptsOfLines(file, text);
  }
  if (prompts.ok() && prompts->empty()) return Wrong(file, "at least one prompt");
  return prompts;
}

}  // namespace pagoda::daemon
