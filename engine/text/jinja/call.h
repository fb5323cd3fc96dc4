#pragma once

#include <algorithm>
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
  // To visit all of a value.
  absl::Status SpendVisit(const Value& value) { return Spend(CostOf(value)); }
  // To compare two: the smaller is where it ends.
  absl::Status SpendEqual(const Value& a, const Value& b) {
    return Spend(std::min(CostOf(a), CostOf(b)));
  }
  // To look for one text in another, which takes up to the product of their lengths.
  absl::Status SpendSearch(size_t text_bytes, size_t needle_bytes) {
    const double cost =
        (static_cast<double>(text_bytes) / 16 + 1) * (1 + static_cast<double>(needle_bytes) / 64);
    return Spend(static_cast<int64_t>(std::min(cost, 1e15)));
  }

 private:
  static int64_t CostOf(const Value& value) {
    return value.extent().num_nodes + static_cast<int64_t>(value.extent().text_bytes / 16);
  }

  int64_t steps_left_;
};

inline absl::Status TemplateError(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("chat template: ", what));
}

}  // namespace pagoda::engine::jinja
