#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "engine/text/normalizer.h"
#include "engine/text/sentencepiece_file.h"

namespace pagoda::engine {

// SentencePiece's own normalizer: its table of characters, extra blanks, the blank before the text,
// blanks as U+2581. What user-defined pieces spell is left alone.
absl::StatusOr<std::unique_ptr<Normalizer>> MakeSentencePieceNormalizer(
    const SentencePieceFile& file);

}  // namespace pagoda::engine
