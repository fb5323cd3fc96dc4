#include "kernels/cuda/linear/lt_gemm.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_error.h"

namespace pagoda::kernels::cuda {
namespace {

// Holds the bias of one product in the type of y; the longest is a vocabulary.
constexpr size_t kBiasScratchBytes = size_t{2} << 20;
// Shapes kept: every m of a chunked prefill makes its own. Beyond that all are forgotten at once.
constexpr size_t kMaxProblems = 4096;

cudaDataType_t LtType(DType dtype, bool is_float) {
  if (is_float) return CUDA_R_32F;
  return dtype == DType::kBFloat16 ? CUDA_R_16BF : CUDA_R_16F;
}

// The largest power of two up to 256 that divides every address and every row's length.
uint32_t Alignment(const GemmArgs& a) {
  const uint64_t y_bytes = a.y_is_float ? 4 : 2;
  const uint64_t bits = reinterpret_cast<uintptr_t>(a.x) | reinterpret_cast<uintptr_t>(a.weight) |
                        reinterpret_cast<uintptr_t>(a.y) | reinterpret_cast<uintptr_t>(a.residual) |
                        static_cast<uint64_t>(a.x_stride) * 2 | static_cast<uint64_t>(a.k) * 2 |
                        static_cast<uint64_t>(a.y_stride) * y_bytes | 256;
  // Beyond 16 no algorithm asks for more, and one key serves all.
  return static_cast<uint32_t>(std::min<uint64_t>(bits & ~(bits - 1), 16));
}

template <typename T>
absl::Status SetDesc(cublasLtMatmulDesc_t desc,
                     cublasLtMatmulDescAttributes_t attribute,
                     const T& value) {
  return CublasStatus(cublasLtMatmulDescSetAttribute(desc, attribute, &value, sizeof(value)),
                      "cublasLtMatmulDescSetAttribute",
                      "linear");
}

template <typename T>
absl::Status SetPreference(cublasLtMatmulPreference_t preference,
                           cublasLtMatmulPreferenceAttributes_t attribute,
                           const T& value) {
  return CublasStatus(
      cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)),
      "cublasLtMatmulPreferenceSetAttribute",
      "linear");
}

}  // namespace

// Column-major words for our row-major matrices: y^T [n, m] = weight^T^T [n, k] * x^T [k, m].
struct LtGemm::Problem {
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t weight = nullptr;
  cublasLtMatrixLayout_t x = nullptr;
  cublasLtMatrixLayout_t y = nullptr;
  // The algorithm that was last found valid for the shape.
  cublasLtMatmulAlgo_t checked = {};
  bool has_checked = false;

  ~Problem() {
    if (desc != nullptr) cublasLtMatmulDescDestroy(desc);
    if (weight != nullptr) cublasLtMatrixLayoutDestroy(weight);
    if (x != nullptr) cublasLtMatrixLayoutDestroy(x);
    if (y != nullptr) cublasLtMatrixLayoutDestroy(y);
  }
};

size_t LtGemm::ShapeHash::operator()(const Shape& s) const {
  uint64_t hash = 0;
  for (const uint64_t field : {static_cast<uint64_t>(s.dtype),
                               uint64_t{s.y_is_float},
                               uint64_t{s.has_bias},
                               static_cast<uint64_t>(s.m),
                               static_cast<uint64_t>(s.n),
                               static_cast<uint64_t>(s.k),
                               static_cast<uint64_t>(s.x_stride),
                               static_cast<uint64_t>(s.y_stride),
                               uint64_t{s.alignment}}) {
    hash = (hash ^ field) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  }
  return hash;
}

LtGemm::LtGemm(cublasLtHandle_t handle, void* workspace, size_t workspace_bytes)
    : handle_(handle),
      workspace_(workspace),
      workspace_bytes_(workspace_bytes - kBiasScratchBytes),
      bias_scratch_(static_cast<char*>(workspace) + workspace_bytes - kBiasScratchBytes) {}

