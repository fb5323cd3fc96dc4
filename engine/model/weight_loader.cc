#include "engine/model/weight_loader.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/model/architecture.h"
#include "engine/model/json_file.h"
#include "engine/model/tensor_reader.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine {
namespace {

constexpr size_t kMaxNamesInMessage = 10;
// Large enough to read at full speed, small enough that eight of them are not felt.
constexpr size_t kStagingBytes = size_t{8} << 20;
constexpr size_t kMaxStagingBuffers = 8;
// A page cache is read at full speed by a few threads; more only compete with the packing.
constexpr unsigned kMaxReadThreads = 8;

// Tables that old checkpoints carry along and every reader makes anew: frequencies, and the causal
// mask of GPT-2.
bool IsDerivedTensor(absl::string_view name) {
  return absl::EndsWith(name, ".rotary_emb.inv_freq") || absl::EndsWith(name, ".attn.bias") ||
         absl::EndsWith(name, ".attn.masked_bias");
}

bool IsNormWeight(WeightRole role) {
  switch (role) {
    case WeightRole::kEmbeddingNorm:
    case WeightRole::kInputNorm:
    case WeightRole::kQNorm:
    case WeightRole::kKNorm:
    case WeightRole::kAttentionOutNorm:
    case WeightRole::kPostAttentionNorm:
    case WeightRole::kMlpOutNorm:
    case WeightRole::kFinalNorm:
      return true;
    default:
      return false;
  }
}

std::string Names(const std::vector<std::string>& names) {
  const size_t shown = std::min(names.size(), kMaxNamesInMessage);
  std::string text =
      absl::StrJoin(names.begin(), names.begin() + static_cast<int64_t>(shown), ", ");
  if (shown < names.size()) absl::StrAppend(&text, " and ", names.size() - shown, " more");
  return text;
}

absl::StatusOr<DType> ReadableType(const Checkpoint& checkpoint, const CheckpointTensor& tensor) {
  switch (tensor.type) {
    case TensorType::kF32:
      return DType::kFloat32;
    case TensorType::kF16:
      return DType::kFloat16;
    case TensorType::kBF16:
      return DType::kBFloat16;
    default:
      return absl::InvalidArgumentError(absl::StrCat(checkpoint.FileOf(tensor),
                                                     ": tensor '",
                                                     NameForMessage(tensor.name),
                                                     "' has dtype ",
                                                     TensorTypeName(tensor.type),
                                                     "; expected F32, F16 or BF16"));
  }
}

std::vector<int64_t> ShapeOf(const WeightSpec& spec, const WeightPart& part) {
  const int64_t rows = part.tensor_rows == 0 ? part.rows : part.tensor_rows;
  if (spec.is_vector) return {rows};
  if (part.transposed) return {part.cols, rows};
  return {rows, part.cols};
}

absl::Status CheckTensor(const Checkpoint& checkpoint,
                         const CheckpointTensor& tensor,
                         const std::vector<int64_t>& shape) {
  PAGODA_RETURN_IF_ERROR(ReadableType(checkpoint, tensor).status());
  if (tensor.shape == shape) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(checkpoint.FileOf(tensor),
                                                 ": tensor '",
                                                 NameForMessage(tensor.name),
                                                 "' has shape [",
                                                 absl::StrJoin(tensor.shape, ", "),
                                                 "]; expected [",
                                                 absl::StrJoin(shape, ", "),
                                                 "] by config.json"));
}

// A slice of a tensor that lies transposed is one job: a weight's row is a column there.
ReadJob TransposedJob(const WeightSlice& slice, const CheckpointTensor* tensor, size_t weight_idx) {
  return {.tensor = tensor,
          .tensor_cols = slice.tensor_rows,
          .row_begin = slice.col_begin,
          .row_end = slice.col_end,
          .col_begin = slice.row_begin,
          .col_end = slice.row_end,
          .transposed = true,
          .weight_idx = weight_idx,
          .weight_row = slice.weight_row};
}

// Divides every slice into jobs that fit a staging buffer.
std::vector<ReadJob> MakeJobs(const Checkpoint& checkpoint, const Weights& weights) {
  std::vector<ReadJob> jobs;
  for (size_t i = 0; i < weights.plans().size(); ++i) {
    for (const WeightSlice& slice : weights.plans()[i].slices) {
      const CheckpointTensor* tensor = checkpoint.Find(slice.tensor);
      if (slice.transposed) {
        jobs.push_back(TransposedJob(slice, tensor, i));
        continue;
      }
      const size_t row_bytes =
          tensor->size_bytes / static_cast<size_t>(std::max<int64_t>(slice.tensor_rows, 1));
      const int64_t rows_per_job =
          static_cast<int64_t>(std::max<size_t>(kStagingBytes / std::max<size_t>(row_bytes, 1), 1));
      for (int64_t row = slice.row_begin; row < slice.row_end; row += rows_per_job) {
        jobs.push_back({.tensor = tensor,
                        .tensor_cols = slice.tensor_cols,
                        .row_begin = row,
                        .row_end = std::min(row + rows_per_job, slice.row_end),
                        .col_begin = slice.col_begin,
                        .col_end = slice.col_end,
                        .weight_idx = i,
                        .weight_row = slice.weight_row + row - slice.row_begin});
      }
    }
  }
  return jobs;
}

