#pragma once

#include <string>
#include <vector>

#include "daemon/openai/response_shape.h"
#include "pagoda/v1/inference.pb.h"

// Responses that come whole.
namespace pagoda::daemon::openai {

// The choices of one call, with commas between them, numbered from `first_choice`.
std::string ChoicesJson(const v1::GenerateResponse& reply,
                        const ResponseShape& shape,
                        uint32_t first_choice,
                        UsageTotals* usage);

// A response of such choices.
std::string ResponseJson(const ResponseShape& shape,
                         const std::vector<std::string>& choices,
                         const UsageTotals& usage);

// /v1/models: the list of all names, and one of them.
std::string ModelListJson(const std::vector<std::string>& names,
                          int64_t created,
                          uint32_t max_context_tokens);
std::string ModelJson(absl::string_view name, int64_t created, uint32_t max_context_tokens);

}  // namespace pagoda::daemon::openai
