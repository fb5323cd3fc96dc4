// Output constraints over a vocabulary of 128k tokens: compilation, and masks along random outputs,
// from the first mask of a constraint on. Prints goal, figure and ratio.
//   guided_bench [MODEL_DIR]   with the tokenizer of a model instead of made-up tokens
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/guided/constraint.h"
#include "engine/guided/token_masker.h"
#include "engine/guided/token_trie.h"
#include "engine/text/tokenizer.h"

namespace pagoda::engine::guided {
namespace {

constexpr int32_t kVocabSize = 128'000;

double MicrosSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
      .count();
}

// Bytes, and pieces as a BPE of text and code has: words with and without a blank, digits,
// punctuation in runs, a tenth of it in other scripts.
std::vector<std::string> MadeUpTokens() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  std::mt19937 random(1);
  constexpr absl::string_view kLetters = "etaoinshrdlucmfwypvbgkjqxz";
  constexpr absl::string_view kMarks = "\"{}[]:,.;()<>=-_/\\'!?*#$%&+|~ \n\t";
  const char* const kOthers[] = {"é", "ü", "д", "и", "的", "日", "本", "한", "α", "ß"};
  for (int i = 0; i < 1000; ++i) tokens.push_back(absl::StrCat(i));
  while (tokens.size() < kVocabSize) {
    std::string token;
    const uint32_t kind = random() % 20;
    const size_t size = 1 + random() % 9;
    if (kind < 16) {
      if (kind < 8) token = " ";
      for (size_t i = 0; i < size; ++i)
        token += kLetters[std::min<size_t>(random() % 26, random() % 26)];
      if (kind == 15) token[0] = static_cast<char>(std::toupper(token[0]));
    } else if (kind < 18) {
      for (size_t i = 0; i < 1 + size / 3; ++i) token += kMarks[random() % kMarks.size()];
    } else {
      for (size_t i = 0; i < 1 + size / 3; ++i) token += kOthers[random() % 10];
    }
    tokens.push_back(token);
  }
  return tokens;
}

// `num_properties` at each of `depth` levels.
std::string ObjectSchema(int num_properties, int depth, bool has_patterns) {
  std::string properties, required;
  for (int i = 0; i < num_properties; ++i) {
    const char* const kinds[] = {R"({"type":"string"})",
                                 R"({"type":"integer","minimum":0,"maximum":100000})",
                                 R"({"enum":["red","green","blue","none"]})",
                                 R"({"type":"array","items":{"type":"number"},"maxItems":5})",
                                 R"({"type":"string","maxLength":40})",
                                 R"({"type":"boolean"})"};
    std::string schema = kinds[i % 6];
    if (has_patterns && i % 6 == 0)
      schema = R"({"type":"string","pattern":"^[A-Z][a-z]+ [0-9]{2,4}$"})";
    if (i == num_properties - 1 && depth > 1)
      schema = ObjectSchema(num_properties, depth - 1, has_patterns);
    absl::StrAppend(&properties, i > 0 ? "," : "", "\"property_", i, "\":", schema);
    if (i % 2 == 0 || i == num_properties - 1)
      absl::StrAppend(&required, required.empty() ? "" : ",", "\"property_", i, "\"");
  }
  return absl::StrCat(R"({"type":"object","additionalProperties":false,"properties":{)",
                      properties,
                      R"(},"required":[)",
                      required,
                      "]}");
}

void Report(const char* name, double figure, double goal, const char* unit) {
  std::printf("%-58s %9.2f %s  goal %6.1f  ratio %.3f\n", name, figure, unit, goal, figure / goal);
}

