#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/cpu/ops.h"
#include "kernels/ops/require.h"

namespace pagoda::kernels::cpu {
namespace {

int64_t NumPairs(const LinearWeight& weight) { return (weight.k + 1) / 2; }

template <typename T>
T FromFloat(float value);
template <>
float FromFloat<float>(float value) {
  return value;
}
template <>
BFloat16 FromFloat<BFloat16>(float value) {
  return BFloat16::FromFloat(value);
}

float ToFloat(float value) { return value; }
float ToFloat(BFloat16 value) { return value.ToFloat(); }
float ToFloat(Float16 value) { return value.ToFloat(); }

template <typename To, typename From>
To Convert(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else {
    return FromFloat<To>(ToFloat(value));
  }
}

// Element (row, 0) of the weight; the next pair of k is `pair_stride` elements on.
template <typename T>
T* RowStart(const LinearWeight& weight, int64_t row, int64_t* pair_stride) {
  T* data = static_cast<T*>(const_cast<void*>(weight.data));
  if (weight.format == WeightFormat::kRowMajor) {
    *pair_stride = 2;
    return data + row * weight.k;
  }
  *pair_stride = 2 * kPanelRows;
  return data + (row / kPanelRows * NumPairs(weight) * kPanelRows + row % kPanelRows) * 2;
}

template <typename To, typename From>
void PackRow(const LinearWeight& weight, const From* from, int64_t row) {
  int64_t pair_stride = 0;
  To* to = RowStart<To>(weight, row, &pair_stride);
  const int64_t whole_pairs = weight.k / 2;
  for (int64_t p = 0; p < whole_pairs; ++p) {
    to[p * pair_stride] = Convert<To>(from[2 * p]);
    to[p * pair_stride + 1] = Convert<To>(from[2 * p + 1]);
  }
  if (weight.k % 2 == 0) return;
  to[whole_pairs * pair_stride] = Convert<To>(from[weight.k - 1]);
  if (weight.format == WeightFormat::kPanel16) to[whole_pairs * pair_stride + 1] = To{};
}

template <typename To, typename From>
void PackRows(Context& context, const PackLinearParams& params) {
  // Whole panels to a thread, so that no two threads write one cache line.
  const int64_t first_panel = params.row_offset / kPanelRows;
  const int64_t end_row = params.row_offset + params.rows;
  const int64_t num_panels = (end_row + kPanelRows - 1) / kPanelRows - first_panel;
  context.ParallelFor(
      num_panels, params.rows * params.weight.k, [&](int64_t begin, int64_t end, int) {
        const int64_t row_begin = std::max(params.row_offset, (first_panel + begin) * kPanelRows);
        const int64_t row_end = std::min(end_row, (first_panel + end) * kPanelRows);
        for (int64_t row = row_begin; row < row_end; ++row) {
          const auto* from =
              static_cast<const From*>(params.source) + (row - params.row_offset) * params.weight.k;
          PackRow<To, From>(params.weight, from, row);
        }
      });
}

template <typename To>
void PackFrom(Context& context, const PackLinearParams& params) {
  switch (params.source_dtype) {
    case DType::kFloat32:
      return PackRows<To, float>(context, params);
    case DType::kFloat16:
      return PackRows<To, Float16>(context, params);
    default:
      return PackRows<To, BFloat16>(context, params);
  }
}

template <typename T>
void FillRows(Context& context, const FillNormalParams& params) {
  constexpr int64_t kChunk = 1024;
  const LinearWeight& weight = params.weight;
  const int64_t first_panel = params.row_offset / kPanelRows;
  const int64_t end_row = params.row_offset + params.num_rows();
  const int64_t num_panels = (end_row + kPanelRows - 1) / kPanelRows - first_panel;
  const int64_t cost = params.num_rows() * weight.k * 4;
  context.ParallelFor(num_panels, cost, [&](int64_t begin, int64_t end, int) {
    float normals[kChunk];
    const int64_t row_begin = std::max(params.row_offset, (first_panel + begin) * kPanelRows);
    const int64_t row_end = std::min(end_row, (first_panel + end) * kPanelRows);
    for (int64_t row = row_begin; row < row_end; ++row) {
      const int64_t row_index = params.element_offset + (row - params.row_offset) * params.stride();
      int64_t pair_stride = 0;
      T* to = RowStart<T>(weight, row, &pair_stride);
      for (int64_t first = 0; first < weight.k; first += kChunk) {
        const int64_t count = std::min(kChunk, weight.k - first);
        const auto index = static_cast<uint64_t>(row_index + first);
        context.kernels.fill_normal(params.seed, index, count, params.stddev, normals);
        for (int64_t j = 0; j < count; ++j) {
          to[(first + j) / 2 * pair_stride + j % 2] = FromFloat<T>(normals[j]);
        }
      }
    }
  });
}

template <typename T, bool kAdds>
void ReadRow(const LinearWeight& weight, int64_t row, float scale, float* y) {
  int64_t pair_stride = 0;
  const T* from = RowStart<T>(weight, row, &pair_stride);
  const auto put = [&](int64_t i, T value) {
    y[i] = kAdds ? y[i] + ToFloat(value) * scale : ToFloat(value) * scale;
  };
  const int64_t whole_pairs = weight.k / 2;
  for (int64_t p = 0; p < whole_pairs; ++p) {
    put(2 * p, from[p * pair_stride]);
    put(2 * p + 1, from[p * pair_stride + 1]);
  }
  if (weight.k % 2 != 0) put(weight.k - 1, from[whole_pairs * pair_stride]);
}

absl::Status RequireWeightDType(absl::string_view field, DType dtype) {
  return RequireDType(field, dtype, {DType::kFloat32, DType::kBFloat16});
}

// y = or += rows of the table, by token.
template <bool kAdds>
absl::Status ReadRows(Context& context, const EmbeddingParams& params) {
  PAGODA_RETURN_IF_ERROR(Validate(params));
  PAGODA_RETURN_IF_ERROR(RequireWeightDType("Embedding.table.dtype", params.table.dtype));
  PAGODA_RETURN_IF_ERROR(RequireDType("Embedding.y_dtype", params.y_dtype, {DType::kFloat32}));
  const LinearWeight& table = params.table;
  // A packed row is one pair in each cache line.
  context.ParallelFor(params.rows, params.rows * table.k * 2, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t wanted = int64_t{params.tokens[i]} - params.first_id;
      const int64_t token = std::clamp<int64_t>(wanted, 0, table.n - 1);
      float* y = static_cast<float*>(params.y) + i * table.k;
      if (params.is_part && token != wanted) {
        if (!kAdds) std::fill(y, y + table.k, 0.0f);
        continue;
      }
      if (table.dtype == DType::kFloat32) {
        ReadRow<float, kAdds>(table, token, params.scale, y);
      } else {
        ReadRow<BFloat16, kAdds>(table, token, params.scale, y);
      }
    }
  });
  return absl::OkStatus();
}

}  // namespace

