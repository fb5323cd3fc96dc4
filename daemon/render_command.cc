#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "daemon/by_hand.h"
#include "daemon/commands.h"
#include "daemon/exit_code.h"
#include "engine/text/chat_json.h"
#include "engine/text/chat_template_files.h"
#include "kernels/base/status_macros.h"

namespace pagoda::daemon {
namespace {

struct RenderArguments {
  std::string model;
  std::string prompt;
  std::string system;
  std::string messages_file;
  std::string tools_file;
  std::string template_arguments;
  bool no_generation_prompt = false;
  bool continue_final_message = false;

  bool AnyMessage() const { return !prompt.empty() || !system.empty() || !messages_file.empty(); }
};

absl::StatusOr<std::unique_ptr<engine::ChatTemplate>> LoadTemplate(const std::string& model) {
  PAGODA_ASSIGN_OR_RETURN(const std::string dir, FindModelDirectory(model));
  PAGODA_ASSIGN_OR_RETURN(auto chat_template, engine::LoadChatTemplate(dir));
  if (chat_template == nullptr) {
    return absl::NotFoundError(absl::StrCat(
        dir, " has no chat template: no chat_template.jinja, none in tokenizer_config.json"));
  }
  return chat_template;
}

// Members reach the template as they are, so that its text equals the reference library's.
absl::StatusOr<Json> AnswerRender(const engine::ChatTemplate& chat_template, const Json& question) {
  engine::ChatInput input = {.now_seconds = absl::ToUnixSeconds(absl::Now())};
  PAGODA_ASSIGN_OR_RETURN(input.messages, Member(question, "messages", Json::value_t::array));
  if (input.messages == nullptr) return absl::InvalidArgumentError("messages: expected an array");
  PAGODA_ASSIGN_OR_RETURN(input.tools, Member(question, "tools", Json::value_t::array));
  PAGODA_ASSIGN_OR_RETURN(input.arguments,
                          Member(question, "template_arguments", Json::value_t::object));
  PAGODA_ASSIGN_OR_RETURN(input.continue_final_message,
                          BoolMember(question, "continue_final_message", false));
  PAGODA_ASSIGN_OR_RETURN(
      input.add_generation_prompt,
      BoolMember(question, "add_generation_prompt", !input.continue_final_message));
  if (input.add_generation_prompt && input.continue_final_message) {
    return absl::InvalidArgumentError("add_generation_prompt excludes continue_final_message");
  }
  PAGODA_ASSIGN_OR_RETURN(engine::RenderedChat rendered, chat_template.Render(input));
  return Json{{"text", std::move(rendered.text)}};
}

absl::StatusOr<Json> ReadJsonFile(absl::string_view flag, const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(in), {});
  if (!in) return absl::InvalidArgumentError(absl::StrCat(flag, ": cannot read ", file));
  absl::StatusOr<Json> value = engine::ParseChatJson(text);
  if (!value.ok())
    return absl::InvalidArgumentError(
        absl::StrCat(flag, ": ", file, ": ", value.status().message()));
  return value;
}

absl::StatusOr<Json> QuestionOf(const RenderArguments& arguments) {
  Json messages = Json::array();
  if (!arguments.system.empty())
    messages.push_back({{"role", "system"}, {"content", arguments.system}});
  if (!arguments.messages_file.empty()) {
    PAGODA_ASSIGN_OR_RETURN(const Json list, ReadJsonFile("--messages", arguments.messages_file));
    if (!list.is_array()) return absl::InvalidArgumentError("--messages: expected a JSON array");
    messages.insert(messages.end(), list.begin(), list.end());
  }
  if (!arguments.prompt.empty())
    messages.push_back({{"role", "user"}, {"content", arguments.prompt}});
  Json question = {{"messages", std::move(messages)}};
  if (!arguments.tools_file.empty()) {
    PAGODA_ASSIGN_OR_RETURN(question["tools"], ReadJsonFile("--tools", arguments.tools_file));
  }
  if (!arguments.template_arguments.empty()) {
    PAGODA_ASSIGN_OR_RETURN(question["template_arguments"],
                            engine::ParseChatJson(arguments.template_arguments));
  }
  if (arguments.no_generation_prompt) question["add_generation_prompt"] = false;
  question["continue_final_message"] = arguments.continue_final_message;
  return question;
}

int RunRender(const RenderArguments& arguments) {
  const auto chat_template = LoadTemplate(arguments.model);
  if (!chat_template.ok()) return Fail(chat_template.status(), kExitBadModel);
  const auto answer = [&](const Json& question) { return AnswerRender(**chat_template, question); };
  if (!arguments.AnyMessage()) return AnswerLines(answer);
  const absl::StatusOr<Json> question = QuestionOf(arguments);
  if (!question.ok()) return Fail(question.status(), kExitUsage);
  return AnswerOnce(answer, *question);
}

}  // namespace

void RegisterRenderCommand(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand(
      "render", "Render chat messages with a model's template, without a daemon");
  const auto arguments = std::make_shared<RenderArguments>();
  command->add_option("MODEL", arguments->model, "Directory, or ORG/NAME from the local cache")
      ->required()
      ->type_name("");
  command
      ->add_option("PROMPT",
                   arguments->prompt,
                   "A user's message, answered with {\"text\": ...}. Without any message, every "
                   "line of standard input is: {\"messages\": [...], \"tools\": [...], "
                   "\"add_generation_prompt\": true}")
      ->type_name("");
  command->add_option("--system", arguments->system, "System message");
  command->add_option(
      "--messages", arguments->messages_file, "JSON file of messages before PROMPT");
  command->add_option("--tools", arguments->tools_file, "JSON file of tool definitions");
  command->add_option("--template-arguments",
                      arguments->template_arguments,
                      "JSON object of further template variables");
  command->add_flag(
      "--no-generation-prompt", arguments->no_generation_prompt, "Do not open an assistant turn");
  command->add_flag("--continue-final-message",
                    arguments->continue_final_message,
                    "Cut what the template writes after the last message's text");
  command->callback([arguments, exit_code] { *exit_code = RunRender(*arguments); });
}

}  // namespace pagoda::daemon
