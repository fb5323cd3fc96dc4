#include "engine/model/position_tables.h"

#include <bit>
#include <cmath>

#include "kernels/base/status_macros.h"

namespace pagoda::engine {
absl::StatusOr<PositionTables> PositionTables::Make(kernels::Backend& backend,
                                                    const ModelConfig& model,
                                                    int32_t num_positions,
                                                    const HeadRange& heads) {
  PositionTables tables;
  if (model.rotary_dim() > 0) {
    PAGODA_ASSIGN_OR_RETURN(
        tables.rope, RopeTable::Make(backend, model.rope, model.rotary_dim(), num_positions));
    if (model.sliding_rope) {
      PAGODA_ASSIGN_OR_RETURN(
          tables.sliding_rope,
          RopeTable::Make(backend, *model.sliding_rope, model.rotary_dim(), num_positions));
    }
  }
  if (model.alibi_bias_max) {
    const int32_t num_all = heads.num_all == 0 ? model.num_heads : heads.num_all;
    const std::vector<float> all = AlibiSlopes(num_all, *model.alibi_bias_max);
    const std::vector<float> slopes(all.begin() + heads.first,
                                    all.begin() + heads.first + model.num_heads);
    const size_t size_bytes = slopes.size() * sizeof(float);
    PAGODA_ASSIGN_OR_RETURN(tables.alibi_slopes, backend.Allocate(size_bytes, "ALiBi slopes"));
    PAGODA_RETURN_IF_ERROR(
        backend.CopyToDevice(tables.alibi_slopes.data(), slopes.data(), size_bytes));
    PAGODA_RETURN_IF_ERROR(backend.Synchronize());
  }
  return tables;
}

std::vector<float> AlibiSlopes(int32_t num_heads, float bias_max) {
  const int32_t n = static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(num_heads)));
  const auto slope = [&](int32_t i) {  // i from 1 to n
    return static_cast<float>(std::exp2(-static_cast<double>(bias_max) * i / n));
  };
  std::vector<float> slopes;
  if (n == num_heads) {
    for (int32_t i = 1; i <= n; ++i) slopes.push_back(slope(i));
    return slopes;
  }
  for (int32_t i = 2; i <= n; i += 2) slopes.push_back(slope(i));
  for (int32_t i = 1; i <= n; i += 2) slopes.push_back(slope(i));
  slopes.resize(static_cast<size_t>(num_heads));
  return slopes;
}

}  // namespace pagoda::engine
