#pragma once

#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;
struct pcre2_real_match_context_8;
struct pcre2_real_jit_stack_8;

namespace pagoda::engine {

// What matching writes to. Thread-compatible; one for each thread that matches.
class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;

 private:
  friend class Regex;
  pcre2_real_match_data_8* match_data_;
  pcre2_real_match_context_8* match_context_;
  pcre2_real_jit_stack_8* jit_stack_;
};

// A compiled pattern over UTF-8 text with Unicode character classes. Immutable; thread-safe.
class Regex {
 public:
  // `pattern` in the dialect of tokenizer files (Oniguruma's, Ruby syntax); INVALID_ARGUMENT says
  // where and why it cannot be compiled with the same meaning.
  static absl::StatusOr<Regex> Compile(absl::string_view pattern);

  // Calls visit(begin, end) for every match in order, without overlap. A match may be empty.
  // REQUIRES: text is valid UTF-8. INVALID_ARGUMENT when matching would take more than the limits
  // of steps and stack.
  absl::Status ForEachMatch(absl::string_view text,
                            RegexScratch& scratch,
                            absl::FunctionRef<void(size_t begin, size_t end)> visit) const;

 private:
  struct FreeCode {
    void operator()(pcre2_real_code_8* code) const;
  };
  explicit Regex(pcre2_real_code_8* code) : code_(code) {}

  std::unique_ptr<pcre2_real_code_8, FreeCode> code_;
  bool has_jit_ = false;
};

}  // namespace pagoda::engine