int64_t WeightElements(const LinearWeight& weight) {
  if (weight.format == WeightFormat::kRowMajor) return weight.n * weight.k;
  return (weight.n + kPanelRows - 1) / kPanelRows * kPanelRows * NumPairs(weight) * 2;
}

absl::Status PackLinear(Context& context, const PackLinearParams& params) {
  PAGODA_RETURN_IF_ERROR(Validate(params));
  PAGODA_RETURN_IF_ERROR(RequireWeightDType("PackLinear.weight.dtype", params.weight.dtype));
  if (params.weight.dtype == DType::kFloat32) {
    PackFrom<float>(context, params);
  } else {
    PackFrom<BFloat16>(context, params);
  }
  return absl::OkStatus();
}

absl::Status FillNormal(Context& context, const FillNormalParams& params) {
  PAGODA_RETURN_IF_ERROR(Validate(params));
  PAGODA_RETURN_IF_ERROR(RequireWeightDType("FillNormal.weight.dtype", params.weight.dtype));
  if (params.weight.dtype == DType::kFloat32) {
    FillRows<float>(context, params);
  } else {
    FillRows<BFloat16>(context, params);
  }
  return absl::OkStatus();
}

absl::Status Embedding(Context& context, const EmbeddingParams& params) {
  return ReadRows</*kAdds=*/false>(context, params);
}

absl::Status AddEmbedding(Context& context, const EmbeddingParams& params) {
  return ReadRows</*kAdds=*/true>(context, params);
}

}  // namespace pagoda::kernels::cpu
