#pragma once

#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "pagoda/internal/v1/worker.pb.h"

namespace pagoda::engine {

nlohmann::json ReadGolden(const std::string& model_dir);

// Log-probabilities of all ids, by id, from the answer to a request for all of them.
std::vector<double> VectorOf(const internal::v1::TokenLogprobs& logprobs, size_t vocab_size);

// Norm of the difference over the norm of `expected`.
double RelativeError(const std::vector<double>& actual, const std::vector<double>& expected);

}  // namespace pagoda::engine
