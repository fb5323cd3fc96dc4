#pragma once

#include "absl/status/statusor.h"
#include "daemon/server/served_model.h"
#include "engine/text/chat_template.h"
#include "pagoda/v1/inference.pb.h"

namespace pagoda::daemon {

// Renders prompt.chat with the model's template. INVALID_ARGUMENT naming the field, also for what
// the template itself refuses. Text threads.
absl::StatusOr<engine::RenderedChat> RenderChat(const v1::Chat& chat, const ServedModel& model);

}  // namespace pagoda::daemon
