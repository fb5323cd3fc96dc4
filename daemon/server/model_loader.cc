#include "daemon/server/model_loader.h"

#include <cerrno>
#include <cstring>
#include <string>
#include <sys/stat.h>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/server/memory_plan.h"
#include "engine/model/model_shard.h"
#include "engine/model/weight_loader.h"
#include "engine/text/chat_template_files.h"
#include "kernels/base/dtype.h"
#include "kernels/base/log.h"
#include "kernels/base/status_macros.h"

namespace pagoda::daemon {
namespace {

absl::Status CheckDirectory(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) {
    return absl::NotFoundError(absl::StrCat("model directory ",
                                            path,
                                            ": ",
                                            std::strerror(errno),
                                            "; give one in the Hugging Face layout"));
  }
  if (!S_ISDIR(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat("model directory ", path, ": not a directory"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<engine::Tokenizer>> LoadTokenizer(const std::string& path) {
  auto tokenizer = engine::Tokenizer::Load(path);
  if (tokenizer.ok()) return tokenizer;
  if (!absl::IsNotFound(tokenizer.status())) return tokenizer.status();
  LogInfo("%s has no tokenizer.json: served for token ids only", path);
  return nullptr;
}

absl::Status CheckRanks(const internal::v1::ServerConfig& config,
                        const engine::ModelConfig& model) {
  const int32_t num_ranks = NumTensorRanks(config);
  const absl::Status status = engine::CheckTensorRanks(model, num_ranks);
  if (status.ok()) return status;
  return absl::InvalidArgumentError(
      absl::StrCat("--tensor-parallel-size=", num_ranks, ": ", status.message()));
}

int32_t ResolveMaxModelLen(const internal::v1::ModelConfig& config,
                           const engine::ModelConfig& model) {
  const int32_t trained = model.max_position_embeddings;
  if (config.max_model_len() == 0) return trained;
  const auto asked = static_cast<int32_t>(std::min<uint32_t>(config.max_model_len(), INT32_MAX));
  if (asked > trained) {
    LogWarning("--max-model-len=%d is more than the %d positions that the model was made for",
               asked,
               trained);
  }
  return asked;
}

}  // namespace

absl::StatusOr<ServedModel> LoadServedModel(internal::v1::ServerConfig* config) {
  const std::string& path = config->model().path();
  const bool is_dummy = config->model().load_format() == internal::v1::LOAD_FORMAT_DUMMY;
  ServedModel model;
  PAGODA_RETURN_IF_ERROR(CheckDirectory(path));
  PAGODA_ASSIGN_OR_RETURN(model.config, engine::LoadModelConfig(path));
  PAGODA_ASSIGN_OR_RETURN(model.generation, engine::LoadGenerationConfig(path));
  PAGODA_ASSIGN_OR_RETURN(model.tokenizer, LoadTokenizer(path));
  PAGODA_ASSIGN_OR_RETURN(model.chat_template, engine::LoadChatTemplate(path));
  PAGODA_RETURN_IF_ERROR(CheckRanks(*config, model.config));
  // The worker opens the weights again; a broken file is told before a port is taken or a device
  // opened.
  if (!is_dummy && config->worker().device() != "sim") {
    PAGODA_RETURN_IF_ERROR(engine::OpenModelCheckpoint(path, model.config).status());
  }
  PAGODA_ASSIGN_OR_RETURN(const DType dtype, ResolveDType(*config, model.config));
  config->mutable_model()->set_dtype(std::string(DTypeName(dtype)));
  model.max_context_tokens = ResolveMaxModelLen(config->model(), model.config);
  config->mutable_model()->set_max_model_len(static_cast<uint32_t>(model.max_context_tokens));

  model.names.assign(config->model().served_names().begin(), config->model().served_names().end());
  model.limits = config->front_end().limits();
  model.default_draft_tokens = static_cast<int32_t>(config->engine().ngram_draft_tokens());
  if (config->front_end().has_reasoning_budget()) {
    model.default_thinking_budget =
        static_cast<int32_t>(std::min<uint32_t>(config->front_end().reasoning_budget(), INT32_MAX));
  }
  model.dtype = config->model().dtype();
  model.device = config->worker().device();
  model.max_sequences = static_cast<int32_t>(config->engine().max_num_seqs());
  model.kv_block_tokens = static_cast<int32_t>(config->engine().block_size());
  model.num_parameters = engine::NumParameters(model.config);
  model.max_message_bytes = config->front_end().max_message_bytes();
  DeriveModelFacts(&model);
  config->mutable_model()->set_num_known_ids(static_cast<uint32_t>(model.num_known_ids));
  return model;
}

MetricsInfo MetricsInfoOf(const ServedModel& model, const internal::v1::ServerConfig& config) {
  return {.model = model.name(),
          .architecture = model.config.architecture,
          .dtype = model.dtype,
          .device = model.device,
          .revision = config.model().revision(),
          .max_context_tokens = static_cast<uint64_t>(model.max_context_tokens),
          .kv_block_tokens = static_cast<uint64_t>(model.kv_block_tokens),
          .num_kv_blocks = static_cast<uint64_t>(model.num_kv_blocks)};
}

}  // namespace pagoda::daemon
