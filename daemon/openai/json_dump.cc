#include "daemon/openai/json_dump.h"

namespace pagoda::daemon::openai {

std::string DumpJson(const nlohmann::ordered_json& value) {
  // Replaces rather than throws at what is no UTF-8; what was parsed always is.
  return value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace pagoda::daemon::openai
