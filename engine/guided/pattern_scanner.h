#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/guided/code_points.h"
#include "engine/guided/limits.h"

namespace pagoda::engine::guided {

// What parsers of regular expressions and of grammars share: characters, escapes, classes, counts,
// each error with its position. Thread-compatible.
class PatternScanner {
 public:
  // `text` outlives this.
  PatternScanner(absl::string_view text, const Limits& limits) : text_(text), limits_(limits) {}

  bool at_end() const { return position_ == text_.size(); }
  size_t position() const { return position_; }
  char peek() const { return at_end() ? '\0' : text_[position_]; }
  bool LookingAt(absl::string_view text) const {
    return text_.substr(position_).substr(0, text.size()) == text;
  }
  // Steps over `text` if it is next.
  bool Take(absl::string_view text);
  void Skip(size_t num_bytes) { position_ += num_bytes; }
  void Rewind(size_t position) { position_ = position; }

  // The next code point; INVALID_ARGUMENT where the bytes are no UTF-8.
  absl::StatusOr<uint32_t> Character();
  // A number of decimal digits; at most limits.max_count.
  absl::StatusOr<int32_t> Count();
  // The character that `num_digits` hexadecimal digits name.
  absl::StatusOr<uint32_t> Hex(int num_digits);
  // INVALID_ARGUMENT: "at byte <position>: <what>".
  absl::Status Error(absl::string_view what) const;
  absl::Status ErrorAt(size_t position, absl::string_view what) const;

 private:
  const absl::string_view text_;
  const Limits limits_;
  size_t position_ = 0;
};

}  // namespace pagoda::engine::guided
