#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <numeric>

#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "tests/kernels/cuda/device_fixture.h"

namespace pagoda::kernels::cuda {
namespace {

// Everything a call of Sample reads and writes, on the host; run by either backend.
struct Call {
  int32_t vocab_size = 0;
  int64_t stride = 0;
  int32_t max_top = 0;
  std::vector<float> logits;
  std::vector<SampleRow> rows;
  std::vector<int32_t> allowed, masked, bias_ids;
  std::vector<float> bias_values;
  std::vector<PenaltyEntry> penalties;
};

struct Result {
  std::vector<int32_t> tokens, ranks, top_ids, last_tokens;
  std::vector<float> logprobs, top_logprobs;
};

constexpr int64_t kNumSlots = 1000;
constexpr int32_t kNoLastToken = -77;

// A call's arrays in a backend's memory, so that it can be run again and recorded.
class Prepared {
 public:
  Prepared(Backend& backend, const Call& call) : backend_(backend), call_(call) {
    const auto num_rows = static_cast<int64_t>(call.rows.size());
    // Never null: an empty array still has an address.
    logits_ = Upload(backend, call.logits);
    rows_ = Upload(backend, call.rows);
    allowed_ = Upload(backend, call.allowed);
    masked_ = Upload(backend, call.masked);
    bias_ids_ = Upload(backend, call.bias_ids);
    bias_values_ = Upload(backend, call.bias_values);
    penalties_ = Upload(backend, call.penalties);
    last_ = Upload(backend, std::vector<int32_t>(kNumSlots, kNoLastToken));
    tokens_ = Poisoned(backend, num_rows * 4);
    ranks_ = Poisoned(backend, num_rows * 4);
    logprobs_ = Poisoned(backend, num_rows * 4);
    top_ids_ = Poisoned(backend, num_rows * std::max(call.max_top, 1) * 4);
    top_logprobs_ = Poisoned(backend, num_rows * std::max(call.max_top, 1) * 4);
  }

  absl::Status Run(const std::vector<SampleRow>& host_rows) {
    return backend_.Sample({.logits = logits_.as<float>(),
                            .logits_stride = call_.stride,
                            .rows = static_cast<int64_t>(call_.rows.size()),
                            .vocab_size = call_.vocab_size,
                            .row_params = rows_.as<SampleRow>(),
                            .allowed_ids = allowed_.as<int32_t>(),
                            .masked_ids = masked_.as<int32_t>(),
                            .bias_ids = bias_ids_.as<int32_t>(),
                            .bias_values = bias_values_.as<float>(),
                            .penalties = penalties_.as<PenaltyEntry>(),
                            .host_row_params = host_rows.data(),
                            .last_tokens = last_.as<int32_t>(),
                            .num_slots = kNumSlots,
                            .tokens = tokens_.as<int32_t>(),
                            .logprobs = logprobs_.as<float>(),
                            .ranks = ranks_.as<int32_t>(),
                            .top_ids = top_ids_.as<int32_t>(),
                            .top_logprobs = top_logprobs_.as<float>(),
                            .max_top = call_.max_top});
  }

  // Last tokens are forgotten: a row that is only scored leaves them as they are.
  void SetRows(const std::vector<SampleRow>& rows) {
    Must(backend_.CopyToDevice(rows_.data(), rows.data(), rows.size() * sizeof(SampleRow)));
    const std::vector<int32_t> none(kNumSlots, kNoLastToken);
    Must(backend_.CopyToDevice(last_.data(), none.data(), none.size() * sizeof(int32_t)));
    Must(backend_.Synchronize());
  }

  Result Take() {
    const size_t rows = call_.rows.size();
    const size_t tops = rows * call_.max_top;
    return {Download<int32_t>(backend_, tokens_.data(), rows),
            Download<int32_t>(backend_, ranks_.data(), rows),
            Download<int32_t>(backend_, top_ids_.data(), tops),
            Download<int32_t>(backend_, last_.data(), kNumSlots),
            Download<float>(backend_, logprobs_.data(), rows),
            Download<float>(backend_, top_logprobs_.data(), tops)};
  }

