#include "tests/engine/model/golden.h"

#include <cmath>
#include <fstream>
#include <limits>

namespace pagoda::engine {

nlohmann::json ReadGolden(const std::string& model_dir) {
  return nlohmann::json::parse(std::ifstream(model_dir + "/golden.json"));
}

std::vector<double> VectorOf(const internal::v1::TokenLogprobs& logprobs, size_t vocab_size) {
  std::vector<double> values(vocab_size, std::numeric_limits<double>::quiet_NaN());
  for (int i = 0; i < logprobs.top_ids_size(); ++i) {
    values[logprobs.top_ids(i)] = logprobs.top_logprobs(i);
  }
  return values;
}

double RelativeError(const std::vector<double>& actual, const std::vector<double>& expected) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    difference += (actual[i] - expected[i]) * (actual[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return std::sqrt(difference / norm);
}

}  // namespace pagoda::engine
