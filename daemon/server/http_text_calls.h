#pragma once

#include <string>

#include "daemon/server/http_message.h"
#include "daemon/server/served_model.h"

namespace pagoda::daemon {

// POST /tokenize: {"prompt": ...} or {"messages": ...} ->
// {"count":N,"max_model_len":N,"tokens":[...]}.
HttpReply TokenizeReply(const std::string& body, const ServedModel& model);
// POST /detokenize: {"tokens": [...]} -> {"prompt": ...}.
HttpReply DetokenizeReply(const std::string& body, const ServedModel& model);

}  // namespace pagoda::daemon
