#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace pagoda::engine {

// What a SentencePiece model file (tokenizer.model, a serialised ModelProto) says.
struct SentencePieceFile {
  enum class Type { kUnigram = 1, kBpe = 2, kWord = 3, kChar = 4 };
  enum class PieceType {
    kNormal = 1,
    kUnknown = 2,
    kControl = 3,
    kUserDefined = 4,
    kUnused = 5,
    kByte = 6
  };
  struct Piece {
    std::string text;
    float score = 0;
    PieceType type = PieceType::kNormal;
  };

  std::vector<Piece> pieces;  // by id
  Type type = Type::kUnigram;
  bool byte_fallback = false;
  bool treat_whitespace_as_suffix = false;
  std::string character_map;  // may be empty
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
  int32_t bos_id = 1;  // negative: none
  int32_t eos_id = 2;

  // INVALID_ARGUMENT saying what is broken.
  static absl::StatusOr<SentencePieceFile> Parse(absl::string_view bytes);
};

}  // namespace pagoda::engine
