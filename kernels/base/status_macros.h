#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// The only function-like macros outside tests: Debian 12's abseil has none of its own.

#define PAGODA_MACRO_CONCAT_INNER(a, b) a##b
#define PAGODA_MACRO_CONCAT(a, b) PAGODA_MACRO_CONCAT_INNER(a, b)

// Returns the status of `expr` from the enclosing function unless it is OK.
#define PAGODA_RETURN_IF_ERROR(expr)                \
  do {                                              \
    absl::Status pagoda_status = (expr);            \
    if (!pagoda_status.ok()) return pagoda_status;  \
  } while (false)

// Assigns the value of a StatusOr expression to `lhs`, or returns its status.
#define PAGODA_ASSIGN_OR_RETURN(lhs, expr) \
  PAGODA_ASSIGN_OR_RETURN_INNER(PAGODA_MACRO_CONCAT(pagoda_statusor_, __LINE__), lhs, expr)
// NOLINTBEGIN(bugprone-macro-parentheses): what is declared or assigned to has none.
#define PAGODA_ASSIGN_OR_RETURN_INNER(var, lhs, expr) \
  auto var = (expr);                                  \
  if (!var.ok()) return std::move(var).status();      \
  lhs = std::move(var).value()
// NOLINTEND(bugprone-macro-parentheses)
