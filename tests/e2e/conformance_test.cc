// The reference checkpoints through the API, as /conformance's README asks: log-probabilities over
// the whole vocabulary, prompt log-probabilities, greedy teacher-forced; under every chunk budget,
// block size and cache setting, and with a KV pool so small that sequences are preempted.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/rank_flags.h"
#include "tests/e2e/test_daemon.h"

namespace pagoda::e2e::conformance_test {
namespace {

using nlohmann::json;

constexpr int kVocabSize = 512;

struct Setting {
  std::string dtype;
  int budget_tokens;
  int block_size;
  bool prefix_caching;
  int num_ranks = 1;
  bool of_mixture = false;

  std::vector<std::string> Flags() const {
    std::vector<std::string> flags = {
        absl::StrCat("--dtype=", dtype),
        absl::StrCat("--max-num-batched-tokens=", budget_tokens),
        absl::StrCat("--block-size=", block_size),
        prefix_caching ? "--enable-prefix-caching" : "--no-enable-prefix-caching",
        absl::StrCat("--max-logprobs=", kVocabSize),
        "--max-num-seqs=8",
    };
    for (std::string& flag : RankFlags(num_ranks)) flags.push_back(std::move(flag));
    return flags;
  }
  // From the reference data's README.
  double RelativeTolerance() const {
    if (dtype == "float32") return 1e-4;
    return RoundsExperts() ? 6.2e-2 : 2e-2;
  }
  // golden.json has only the three most probable ids of a prompt's positions. Their
  // log-probabilities are about half of the average in size, so that the same error is a larger
  // share of them; where activations are rounded too (on cuda), and each rank's part of a sum, it
  // is larger.
  double TopRelativeTolerance() const {
    if (dtype == "float32") return 1e-4;
    if (RoundsExperts()) return 0.101;
    if (DeviceUnderTest() != "cuda") return 3e-2;
    return num_ranks > 1 ? 6e-2 : 5e-2;
  }
  double MarginFloor() const {
    if (dtype == "float32") return 0.05;
    return RoundsExperts() ? 0.34 : 0.3;
  }

 private:
  // In bfloat16 roundings choose the other of two experts that are nearly equal, and with it
  // another output: bounded by what transformers in bfloat16 has with the mixtures of the reference
  // data (a relative error of 0.0617, 0.101 of the three most probable ids).
  bool RoundsExperts() const { return of_mixture && dtype == "bfloat16"; }
};

std::ostream& operator<<(std::ostream& out, const Setting& s) {
  return out << s.dtype << " budget " << s.budget_tokens << " block " << s.block_size << " cache "
             << s.prefix_caching << " ranks " << s.num_ranks;
}

// The reference data's models and those of tests/data, by name.
std::vector<std::string> ModelDirs() {
  std::map<std::string, std::string> dirs;
  const auto add = [&dirs](const std::filesystem::path& folder) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (!std::filesystem::exists(entry.path() / "golden.json")) continue;
      dirs.emplace(entry.path().filename().string(), entry.path().string());
    }
  };
  if (const auto root = ConformanceDir()) add(std::filesystem::path(*root) / "models");
  // Not there where only the executables were brought, to a machine with a GPU.
  const std::filesystem::path own = PAGODA_SOURCE_DIR "/tests/data";
  if (std::filesystem::is_directory(own)) add(own);
  std::vector<std::string> paths;
  for (const auto& [name, path] : dirs) paths.push_back(path);
  return paths;
}

v1::GenerateRequest TokenRequest(const std::vector<uint32_t>& prompt, uint32_t max_tokens) {
  v1::GenerateRequest request;
  for (uint32_t id : prompt) request.mutable_prompt()->mutable_token_ids()->add_ids(id);
  request.mutable_sampling()->set_temperature(0);
  request.mutable_stopping()->set_max_tokens(max_tokens);
  request.mutable_stopping()->set_ignore_eos(true);
  request.mutable_output()->set_omit_text(true);
  return request;
}

