#include "daemon/server/vllm/server_description.h"

#include <algorithm>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/model/json_file.h"

namespace pagoda::daemon {
namespace {

constexpr int64_t kRateWindowNs = 5'000'000'000;
// Closer samples would be noise, and many.
constexpr int64_t kSampleIntervalNs = 100'000'000;

// As a JSON object with the names that gateways know.
std::string SamplingDefaultsJson(const engine::GenerationConfig& config) {
  std::vector<std::string> members;
  const auto add = [&members](absl::string_view name, const auto& value) {
    if (value.has_value()) members.push_back(absl::StrCat("\"", name, "\": ", *value));
  };
  const bool is_greedy = config.do_sample.has_value() && !*config.do_sample;
  add("temperature", is_greedy ? absl::optional<float>(0.0f) : config.temperature);
  add("top_p", config.top_p);
  add("top_k", config.top_k);
  add("min_p", config.min_p);
  add("repetition_penalty", config.repetition_penalty);
  return members.empty() ? "" : absl::StrCat("{", absl::StrJoin(members, ", "), "}");
}

void AddConfigFile(const std::string& model_dir, engine_pb::GetModelInfoResponse* info) {
  const auto config = engine::ReadJsonObject(absl::StrCat(model_dir, "/config.json"));
  if (!config.ok()) return;
  if (const auto type = config->find("model_type"); type != config->end() && type->is_string())
    info->set_model_type(type->get<std::string>());
  const auto pad = config->find("pad_token_id");
  if (pad != config->end() && pad->is_number_unsigned() && pad->get<uint64_t>() <= INT32_MAX)
    info->set_pad_token_id(pad->get<int32_t>());
}

}  // namespace

engine_pb::HealthCheckResponse DescribeHealth(ServingState state) {
  static constexpr const char* kMessages[kNumServingStates] = {
      "loading", "ready", "recovering", "draining", "failed"};
  engine_pb::HealthCheckResponse response;
  response.set_healthy(state == ServingState::kReady);
  response.set_message(kMessages[static_cast<size_t>(state)]);
  return response;
}

engine_pb::GetModelInfoResponse DescribeForGateway(const ServedModel& model,
                                                   const std::string& model_dir) {
  engine_pb::GetModelInfoResponse info;
  info.set_model_path(model_dir);
  info.set_is_generation(true);
  info.set_max_context_length(static_cast<uint32_t>(model.max_context_tokens));
  info.set_vocab_size(static_cast<uint32_t>(model.config.vocab_size));
  info.set_served_model_name(model.name());
  if (model.tokenizer != nullptr) info.set_tokenizer_path(model_dir);
  info.add_architectures(model.config.architecture);
  info.mutable_eos_token_ids()->Add(model.eos_token_ids.begin(), model.eos_token_ids.end());
  absl::optional<engine::TokenId> bos = model.config.bos_token_id;
  if (model.tokenizer != nullptr && model.tokenizer->bos_token_id().has_value())
    bos = model.tokenizer->bos_token_id();
  info.set_bos_token_id(bos.value_or(0));
  info.set_max_req_input_len(std::max(model.max_context_tokens - 1, 0));
  info.set_default_sampling_params_json(SamplingDefaultsJson(model.generation));
  AddConfigFile(model_dir, &info);
  return info;
}

engine_pb::SchedulerLoad DescribeLoad(const engine::EngineMetrics& metrics,
                                      const ServedModel& model) {
  const auto count = [](double value) { return static_cast<int32_t>(value); };
  engine_pb::SchedulerLoad load;
  load.set_num_running_reqs(count(metrics.requests_running.value()));
  load.set_num_waiting_reqs(count(metrics.requests_waiting.value()) +
                            count(metrics.requests_preempted_waiting.value()));
  load.set_num_total_reqs(load.num_running_reqs() + load.num_waiting_reqs());
  const double num_blocks = std::max(metrics.kv_blocks_total.value(), 1.0);
  load.set_num_used_tokens(count(metrics.kv_blocks_used.value() * model.kv_block_tokens));
  load.set_max_total_num_tokens(count(metrics.kv_blocks_total.value() * model.kv_block_tokens));
  load.set_token_usage(metrics.kv_blocks_used.value() / num_blocks);
  const auto num_queried = static_cast<double>(metrics.prefix_query_tokens.value());
  const auto num_hit = static_cast<double>(metrics.prefix_hit_tokens.value());
  load.set_cache_hit_rate(num_queried > 0 ? num_hit / num_queried : 0);
  load.set_max_running_requests(model.max_sequences);
  load.set_utilization(static_cast<double>(load.num_running_reqs()) /
                       std::max(model.max_sequences, 1));
  return load;
}

double ThroughputMeter::Rate(int64_t now_ns, uint64_t count) {
  MutexLock lock(&mutex_);
  if (now_ns - samples_.back().time_ns < kSampleIntervalNs) return rate_;
  samples_.push_back({now_ns, count});
  while (samples_.size() > 2 && samples_[1].time_ns <= now_ns - kRateWindowNs) samples_.pop_front();
  const Sample& first = samples_.front();
  rate_ = static_cast<double>(count - first.count) /
          (static_cast<double>(now_ns - first.time_ns) * 1e-9);
  return rate_;
}

}  // namespace pagoda::daemon