// Rows become columns, in tiles that stay in the first-level cache.
template <typename T>
std::vector<char> Transpose(const void* source, int64_t rows, int64_t cols) {
  constexpr int64_t kTile = 32;
  std::vector<char> transposed(static_cast<size_t>(rows * cols) * sizeof(T));
  const T* const from = static_cast<const T*>(source);
  T* const to = reinterpret_cast<T*>(transposed.data());
  for (int64_t row = 0; row < rows; row += kTile) {
    for (int64_t col = 0; col < cols; col += kTile) {
      for (int64_t i = row; i < std::min(row + kTile, rows); ++i) {
        for (int64_t j = col; j < std::min(col + kTile, cols); ++j) {
          to[j * rows + i] = from[i * cols + j];
        }
      }
    }
  }
  return transposed;
}

void ConvertToFloat(const void* source, DType dtype, size_t count, float* to) {
  if (dtype == DType::kFloat32) {
    std::memcpy(to, source, count * sizeof(float));
  } else if (dtype == DType::kBFloat16) {
    const auto* values = static_cast<const BFloat16*>(source);
    for (size_t i = 0; i < count; ++i) to[i] = values[i].ToFloat();
  } else {
    const auto* values = static_cast<const Float16*>(source);
    for (size_t i = 0; i < count; ++i) to[i] = values[i].ToFloat();
  }
}

// Packs what readers have read; keeps staging buffers until the device has taken them.
class Packer {
 public:
  Packer(kernels::Backend& backend, const Checkpoint& checkpoint, const Weights& weights)
      : backend_(backend), checkpoint_(checkpoint), weights_(weights) {}

  absl::Status Pack(const TensorReader::Filled& filled) {
    PAGODA_ASSIGN_OR_RETURN(const DType dtype, ReadableType(checkpoint_, *filled.job.tensor));
    const kernels::LinearWeight& weight = weights_.weight(filled.job.weight_idx);
    std::vector<char> transposed;
    if (weights_.plans()[filled.job.weight_idx].is_vector) {
      PAGODA_RETURN_IF_ERROR(CopyVector(filled, dtype, weight));
    } else {
      if (filled.job.transposed) {
        transposed = DTypeBytes(dtype) == 4
                         ? Transpose<uint32_t>(filled.data, filled.job.rows(), filled.job.cols())
                         : Transpose<uint16_t>(filled.data, filled.job.rows(), filled.job.cols());
      }
      PAGODA_RETURN_IF_ERROR(backend_.PackLinear(
          {.weight = weight,
           .source = filled.job.transposed ? transposed.data() : filled.data,
           .source_dtype = dtype,
           .rows = filled.job.transposed ? filled.job.cols() : filled.job.rows(),
           .row_offset = filled.job.weight_row}));
    }
    PAGODA_ASSIGN_OR_RETURN(const uint64_t event, backend_.RecordEvent());
    in_use_.push_back({event, filled.data, std::move(transposed)});
    return absl::OkStatus();
  }

  // Returns buffers that the device has read; with `wait`, all of them.
  absl::Status Recycle(bool wait, TensorReader& reader) {
    if (wait) PAGODA_RETURN_IF_ERROR(backend_.Synchronize());
    while (!in_use_.empty()) {
      PAGODA_ASSIGN_OR_RETURN(const bool passed, backend_.EventPassed(in_use_.front().event));
      if (!passed) break;
      reader.GiveBack(in_use_.front().data);
      in_use_.pop_front();
    }
    return absl::OkStatus();
  }

  size_t num_in_use() const { return in_use_.size(); }

 private:
  struct InUse {
    uint64_t event;
    void* data;
    std::vector<char> transposed;  // what the device reads in place of `data`
  };

  absl::Status CopyVector(const TensorReader::Filled& filled,
                          DType dtype,
                          const kernels::LinearWeight& weight) {
    const size_t count = static_cast<size_t>(filled.job.rows());
    // Held until the end of the load: copies may be under way until then.
    std::vector<float>& values = vectors_.emplace_back(count);
    ConvertToFloat(filled.data, dtype, count, values.data());
    float* const to = static_cast<float*>(const_cast<void*>(weight.data)) + filled.job.weight_row;
    return backend_.CopyToDevice(to, values.data(), count * sizeof(float));
  }