v1::GenerateResponse Generate(TestDaemon& daemon, const v1::GenerateRequest& request) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(120));
  v1::GenerateResponse response;
  const grpc::Status status = daemon.NewStub()->Generate(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_code() << ": " << status.error_message() << "\n"
                           << daemon.Log();
  return response;
}

// ||a - b|| / ||b|| over the vocabulary.
double RelativeError(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / norm);
}

std::vector<double> FullDistribution(const v1::TokenLogprobs& logprobs) {
  std::vector<double> values(kVocabSize, std::nan(""));
  EXPECT_EQ(logprobs.top_size(), kVocabSize);
  for (const v1::Logprob& entry : logprobs.top()) values.at(entry.token_id()) = entry.logprob();
  return values;
}

// Twice each: the second time the prefix cache, where it is on, holds the prompt.
void CheckLogprobs(TestDaemon& daemon, const json& golden, const Setting& setting) {
  for (int pass = 0; pass < 2; ++pass) {
    for (const json& c : golden["cases"]) {
      const std::vector<uint32_t> prompt = c["prompt"];
      v1::GenerateRequest request = TokenRequest(prompt, 1);
      request.mutable_output()->set_logprobs(kVocabSize);
      const v1::GenerateResponse response = Generate(daemon, request);
      ASSERT_EQ(response.sequences_size(), 1);
      ASSERT_EQ(response.sequences(0).logprobs_size(), 1);
      const double logsumexp = c["logsumexp"].back();
      std::vector<double> expected;
      for (double logit : c["last_logits"]) expected.push_back(logit - logsumexp);
      EXPECT_LE(RelativeError(FullDistribution(response.sequences(0).logprobs(0)), expected),
                setting.RelativeTolerance())
          << "prompt of " << prompt.size() << ", pass " << pass;
      const auto cached = response.started().cached_tokens();
      if (!setting.prefix_caching || pass == 0) continue;
      // Full blocks of the prompt, but never its last token.
      EXPECT_EQ(cached, (prompt.size() - 1) / setting.block_size * setting.block_size);
    }
  }
}

void CheckPromptLogprobs(TestDaemon& daemon, const json& golden, const Setting& setting) {
  for (const json& c : golden["cases"]) {
    const std::vector<uint32_t> prompt = c["prompt"];
    v1::GenerateRequest request = TokenRequest(prompt, 0);
    request.mutable_output()->set_prompt_logprobs(kVocabSize);
    const v1::GenerateResponse response = Generate(daemon, request);
    ASSERT_EQ(response.prompt_logprobs_size(), static_cast<int>(prompt.size()));
    EXPECT_EQ(response.sequences(0).finished().reason(), v1::FINISH_REASON_LENGTH);
    EXPECT_FALSE(response.prompt_logprobs(0).token().has_logprob());
    std::vector<double> actual, expected;
    for (size_t p = 1; p < prompt.size(); ++p) {
      EXPECT_EQ(response.prompt_logprobs(p).token().token_id(), prompt[p]);
      const std::vector<double> all = FullDistribution(response.prompt_logprobs(p));
      EXPECT_FLOAT_EQ(response.prompt_logprobs(p).token().logprob(), all[prompt[p]]);
      for (int k = 0; k < 3; ++k) {
        actual.push_back(all[c["top3_ids"][p - 1][k].get<size_t>()]);
        expected.push_back(c["top3_logits"][p - 1][k].get<double>() -
                           c["logsumexp"][p - 1].get<double>());
      }
    }
    if (!actual.empty()) {
      EXPECT_LE(RelativeError(actual, expected), setting.TopRelativeTolerance())
          << "prompt of " << prompt.size();
    }
  }
}

