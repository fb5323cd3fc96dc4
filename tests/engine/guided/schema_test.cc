#include <cstdlib>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "tests/engine/guided/guided_testing.h"
#include "tests/reference/json_schema.h"

namespace pagoda::engine::guided {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

ordered_json Corpus() {
  std::ifstream file(PAGODA_SOURCE_DIR "/tests/data/guided/schemas.json");
  std::stringstream text;
  text << file.rdbuf();
  return ordered_json::parse(text.str());
}

absl::StatusOr<Automaton> CompileSchemaText(const std::string& schema) {
  return CompileToAutomaton(ConstraintSource::Kind::kJsonSchema, schema);
}

// What a model of random weights writes under each schema of the corpus parses and validates.
// PAGODA_GUIDED_OUTPUTS names a file that gets a line of JSON for each output, for other
// validators; PAGODA_GUIDED_SEEDS the number of outputs by schema.
TEST(SchemaCorpusTest, EveryOutputParsesAndValidates) {
  const ordered_json corpus = Corpus();
  ASSERT_GE(corpus["accepted"].size(), 200u);
  const char* const seeds_text = std::getenv("PAGODA_GUIDED_SEEDS");
  const int num_seeds = seeds_text != nullptr ? std::atoi(seeds_text) : 10;
  const char* const outputs_path = std::getenv("PAGODA_GUIDED_OUTPUTS");
  std::ofstream outputs;
  if (outputs_path != nullptr) outputs.open(outputs_path);
  const TestVocabulary vocabulary;
  int num_complete = 0, num_drawn = 0;
  for (const auto& [name, schema] : corpus["accepted"].items()) {
    SCOPED_TRACE(name);
    const auto automaton = CompileSchemaText(schema.dump());
    ASSERT_TRUE(automaton.ok()) << automaton.status();
    TokenMasker masker(
        *automaton, vocabulary.trie.get(), static_cast<int32_t>(vocabulary.tokens.size()));
    const json plain = json::parse(schema.dump());
    int num_complete_here = 0;
    for (int seed = 0; seed < num_seeds; ++seed) {
      const Drawn drawn = Draw(masker, vocabulary, static_cast<uint64_t>(seed), 4000);
      ASSERT_FALSE(drawn.is_stuck) << drawn.text;
      ++num_drawn;
      if (!drawn.is_complete) continue;
      ++num_complete_here;
      const json value = json::parse(drawn.text, nullptr, /*allow_exceptions=*/false);
      ASSERT_FALSE(value.is_discarded()) << "no JSON: " << drawn.text;
      ASSERT_EQ(reference::WhyInvalid(value, plain, plain), "") << drawn.text;
      if (outputs_path != nullptr)
        outputs << json{{"name", name}, {"text", drawn.text}}.dump() << "\n";
    }
    num_complete += num_complete_here;
    EXPECT_GT(num_complete_here, 0);
    masker.Trim();
  }
  // Those that can nest for ever may be cut off.
  EXPECT_GT(num_complete, num_drawn * 9 / 10);
  std::printf("%d of %d outputs complete\n", num_complete, num_drawn);
}

TEST(SchemaCorpusTest, RefusalsNameTheKeyword) {
  const auto corpus = Corpus();
  for (const auto& entry : corpus["refused"]) {
    const auto automaton = CompileSchemaText(entry[1].dump());
    EXPECT_TRUE(absl::IsInvalidArgument(automaton.status())) << entry;
    EXPECT_TRUE(absl::StrContains(automaton.status().message(), entry[0].get<std::string>()))
        << entry << ": " << automaton.status();
  }
}

struct TextCase {
  const char* schema;
  std::vector<const char*> inside;
  std::vector<const char*> outside;
};

// What is and what is not in the language, at its edges.
TEST(SchemaTest, HasTheRightEdges) {
  const TextCase cases[] = {
      {R"({"type":"integer","minimum":-12,"maximum":105})",
       {"-12", "-9", "-1", "0", "99", "100", "105"},
       {"-13", "-20", "106", "110", "1000", "-0", "00", "1.0", "1e1", ""}},
      {R"({"type":"number","exclusiveMinimum":0.1,"maximum":2.25})",
       {"0.11", "0.100001", "1", "2", "2.25", "2.250", "1.999999"},
       {"0.1", "0.10", "0", "2.26", "2.2500001", "3", "-1", "1."}},
      {R"({"type":"number","minimum":-0.5,"exclusiveMaximum":0})",
       {"-0.5", "-0.50", "-0.25", "-0.001"},
       {"-0.51", "0", "-0", "-0.0", "-1", "0.1"}},
      {R"({"type":"number"})",
       {"0", "-1", "1.5", "1e5", "1.5E-10", "-0", "999999999999999"},
       {"01", ".5", "1.", "+1", "1e", "1e100", "NaN"}},
      {R"({"type":"string","minLength":1,"maxLength":2})",
       {"\"a\"", "\"ab\"", "\"é😀\"", R"("\n\u00e9")", R"("\ud83d\ude00a")"},
       {"\"\"", "\"abc\"", R"("\ud83d")", R"("\ude00")", "\"a\nb\"", "\"a"}},
      {R"({"type":"string","pattern":"^a\"\\\\\n$"})",
       {R"("a\"\\\n")"},
       {"\"a\"\\\n\"", R"("a\"\\")"}},
      {R"({"properties":{"a":{"type":"null"},"b":{"type":"null"}},"required":["b"]})",
       {R"({"b":null})",
        R"({"a":null,"b":null})",
        R"({ "a": null, "b": null })",
        "{\n  \"b\": null\n}"},
       {R"({})",
        R"({"a":null})",
        R"({"b":null,"a":null})",
        R"({"b":null,})",
        R"({,"b":null})",
        R"({"b":null,"b":null})",
        R"({"b":null,"c":null})",
        R"({"b" :null})",
        R"({"b":  null})"}},
      {R"({"properties":{"ab":{"type":"null"}},"additionalProperties":{"const":1}})",
       {R"({})", R"({"ab":null})", R"({"ab":null,"a":1,"abc":1,"":1,"b":1})", R"({"é":1})"},
       {R"({"ab":1})", R"({"a":1,"ab":null})", R"({"a":null})", R"({"\u0061b":1})"}},
      {R"({"type":"array","prefixItems":[{"const":1},{"const":2}],"items":{"const":3},
         "minItems":1,"maxItems":4})",
       {"[1]", "[1,2]", "[1, 2, 3]", "[1,2,3,3]"},
       {"[]", "[2]", "[1,3]", "[1,2,3,3,3]", "[1,]"}},
      {R"({"type":"array","items":{"const":0},"minItems":2})",
       {"[0,0]", "[0,0,0,0,0]", "[ 0, 0 ]"},
       {"[]", "[0]", "[0,0"}},
      {R"({"enum":["a","ab",{"k":[1]}]})",
       {"\"a\"", "\"ab\"", R"({"k":[1]})"},
       {"\"b\"", "\"abc\""}},
      {R"({"type":["integer","null"]})", {"7", "null"}, {"\"7\"", "true"}}};
  for (const TextCase& test : cases) {
    const auto automaton = CompileSchemaText(test.schema);
    ASSERT_TRUE(automaton.ok()) << automaton.status();
    for (const char* text : test.inside)
      EXPECT_TRUE(Matches(*automaton, text)) << test.schema << text;
    for (const char* text : test.outside)
      EXPECT_FALSE(Matches(*automaton, text)) << test.schema << text;
  }
}

