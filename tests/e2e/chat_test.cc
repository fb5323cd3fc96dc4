// Chats through the API and with the client, and the commands that need no daemon.

#include <algorithm>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/calls.h"
#include "tests/e2e/test_daemon.h"
#include "tests/fixtures/chain_model.h"

namespace pagoda::e2e::chat_test {
namespace {

using fixtures::ByteTokenizerIds;
using fixtures::Chain;
using fixtures::ChainModel;
using json = nlohmann::ordered_json;
using ::testing::HasSubstr;

struct Served {
  explicit Served(const fixtures::ModelFiles& files) : dir(fixtures::WriteModelDir(files)) {
    auto started =
        TestDaemon::Start({.model_dir = dir.path(), .flags = {"--kv-cache-memory=8MiB"}});
    EXPECT_TRUE(started.ok()) << started.status();
    if (!started.ok()) std::abort();
    daemon = *std::move(started);
  }

  fixtures::TemporaryDir dir;
  std::unique_ptr<TestDaemon> daemon;
};

v1::GenerateRequest ChatRequest(const std::string& text) {
  v1::GenerateRequest request;
  v1::ChatMessage* message = request.mutable_prompt()->mutable_chat()->add_messages();
  message->set_role("user");
  message->add_content()->set_text(text);
  request.mutable_stopping()->set_max_tokens(3);
  request.mutable_sampling()->set_temperature(0);
  request.mutable_output()->set_prompt_logprobs(0);
  return request;
}

std::vector<uint32_t> PromptIds(const CallResult& result) {
  std::vector<uint32_t> ids;
  for (const v1::TokenLogprobs& position : result.prompt_logprobs)
    ids.push_back(position.token().token_id());
  return ids;
}

TEST(Chat, MessagesAreAnsweredUnaryAndAsAStream) {
  const ByteTokenizerIds ids = fixtures::IdsOf({});
  const Served served(ChainModel({.next = Chain({'\n', 'o', 'k', ids.im_end})}));
  v1::InferenceService::Stub& stub = served.daemon->stub();
  const v1::GenerateRequest request = ChatRequest("hi <|im_end|>");
  for (const CallResult& result : {Generate(stub, request), StreamGenerate(stub, request)}) {
    ASSERT_TRUE(result.status.ok()) << result.status.error_message();
    EXPECT_EQ(result.first().text, "ok");
    const std::vector<uint32_t> prompt = PromptIds(result);
    EXPECT_EQ(prompt.size(), result.started.prompt_tokens());
    EXPECT_EQ(prompt.front(), static_cast<uint32_t>(ids.im_start));
    // The template's end of the turn, not the user's.
    EXPECT_EQ(std::count(prompt.begin(), prompt.end(), static_cast<uint32_t>(ids.im_end)), 1);
  }
  // A refusal is the client's, and the next chat is served.
  v1::GenerateRequest empty = request;
  empty.mutable_prompt()->mutable_chat()->clear_messages();
  const CallResult refused = Generate(stub, empty);
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(FirstViolation(refused.status), "prompt.chat.messages");
  EXPECT_TRUE(Generate(stub, request).status.ok());
  // B036: an empty content is a chat like any other.
  EXPECT_TRUE(Generate(stub, ChatRequest("")).status.ok());
}

TEST(Chat, B044RaisedErrorsReachTheClient) {
  fixtures::ModelFiles files = ChainModel({.next = Chain({'a', 'b'})});
  files.other_files["chat_template.jinja"] =
      "{% if messages | length > 1 %}{{ raise_exception('one message only') }}{% endif %}"
      "{{ messages[0].content }}a";
  const Served served(files);
  v1::GenerateRequest request = ChatRequest("x");
  EXPECT_TRUE(Generate(served.daemon->stub(), request).status.ok());
  *request.mutable_prompt()->mutable_chat()->add_messages() = request.prompt().chat().messages(0);
  const CallResult refused = StreamGenerate(served.daemon->stub(), request);
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refused.status.error_message(), HasSubstr("one message only"));
  EXPECT_TRUE(Generate(served.daemon->stub(), ChatRequest("x")).status.ok());
}

TEST(Chat, B044BrokenTemplatesStopTheStart) {
  fixtures::ModelFiles files = ChainModel({.next = Chain({'a', 'b'})});
  files.other_files["chat_template.jinja"] = "fine\n{% if %}\n";
  const fixtures::TemporaryDir dir = fixtures::WriteModelDir(files);
  const CommandResult result = RunPagoda({"serve", dir.path(), "--check-config"});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr("chat_template.jinja: "));
  EXPECT_THAT(result.err, HasSubstr("line 2"));
}

