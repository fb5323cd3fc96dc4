#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/text/jinja/value.h"

namespace pagoda::engine::jinja {

// Arguments of a call, a filter or a test.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  // The argument at `position` or called `name`; null: absent.
  const Value* Get(size_t position, absl::string_view name) const {
    if (position < positional.size()) return &positional[position];
    for (const auto& [key, value] : named) {
      if (key == name) return &value;
    }
    return nullptr;
  }
};

// What a rendering may still spend: one unit per evaluated node and per 16 bytes or 1 element that
// is made. Bounds time and memory of hostile templates and inputs together.
class Budget {
 public:
  explicit Budget(int64_t steps) : steps_left_(steps) {}
  absl::Status Spend(int64_t steps) {
    steps_left_ -= steps;
    if (steps_left_ < 0)
      return absl::InvalidArgumentError("chat template: too much work (step limit reached)");
    return absl::OkStatus();
  }
  absl::Status SpendBytes(size_t bytes) { return Spend(static_cast<int64_t>(bytes / 16) + 1); }

 private:
  int64_t steps_left_;
};

inline absl::Status TemplateError(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("chat template: ", what));
}

}  // namespace pagoda::engine::jinja
