#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/ids.h"
#include "engine/text/json_element.h"
#include "engine/text/vocabulary.h"

namespace pagoda::engine {

// Encodes one piece of text, as the pre-tokenizer cut it. Immutable; thread-safe.
class TokenModel {
 public:
  // What encoding writes to, caches included. Thread-compatible; one for each thread that encodes.
  class Scratch {
   public:
    virtual ~Scratch() = default;
    // Gives back memory that an unusually long piece took.
    virtual void Trim() {}
  };

  virtual ~TokenModel() = default;

  // Of a model that needs none: an empty one.
  virtual std::unique_ptr<Scratch> MakeScratch() const { return std::make_unique<Scratch>(); }
  // Appends the piece's ids. `scratch` comes from this model's MakeScratch.
  virtual absl::Status Encode(absl::string_view piece,
                              Scratch& scratch,
                              std::vector<TokenId>* ids) const = 0;
};

// What a model is built from.
struct TokenModelParts {
  const JsonElement& element;  // "model"
  const Vocabulary& vocabulary;
  // By id: control tokens and others that text must never become by spelling them.
  const std::vector<bool>& is_hidden;
  // The pre-tokenizer hands over bytes spelled in the byte alphabet.
  bool is_byte_level;
};

// INVALID_ARGUMENT naming what is not supported.
absl::StatusOr<std::unique_ptr<TokenModel>> MakeTokenModel(const TokenModelParts& parts);

}  // namespace pagoda::engine