  kernels::Backend& backend_;
  const Checkpoint& checkpoint_;
  const Weights& weights_;
  std::deque<InUse> in_use_;
  std::deque<std::vector<float>> vectors_;
};

// Where a slice begins in the weight of which its own is a part.
int64_t RowInWhole(const WeightSlice& slice, const WeightPlan& whole) {
  for (const WeightSlice& all : whole.slices) {
    if (all.tensor != slice.tensor || slice.row_begin < all.row_begin ||
        slice.row_begin >= all.row_end) {
      continue;
    }
    return all.weight_row + slice.row_begin - all.row_begin;
  }
  PAGODA_CHECK(false);
  return 0;
}

struct Staging {
  kernels::Buffer memory;
  std::vector<void*> buffers;
};

absl::StatusOr<Staging> AllocateStaging(kernels::Backend& backend,
                                        const std::vector<ReadJob>& jobs) {
  size_t buffer_bytes = 64;
  for (const ReadJob& job : jobs) {
    buffer_bytes = std::max(buffer_bytes, TensorReader::BufferBytes(job));
  }
  buffer_bytes = (buffer_bytes + 63) / 64 * 64;
  const size_t count = std::clamp<size_t>(jobs.size(), 1, kMaxStagingBuffers);
  Staging staging;
  PAGODA_ASSIGN_OR_RETURN(staging.memory,
                          backend.AllocateHost(count * buffer_bytes, "staging of weights"));
  for (size_t i = 0; i < count; ++i) {
    staging.buffers.push_back(staging.memory.as<char>() + i * buffer_bytes);
  }
  return staging;
}

}  // namespace

absl::Status CheckTensors(const Checkpoint& checkpoint,
                          const std::vector<WeightSpec>& specs,
                          absl::string_view tied_head) {
  std::vector<std::string> missing;
  std::set<absl::string_view> used;
  for (const WeightSpec& spec : specs) {
    for (const WeightPart& part : spec.parts) {
      const CheckpointTensor* tensor = checkpoint.Find(part.tensor);
      if (tensor == nullptr) {
        missing.push_back(part.tensor);
        continue;
      }
      used.insert(tensor->name);
      PAGODA_RETURN_IF_ERROR(CheckTensor(checkpoint, *tensor, ShapeOf(spec, part)));
    }
  }
  if (!missing.empty()) {
    return absl::NotFoundError(
        absl::StrCat("the checkpoint lacks tensors that the model needs: ", Names(missing)));
  }
  std::vector<std::string> unused;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (used.contains(name) || name == tied_head || IsDerivedTensor(name)) continue;
    unused.push_back(NameForMessage(name));
  }
  if (unused.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the checkpoint holds tensors that the model of config.json does not use, so "
                   "one of the two is wrong: ",
                   Names(unused)));
}

absl::Status CheckTiedHead(const Checkpoint& checkpoint,
                           absl::string_view embedding,
                           absl::string_view head) {
  const CheckpointTensor* a = checkpoint.Find(embedding);
  const CheckpointTensor* b = checkpoint.Find(head);
  if (a == nullptr || b == nullptr) return absl::OkStatus();
  bool equal = a->type == b->type && a->shape == b->shape;
  std::vector<char> chunk_a(kStagingBytes / 8), chunk_b(chunk_a.size());
  for (uint64_t done = 0; equal && done < a->size_bytes; done += chunk_a.size()) {
    const size_t now =
        static_cast<size_t>(std::min<uint64_t>(a->size_bytes - done, chunk_a.size()));
    PAGODA_RETURN_IF_ERROR(checkpoint.Read(*a, done, now, chunk_a.data()));
    PAGODA_RETURN_IF_ERROR(checkpoint.Read(*b, done, now, chunk_b.data()));
    equal = std::memcmp(chunk_a.data(), chunk_b.data(), now) == 0;
  }
  if (equal) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      checkpoint.FileOf(*b),
      ": tensor '",
      head,
      "' differs from '",
      embedding,
      "' though config.json says tie_word_embeddings: set that to false to use the head of the "
      "file, or remove the tensor"));
}

