#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/guided/grammar.h"

namespace pagoda::engine::guided {

// Parses an EBNF grammar into `grammar`, whose root is the rule "root":
//
//   root    ::= greeting (", " name)* "."     # a comment
//   greeting ::= "Hello" | "Hi"
//   name    ::= [A-Z] [a-z]{1,20}
//
// Literals in "" or '', with the escapes \n \r \t \\ \" \' \xHH \uHHHH \UHHHHHHHH; classes as in
// regular expressions; | ( ) ? * + {m} {m,} {m,n}; "." is any character. A rule goes on until the
// next "name ::=". INVALID_ARGUMENT with the position for everything else.
absl::Status ParseEbnf(absl::string_view text, Grammar* grammar);

}  // namespace pagoda::engine::guided
