#include "daemon/client/bench_prompts.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/fixtures/model_files.h"

namespace pagoda::daemon {
namespace {

using ::testing::HasSubstr;

class ReadPromptsTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::vector<BenchPrompt>> Read(const std::string& content) {
    const std::string file = dir_.path() + "/prompts";
    std::ofstream(file, std::ios::binary) << content;
    return ReadPrompts(file);
  }
  std::string ErrorOf(const std::string& content) {
    return std::string(Read(content).status().message());
  }
  fixtures::TemporaryDir dir_;
};

TEST_F(ReadPromptsTest, LinesHaveATextAndMayHaveALength) {
  const auto prompts =
      Read("{\"prompt\": \"a\\nb\"}\n\n{\"prompt\": \"\\u00e9\", \"output_tokens\": 7}");
  ASSERT_TRUE(prompts.ok()) << prompts.status();
  ASSERT_EQ(prompts->size(), 2u);
  EXPECT_EQ((*prompts)[0].text, "a\nb");
  EXPECT_EQ((*prompts)[0].output_tokens, 0);
  EXPECT_EQ((*prompts)[1].text, "\xc3\xa9");
  EXPECT_EQ((*prompts)[1].output_tokens, 7);
}

TEST_F(ReadPromptsTest, ConversationsGiveTheFirstTurnAndItsAnswer) {
  const auto prompts = Read(R"(
    [{"id": "1", "conversations": [{"from": "gpt", "value": "Hello!"}, {"from": "human", "value": "Who?"},
                                   {"from": "gpt", "value": "I."}, {"from": "human", "value": "No."}]},
     {"conversations": [{"from": "human", "value": "alone"}]},
     {"conversations": []},
     {"conversations": [{"from": "human", "value": "2"}, {"from": "gpt", "value": "4"}]}])");
  ASSERT_TRUE(prompts.ok()) << prompts.status();
  ASSERT_EQ(prompts->size(), 2u);
  EXPECT_EQ((*prompts)[0].text, "Who?");
  EXPECT_EQ((*prompts)[0].reply, "I.");
  EXPECT_EQ((*prompts)[1].text, "2");
  EXPECT_EQ((*prompts)[1].reply, "4");
}

TEST_F(ReadPromptsTest, ErrorsNameTheFileThePlaceAndWhatWasExpected) {
  EXPECT_THAT(std::string(ReadPrompts("/nowhere/prompts").status().message()),
              HasSubstr("/nowhere/prompts: cannot be read"));
  EXPECT_THAT(ErrorOf("{\"prompt\": \"a\"}\n{\"text\": \"b\"}"),
              HasSubstr("prompts: line 2: expected a JSON object with a text \"prompt\""));
  EXPECT_THAT(ErrorOf("hello"), HasSubstr("line 1"));
  EXPECT_THAT(ErrorOf("{\"prompt\": 3}"), HasSubstr("line 1"));
  EXPECT_THAT(ErrorOf("{\"prompt\": \"\"}"), HasSubstr("not empty"));
  for (const char* tokens : {"0", "-1", "1.5", "\"3\"", "1e30", "99999999"}) {
    EXPECT_THAT(ErrorOf(std::string("{\"prompt\": \"a\", \"output_tokens\": ") + tokens + "}"),
                HasSubstr("line 1: expected \"output_tokens\" of 1 to 1048576"))
        << tokens;
  }
  EXPECT_THAT(ErrorOf(""), HasSubstr("at least one prompt"));
  EXPECT_THAT(ErrorOf("[]"), HasSubstr("at least one prompt"));
  EXPECT_THAT(ErrorOf("[{\"conversations\": ["), HasSubstr("expected valid JSON"));
  EXPECT_THAT(ErrorOf("[1]"), HasSubstr("element 0"));
  EXPECT_THAT(ErrorOf("[{\"conversations\": 1}]"), HasSubstr("element 0"));
  EXPECT_THAT(ErrorOf("[{\"conversations\": [{\"from\": \"human\"}]}]"), HasSubstr("element 0"));
}

}  // namespace
}  // namespace pagoda::daemon