TEST(SchemaTest, AnyObjectIsAnObject) {
  const auto automaton = CompileToAutomaton(ConstraintSource::Kind::kJsonObject, "");
  ASSERT_TRUE(automaton.ok()) << automaton.status();
  for (const char* text : {"{}", R"({"a":[1,{"b":null}],"c":"d"})", "{\n\t\"x\": -1.5e3\n}"})
    EXPECT_TRUE(Matches(*automaton, text)) << text;
  for (const char* text : {"[]", "1", "{} ", " {}", "{\"a\"}", "{\"a\":}"})
    EXPECT_FALSE(Matches(*automaton, text)) << text;
}

// Bounds against every number of a grid.
TEST(SchemaTest, BoundsAgreeWithArithmetic) {
  const double bounds[] = {-101, -99.5, -10, -1.05, -1, -0.5, 0, 0.5, 1, 1.05, 9, 10, 99.5, 101};
  for (const double low : bounds) {
    for (const double high : bounds) {
      if (low > high) continue;
      for (const bool open : {false, true}) {
        const json schema = {{"type", "number"},
                             {open ? "exclusiveMinimum" : "minimum", low},
                             {open ? "exclusiveMaximum" : "maximum", high}};
        const auto automaton = CompileSchemaText(schema.dump());
        if (!automaton.ok()) {
          ASSERT_TRUE(open && low == high) << automaton.status();
          continue;
        }
        Machine machine(&*automaton, {});
        for (int hundredths = -10200; hundredths <= 10200; hundredths += 5) {
          char text[32];
          std::snprintf(text,
                        sizeof(text),
                        "%s%d.%02d",
                        hundredths < 0 ? "-" : "",
                        std::abs(hundredths) / 100,
                        std::abs(hundredths) % 100);
          const double value = hundredths / 100.0;
          const bool inside = open ? low < value && value < high : low <= value && value <= high;
          ASSERT_EQ(Matches(machine, text), inside) << schema << " " << text;
        }
      }
    }
  }
}

}  // namespace
}  // namespace pagoda::engine::guided
