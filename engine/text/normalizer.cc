#include "engine/text/normalizer.h"

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine {

absl::Status CheckNormalizer(const absl::optional<JsonElement>& element) {
  if (!element) return absl::OkStatus();
  if (element->Type() != "Sequence") {
    return element->Error(absl::StrCat("type \"", element->Type(), "\" is not supported"));
  }
  PAGODA_ASSIGN_OR_RETURN(const JsonElement list, element->Get("normalizers"));
  PAGODA_ASSIGN_OR_RETURN(const std::vector<JsonElement> steps, list.Array());
  for (const JsonElement& step : steps) PAGODA_RETURN_IF_ERROR(CheckNormalizer(step));
  return absl::OkStatus();
}

}  // namespace pagoda::engine
