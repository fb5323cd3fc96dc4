#include "engine/text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/text/regex_dialect.h"
#include "kernels/base/check.h"
#include "kernels/base/log.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine {
namespace {

// The patterns of published tokenizers need a handful of steps a character within a match; a long
// run of blanks needs as many as it is long, and a text of a million tokens has at most a few
// megabytes.
constexpr uint32_t kMatchLimit = 50'000'000;
constexpr size_t kJitStackStartBytes = 32 << 10;
constexpr size_t kJitStackMaxBytes = 4 << 20;
// For the interpreter, where no executable memory may be made. Kibibytes.
constexpr uint32_t kHeapLimitKib = 64 << 10;

std::string MessageOf(int error) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(error, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

size_t NextCharacter(absl::string_view text, size_t i) {
  do ++i;
  while (i < text.size() && (static_cast<uint8_t>(text[i]) & 0xC0) == 0x80);
  return i;
}

}  // namespace

RegexScratch::RegexScratch()
    : match_data_(pcre2_match_data_create(1, nullptr)),
      match_context_(pcre2_match_context_create(nullptr)),
      jit_stack_(pcre2_jit_stack_create(kJitStackStartBytes, kJitStackMaxBytes, nullptr)) {
  PAGODA_CHECK(match_data_ != nullptr && match_context_ != nullptr);
  pcre2_set_match_limit(match_context_, kMatchLimit);
  pcre2_set_heap_limit(match_context_, kHeapLimitKib);
  if (jit_stack_ != nullptr) pcre2_jit_stack_assign(match_context_, nullptr, jit_stack_);
}

RegexScratch::~RegexScratch() {
  pcre2_match_context_free(match_context_);
  pcre2_jit_stack_free(jit_stack_);
  pcre2_match_data_free(match_data_);
}

void Regex::FreeCode::operator()(pcre2_real_code_8* code) const { pcre2_code_free(code); }

absl::StatusOr<Regex> Regex::Compile(absl::string_view pattern) {
  PAGODA_ASSIGN_OR_RETURN(const std::string translated, TranslatePattern(pattern));
  int error = 0;
  size_t offset = 0;
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  PAGODA_CHECK(context != nullptr);
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  // Ruby's ^ and $ match at every line.
  constexpr uint32_t kOptions = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()),
                                   translated.size(),
                                   kOptions,
                                   &error,
                                   &offset,
                                   context);
  pcre2_compile_context_free(context);
  if (code == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("pattern does not compile: ", MessageOf(error)));
  }
  Regex regex(code);
  const int jit = pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  regex.has_jit_ = jit == 0;
  if (!regex.has_jit_) {
    LogWarning(
        "text patterns run interpreted, several times slower: %s (is executable memory denied?)",
        MessageOf(jit));
  }
  return regex;
}

absl::Status Regex::ForEachMatch(absl::string_view text,
                                 RegexScratch& scratch,
                                 absl::FunctionRef<void(size_t begin, size_t end)> visit) const {
  // The fast entry for compiled code skips the checks of arguments, which dominate for short
  // matches.
  const auto match = has_jit_ ? pcre2_jit_match : pcre2_match;
  const PCRE2_SPTR subject =
      reinterpret_cast<PCRE2_SPTR>(text.data() != nullptr ? text.data() : "");
  const size_t* const range = pcre2_get_ovector_pointer(scratch.match_data_);
  size_t start = 0;
  size_t last_end = std::string::npos;
  while (start <= text.size()) {
    const int rc = match(code_.get(),
                         subject,
                         text.size(),
                         start,
                         PCRE2_NO_UTF_CHECK,
                         scratch.match_data_,
                         scratch.match_context_);
    if (rc == PCRE2_ERROR_NOMATCH) return absl::OkStatus();
    if (rc < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("text is too repetitive for the tokenizer's pattern: ", MessageOf(rc)));
    }
    const size_t begin = range[0], end = range[1];
    if (begin == end && begin == last_end) {  // an empty match right after a match is none
      start = NextCharacter(text, begin);
      continue;
    }
    visit(begin, end);
    last_end = end;
    start = begin == end ? NextCharacter(text, end) : end;
  }
  return absl::OkStatus();
}

}  // namespace pagoda::engine