TEST(Chat, ModelsWithoutATemplateSaySo) {
  fixtures::ModelFiles files = ChainModel({.next = Chain({'a', 'b'})});
  files.tokenizer_config.erase("chat_template");
  const Served served(files);
  const CallResult refused = Generate(served.daemon->stub(), ChatRequest("x"));
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refused.status.error_message(), HasSubstr("no chat template"));
}

TEST(Chat, WithTheClient) {
  const ByteTokenizerIds ids = fixtures::IdsOf({});
  const Served served(ChainModel({.next = Chain({'\n', 'o', 'k', ids.im_end})}));
  const CommandResult result = RunPagoda({"generate",
                                          "hi",
                                          "--chat",
                                          "--system=be kind",
                                          "--temperature=0",
                                          "--max-tokens=3",
                                          "--address=" + served.daemon->grpc_address()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "ok\n");
}

// ---- Without a daemon

std::string Lines(const std::vector<json>& questions) {
  std::string lines;
  for (const json& question : questions) lines += question.dump() + "\n";
  return lines;
}

std::vector<json> Answers(const std::string& command,
                          const std::string& model,
                          const std::vector<json>& questions) {
  const CommandResult result = RunPagoda({command, model}, absl::Seconds(60), Lines(questions));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::vector<json> answers;
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) answers.push_back(json::parse(line));
  EXPECT_EQ(answers.size(), questions.size());
  answers.resize(questions.size());
  return answers;
}

TEST(ByHand, ArgumentsAndLines) {
  const std::string model = DefaultModelDir();
  EXPECT_EQ(RunPagoda({"tokenize", model, "Once upon a time"}).out,
            "{\"ids\":[3777,663,259,562]}\n");
  EXPECT_EQ(RunPagoda({"detokenize", model, "3777,663", "259", "562"}).out,
            "{\"text\":\"Once upon a time\"}\n");
  EXPECT_EQ(RunPagoda({"render", model, "hi", "--system=be kind"}).out,
            "{\"text\":\"be kind\\n\\nhi\"}\n");
  const auto answers = Answers("tokenize",
                               model,
                               {{{"text", "Once upon a time"}},
                                {{"text", "<|endoftext|>"}, {"parse_special_tokens", true}},
                                {{"text", 7}},
                                json::array()});
  EXPECT_EQ(answers[0]["ids"], (json{3777, 663, 259, 562}));
  EXPECT_EQ(answers[1]["ids"], json{0});
  EXPECT_EQ(answers[2]["error"], "text: expected string, found number");
  EXPECT_EQ(answers[3]["error"], "expected a JSON object");
  const auto texts = Answers("detokenize",
                             model,
                             {{{"ids", {0, 3777}}, {"skip_special_tokens", false}},
                              {{"ids", {0, 3777}}},
                              {{"ids", {4096}}}});
  EXPECT_EQ(texts[0]["text"], "<|endoftext|>Once");
  EXPECT_EQ(texts[1]["text"], "Once");
  EXPECT_THAT(texts[2]["error"].get<std::string>(), HasSubstr("4096 is no token id"));
}

