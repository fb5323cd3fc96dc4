// Attention kernels against a reference in double precision: prints a line a case.
// Usage: cuda_attention_check [part of a case's name ...]

#include <cmath>

#include "absl/strings/str_format.h"
#include "tests/kernels/cuda/attention_cases.h"

namespace pagoda::kernels::cuda::test {

Difference Compare(const std::vector<float>& out,
                   const std::vector<float>& reference,
                   int32_t head_dim) {
  Difference difference;
  double error = 0, norm = 0;
  for (size_t row = 0; row < out.size() / head_dim; ++row) {
    double row_error = 0, row_norm = 0;
    for (int i = 0; i < head_dim; ++i) {
      const double a = out[row * head_dim + i], b = reference[row * head_dim + i];
      if (!std::isfinite(a) && difference.bad < 0) difference.bad = row * head_dim + i;
      row_error += (a - b) * (a - b);
      row_norm += b * b;
    }
    error += row_error;
    norm += row_norm;
    const double relative = std::sqrt(row_error / (row_norm + 1e-30));
    if (!(relative <= difference.worst)) {
      difference.worst = relative;
      difference.worst_at = row;
    }
  }
  difference.total = std::sqrt(error / (norm + 1e-30));
  return difference;
}

std::string Judge(const PagedData& data,
                  const std::vector<float>& out,
                  const std::vector<float>& reference,
                  std::string* note) {
  const bool bf16 = data.shape().dtype == DType::kBFloat16;
  const double total_limit = bf16 ? 6e-3 : 1e-3;
  const double row_limit = bf16 ? 2e-2 : 4e-3;
  const Difference d = Compare(out, reference, data.shape().head_dim);
  *note = absl::StrFormat(" error %.2e, worst row %.2e", d.total, d.worst);
  const int64_t heads = data.shape().num_q_heads;
  if (d.bad >= 0) {
    return absl::StrFormat("not finite: row %d head %d element %d",
                           d.bad / data.shape().head_dim / heads,
                           d.bad / data.shape().head_dim % heads,
                           d.bad % data.shape().head_dim);
  }
  if (!(d.total <= total_limit) || !(d.worst <= row_limit)) {
    return absl::StrFormat("wrong: worst row %d head %d", d.worst_at / heads, d.worst_at % heads);
  }
  return "";
}

std::string ShapeName(const PagedShape& shape) {
  return absl::StrFormat("%s_d%d_%dx%d_b%d",
                         shape.dtype == DType::kBFloat16 ? "bf16" : "fp16",
                         shape.head_dim,
                         shape.num_q_heads,
                         shape.num_kv_heads,
                         shape.block_size);
}

}  // namespace pagoda::kernels::cuda::test

int main(int argc, char** argv) {
  namespace test = pagoda::kernels::cuda::test;
  std::vector<test::Case> cases;
  test::AddRopeCases(&cases);
  test::AddPagedCases(&cases);
  test::AddClassicCases(&cases);
  return test::RunCases(cases, argc, argv);
}
