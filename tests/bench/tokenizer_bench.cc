// Loading a tokenizer, encoding and decoding. Environment:
//   PAGODA_TOKENIZER_DIR  a model directory (default: deploy/models/fable-7m; the goals are for a
//                         vocabulary of 128k)
//   PAGODA_TEXT           a file of English text (default: the licences that Debian installs; the
//                         goals are for 10 MB without repetition)
//   PAGODA_CJK_TEXT       a file of Chinese, Japanese or Korean text (default: none, skipped)
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "engine/text/detokenizer.h"
#include "engine/text/tokenizer.h"
#include "engine/text/utf8.h"

namespace pagoda::engine {
namespace {

std::string Environment(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : otherwise;
}

std::string TokenizerDir() { return Environment("PAGODA_TOKENIZER_DIR", "deploy/models/fable-7m"); }

const Tokenizer& TheTokenizer() {
  static const std::unique_ptr<Tokenizer> tokenizer = [] {
    auto loaded = Tokenizer::Load(TokenizerDir());
    if (!loaded.ok()) {
      std::cerr << loaded.status()
                << " (run from the source folder, or set PAGODA_TOKENIZER_DIR)\n";
      std::exit(1);
    }
    return *std::move(loaded);
  }();
  return *tokenizer;
}

std::string ReadText(const std::vector<std::string>& files) {
  std::string all;
  for (const std::string& name : files) {
    std::ifstream in(name, std::ios::binary);
    all.append(std::istreambuf_iterator<char>(in), {});
  }
  if (!all.empty() && IsValidUtf8(all)) return all;
  std::cerr << "no text: set PAGODA_TEXT and PAGODA_CJK_TEXT to files in UTF-8\n";
  std::exit(1);
}

const std::string& English() {
  static const std::string text = [] {
    const std::string file = Environment("PAGODA_TEXT", "");
    if (!file.empty()) return ReadText({file});
    const std::string dir = "/usr/share/common-licenses/";
    return ReadText(
        {dir + "GPL-3", dir + "LGPL-2.1", dir + "MPL-2.0", dir + "GFDL-1.3", dir + "Artistic"});
  }();
  return text;
}

void ReportText(benchmark::State& state,
                size_t text_bytes,
                size_t num_tokens,
                double goal_mb_per_s) {
  const double bytes = static_cast<double>(text_bytes) * static_cast<double>(state.iterations());
  state.counters["text_MB"] = static_cast<double>(text_bytes) * 1e-6;
  state.counters["floor_MB_s"] = goal_mb_per_s;
  state.counters["MB_s"] = benchmark::Counter(bytes * 1e-6, benchmark::Counter::kIsRate);
  state.counters["ratio"] =
      benchmark::Counter(bytes * 1e-6 / goal_mb_per_s, benchmark::Counter::kIsRate);
  state.counters["bytes_per_token"] =
      static_cast<double>(text_bytes) / static_cast<double>(num_tokens);
}

void EncodeText(benchmark::State& state, const std::string& text, double goal_mb_per_s = 20) {
  const Tokenizer& tokenizer = TheTokenizer();
  size_t num_tokens = 0;
  for (auto _ : state) {
    auto ids = tokenizer.Encode(text, {});
    if (!ids.ok()) return state.SkipWithError(ids.status().ToString().c_str());
    num_tokens = ids->size();
  }
  ReportText(state, text.size(), num_tokens, goal_mb_per_s);
}

void Load(benchmark::State& state) {
  for (auto _ : state) {
    auto tokenizer = Tokenizer::Load(TokenizerDir());
    benchmark::DoNotOptimize(tokenizer);
  }
  state.counters["floor_ms"] = 300;
}
BENCHMARK(Load)->Unit(benchmark::kMillisecond);

void EncodeEnglish(benchmark::State& state) { EncodeText(state, English()); }
BENCHMARK(EncodeEnglish)->Unit(benchmark::kMillisecond);

void EncodeCjk(benchmark::State& state) {
  const std::string file = Environment("PAGODA_CJK_TEXT", "");
  if (file.empty()) return state.SkipWithError("no text: set PAGODA_CJK_TEXT");
  EncodeText(state, ReadText({file}), 8);
}
BENCHMARK(EncodeCjk)->Unit(benchmark::kMillisecond);

// A text as short as a question.
void EncodeShort(benchmark::State& state) { EncodeText(state, English().substr(0, 60)); }
BENCHMARK(EncodeShort);

// Words that no cache knows: every one is different.
void EncodeUnseenWords(benchmark::State& state) {
  std::string text;
  uint64_t x = 1;
  while (text.size() < 1 << 20) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    text += ' ';
    for (int i = 0; i < 8; ++i) text += static_cast<char>('a' + (x >> (8 * i) & 0xFF) % 26);
  }
  EncodeText(state, text);
}
BENCHMARK(EncodeUnseenWords)->Unit(benchmark::kMillisecond);

// One word of a mebibyte: time must grow with n log n.
void EncodeOneWord(benchmark::State& state) {
  std::string text;
  uint64_t x = 1;
  while (text.size() < static_cast<size_t>(state.range(0))) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    text += static_cast<char>('a' + (x >> 33) % 26);
  }
  EncodeText(state, text);
}
BENCHMARK(EncodeOneWord)->Unit(benchmark::kMillisecond)->Arg(1 << 16)->Arg(1 << 20);

void EncodeOneRun(benchmark::State& state) {
  EncodeText(state, std::string(1 << 20, static_cast<char>(state.range(0))));
}
BENCHMARK(EncodeOneRun)
    ->Unit(benchmark::kMillisecond)
    ->Arg('a')
    ->Arg(' ')
    ->Arg('\n')
    ->Arg('1')
    ->Arg('!');

void Detokenize(benchmark::State& state) {
  const Tokenizer& tokenizer = TheTokenizer();
  const std::vector<TokenId> ids = tokenizer.Encode(English(), {}).value();
  std::string text;
  for (auto _ : state) {
    text.clear();
    Detokenizer detokenizer(&tokenizer, true);
    for (const TokenId id : ids) detokenizer.Append(id, &text);
    detokenizer.Finish(&text);
    benchmark::DoNotOptimize(text.data());
  }
  const double num_tokens =
      static_cast<double>(ids.size()) * static_cast<double>(state.iterations());
  state.counters["floor_us_per_token"] = 0.1;
  state.counters["us_per_token"] = benchmark::Counter(
      num_tokens * 1e-6, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(Detokenize)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace pagoda::engine

BENCHMARK_MAIN();
