#include "engine/scheduled_step.h"

#include "absl/strings/str_cat.h"

namespace pagoda::engine {

void ScheduledStep::Clear() {
  id = StepId();
  released_slots.clear();
  admitted.clear();
  growth.clear();
  rows.clear();
  num_tokens = 0;
  num_preemptions = 0;
  num_query_tokens = 0;
  num_hit_tokens = 0;
  exhausted.clear();
}

std::string ScheduledStep::ToString() const {
  std::string out = absl::StrCat("step ", id.value(), ":");
  for (SlotId slot : released_slots) absl::StrAppend(&out, " -", slot.value());
  for (const Admission& admission : admitted) {
    absl::StrAppend(&out, " +", admission.sequence->slot->value());
  }
  for (const ScheduledRow& row : rows) {
    absl::StrAppend(&out,
                    " slot ",
                    row.slot.value(),
                    " ",
                    row.num_tokens,
                    row.samples ? " tokens and a sample" : " tokens",
                    row.num_drafts > 0 ? absl::StrCat(", ", row.num_drafts, " drafted;") : ";");
  }
  return out;
}

}  // namespace pagoda::engine