void CheckGreedyTeacherForced(TestDaemon& daemon, const json& golden, const Setting& setting) {
  const std::vector<uint32_t> tokens = golden["greedy"]["tokens"];
  std::vector<uint32_t> prompt = golden["cases"][2]["prompt"];
  const size_t prompt_size = prompt.size();
  prompt.insert(prompt.end(), tokens.begin(), tokens.end());
  v1::GenerateRequest request = TokenRequest(prompt, 0);
  request.mutable_output()->set_prompt_logprobs(1);
  const v1::GenerateResponse response = Generate(daemon, request);
  ASSERT_EQ(response.prompt_logprobs_size(), static_cast<int>(prompt.size()));
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (golden["greedy"]["margins"][i].get<double>() <= setting.MarginFloor()) continue;
    EXPECT_EQ(response.prompt_logprobs(prompt_size + i).top(0).token_id(), tokens[i])
        << "greedy token " << i;
  }
}

bool IsMixtureOfExperts(const std::string& model_dir) {
  const json config = json::parse(std::ifstream(model_dir + "/config.json"));
  return config.contains("num_local_experts") || config.contains("num_experts");
}

void CheckModel(const std::string& model_dir, Setting setting) {
  setting.of_mixture = IsMixtureOfExperts(model_dir);
  // On cuda activations are rounded too, and tokens with a clear margin change: the type that
  // rounds least.
  if (setting.of_mixture && DeviceUnderTest() == "cuda") setting.dtype = "float16";
  SCOPED_TRACE(absl::StrCat(model_dir));
  SCOPED_TRACE(testing::PrintToString(setting));
  auto daemon = TestDaemon::Start({.model_dir = model_dir, .flags = setting.Flags()});
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  const json golden = json::parse(std::ifstream(model_dir + "/golden.json"));
  CheckLogprobs(**daemon, golden, setting);
  CheckPromptLogprobs(**daemon, golden, setting);
  CheckGreedyTeacherForced(**daemon, golden, setting);
}

// Every value of every dimension, most pairs: the default run's share of the whole matrix below.
const Setting kCover[] = {
    {"float32", 8, 4, true},
    {"bfloat16", 17, 16, true},
    {"float32", 512, 64, false},
    {"bfloat16", 8, 64, true},
    {"float32", 17, 4, false},
    {"bfloat16", 512, 16, false},
};

// What cuda takes: no float32, blocks of at least 16 tokens.
const Setting kCudaCover[] = {
    {"bfloat16", 8, 16, true},
    {"bfloat16", 17, 64, false},
    {"bfloat16", 512, 128, true},
    {"bfloat16", 512, 16, false},
    {"bfloat16", 8, 32, false},
    {"bfloat16", 17, 16, true},
    {"float16", 512, 64, true},
    {"float16", 17, 128, false},
};

absl::Span<const Setting> Cover() {
  if (DeviceUnderTest() == "cuda") return kCudaCover;
  return kCover;
}

TEST(Conformance, EveryModelUnderACoverOfSettings) {
  const absl::Span<const Setting> cover = Cover();
  if (!ConformanceDir()) {
    std::printf(
        "note: PAGODA_CONFORMANCE_DIR is absent; only the models of tests/data are checked\n");
  }
  const std::vector<std::string> models = ModelDirs();
  ASSERT_FALSE(models.empty());
  for (size_t i = 0; i < models.size(); ++i) {
    CheckModel(models[i], cover[i % cover.size()]);
    CheckModel(models[i], cover[(i + 3) % cover.size()]);
  }
}

