#pragma once

#include <cstdint>
#include <vector>

#include "tests/fixtures/model_files.h"

namespace pagoda::engine {

// Logits after every token, computed in double from the definition: one loop a sum, no cache, no
// blocks. Knows rope of kind default, biases, sliding windows, tied heads.
std::vector<std::vector<double>> ReferenceLogits(const fixtures::ModelFiles& model,
                                                 const std::vector<uint32_t>& tokens);

// log-softmax.
std::vector<double> LogSoftmax(const std::vector<double>& logits);

}  // namespace pagoda::engine
