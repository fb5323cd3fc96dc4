#include "engine/text/tokenizer_config.h"

#include <cstdint>
#include <fstream>
#include <iterator>

#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine {
namespace {

using Json = nlohmann::json;

// Absent when there is no such file.
absl::optional<std::string> ReadFile(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) return absl::nullopt;
  return std::string(std::istreambuf_iterator<char>(in), {});
}

// The members of tokenizer_config.json, each with its name in errors.
class ConfigReader {
 public:
  ConfigReader(std::string file, Json root) : file_(std::move(file)), root_(std::move(root)) {}

  // A token is given by its spelling, or by an object that holds it as "content".
  absl::StatusOr<absl::optional<std::string>> Token(const char* key) const {
    const Json* value = Find(root_, key);
    if (value != nullptr && value->is_object()) value = Find(*value, "content");
    if (value == nullptr) return absl::optional<std::string>();
    if (!value->is_string()) return Error(key, "expected a string or an object with \"content\"");
    return absl::optional<std::string>(value->get_ref<const std::string&>());
  }

  absl::StatusOr<absl::optional<bool>> Bool(const char* key) const {
    const Json* value = Find(root_, key);
    if (value == nullptr) return absl::optional<bool>();
    if (!value->is_boolean()) return Error(key, "expected a boolean");
    return absl::optional<bool>(value->get<bool>());
  }

  absl::StatusOr<Json> AddedTokens() const {
    const Json* value = Find(root_, "added_tokens_decoder");
    if (value == nullptr) return Json::object();
    if (!value->is_object()) return Error("added_tokens_decoder", "expected an object");
    for (const auto& [id, token] : value->items()) {
      int32_t number = 0;
      if (!absl::SimpleAtoi(id, &number) || number < 0 || !token.is_object())
        return Error("added_tokens_decoder", "expected token objects by id");
    }
    return *value;
  }

 private:
  // Null when the member is absent or null.
  static const Json* Find(const Json& object, const char* key) {
    if (!object.is_object()) return nullptr;
    const auto member = object.find(key);
    return member == object.end() || member->is_null() ? nullptr : &*member;
  }

  absl::Status Error(absl::string_view key, absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(file_, ": ", key, ": ", what));
  }

  const std::string file_;
  const Json root_;
};

}  // namespace

absl::StatusOr<TokenizerConfig> ReadTokenizerConfig(const std::string& model_dir) {
  TokenizerConfig config;
  const std::string file = absl::StrCat(model_dir, "/tokenizer_config.json");
  if (const absl::optional<std::string> content = ReadFile(file)) {
    // Published files hold integers beyond 64 bits, which this parser takes as floating point.
    Json root = Json::parse(*content, /*cb=*/nullptr, /*allow_exceptions=*/false);
    if (!root.is_object())
      return absl::InvalidArgumentError(absl::StrCat(file, ": not a JSON object"));
    const ConfigReader reader(file, std::move(root));
    PAGODA_ASSIGN_OR_RETURN(config.bos_token, reader.Token("bos_token"));
    PAGODA_ASSIGN_OR_RETURN(config.eos_token, reader.Token("eos_token"));
    PAGODA_ASSIGN_OR_RETURN(config.add_bos_token, reader.Bool("add_bos_token"));
    PAGODA_ASSIGN_OR_RETURN(config.add_eos_token, reader.Bool("add_eos_token"));
    PAGODA_ASSIGN_OR_RETURN(config.added_tokens, reader.AddedTokens());
  }
  return config;
}

}  // namespace pagoda::engine
