#pragma once

#include <string>

#include "nlohmann/json.hpp"

namespace pagoda::daemon::openai {

// JSON text of a value as the client wrote it, members in its order.
std::string DumpJson(const nlohmann::ordered_json& value);

}  // namespace pagoda::daemon::openai
