#pragma once

namespace pagoda::engine {

// Classes of characters as the tokenizer libraries know them. Their tables are of different
// versions of Unicode; characters that a library does not know yet are in none of its classes.

// White_Space.
bool IsWhiteSpace(char32_t c);
// Mark: nonspacing, spacing or enclosing.
bool IsMark(char32_t c);
// Nonspacing mark, as BERT's normalizer strips it.
bool IsNonspacingMark(char32_t c);
// Punctuation and the ASCII symbols, as BERT's pre-tokenizer isolates them.
bool IsBertPunctuation(char32_t c);
// Control, format, private use: what BERT's normalizer removes.
bool IsBertControl(char32_t c);

}  // namespace pagoda::engine