int Run(int argc, char** argv) {
  std::vector<std::string> tokens;
  if (argc > 1) {
    auto tokenizer = Tokenizer::Load(argv[1]);
    if (!tokenizer.ok()) {
      std::fprintf(stderr, "%s\n", tokenizer.status().ToString().c_str());
      return 1;
    }
    for (TokenId id = 0; id < (*tokenizer)->vocab_size(); ++id) {
      tokens.emplace_back((*tokenizer)->IsSpecial(id) ? absl::string_view()
                                                      : (*tokenizer)->TokenBytes(id));
    }
  } else {
    tokens = MadeUpTokens();
  }
  std::vector<std::pair<absl::string_view, int32_t>> pairs;
  for (size_t i = 0; i < tokens.size(); ++i) pairs.emplace_back(tokens[i], static_cast<int32_t>(i));
  auto start = std::chrono::steady_clock::now();
  const TokenTrie trie(std::move(pairs));
  std::printf("%zu tokens, %u tree nodes, made in %.1f ms\n",
              tokens.size(),
              trie.num_nodes(),
              MicrosSince(start) / 1000);

  using Kind = ConstraintSource::Kind;
  const std::vector<std::pair<std::string, ConstraintSource>> sources = {
      {"30 properties", {.kind = Kind::kJsonSchema, .text = ObjectSchema(30, 1, false)}},
      {"30 properties, depth 5", {.kind = Kind::kJsonSchema, .text = ObjectSchema(30, 5, false)}},
      {"6 properties, depth 5", {.kind = Kind::kJsonSchema, .text = ObjectSchema(6, 5, false)}},
      {"30 properties with patterns, depth 5",
       {.kind = Kind::kJsonSchema, .text = ObjectSchema(30, 5, true)}},
      {"any object", {.kind = Kind::kJsonObject}},
      {"regex [A-Za-z ]{50,400}", {.kind = Kind::kRegex, .text = "[A-Za-z ]{50,400}"}}};
  for (const auto& [name, source] : sources) {
    double best_ms = 1e9;
    std::shared_ptr<const CompiledConstraint> compiled;
    for (int i = 0; i < 5; ++i) {
      start = std::chrono::steady_clock::now();
      auto made = CompileConstraint(source, Limits());
      best_ms = std::min(best_ms, MicrosSince(start) / 1000);
      if (!made.ok()) {
        std::fprintf(stderr, "%s: %s\n", name.c_str(), made.status().ToString().c_str());
        return 1;
      }
      compiled = *std::move(made);
    }
    Report(absl::StrCat(name, ": compile").c_str(), best_ms, 50, "ms");
    // A request of up to 300 tokens is the first of its constraint; nine more follow.
    TokenMasker masker(
        *Automaton::Parse(compiled->automaton), &trie, static_cast<int32_t>(tokens.size()));
    std::vector<double> micros;
    TokenMask mask;
    double first_request = 0;
    size_t num_first = 0;
    for (uint64_t seed = 0; seed < 10; ++seed) {
      std::mt19937_64 random(seed);
      Machine::State state = masker.machine().start();
      for (int step = 0; step < 300 && masker.machine().goes_on(state); ++step) {
        start = std::chrono::steady_clock::now();
        masker.Mask(state, &mask);
        micros.push_back(MicrosSince(start));
        int32_t token = -1;
        if (mask.lists_allowed) {
          token = mask.ids[random() % mask.ids.size()];
        } else {
          // As models do, strings end after some words.
          const std::vector<uint32_t> bits = mask.Bits(static_cast<int32_t>(tokens.size()));
          do {
            token = random() % 8 == 0 ? '"' : static_cast<int32_t>(random() % tokens.size());
          } while ((bits[static_cast<size_t>(token) / 32] >> (token % 32) & 1) == 0);
        }
        state = masker.NextOfToken(state, token);
      }
      if (seed == 0) {
        for (const double m : micros) first_request += m;
        num_first = micros.size();
      }
    }
    double sum = 0;
    for (const double m : micros) sum += m;
    Report(absl::StrCat(name, ": mask, mean of the first request").c_str(),
           first_request / static_cast<double>(num_first),
           50,
           "us");
    Report(absl::StrCat(name, ": mask, mean of ten requests").c_str(),
           sum / static_cast<double>(micros.size()),
           50,
           "us");
    std::sort(micros.begin(), micros.end());
    std::printf("  %zu masks, p50 %.2f us, p99 %.1f us, most %.1f us; %zu states, %zu KiB\n",
                micros.size(),
                micros[micros.size() / 2],
                micros[micros.size() * 99 / 100],
                micros.back(),
                masker.machine().num_states(),
                compiled->automaton.size() / 1024);
  }
  return 0;
}

}  // namespace
}  // namespace pagoda::engine::guided

int main(int argc, char** argv) { return pagoda::engine::guided::Run(argc, argv); }