LtGemm::~LtGemm() {
  problems_.clear();
  cublasLtDestroy(handle_);
}

absl::StatusOr<std::unique_ptr<LtGemm>> LtGemm::Create(void* workspace, size_t workspace_bytes) {
  if (workspace_bytes <= kBiasScratchBytes) {
    return absl::InvalidArgumentError(absl::StrCat("workspace of cuBLASLt has ",
                                                   workspace_bytes,
                                                   " bytes; expected more than ",
                                                   kBiasScratchBytes));
  }
  cublasLtHandle_t handle = nullptr;
  PAGODA_RETURN_IF_ERROR(CublasStatus(cublasLtCreate(&handle), "cublasLtCreate", "linear"));
  return std::unique_ptr<LtGemm>(new LtGemm(handle, workspace, workspace_bytes));
}

std::string LtGemm::Version() { return absl::StrCat(cublasLtGetVersion()); }

absl::StatusOr<LtGemm::Problem*> LtGemm::ProblemFor(DType dtype, const GemmArgs& a) {
  const Shape shape = {dtype,
                       a.y_is_float != 0,
                       a.bias != nullptr,
                       a.m,
                       a.n,
                       a.k,
                       a.x_stride,
                       a.y_stride,
                       Alignment(a)};
  if (const auto it = problems_.find(shape); it != problems_.end()) return it->second.get();
  if (problems_.size() >= kMaxProblems) problems_.clear();

  auto problem = std::make_unique<Problem>();
  PAGODA_RETURN_IF_ERROR(
      CublasStatus(cublasLtMatmulDescCreate(&problem->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                   "cublasLtMatmulDescCreate",
                   "linear"));
  PAGODA_RETURN_IF_ERROR(SetDesc(problem->desc, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T));
  PAGODA_RETURN_IF_ERROR(SetDesc(problem->desc, CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N));
  if (shape.has_bias) {
    PAGODA_RETURN_IF_ERROR(
        SetDesc(problem->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS));
    PAGODA_RETURN_IF_ERROR(SetDesc(problem->desc,
                                   CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
                                   static_cast<int32_t>(LtType(dtype, shape.y_is_float))));
    // Algorithms are asked for before there is a bias; Run sets the true one.
    const void* bias = shape.y_is_float ? static_cast<const void*>(a.bias) : bias_scratch_;
    PAGODA_RETURN_IF_ERROR(SetDesc(problem->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias));
  }
  const auto layout = [](cublasLtMatrixLayout_t* out,
                         cudaDataType_t type,
                         int64_t rows,
                         int64_t columns,
                         int64_t stride) {
    return CublasStatus(cublasLtMatrixLayoutCreate(out, type, rows, columns, stride),
                        "cublasLtMatrixLayoutCreate",
                        "linear");
  };
  const cudaDataType_t type = LtType(dtype, false);
  PAGODA_RETURN_IF_ERROR(layout(&problem->weight, type, a.k, a.n, a.k));
  PAGODA_RETURN_IF_ERROR(layout(&problem->x, type, a.k, a.m, a.x_stride));
  PAGODA_RETURN_IF_ERROR(
      layout(&problem->y, LtType(dtype, shape.y_is_float), a.n, a.m, a.y_stride));
  return problems_.emplace(shape, std::move(problem)).first->second.get();
}

absl::StatusOr<std::vector<LtAlgorithm>> LtGemm::Candidates(DType dtype,
                                                            const GemmArgs& args,
                                                            int most) {
  PAGODA_ASSIGN_OR_RETURN(Problem* const problem, ProblemFor(dtype, args));
  cublasLtMatmulPreference_t preference = nullptr;
  PAGODA_RETURN_IF_ERROR(CublasStatus(
      cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate", "linear"));
  const std::unique_ptr<std::remove_pointer_t<cublasLtMatmulPreference_t>,
                        decltype(&cublasLtMatmulPreferenceDestroy)>
      owner(preference, &cublasLtMatmulPreferenceDestroy);
  PAGODA_RETURN_IF_ERROR(SetPreference(
      preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{workspace_bytes_}));
  const uint32_t alignment = Alignment(args);
  for (const auto attribute : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                               CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                               CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                               CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    PAGODA_RETURN_IF_ERROR(SetPreference(preference, attribute, alignment));
  }
  std::vector<cublasLtMatmulHeuristicResult_t> results(most);
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle_,
                                                               problem->desc,
                                                               problem->weight,
                                                               problem->x,
                                                               problem->y,
                                                               problem->y,
                                                               preference,
                                                               most,
                                                               results.data(),
                                                               &found);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED)
    found = 0;
  else
    PAGODA_RETURN_IF_ERROR(CublasStatus(status, "cublasLtMatmulAlgoGetHeuristic", "linear"));
  std::vector<LtAlgorithm> algorithms;
  for (int i = 0; i < found; ++i) {
    if (results[i].state == CUBLAS_STATUS_SUCCESS) algorithms.push_back({results[i].algo});
  }
  return algorithms;
}

absl::Status LtGemm::Run(const DeviceContext& context,
                         DType dtype,
                         const GemmArgs& a,
                         const LtAlgorithm* algorithm) {
  PAGODA_ASSIGN_OR_RETURN(Problem* const problem, ProblemFor(dtype, a));
  if (algorithm != nullptr &&
      (!problem->has_checked || !std::equal(std::begin(problem->checked.data),
                                            std::end(problem->checked.data),
                                            std::begin(algorithm->algo.data)))) {
    cublasLtMatmulHeuristicResult_t result = {};
    problem->has_checked = cublasLtMatmulAlgoCheck(handle_,
                                                   problem->desc,
                                                   problem->weight,
                                                   problem->x,
                                                   problem->y,
                                                   problem->y,
                                                   &algorithm->algo,
                                                   &result) == CUBLAS_STATUS_SUCCESS &&
                           result.workspaceSize <= workspace_bytes_;
    if (problem->has_checked) problem->checked = algorithm->algo;
  }
  if (!problem->has_checked) {
    PAGODA_ASSIGN_OR_RETURN(const std::vector<LtAlgorithm> candidates, Candidates(dtype, a, 1));
    if (candidates.empty()) {
      return UnsupportedError("linear",
                              absl::StrCat("cuBLASLt has no algorithm for m = ",
                                           a.m,
                                           ", n = ",
                                           a.n,
                                           ", k = ",
                                           a.k,
                                           ", ",
                                           DTypeName(dtype)));
    }
    problem->checked = candidates[0].algo;
    problem->has_checked = true;
  }
  if (a.bias != nullptr) {
    const void* bias = a.bias;
    if (!a.y_is_float) {
      if (size_t{2} * a.n > kBiasScratchBytes) {
        return UnsupportedError("linear", absl::StrCat("a bias of ", a.n, " elements"));
      }
      PAGODA_RETURN_IF_ERROR(ConvertBias(context, dtype, a.bias, bias_scratch_, a.n));
      bias = bias_scratch_;
    }
    PAGODA_RETURN_IF_ERROR(SetDesc(problem->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias));
  }
  const float alpha = 1.0f;
  const float beta = a.residual != nullptr ? 1.0f : 0.0f;
  const void* c = a.residual != nullptr ? a.residual : a.y;
  context.weights_written = false;  // what follows waits for all before it
  return CublasStatus(
      cublasLtMatmul(handle_,
                     problem->desc,
                     &alpha,
                     a.weight,
                     problem->weight,
                     a.x,
                     problem->x,
                     &beta,
                     c,
                     problem->y,
                     a.y,
                     problem->y,
                     &problem->checked,
                     workspace_,
                     workspace_bytes_,
                     context.stream),
      "cublasLtMatmul",
      absl::StrCat("m = ", a.m, ", n = ", a.n, ", k = ", a.k, ", ", DTypeName(dtype)));
}

}  // namespace pagoda::kernels::cuda