// B079: heads that ranks cannot share are refused before anything is loaded, with the reason; KV
// heads repeat where ranks outnumber them.
TEST(Conformance, RanksThatShareAModelGiveTheSame) {
  const bool is_cuda = DeviceUnderTest() == "cuda";
  int num_shared = 0;
  for (const std::string& model : ModelDirs()) {
    const json config = json::parse(std::ifstream(model + "/config.json"));
    const auto number = [&config](std::initializer_list<const char*> names, int otherwise) {
      for (const char* name : names) {
        if (config.contains(name)) return config[name].get<int>();
      }
      return otherwise;
    };
    const int heads = number({"num_attention_heads", "n_head", "n_heads"}, 0);
    const int kv_heads = number({"num_key_value_heads"}, heads);
    const bool norms_all_heads = config["architectures"][0] == "Olmo2ForCausalLM";
    for (const int num_ranks : {2, 4, 6, 8}) {
      // Processes that take turns on one GPU are slow.
      if (is_cuda && num_ranks > 2) continue;
      const char* const dtype = is_cuda || num_ranks == 8 ? "bfloat16" : "float32";
      const Setting setting{dtype, num_ranks == 4 ? 512 : 17, 16, true, num_ranks};
      if (heads % num_ranks == 0 && (kv_heads % num_ranks == 0 || num_ranks % kv_heads == 0) &&
          !norms_all_heads) {
        CheckModel(model, setting);
        ++num_shared;
        continue;
      }
      std::vector<std::string> arguments = {"serve", model, "--grpc-address=127.0.0.1:0"};
      for (const std::string& flag : setting.Flags()) arguments.push_back(flag);
      const CommandResult refused = RunPagoda(arguments);
      EXPECT_EQ(refused.exit_code, 3) << refused.err;
      EXPECT_NE(refused.err.find("tensor ranks cannot share the model"), std::string::npos)
          << refused.err;
    }
  }
  EXPECT_GT(num_shared, ModelDirs().size() > 10 ? 10 : 0);
}

