#include "daemon/openai/output_parser.h"

#include <random>

#include "gtest/gtest.h"

namespace pagoda::daemon::openai {
namespace {

// Everything that came, as one text.
struct Total {
  std::string reasoning;
  std::string content;
  std::vector<std::string> calls;  // "name(arguments)"

  bool operator==(const Total& other) const {
    return reasoning == other.reasoning && content == other.content && calls == other.calls;
  }
};

void Add(const ParsedOutput& piece, Total* total) {
  total->reasoning += piece.reasoning;
  total->content += piece.content;
  for (const ToolCallPiece& call : piece.calls) {
    if (call.index >= total->calls.size()) total->calls.resize(call.index + 1);
    std::string& text = total->calls[call.index];
    text += call.name.empty() ? call.arguments : call.name + ": " + call.arguments;
  }
}

Total Parse(const OutputShape& shape, ReasoningMode mode, const std::vector<std::string>& pieces) {
  const auto parser = MakeOutputParser(shape, mode);
  Total total;
  for (const std::string& piece : pieces) {
    ParsedOutput out;
    parser->Feed(piece, &out);
    Add(out, &total);
  }
  ParsedOutput out;
  parser->Finish(&out);
  Add(out, &total);
  return total;
}

const OutputShape kTools = {.tools = {"f", "g"}};

TEST(OutputParserTest, ThoughtsComeBeforeTheAnswer) {
  const Total total =
      Parse({}, ReasoningMode::kAuto, {"<think>\nwhy? <b> \n</think>\n\nBecause. "});
  EXPECT_EQ(total.reasoning, "why? <b>");
  EXPECT_EQ(total.content, "Because. ");
}

TEST(OutputParserTest, TextWithoutTagsIsText) {
  const std::string text = "  <thin ice> {\"name\": 1} </think> ";
  EXPECT_EQ(Parse({}, ReasoningMode::kAuto, {text}).content, text);
  EXPECT_EQ(Parse({}, ReasoningMode::kNone, {"<think>a</think>b"}).content, "<think>a</think>b");
}

TEST(OutputParserTest, TheTemplateMayHaveOpenedTheTag) {
  const Total total = Parse({}, ReasoningMode::kOpen, {"a</think>b"});
  EXPECT_EQ(total.reasoning, "a");
  EXPECT_EQ(total.content, "b");
}

TEST(OutputParserTest, HermesCalls) {
  const Total total = Parse(kTools,
                            ReasoningMode::kAuto,
                            {"Let me see. \n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": "
                             "1}}\n</tool_call>\n<tool_call>{\"name\":\"g\"}</tool_call>"});
  EXPECT_EQ(total.content, "Let me see.");
  EXPECT_EQ(total.calls, (std::vector<std::string>{"f: {\"a\": 1}", "g: {}"}));
}

TEST(OutputParserTest, LlamaCalls) {
  const Total total = Parse(kTools,
                            ReasoningMode::kAuto,
                            {"{\"name\": \"f\", \"parameters\": {\"a\": \"}\"}}; {\"name\": \"g\", "
                             "\"parameters\": {}}"});
  EXPECT_EQ(total.content, "");
  EXPECT_EQ(total.calls, (std::vector<std::string>{"f: {\"a\": \"}\"}", "g: {}"}));
}

TEST(OutputParserTest, WhatIsNoCallOfTheseToolsIsText) {
  for (const std::string text : {"{\"name\": \"h\", \"parameters\": {}}",
                                 "{\"name\": \"f\", \"parameters\": ",
                                 "{\"answer\": 1}",
                                 "x <tool_call>{\"name\": \"h\"}</tool_call> y",
                                 "x <tool_call>{",
                                 "<|python"}) {
    const Total total = Parse(kTools, ReasoningMode::kAuto, {text});
    EXPECT_EQ(total.content, text);
    EXPECT_TRUE(total.calls.empty());
  }
}

// The pieces that each character of the text gives: calls are told before they have ended.
TEST(OutputParserTest, ArgumentsComeAsTheModelWritesThem) {
  const std::pair<OutputShape, std::string> kCases[] = {
      {kTools, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1}}</tool_call>"},
      {kTools, "{\"name\":\"f\",\"parameters\":{\"a\":1}}"},
      {{.requires_calls = true}, "[{\"name\":\"f\",\"parameters\":{\"a\":1}}]"}};
  for (const auto& [shape, text] : kCases) {
    const auto parser = MakeOutputParser(shape, ReasoningMode::kAuto);
    std::vector<std::string> pieces;
    for (const char c : text) {
      ParsedOutput out;
      parser->Feed(std::string(1, c), &out);
      for (const ToolCallPiece& piece : out.calls) pieces.push_back(piece.name + piece.arguments);
      EXPECT_EQ(out.content, "");
    }
    EXPECT_EQ(pieces, (std::vector<std::string>{"f{", "\"", "a", "\"", ":", "1", "}"})) << text;
    EXPECT_EQ(parser->num_calls(), 1u);
    ParsedOutput out;
    parser->Finish(&out);
    EXPECT_TRUE(out.empty());
  }
}

TEST(OutputParserTest, CallsInUnusualShape) {
  const std::pair<const char*, const char*> kCases[] = {
      {"<tool_call>{\"arguments\": {\"a\": 1}, \"name\": \"f\"}</tool_call>", "f: {\"a\":1}"},
      {"<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>",
       "f: {\"a\": 1}"},
      {"<tool_call>{\"name\": \"f\", \"arguments\": {}, \"id\": \"}\"}</tool_call>\n", "f: {}"},
      {"<tool_call>{\"name\": \"f\", \"arguments\": {}}", "f: {}"},
      {"<tool_call>{\"name\": \"f\", \"arguments\": {\"a", "f: {\"a"},
      {"<|python_tag|>{\"type\": \"function\", \"function\": \"f\", \"parameters\": {}}", "f: {}"}};
  for (const auto& [text, call] : kCases) {
    const Total total = Parse(kTools, ReasoningMode::kAuto, {text});
    EXPECT_EQ(total.calls, std::vector<std::string>{call}) << text;
    EXPECT_EQ(total.content, "") << text;
  }
}

TEST(OutputParserTest, TextAfterCalls) {
  const std::string call = "{\"name\": \"f\", \"arguments\": {}}";
  EXPECT_EQ(Parse(kTools, ReasoningMode::kAuto, {call + "\nDone."}).content, "\nDone.");
  EXPECT_EQ(
      Parse(kTools, ReasoningMode::kAuto, {"<tool_call>" + call + "</tool_call> Done."}).content,
      " Done.");
  EXPECT_EQ(Parse(kTools, ReasoningMode::kAuto, {"<tool_call>" + call + "Done."}).content, "Done.");
}

TEST(OutputParserTest, TellsWhatIsThought) {
  const auto parser = MakeOutputParser({}, ReasoningMode::kAuto);
  ParsedOutput out;
  parser->Feed(" <th", &out);
  EXPECT_EQ(parser->thought_bytes(), 0u);
  EXPECT_TRUE(parser->may_think());
  parser->Feed("ink>ab", &out);
  EXPECT_EQ(parser->thought_bytes(), 10u);
  parser->Feed("</think>c", &out);
  EXPECT_EQ(parser->thought_bytes(), 18u);
  EXPECT_FALSE(parser->may_think());
}

TEST(OutputParserTest, ForcedAndRequiredCalls) {
  const Total forced = Parse({.forced_tool = "f"}, ReasoningMode::kAuto, {"{\"a\"", ":1}"});
  EXPECT_EQ(forced.calls, std::vector<std::string>{"f: {\"a\":1}"});
  const Total required = Parse({.requires_calls = true},
                               ReasoningMode::kAuto,
                               {"[{\"name\":\"f\",\"parameters\":{\"a\":1}}]"});
  EXPECT_EQ(required.calls, std::vector<std::string>{"f: {\"a\":1}"});
}

// Property: the sum does not depend on where the text is cut.
TEST(OutputParserTest, AnySplitGivesTheSame) {
  const std::vector<std::string> fragments = {
      "<think>",
      "</think>",
      "<thinking>",
      "</thinking>",
      "<tool_call>",
      "</tool_call>",
      "<",
      "</",
      "{\"name\": \"f\", \"arguments\": {\"x\": [1, \"}\"]}}",
      "{\"name\": \"g\", \"parameters\": {}}",
      "[{\"name\": \"g\", \"parameters\": {}}",
      "{\"name\": \"h\"",
      "\"name\": \"f\"",
      "\"arguments\": {\"\\\"\": 0}",
      ", ",
      "]",
      "; ",
      "{",
      "}",
      " ",
      "\n",
      "a",
      "answer ",
      "<|python_tag|>",
      "\xC3\xA9",
      "<t"};
  const std::vector<OutputShape> shapes = {
      {}, kTools, {.forced_tool = "f"}, {.requires_calls = true}};
  std::mt19937 random(7);
  const auto below = [&random](size_t n) {
    return std::uniform_int_distribution<size_t>(0, n - 1)(random);
  };
  for (int round = 0; round < 20'000; ++round) {
    std::string text;
    for (size_t n = below(9); n > 0; --n) text += fragments[below(fragments.size())];
    std::vector<std::string> pieces(1);
    const size_t cut = 1 + below(6);
    for (const char c : text) {
      if (below(cut) == 0) pieces.emplace_back();
      pieces.back() += c;
    }
    const OutputShape& shape = shapes[below(shapes.size())];
    const auto mode = static_cast<ReasoningMode>(below(3));
    ASSERT_TRUE(Parse(shape, mode, {text}) == Parse(shape, mode, pieces)) << text;
  }
}

}  // namespace
}  // namespace pagoda::daemon::openai