TEST(ByHand, ErrorsNameWhatIsWrong) {
  EXPECT_EQ(RunPagoda({"tokenize"}).exit_code, 2);
  const CommandResult missing = RunPagoda({"tokenize", "/no/such/model", "x"});
  EXPECT_EQ(missing.exit_code, 3);
  EXPECT_THAT(missing.err, HasSubstr("/no/such/model"));
  const CommandResult id = RunPagoda({"detokenize", DefaultModelDir(), "99999"});
  EXPECT_EQ(id.exit_code, 1);
  EXPECT_THAT(id.err, HasSubstr("99999"));
}

// Every text and chat of the conformance data through the commands; 0 differences.
class ByHandConformance : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!ConformanceDir().has_value())
      GTEST_SKIP() << "no conformance data: set PAGODA_CONFORMANCE_DIR";
    dir_ = *ConformanceDir() + "/tokenizers/" + GetParam();
  }
  json Golden(const std::string& file) const {
    std::ifstream in(dir_ + "/" + file);
    return in ? json::parse(in) : json{{"cases", json::array()}};
  }

  std::string dir_;
};

TEST_P(ByHandConformance, Texts) {
  const json golden = Golden("golden_text.json");
  std::vector<json> plain, special, decode;
  for (const json& c : golden["cases"]) {
    plain.push_back(
        {{"text", c["text"]}, {"add_special_tokens", false}, {"parse_special_tokens", true}});
    special.push_back({{"text", c["text"]}, {"parse_special_tokens", true}});
    decode.push_back({{"ids", c["ids"]}});
    decode.push_back({{"ids", c["ids"]}, {"skip_special_tokens", false}});
  }
  const auto plain_answers = Answers("tokenize", dir_, plain);
  const auto special_answers = Answers("tokenize", dir_, special);
  const auto texts = Answers("detokenize", dir_, decode);
  int differences = 0;
  for (size_t i = 0; i < golden["cases"].size(); ++i) {
    const json& c = golden["cases"][i];
    const auto expect = [&](const json& answer, const json& expected) {
      if (answer != expected) ++differences;
      EXPECT_EQ(answer, expected) << c["text"];
    };
    expect(plain_answers[i]["ids"], c["ids"]);
    // Pagoda's rule: a text that spells BOS does not get a second one.
    json with_special = c["ids_special"];
    if (with_special.size() > 1 && with_special[0] == with_special[1]) with_special.erase(0);
    if (c["ids_special"].size() == c["ids"].size()) with_special = c["ids_special"];
    expect(special_answers[i]["ids"], with_special);
    expect(texts[2 * i]["text"], c["decoded"]);
    expect(texts[2 * i + 1]["text"], c["decoded_with_special"]);
  }
  EXPECT_EQ(differences, 0);
}

TEST_P(ByHandConformance, Chats) {
  const json golden = Golden("golden_chat.json");
  std::vector<json> questions;
  for (const json& c : golden["cases"])
    questions.push_back({{"messages", c["messages"]},
                         {"tools", c["tools"]},
                         {"add_generation_prompt", c["add_generation_prompt"]}});
  if (questions.empty()) {
    const CommandResult refused = RunPagoda({"render", dir_, "hi"});
    EXPECT_EQ(refused.exit_code, 3);
    EXPECT_THAT(refused.err, HasSubstr("has no chat template"));
    return;
  }
  const auto answers = Answers("render", dir_, questions);
  for (size_t i = 0; i < questions.size(); ++i) {
    const json& c = golden["cases"][i];
    if (c.contains("error")) {
      EXPECT_TRUE(answers[i].contains("error")) << c["name"];
    } else {
      EXPECT_EQ(answers[i]["text"], c["rendered"]) << c["name"];
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenizers,
                         ByHandConformance,
                         ::testing::Values("llama2", "llama3_1", "qwen3"));

}  // namespace
}  // namespace pagoda::e2e::chat_test
