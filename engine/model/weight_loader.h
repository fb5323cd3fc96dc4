#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model/checkpoint.h"
#include "engine/model/model_config.h"
#include "engine/model/weight_table.h"
#include "engine/model/weights.h"
#include "kernels/backend.h"

namespace pagoda::engine {

// Checks, from headers alone, that the checkpoint holds every tensor of the model with its shape
// and a type that can be read, and nothing else that the model would leave unused: a tensor that
// nobody reads means that config.json and checkpoint disagree. Messages name the tensors. `specs`
// is the whole model, not a rank's part; `tied_head` is the name of a head that is allowed, as
// CheckTiedHead has compared it, or empty.
absl::Status CheckTensors(const Checkpoint& checkpoint,
                          const std::vector<WeightSpec>& specs,
                          absl::string_view tied_head);

// For models with tie_word_embeddings: a checkpoint may still hold an lm_head. OK when there is
// none or when it equals the embedding (it is not read then); an error when it differs, because one
// of the two is wrong.
absl::Status CheckTiedHead(const Checkpoint& checkpoint,
                           absl::string_view embedding,
                           absl::string_view head);

// Opens the checkpoint of a model and runs every check above: what a daemon does before it starts
// workers, and a worker before it takes memory. Reads headers only, but for a tied head that is in
// the file.
absl::StatusOr<std::unique_ptr<Checkpoint>> OpenModelCheckpoint(absl::string_view model_dir,
                                                                const ModelConfig& model);

// Called with bytes read so far and in total.
using WeightProgressFn = std::function<void(uint64_t bytes_done, uint64_t bytes_total)>;

// Reads every slice of the plans into its weight. Memory beyond the weights: at most 64 MiB of
// staging, or eight rows of the widest tensor (eight whole ones where they lie transposed).
// REQUIRES: CheckTensors passed.
absl::Status LoadWeights(kernels::Backend& backend,
                         const Checkpoint& checkpoint,
                         Weights& weights,
                         const WeightProgressFn& progress);

// Random weights: matrices and biases N(0, 0.02) from the seed, norms 1. Parts of a model have the
// numbers that they have in `whole`, the plans of all of it.
absl::Status FillDummyWeights(kernels::Backend& backend,
                              uint64_t seed,
                              const std::vector<WeightPlan>& whole,
                              Weights& weights);

}  // namespace pagoda::engine