 private:
  Backend& backend_;
  const Call& call_;
  Buffer logits_, rows_, allowed_, masked_, bias_ids_, bias_values_, penalties_, last_;
  Buffer tokens_, ranks_, logprobs_, top_ids_, top_logprobs_;
};

Backend& Cpu() {
  static const std::unique_ptr<Backend> cpu = Must(OpenBackend("cpu", {}));
  return *cpu;
}

Result RunOn(Backend& backend, const Call& call) {
  Prepared prepared(backend, call);
  Must(prepared.Run(call.rows));
  return prepared.Take();
}

enum class LogitKind {
  kFlat,    // N(0, 1.3): dummy weights
  kPeaked,  // a few likely tokens over a long tail, as real models give
  kTies,    // few distinct values
};

Call MakeCall(
    LogitKind kind, int32_t vocab_size, int64_t num_rows, uint32_t seed, int64_t padding = 0) {
  Call call;
  call.vocab_size = vocab_size;
  call.stride = vocab_size + padding;
  call.logits.assign(num_rows * call.stride, NAN);  // padding is never read
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, 1.3f);
  for (int64_t i = 0; i < num_rows; ++i) {
    for (int32_t t = 0; t < vocab_size; ++t) {
      float v = normal(generator);
      if (kind == LogitKind::kPeaked) v = 2.0f * v + (generator() % 997 == 0 ? 9.0f : 0.0f);
      if (kind == LogitKind::kTies) v = std::round(v);
      call.logits[i * call.stride + t] = v;
    }
    SampleRow row;
    row.seed = seed * 1000003u + i;
    row.position = 17 + 5 * i;
    row.slot = static_cast<int32_t>(i % kNumSlots);
    call.rows.push_back(row);
  }
  return call;
}

// Gives rows of a call every mixture of parameters.
void Vary(Call* call, uint32_t seed) {
  std::mt19937 generator(seed);
  const auto chance = [&](int percent) { return static_cast<int>(generator() % 100) < percent; };
  const auto uniform = [&](float low, float high) {
    return low + (high - low) * static_cast<float>(generator() >> 8) * 0x1p-24f;
  };
  const auto token = [&] { return static_cast<int32_t>(generator() % call->vocab_size); };
  for (size_t i = 0; i < call->rows.size(); ++i) {
    SampleRow& row = call->rows[i];
    row.temperature = chance(20) ? 0.0f : uniform(0.3f, 1.6f);
    if (chance(40)) row.top_k = 1 + static_cast<int32_t>(generator() % (chance(50) ? 60 : 3000));
    if (chance(40)) row.top_p = uniform(0.05f, 0.999f);
    if (chance(25)) row.min_p = uniform(0.0001f, 0.3f);
    if (chance(20)) row.typical_p = uniform(0.1f, 0.95f);
    if (chance(40)) row.num_logprobs = static_cast<int32_t>(generator() % (call->max_top + 1));
    row.processed_logprobs = chance(50) ? 1 : 0;
    if (chance(10)) row.target_token = token();
    if (chance(15)) {
      row.allowed_begin = static_cast<int32_t>(call->allowed.size());
      const int count = chance(50) ? 3 : call->vocab_size / 3 + 1;
      for (int j = 0; j < count; ++j) call->allowed.push_back(token());
      row.allowed_end = static_cast<int32_t>(call->allowed.size());
    }
    if (chance(20)) {
      row.masked_begin = static_cast<int32_t>(call->masked.size());
      const float* logits = call->logits.data() + i * call->stride;
      // The best token among them, and ids that do not exist.
      call->masked.push_back(
          static_cast<int32_t>(std::max_element(logits, logits + call->vocab_size) - logits));
      for (const int32_t id : {token(), -3, call->vocab_size, call->vocab_size + 1000})
        call->masked.push_back(id);
      row.masked_end = static_cast<int32_t>(call->masked.size());
    }
    if (chance(20)) {
      row.bias_begin = static_cast<int32_t>(call->bias_ids.size());
      for (int j = 0; j < 5; ++j) {
        call->bias_ids.push_back(token());
        call->bias_values.push_back(uniform(-8.0f, 8.0f));
      }
      row.bias_end = static_cast<int32_t>(call->bias_ids.size());
    }
    if (chance(30)) {
      row.repetition_penalty = uniform(0.8f, 1.5f);
      row.frequency_penalty = uniform(-0.5f, 1.0f);
      row.presence_penalty = uniform(-0.5f, 1.0f);
      row.penalty_begin = static_cast<int32_t>(call->penalties.size());
      std::vector<int32_t> ids(call->vocab_size);
      std::iota(ids.begin(), ids.end(), 0);
      std::shuffle(ids.begin(), ids.end(), generator);
      for (int j = 0; j < std::min(200, call->vocab_size / 2); ++j) {
        call->penalties.push_back({ids[j], static_cast<int32_t>(generator() % 4)});
      }
      row.penalty_end = static_cast<int32_t>(call->penalties.size());
    }
  }
}

std::string Describe(const SampleRow& r) {
  return absl::StrFormat(
      "T=%g k=%d p=%g min_p=%g typical=%g logprobs=%d%s target=%d allowed=%d masked=%d bias=%d "
      "penalties=%d",
      r.temperature,
      r.top_k,
      r.top_p,
      r.min_p,
      r.typical_p,
      r.num_logprobs,
      r.processed_logprobs != 0 ? "(processed)" : "",
      r.target_token,
      r.allowed_end - r.allowed_begin,
      r.masked_end - r.masked_begin,
      r.bias_end - r.bias_begin,
      r.penalty_end - r.penalty_begin);
}

// Tokens may differ where rounding decides (noise that ties, a boundary of a filter): `num_differ`
// counts them.
absl::Status Compare(const Call& call, const Result& a, const Result& b, int* num_differ) {
  for (size_t i = 0; i < call.rows.size(); ++i) {
    const SampleRow& row = call.rows[i];
    const auto fail = [&](absl::string_view what, double x, double y) {
      return absl::InternalError(
          absl::StrCat("row ", i, " (", Describe(row), "): ", what, " ", x, ", expected ", y));
    };
    if (a.tokens[i] != b.tokens[i]) {
      ++*num_differ;
      const bool exact =
          row.temperature == 0.0f || row.target_token >= 0 || a.tokens[i] < 0 || b.tokens[i] < 0;
      if (exact || *num_differ > 1 + static_cast<int>(call.rows.size()) / 100) {
        return fail("token", a.tokens[i], b.tokens[i]);
      }
      continue;
    }
    if (row.num_logprobs < 0 || b.tokens[i] < 0) continue;
    if (!(std::abs(a.logprobs[i] - b.logprobs[i]) <= 2e-4f * (1 + std::abs(b.logprobs[i]))) &&
        a.logprobs[i] != b.logprobs[i]) {
      return fail("logprob", a.logprobs[i], b.logprobs[i]);
    }
    if (a.ranks[i] != b.ranks[i]) return fail("rank", a.ranks[i], b.ranks[i]);
    for (int64_t t = i * call.max_top; t < static_cast<int64_t>(i + 1) * call.max_top; ++t) {
      if (a.top_ids[t] != b.top_ids[t]) {
        // Penalties divide: two backends may round apart, and neighbours swap.
        if (std::abs(a.top_logprobs[t] - b.top_logprobs[t]) > 1e-5f) {
          return fail(absl::StrCat("top id ", t - i * call.max_top), a.top_ids[t], b.top_ids[t]);
        }
      }
      if (!(std::abs(a.top_logprobs[t] - b.top_logprobs[t]) <=
            2e-4f * (1 + std::abs(b.top_logprobs[t]))) &&
          a.top_logprobs[t] != b.top_logprobs[t]) {
        return fail(absl::StrCat("top logprob ", t - i * call.max_top),
                    a.top_logprobs[t],
                    b.top_logprobs[t]);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status SameAsCpu(CudaBackend& backend, const Call& call) {
  int num_differ = 0;
  const Result cuda = RunOn(backend, call);
  PAGODA_RETURN_IF_ERROR(Compare(call, cuda, RunOn(Cpu(), call), &num_differ));
  if (num_differ > 0)
    std::printf("     %d of %d tokens differ by rounding\n",
                num_differ,
                static_cast<int>(call.rows.size()));
  for (size_t i = 0; i < call.rows.size(); ++i) {
    const int32_t slot = call.rows[i].slot;
    if (slot < 0 || call.rows[i].target_token >= 0) continue;
    if (cuda.last_tokens[slot] != cuda.tokens[i])
      return absl::InternalError(absl::StrCat("slot ", slot));
  }
  // And again the same, bit by bit.
  const Result again = RunOn(backend, call);
  return ExpectTrue(
      again.tokens == cuda.tokens && again.ranks == cuda.ranks && again.top_ids == cuda.top_ids,
      "two runs differ");
}

absl::Status EdgeRows(CudaBackend& backend, int32_t vocab_size) {
  Call call = MakeCall(LogitKind::kFlat, vocab_size, 24, 5);
  call.max_top = 4;
  const auto logit = [&](int row, int32_t t) -> float& {
    return call.logits[row * call.stride + t];
  };
  for (int32_t t = 0; t < vocab_size; ++t) {
    logit(2, t) = -INFINITY;  // nothing
    logit(3, t) = 1.5f;       // everything ties
    logit(4, t) = t == vocab_size - 1 ? 0.0f : -INFINITY;
    logit(5, t) = t % 2 == 0 ? -0.0f : 0.0f;
    for (int row = 12; row < 18; ++row) logit(row, t) = 2.0f;  // ties under filters
  }
  logit(0, vocab_size / 2) = NAN;
  logit(1, vocab_size - 1) = INFINITY;
  for (int i = 0; i < 24; ++i) {
    call.rows[i].temperature = i % 2 == 0 ? 0.0f : 0.9f;
    if (i >= 6 && i < 12) call.rows[i].temperature = i % 2 == 0 ? 1e-4f : 1e-30f;
  }
  for (int i = 12; i < 18; ++i) call.rows[i].temperature = 1.0f;
  call.rows[12].top_k = 5;
  call.rows[13].top_p = 0.37f;
  call.rows[14].typical_p = 0.41f;
  call.rows[15].min_p = 1.0f;
  call.rows[16].top_k = std::max(1, vocab_size * 2 / 3);
  call.rows[17].top_k = vocab_size * 2;
  for (int i = 18; i < 24; ++i) {
    call.rows[i].temperature = 0.7f;
    call.rows[i].top_p = i == 18 ? 1e-6f : 0.9999999f;
    call.rows[i].num_logprobs = i % 4;
    call.rows[i].slot = -1;
  }
  // The same again with log-probabilities, so that both kernels meet every edge.
  const size_t num_rows = call.rows.size();
  for (size_t i = 0; i < num_rows; ++i) {
    SampleRow row = call.rows[i];
    row.num_logprobs = 3;
    row.slot = -1;
    call.rows.push_back(row);
    const std::vector<float> copy(call.logits.begin() + i * call.stride,
                                  call.logits.begin() + (i + 1) * call.stride);
    call.logits.insert(call.logits.end(), copy.begin(), copy.end());
  }
  return SameAsCpu(backend, call);
}

// Rows with top_k alone or with top_p and min_p: where tokens lie must not matter.
absl::Status TopRows(CudaBackend& backend, int32_t vocab_size, int64_t padding) {
  constexpr int kRows = 48;
  Call call = MakeCall(LogitKind::kPeaked, vocab_size, kRows, 21, padding);
  std::mt19937 generator(vocab_size);
  for (int i = 0; i < kRows; ++i) {
    float* logits = call.logits.data() + i * call.stride;
    switch (i % 6) {
      case 0:  // all the likely ones side by side
        std::sort(logits, logits + vocab_size);
        break;
      case 1:
        std::sort(logits, logits + vocab_size, std::greater<float>());
        break;
      case 2:  // all tie
        std::fill(logits, logits + vocab_size, -3.25f);
        break;
      case 3:  // few values
        for (int32_t t = 0; t < vocab_size; ++t) logits[t] = std::round(logits[t] / 4);
        break;
      case 4:  // fewer than top_k are finite
        for (int32_t t = 0; t < vocab_size; ++t) {
          if (t % 1009 != 5) logits[t] = -INFINITY;
        }
        break;
      default:
        break;
    }
    SampleRow& row = call.rows[i];
    row.top_k = 1 + static_cast<int32_t>(generator() % std::min(256, vocab_size / 256));
    row.temperature = 0.2f + 0.03f * i;
    if (i % 4 == 1) row.top_p = 0.05f + 0.02f * i;
    if (i % 7 == 3) row.min_p = 0.01f * i / kRows;
    if (i % 12 >= 6) row.seed += 77;
  }
  call.logits[5 * call.stride + vocab_size - 1] = NAN;
  call.logits[11 * call.stride] = INFINITY;
  for (int32_t t = 0; t < vocab_size; ++t) call.logits[17 * call.stride + t] = -INFINITY;
  return SameAsCpu(backend, call);
}

// Frequencies of one row's tokens over many positions against the reference distribution.
absl::Status ChiSquare(CudaBackend& backend, const SampleRow& params, bool through_select) {
  constexpr int32_t kVocab = 60;
  constexpr int kDraws = 30000;
  Call call = MakeCall(LogitKind::kFlat, kVocab, 1, 3);
  const std::vector<float> logits = call.logits;
  call.logits.clear();
  call.rows.clear();
  call.max_top = 1;
  for (int i = 0; i < kDraws; ++i) {
    call.logits.insert(call.logits.end(), logits.begin(), logits.end());
    SampleRow row = params;
    row.seed = 99;
    row.position = i;
    row.num_logprobs = through_select ? 0 : -1;
    call.rows.push_back(row);
  }
  const Result result = RunOn(backend, call);
  // The distribution, computed plainly.
  std::vector<int32_t> order(kVocab);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(
      order.begin(), order.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  std::vector<double> p(kVocab, 0.0);
  double total = 0.0, kept = 0.0;
  const size_t k = params.top_k > 0 ? params.top_k : kVocab;
  for (size_t i = 0; i < k; ++i) total += std::exp(logits[order[i]] / params.temperature);
  for (size_t i = 0; i < k && (i == 0 || kept < params.top_p * total); ++i) {
    p[order[i]] = std::exp(logits[order[i]] / params.temperature);
    kept += p[order[i]];
  }
  std::vector<int> counts(kVocab, 0);
  for (const int32_t token : result.tokens) {
    if (token < 0 || token >= kVocab || p[token] == 0.0) {
      return absl::InternalError(absl::StrCat("token ", token, " has no probability"));
    }
    ++counts[token];
  }
  double statistic = 0.0;
  int cells = 0;
  for (int32_t t = 0; t < kVocab; ++t) {
    const double expected = p[t] / kept * kDraws;
    if (expected < 5.0) continue;
    statistic += (counts[t] - expected) * (counts[t] - expected) / expected;
    ++cells;
  }
  // Five standard deviations.
  return ExpectTrue(statistic < cells + 5.0 * std::sqrt(2.0 * cells),
                    absl::StrCat("chi-square ", statistic, " over ", cells, " cells"));
}

// A row's result does not depend on its neighbours or its place.
absl::Status Independent(CudaBackend& backend) {
  Call call = MakeCall(LogitKind::kPeaked, 5003, 70, 8);
  call.max_top = 5;
  Vary(&call, 8);
  const Result together = RunOn(backend, call);
  for (const size_t i : {0, 13, 42, 69}) {
    Call alone = call;
    alone.rows = {call.rows[i]};
    alone.logits.assign(call.logits.begin() + i * call.stride,
                        call.logits.begin() + (i + 1) * call.stride);
    const Result result = RunOn(backend, alone);
    if (result.tokens[0] != together.tokens[i]) return absl::InternalError(absl::StrCat("row ", i));
    if (call.rows[i].num_logprobs >= 0 && result.tokens[0] >= 0 &&
        result.logprobs[0] != together.logprobs[i]) {
      return absl::InternalError(absl::StrCat("logprob of row ", i));
    }
  }
  return absl::OkStatus();
}

// A graph recorded with greedy rows serves any rows.
absl::Status Recorded(CudaBackend& backend) {
  Call call = MakeCall(LogitKind::kPeaked, 32000, 40, 9);
  call.max_top = 5;
  const std::vector<SampleRow> plain = call.rows;
  Vary(&call, 9);
  const Result expected = RunOn(backend, call);
  Prepared prepared(backend, call);
  std::vector<SampleRow> greedy = plain;
  for (SampleRow& row : greedy) row.temperature = 0.0f;
  prepared.SetRows(greedy);
  PAGODA_RETURN_IF_ERROR(prepared.Run(greedy));
  PAGODA_RETURN_IF_ERROR(backend.BeginGraph());
  PAGODA_RETURN_IF_ERROR(prepared.Run(greedy));
  const GraphId graph = Must(backend.EndGraph());
  PAGODA_RETURN_IF_ERROR(backend.LaunchGraph(graph));
  prepared.SetRows(call.rows);
  for (int i = 0; i < 3; ++i) PAGODA_RETURN_IF_ERROR(backend.LaunchGraph(graph));
  const Result got = prepared.Take();
  PAGODA_RETURN_IF_ERROR(ExpectTrue(got.tokens == expected.tokens, "tokens"));
  return ExpectTrue(got.last_tokens == expected.last_tokens, "last tokens");
}

}  // namespace

void RunSampleCases(CheckRunner& runner, CudaBackend& backend) {
  for (const auto& [vocab, padding] : {std::pair{300, 0},
                                       {5003, 2},
                                       {32000, 0},
                                       {50257, 0},
                                       {128256, 0},
                                       {151936, 128},
                                       {262144, 0},
                                       {262145, 3}}) {
    runner.Run(absl::StrFormat("sample/top_k/%d", vocab),
               [&, vocab = vocab, padding = padding] { return TopRows(backend, vocab, padding); });
  }
  // Many rows first: whatever is wrong shows here.
  for (const auto& [kind, name] : {std::pair{LogitKind::kFlat, "flat"},
                                   {LogitKind::kPeaked, "peaked"},
                                   {LogitKind::kTies, "ties"}}) {
    for (const auto& [vocab, rows, padding] : {std::tuple{7, 50, 1},
                                               {33, 100, 0},
                                               {1000, 100, 0},
                                               {5003, 60, 2},
                                               {32000, 60, 0},
                                               {50257, 40, 0},
                                               {128256, 40, 0},
                                               {151936, 20, 128},
                                               {262144, 12, 0}}) {
      Call call;
      const auto make = [&, kind = kind, vocab = vocab, rows = rows, padding = padding](bool vary) {
        call = MakeCall(kind, vocab, rows, vocab + rows, padding);
        call.max_top = std::min(20, vocab);
        if (vary) Vary(&call, vocab);
      };
      const std::string suffix = absl::StrFormat("/%s/%dx%d", name, rows, vocab);
      runner.Run("sample/greedy" + suffix, [&] {
        make(false);
        for (SampleRow& row : call.rows) row.temperature = 0.0f;
        return SameAsCpu(backend, call);
      });
      runner.Run("sample/temperature" + suffix, [&] {
        make(false);
        for (size_t i = 0; i < call.rows.size(); ++i)
          call.rows[i].temperature = 0.25f + 0.05f * (i % 30);
        return SameAsCpu(backend, call);
      });
      runner.Run("sample/varied" + suffix, [&] {
        make(true);
        return SameAsCpu(backend, call);
      });
    }
  }
  for (const int32_t vocab : {9, 600, 5000, 128256}) {
    runner.Run(absl::StrCat("sample/edges/", vocab), [&] { return EdgeRows(backend, vocab); });
  }
  for (const bool select : {false, true}) {
    const std::string path = select ? "/select" : "";
    runner.Run("sample/chi_square/T0.8" + path,
               [&] { return ChiSquare(backend, {.temperature = 0.8f}, select); });
    runner.Run("sample/chi_square/T1.3k20" + path,
               [&] { return ChiSquare(backend, {.temperature = 1.3f, .top_k = 20}, select); });
    runner.Run("sample/chi_square/p0.7" + path,
               [&] { return ChiSquare(backend, {.temperature = 1.0f, .top_p = 0.7f}, select); });
  }
  runner.Run("sample/independent", [&] { return Independent(backend); });
  runner.Run("sample/recorded", [&] { return Recorded(backend); });
}

}  // namespace pagoda::kernels::cuda
