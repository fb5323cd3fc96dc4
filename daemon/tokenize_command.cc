#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "daemon/by_hand.h"
#include "daemon/commands.h"
#include "daemon/exit_code.h"
#include "engine/text/detokenizer.h"
#include "engine/text/tokenizer.h"
#include "kernels/base/status_macros.h"

namespace pagoda::daemon {
namespace {

using engine::TokenId;
using engine::Tokenizer;

struct TextArguments {
  std::string model;
  std::vector<std::string> texts;
  std::vector<TokenId> ids;
  bool no_special_tokens = false;
  bool parse_special_tokens = false;
  bool keep_special_tokens = false;
};

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& model) {
  PAGODA_ASSIGN_OR_RETURN(const std::string dir, FindModelDirectory(model));
  return Tokenizer::Load(dir);
}

absl::StatusOr<Json> AnswerTokenize(const Tokenizer& tokenizer, const Json& question) {
  PAGODA_ASSIGN_OR_RETURN(const Json* text, Member(question, "text", Json::value_t::string));
  if (text == nullptr) return absl::InvalidArgumentError("text: expected a string");
  engine::EncodeOptions options;
  PAGODA_ASSIGN_OR_RETURN(options.add_special_tokens,
                          BoolMember(question, "add_special_tokens", true));
  PAGODA_ASSIGN_OR_RETURN(options.parse_special_tokens,
                          BoolMember(question, "parse_special_tokens", false));
  PAGODA_ASSIGN_OR_RETURN(const std::vector<TokenId> ids,
                          tokenizer.Encode(text->get_ref<const std::string&>(), options));
  return Json{{"ids", ids}};
}

// What a stream sends with each token, and at the end what was held back.
std::vector<std::string> PiecesOf(const Tokenizer& tokenizer,
                                  const std::vector<TokenId>& ids,
                                  bool skip_special_tokens) {
  std::vector<std::string> pieces(ids.size() + 1);
  engine::Detokenizer detokenizer(&tokenizer, skip_special_tokens, /*begins_text=*/true);
  for (size_t i = 0; i < ids.size(); ++i) detokenizer.Append(ids[i], &pieces[i]);
  detokenizer.Finish(&pieces.back());
  return pieces;
}

absl::StatusOr<Json> AnswerDetokenize(const Tokenizer& tokenizer, const Json& question) {
  PAGODA_ASSIGN_OR_RETURN(const Json* list, Member(question, "ids", Json::value_t::array));
  if (list == nullptr) return absl::InvalidArgumentError("ids: expected an array");
  std::vector<TokenId> ids;
  for (const Json& id : *list) {
    const bool is_known = id.is_number_integer() && id.get<int64_t>() >= 0 &&
                          id.get<int64_t>() < tokenizer.vocab_size();
    if (!is_known) {
      return absl::InvalidArgumentError(absl::StrCat("ids[",
                                                     ids.size(),
                                                     "]: ",
                                                     id.dump(),
                                                     " is no token id; expected 0 to ",
                                                     tokenizer.vocab_size() - 1));
    }
    ids.push_back(id.get<TokenId>());
  }
  PAGODA_ASSIGN_OR_RETURN(const bool skip_special_tokens,
                          BoolMember(question, "skip_special_tokens", true));
  PAGODA_ASSIGN_OR_RETURN(const bool want_pieces, BoolMember(question, "pieces", false));
  Json answer = {{"text", tokenizer.Decode(ids, skip_special_tokens)}};
  if (want_pieces) answer["pieces"] = PiecesOf(tokenizer, ids, skip_special_tokens);
  return answer;
}

int RunTokenize(const TextArguments& arguments) {
  const auto tokenizer = LoadTokenizer(arguments.model);
  if (!tokenizer.ok()) return Fail(tokenizer.status(), kExitBadModel);
  const auto answer = [&](const Json& question) { return AnswerTokenize(**tokenizer, question); };
  if (arguments.texts.empty()) return AnswerLines(answer);
  for (const std::string& text : arguments.texts) {
    const int exit_code = AnswerOnce(answer,
                                     {{"text", text},
                                      {"add_special_tokens", !arguments.no_special_tokens},
                                      {"parse_special_tokens", arguments.parse_special_tokens}});
    if (exit_code != kExitOk) return exit_code;
  }
  return kExitOk;
}

int RunDetokenize(const TextArguments& arguments) {
  const auto tokenizer = LoadTokenizer(arguments.model);
  if (!tokenizer.ok()) return Fail(tokenizer.status(), kExitBadModel);
  const auto answer = [&](const Json& question) { return AnswerDetokenize(**tokenizer, question); };
  if (arguments.ids.empty()) return AnswerLines(answer);
  return AnswerOnce(
      answer, {{"ids", arguments.ids}, {"skip_special_tokens", !arguments.keep_special_tokens}});
}

}  // namespace

void RegisterTokenizeCommand(CLI::App& app, int* exit_code) {
  CLI::App* command =
      app.add_subcommand("tokenize", "Encode text with a model's tokenizer, without a daemon");
  const auto arguments = std::make_shared<TextArguments>();
  command->add_option("MODEL", arguments->model, "Directory, or ORG/NAME from the local cache")
      ->required()
      ->type_name("");
  command
      ->add_option("TEXT",
                   arguments->texts,
                   "Each is answered with a line {\"ids\": [...]}. Without any, every line of "
                   "standard input is: {\"text\": ..., \"add_special_tokens\": true, "
                   "\"parse_special_tokens\": false}")
      ->type_name("");
  command->add_flag("--no-special-tokens",
                    arguments->no_special_tokens,
                    "Do not let the tokenizer add BOS and the like");
  command->add_flag("--parse-special-tokens",
                    arguments->parse_special_tokens,
                    "Text that spells a special token becomes it");
  command->callback([arguments, exit_code] { *exit_code = RunTokenize(*arguments); });
}

void RegisterDetokenizeCommand(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand(
      "detokenize", "Decode token ids with a model's tokenizer, without a daemon");
  const auto arguments = std::make_shared<TextArguments>();
  command->add_option("MODEL", arguments->model, "Directory, or ORG/NAME from the local cache")
      ->required()
      ->type_name("");
  command
      ->add_option("ID",
                   arguments->ids,
                   "Token ids, also separated by commas, answered with {\"text\": ...}. Without "
                   "any, every line of standard input is: {\"ids\": [...], "
                   "\"skip_special_tokens\": true, \"pieces\": false}")
      ->delimiter(',')
      ->type_name("");
  command->add_flag("--keep-special-tokens",
                    arguments->keep_special_tokens,
                    "Special tokens are part of the text");
  command->callback([arguments, exit_code] { *exit_code = RunDetokenize(*arguments); });
}

}  // namespace pagoda::daemon
