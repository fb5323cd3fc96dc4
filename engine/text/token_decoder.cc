#include "engine/text/token_decoder.h"

#include "absl/strings/str_cat.h"
#include "engine/text/byte_alphabet.h"

namespace pagoda::engine {

absl::StatusOr<TokenBytesTable> DecodeVocabulary(const JsonElement& decoder,
                                                 const Vocabulary& vocabulary) {
  if (decoder.Type() != "ByteLevel") {
    return decoder.Error(absl::StrCat("type \"", decoder.Type(), "\" is not supported"));
  }
  TokenBytesTable table;
  std::string bytes;
  for (TokenId id = 0; id < vocabulary.size(); ++id) {
    const absl::string_view spelling = vocabulary.Spelling(id).value_or("");
    bytes.clear();
    // A token with a character outside the alphabet, such as an added one with a space in it,
    // stands for its spelling.
    table.Append(byte_alphabet::AppendBytes(spelling, &bytes) ? absl::string_view(bytes)
                                                              : spelling);
  }
  return table;
}

}  // namespace pagoda::engine
