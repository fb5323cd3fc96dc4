// tokenizer.json, then tokenizer_config.json, then a text.
#include <string>
#include <vector>

#include "engine/text/tokenizer.h"
#include "engine/text/utf8.h"
#include "kernels/base/log.h"
#include "tests/fuzz/fuzz_input.h"

namespace pagoda::engine {
namespace {

using fuzz::Require;

void EncodeAndBack(const Tokenizer& tokenizer,
                   absl::string_view text,
                   const EncodeOptions& options) {
  const auto ids = tokenizer.Encode(text, options);
  if (!ids.ok()) {
    Require(absl::IsInvalidArgument(ids.status()), "unexpected code");
    return;
  }
  Require(IsValidUtf8(text), "ill-formed text was taken");
  for (const TokenId id : *ids) Require(id >= 0 && id < tokenizer.vocab_size(), "id out of range");
  Require(IsValidUtf8(tokenizer.Decode(*ids, options.add_special_tokens)), "ill-formed text came");
  // Nothing depends on the texts before.
  const auto again = tokenizer.Encode(text, options);
  Require(again.ok() && *again == *ids, "the same text gave other ids");
}

void UseTokenizer(const Tokenizer& tokenizer, const std::string& text) {
  const std::string trusted(text.size(), '\1');
  EncodeAndBack(tokenizer, text, {});
  EncodeAndBack(tokenizer, text, {.add_special_tokens = false, .parse_special_tokens = true});
  EncodeAndBack(tokenizer, text, {.parse_special_tokens = true, .trusted = trusted});
  for (const TokenId id : {-1, 0, 1, tokenizer.vocab_size() - 1, tokenizer.vocab_size()}) {
    tokenizer.TokenBytes(id);
    tokenizer.IsSpecial(id);
  }
}

}  // namespace
}  // namespace pagoda::engine

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pagoda;
  static const fuzz::ScratchDir dir;
  SetLogLevel("error");
  const std::vector<std::string> parts = fuzz::SplitInput(data, size, 3);
  dir.Put("tokenizer.json", parts[0]);
  dir.Put("tokenizer_config.json", parts[1]);
  const auto tokenizer = engine::Tokenizer::Load(dir.path());
  if (tokenizer.ok()) {
    engine::UseTokenizer(**tokenizer, parts[2].empty() ? "the \xF0\x9F\x98\x80 in 12" : parts[2]);
  }
  return 0;
}
