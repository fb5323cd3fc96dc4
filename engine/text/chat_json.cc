#include "engine/text/chat_json.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace pagoda::engine {
namespace {

struct Shape {
  int depth = 0;  // of brackets outside strings
  int num_members = 0;
};

Shape ShapeOf(absl::string_view text) {
  int depth = 0;
  Shape shape;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      shape.depth = std::max(shape.depth, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    } else if (c == ':') {
      ++shape.num_members;
    }
  }
  return shape;
}

}  // namespace

absl::StatusOr<nlohmann::ordered_json> ParseChatJson(absl::string_view text) {
  const Shape shape = ShapeOf(text);
  if (shape.depth > kMaxChatJsonDepth) {
    return absl::InvalidArgumentError(
        absl::StrCat("JSON nested deeper than ", kMaxChatJsonDepth, " levels"));
  }
  if (shape.num_members > kMaxChatJsonMembers) {
    return absl::InvalidArgumentError(
        absl::StrCat("JSON with more than ", kMaxChatJsonMembers, " members"));
  }
  nlohmann::ordered_json value = nlohmann::ordered_json::parse(
      text.begin(), text.end(), /*cb=*/nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) return absl::InvalidArgumentError("not valid JSON");
  return value;
}

}  // namespace pagoda::engine
