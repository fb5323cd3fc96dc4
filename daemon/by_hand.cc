#include "daemon/by_hand.h"

#include <cstdio>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "daemon/client/failure.h"
#include "daemon/config/model_path.h"
#include "daemon/config/setting_source.h"
#include "daemon/exit_code.h"
#include "engine/text/chat_json.h"
#include "kernels/base/status_macros.h"

namespace pagoda::daemon {
namespace {

absl::StatusOr<Json> AnswerLine(Answer answer, const std::string& line) {
  PAGODA_ASSIGN_OR_RETURN(const Json question, engine::ParseChatJson(line));
  if (!question.is_object()) return absl::InvalidArgumentError("expected a JSON object");
  return answer(question);
}

void Print(const Json& answer) { std::cout << answer.dump() << std::endl; }

}  // namespace

absl::StatusOr<std::string> FindModelDirectory(const std::string& model) {
  MergedConfig merged;
  merged.config.mutable_model()->set_path(model);
  PAGODA_RETURN_IF_ERROR(ResolveModel(ModelPlaces::FromEnvironment(), &merged));
  return merged.config.model().path();
}

int AnswerLines(Answer answer) {
  std::string line;
  while (std::getline(std::cin, line)) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const absl::StatusOr<Json> result = AnswerLine(answer, line);
    Print(result.ok() ? *result : Json{{"error", std::string(result.status().message())}});
  }
  return kExitOk;
}

int AnswerOnce(Answer answer, const Json& question) {
  const absl::StatusOr<Json> result = answer(question);
  if (!result.ok()) return Fail(result.status(), kExitFailure);
  Print(*result);
  return kExitOk;
}

int Fail(const absl::Status& status, int exit_code) {
  std::cerr << "pagoda: " << PrintableText(std::string(status.message())) << "\n";
  return exit_code;
}

absl::StatusOr<bool> BoolMember(const Json& question, const char* key, bool otherwise) {
  PAGODA_ASSIGN_OR_RETURN(const Json* member, Member(question, key, Json::value_t::boolean));
  return member == nullptr ? otherwise : member->get<bool>();
}

absl::StatusOr<const Json*> Member(const Json& question, const char* key, Json::value_t type) {
  const auto member = question.find(key);
  if (member == question.end() || member->is_null()) return nullptr;
  if (member->type() != type) {
    return absl::InvalidArgumentError(
        absl::StrCat(key, ": expected ", Json(type).type_name(), ", found ", member->type_name()));
  }
  return &*member;
}

}  // namespace pagoda::daemon