// Calls `check` with each model's folder, several at once where there are cores for it.
void ForEachModel(const std::function<void(const std::string&)>& check) {
  const std::vector<std::string> models = ModelDirs();
  std::atomic<size_t> next{0};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency() / 2); ++i) {
    threads.emplace_back([&] {
      for (size_t model; (model = next.fetch_add(1)) < models.size();) check(models[model]);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(ConformanceLong, EveryModelUnderEverySetting) {
  if (!ConformanceDir()) GTEST_SKIP() << "no reference data: set PAGODA_CONFORMANCE_DIR";
  const bool is_cuda = DeviceUnderTest() == "cuda";
  ForEachModel([is_cuda](const std::string& model) {
    for (const char* dtype : {is_cuda ? "float16" : "float32", "bfloat16"}) {
      for (int budget : {8, 17, 512}) {
        for (int block_size :
             is_cuda ? std::vector<int>{16, 32, 64, 128} : std::vector<int>{4, 16, 64}) {
          for (bool prefix_caching : {false, true})
            CheckModel(model, {dtype, budget, block_size, prefix_caching});
        }
      }
    }
  });
}

// On cuda a product of other shape is another sum: tokens must agree up to the first near tie.
void ExpectSameUpToNearTies(const v1::GenerateResponse::Sequence& actual,
                            const v1::GenerateResponse::Sequence& expected,
                            double margin_floor) {
  ASSERT_EQ(actual.token_ids_size(), expected.token_ids_size());
  for (int t = 0; t < expected.token_ids_size(); ++t) {
    const v1::TokenLogprobs& logprobs = expected.logprobs(t);
    const double margin = logprobs.top(0).logprob() - logprobs.top(1).logprob();
    if (margin <= margin_floor && actual.token_ids(t) != expected.token_ids(t)) return;
    ASSERT_EQ(actual.token_ids(t), expected.token_ids(t)) << "token " << t << ", margin " << margin;
  }
}

void ExpectSameBits(const v1::GenerateResponse::Sequence& actual,
                    const v1::GenerateResponse::Sequence& expected) {
  ASSERT_EQ(actual.token_ids_size(), expected.token_ids_size());
  for (int t = 0; t < expected.token_ids_size(); ++t) {
    ASSERT_EQ(actual.token_ids(t), expected.token_ids(t)) << "token " << t;
    ASSERT_EQ(actual.logprobs(t).token().logprob(), expected.logprobs(t).token().logprob())
        << "token " << t;
  }
}

// Keys and values of all layers, from any architecture's config.json.
int64_t KvBytesPerToken(const json& config, int64_t element_bytes) {
  const auto first_of = [&](std::initializer_list<const char*> names, int64_t otherwise) {
    for (const char* name : names) {
      if (config.contains(name)) return config[name].get<int64_t>();
    }
    return otherwise;
  };
  const int64_t layers = first_of({"num_hidden_layers", "n_layer", "n_layers"}, 0);
  const int64_t heads = first_of({"num_attention_heads", "n_head", "n_heads"}, 0);
  const int64_t hidden = first_of({"hidden_size", "n_embd", "d_model"}, 0);
  const int64_t head_dim = first_of({"head_dim"}, hidden / heads);
  return 2 * element_bytes * layers * first_of({"num_key_value_heads"}, heads) * head_dim;
}

// Every layer sees so many tokens at most; 0: some layer sees all.
int64_t KvWindow(const json& config) {
  const std::string architecture = config["architectures"][0];
  const bool is_uniform = architecture == "MistralForCausalLM" ||
                          architecture == "Phi3ForCausalLM" ||
                          architecture == "Starcoder2ForCausalLM";
  const auto window = config.find("sliding_window");
  return is_uniform && window != config.end() && window->is_number() ? window->get<int64_t>() : 0;
}

// A pool of 256 tokens under six sequences that are admitted with 33 tokens and grow to 133; where
// sequences hold no more than a window, one that it cannot hold for all of them.
void CheckPreemption(const std::string& model_dir, int budget_tokens, int block_size) {
  SCOPED_TRACE(absl::StrCat(model_dir, " budget ", budget_tokens, " block ", block_size));
  const json config = json::parse(std::ifstream(model_dir + "/config.json"));
  const json golden = json::parse(std::ifstream(model_dir + "/golden.json"));
  const bool is_cuda = DeviceUnderTest() == "cuda";
  const int64_t kv_bytes_per_token = KvBytesPerToken(config, is_cuda ? 2 : 4);
  // Mixtures in the type that rounds least: a rounding that chooses another expert is no near tie.
  const char* const cuda_dtype = IsMixtureOfExperts(model_dir) ? "float16" : "bfloat16";
  Setting setting{is_cuda ? cuda_dtype : "float32", budget_tokens, block_size, true};
  std::vector<std::string> flags = setting.Flags();
  flags.push_back("--max-model-len=256");
  const int64_t window = KvWindow(config);
  const bool has_window = window > 0;
  std::vector<uint32_t> prompt = golden["cases"][has_window ? 1 : 2]["prompt"];
  const int64_t pool_tokens = has_window ? std::max(96, 4 * block_size) : 256;
  constexpr int kNumStreams = 6;
  constexpr uint32_t kNumTokens = 100;
  // Prompts that differ in their first token share nothing.
  auto request_of = [&](int i) {
    std::vector<uint32_t> own = prompt;
    own[0] = (own[0] + i) % kVocabSize;
    v1::GenerateRequest request = TokenRequest(own, kNumTokens);
    request.mutable_output()->set_logprobs(2);
    return request;
  };
  std::vector<v1::GenerateResponse> alone(kNumStreams), crowded(kNumStreams);
  {
    auto daemon = TestDaemon::Start({.model_dir = model_dir, .flags = flags});
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    for (int i = 0; i < kNumStreams; ++i) alone[i] = Generate(**daemon, request_of(i));
  }
  flags.push_back(absl::StrCat("--kv-cache-memory=", pool_tokens * kv_bytes_per_token));
  auto daemon = TestDaemon::Start({.model_dir = model_dir, .flags = flags});
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  std::vector<std::thread> threads;
  for (int i = 0; i < kNumStreams; ++i) {
    threads.emplace_back([&, i] { crowded[i] = Generate(**daemon, request_of(i)); });
  }
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < kNumStreams; ++i) {
    ASSERT_EQ(alone[i].sequences_size(), 1);
    ASSERT_EQ(crowded[i].sequences_size(), 1);
    EXPECT_EQ(alone[i].sequences(0).token_ids_size(), static_cast<int>(kNumTokens));
    SCOPED_TRACE(absl::StrCat("stream ", i));
    if (is_cuda) {
      ExpectSameUpToNearTies(crowded[i].sequences(0), alone[i].sequences(0), setting.MarginFloor());
    } else {
      ExpectSameBits(crowded[i].sequences(0), alone[i].sequences(0));
    }
  }
  // Admission leaves a block for each sequence that runs: only one that grows by more than that can
  // take another's. A window that begins inside a block touches one block more than it fills.
  const auto num_blocks = [&](int64_t num_tokens) {
    return (num_tokens + block_size - 1) / block_size;
  };
  const int64_t num_prompt_tokens = static_cast<int64_t>(prompt.size());
  int64_t num_held = num_blocks(num_prompt_tokens + kNumTokens);
  if (has_window) num_held = std::min(num_held, num_blocks(window) + 1);
  const double num_preemptions = (*daemon)->Metric("pagoda_preemptions_total").value_or(-1);
  if (num_held - num_blocks(num_prompt_tokens) > 1) {
    EXPECT_GT(num_preemptions, 0);
  } else {
    EXPECT_EQ(num_preemptions, 0);
  }
}

TEST(Conformance, PreemptionChangesNothing) {
  if (DeviceUnderTest() != "cuda") return CheckPreemption(ModelDirs().at(0), 17, 4);
  for (const std::string& model : ModelDirs()) CheckPreemption(model, 17, 16);
}

// Blocks behind the window go back: a pool that holds little more than the window serves a prompt
// of 150 tokens and what follows it, and as many sequences as fit their windows.
TEST(Conformance, WindowsNeedNoMoreThanTheirBlocks) {
  for (const std::string& model : ModelDirs()) {
    const json config = json::parse(std::ifstream(model + "/config.json"));
    const int64_t window = KvWindow(config);
    if (window == 0) continue;
    SCOPED_TRACE(model);
    const bool is_cuda = DeviceUnderTest() == "cuda";
    const int block_size = is_cuda ? 16 : 4;
    Setting setting{is_cuda ? "bfloat16" : "float32", 8, block_size, true};
    std::vector<std::string> flags = setting.Flags();
    flags.push_back("--max-model-len=256");
    const int64_t num_blocks = (window + block_size - 1) / block_size + 4;
    flags.push_back(absl::StrCat(
        "--kv-cache-memory=", num_blocks * block_size * KvBytesPerToken(config, is_cuda ? 2 : 4)));
    auto daemon = TestDaemon::Start({.model_dir = model, .flags = flags});
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    const json golden = json::parse(std::ifstream(model + "/golden.json"));
    CheckPromptLogprobs(**daemon, golden, setting);
    CheckGreedyTeacherForced(**daemon, golden, setting);
    const std::vector<uint32_t> prompt = golden["cases"][2]["prompt"];
    const v1::GenerateResponse response = Generate(**daemon, TokenRequest(prompt, 200));
    ASSERT_EQ(response.sequences_size(), 1);
    EXPECT_EQ(response.sequences(0).token_ids_size(), 200);
    const auto tokens = golden["greedy"]["tokens"].get<std::vector<uint32_t>>();
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (golden["greedy"]["margins"][i].get<double>() <= setting.MarginFloor()) break;
      EXPECT_EQ(response.sequences(0).token_ids(static_cast<int>(i)), tokens[i]) << "token " << i;
    }
    EXPECT_EQ((*daemon)->Metric("pagoda_preemptions_total").value_or(-1), 0);
  }
}

TEST(ConformanceLong, PreemptionChangesNothingForEveryModel) {
  if (!ConformanceDir()) GTEST_SKIP() << "no reference data: set PAGODA_CONFORMANCE_DIR";
  ForEachModel([](const std::string& model) {
    for (int budget : {8, 17, 512}) {
      for (int block_size : DeviceUnderTest() == "cuda" ? std::vector<int>{16, 32, 64}
                                                        : std::vector<int>{4, 16, 64}) {
        CheckPreemption(model, budget, block_size);
      }
    }
  });
}

}  // namespace
}  // namespace pagoda::e2e::conformance_test