absl::StatusOr<std::unique_ptr<Checkpoint>> OpenModelCheckpoint(absl::string_view model_dir,
                                                                const ModelConfig& model) {
  const Architecture* architecture = FindArchitecture(model.architecture);
  PAGODA_CHECK(architecture != nullptr);
  PAGODA_ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> checkpoint, Checkpoint::Open(model_dir));
  const ModelTensors& tensors = architecture->tensors;
  const std::string embedding = tensors.embedding_tensor(), head = tensors.head_tensor();
  if (tensors.prefix_is_optional && checkpoint->Find(embedding) == nullptr) {
    checkpoint->AddPrefix(tensors.prefix, head);
  }
  if (!model.tie_word_embeddings && checkpoint->Find(head) == nullptr &&
      checkpoint->Find(embedding) != nullptr) {
    return absl::NotFoundError(absl::StrCat(
        model_dir,
        ": the checkpoint has no tensor '",
        head,
        "'; expected one, as config.json does not set tie_word_embeddings: set that to true if "
        "the head is the embedding"));
  }
  PAGODA_RETURN_IF_ERROR(CheckTensors(
      *checkpoint, architecture->weights(model), model.tie_word_embeddings ? head : ""));
  if (model.tie_word_embeddings) {
    PAGODA_RETURN_IF_ERROR(CheckTiedHead(*checkpoint, embedding, head));
  }
  return checkpoint;
}

absl::Status LoadWeights(kernels::Backend& backend,
                         const Checkpoint& checkpoint,
                         Weights& weights,
                         const WeightProgressFn& progress) {
  const std::vector<ReadJob> jobs = MakeJobs(checkpoint, weights);
  if (jobs.empty()) return absl::OkStatus();
  uint64_t bytes_total = 0, bytes_done = 0;
  for (const ReadJob& job : jobs) bytes_total += TensorReader::BufferBytes(job);
  PAGODA_ASSIGN_OR_RETURN(const Staging staging, AllocateStaging(backend, jobs));
  Packer packer(backend, checkpoint, weights);
  TensorReader reader(checkpoint,
                      jobs,
                      {.num_threads = static_cast<int>(
                           std::clamp(std::thread::hardware_concurrency(), 1u, kMaxReadThreads)),
                       .buffers = staging.buffers});
  for (size_t num_taken = 0; num_taken < jobs.size();) {
    PAGODA_RETURN_IF_ERROR(packer.Recycle(/*wait=*/false, reader));
    // With every buffer in the device's hands nothing would ever become ready.
    const bool may_wait = packer.num_in_use() < staging.buffers.size();
    TensorReader::Filled filled;
    PAGODA_ASSIGN_OR_RETURN(const bool taken, reader.Take(&filled, may_wait));
    if (!taken) {
      PAGODA_RETURN_IF_ERROR(packer.Recycle(/*wait=*/true, reader));
      continue;
    }
    ++num_taken;
    PAGODA_RETURN_IF_ERROR(packer.Pack(filled));
    bytes_done += TensorReader::BufferBytes(filled.job);
    if (progress) progress(bytes_done, bytes_total);
  }
  return packer.Recycle(/*wait=*/true, reader);
}

absl::Status FillDummyWeights(kernels::Backend& backend,
                              uint64_t seed,
                              const std::vector<WeightPlan>& whole,
                              Weights& weights) {
  PAGODA_CHECK(whole.size() == weights.plans().size());
  std::vector<float> ones;
  for (size_t i = 0; i < weights.plans().size(); ++i) {
    const WeightPlan& plan = weights.plans()[i];
    if (IsNormWeight(plan.role)) {
      if (ones.size() < static_cast<size_t>(plan.n)) {
        PAGODA_RETURN_IF_ERROR(backend.Synchronize());
        ones.assign(static_cast<size_t>(plan.n), 1.0f);
      }
      PAGODA_RETURN_IF_ERROR(backend.CopyToDevice(const_cast<void*>(weights.weight(i).data),
                                                  ones.data(),
                                                  static_cast<size_t>(plan.n) * sizeof(float)));
      continue;
    }
    // A seed of its own for each weight; odd multipliers keep different (layer, role) apart.
    const uint64_t weight_seed = seed * 0x9E3779B97F4A7C15 +
                                 static_cast<uint64_t>(plan.layer + 1) * kNumWeightRoles +
                                 static_cast<uint64_t>(plan.role);
    for (const WeightSlice& slice : plan.slices) {
      if (slice.rows() == 0) continue;
      PAGODA_RETURN_IF_ERROR(backend.FillNormal(
          {.weight = weights.weight(i),
           .stddev = 0.02f,
           .seed = weight_seed,
           .element_offset = RowInWhole(slice, whole[i]) * whole[i].k + slice.col_begin,
           .row_stride = whole[i].k,
           .row_offset = slice.weight_row,
           .rows = slice.rows()}));
    }
  }
  return backend.Synchronize();
}

}  // namespace pagoda::engine
