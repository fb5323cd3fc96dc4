#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace pagoda::reference {

// Why `value` does not satisfy `schema`, a part of `root`; empty: it does. Written from the JSON
// schema specification (2020-12) for the keywords that constraints support, with the standard
// library's regular expressions; slow and plain.
std::string WhyInvalid(const nlohmann::json& value,
                       const nlohmann::json& schema,
                       const nlohmann::json& root);

}  // namespace pagoda::reference
