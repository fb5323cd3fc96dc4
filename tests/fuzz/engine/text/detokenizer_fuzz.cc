// The first byte says how long tokens are; the rest is what a model's tokens spell.
#include <algorithm>
#include <string>
#include <vector>

#include "engine/text/detokenizer.h"
#include "engine/text/utf8.h"
#include "tests/fakes/fake_tokenizer.h"
#include "tests/fuzz/fuzz_input.h"

namespace pagoda::engine {
namespace {

using fuzz::Require;

// Lengths 1 to 8 from a small generator, so that every cut of a character occurs.
std::vector<std::string> CutIntoTokens(absl::string_view bytes, uint32_t seed) {
  std::vector<std::string> tokens;
  while (!bytes.empty()) {
    seed = seed * 1664525u + 1013904223u;
    const size_t length = std::min<size_t>(1 + (seed >> 24) % 8, bytes.size());
    tokens.emplace_back(bytes.substr(0, length));
    bytes.remove_prefix(length);
  }
  return tokens;
}

std::string WholeText(absl::string_view bytes) {
  std::string text;
  const size_t held_back = AppendUtf8(bytes, &text);
  Require(held_back <= 3, "more than a character is held back");
  // At the end, what cannot become a character any more is one U+FFFD.
  if (held_back > 0) text += "\xEF\xBF\xBD";
  return text;
}

}  // namespace
}  // namespace pagoda::engine

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pagoda::engine;
  if (size == 0) return 0;
  const absl::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const FakeTokenizer tokenizer(CutIntoTokens(bytes, data[0]));
  Detokenizer detokenizer(&tokenizer, /*skip_special_tokens=*/true);
  std::string text;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    std::string piece;
    detokenizer.Append(id, &piece);
    Require(IsValidUtf8(piece), "a piece is ill-formed");
    text += piece;
  }
  detokenizer.Finish(&text);
  const std::string whole = WholeText(bytes);
  Require(IsValidUtf8(whole), "the text is ill-formed");
  Require(text == whole, "the pieces are not the text");
  if (IsValidUtf8(bytes)) Require(text == bytes, "well-formed text has changed");
  return 0;
}
