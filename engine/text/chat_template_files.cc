#include "engine/text/chat_template_files.h"

#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "engine/text/utf8.h"
#include "kernels/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace pagoda::engine {
namespace {

using nlohmann::ordered_json;

// Template texts and the file that each comes from.
struct Sources {
  struct Source {
    std::string file;
    std::string text;
  };
  absl::optional<Source> usual;
  absl::optional<Source> with_tools;
};

class ToolAwareTemplate final : public ChatTemplate {
 public:
  ToolAwareTemplate(std::unique_ptr<ChatTemplate> usual, std::unique_ptr<ChatTemplate> with_tools)
      : usual_(std::move(usual)), with_tools_(std::move(with_tools)) {}

  absl::StatusOr<RenderedChat> Render(const ChatInput& input) const override {
    return (input.tools != nullptr ? *with_tools_ : *usual_).Render(input);
  }
  bool takes_content_parts() const override {
    return usual_->takes_content_parts() && with_tools_->takes_content_parts();
  }

 private:
  std::unique_ptr<ChatTemplate> usual_;
  std::unique_ptr<ChatTemplate> with_tools_;
};

absl::Status FileError(absl::string_view file, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(file, ": ", what));
}

// Absent when there is no such file.
absl::StatusOr<absl::optional<std::string>> ReadText(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) return absl::optional<std::string>();
  std::string text(std::istreambuf_iterator<char>(in), {});
  if (!IsValidUtf8(text)) return FileError(file, "not valid UTF-8");
  return absl::optional<std::string>(std::move(text));
}

// An empty object when there is no such file.
absl::StatusOr<ordered_json> ReadObject(const std::string& file) {
  PAGODA_ASSIGN_OR_RETURN(const absl::optional<std::string> text, ReadText(file));
  if (!text) return ordered_json::object();
  ordered_json object = ordered_json::parse(*text, /*cb=*/nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return FileError(file, "not a JSON object");
  return object;
}

// From a member "chat_template": a template, or a list of named ones.
absl::Status AddMember(const ordered_json& object, const std::string& file, Sources* sources) {
  const auto member = object.find("chat_template");
  if (member == object.end() || member->is_null()) return absl::OkStatus();
  if (member->is_string()) {
    sources->usual = Sources::Source{file, member->get<std::string>()};
    return absl::OkStatus();
  }
  if (!member->is_array())
    return FileError(file, "chat_template: expected a string or a list of named templates");
  for (const ordered_json& entry : *member) {
    const bool is_named = entry.is_object() && entry.contains("name") &&
                          entry["name"].is_string() && entry.contains("template") &&
                          entry["template"].is_string();
    if (!is_named)
      return FileError(file, "chat_template: expected \"name\" and \"template\" in each entry");
    const Sources::Source source{file, entry["template"].get<std::string>()};
    if (entry["name"] == "default") sources->usual = source;
    if (entry["name"] == "tool_use") sources->with_tools = source;
  }
  return absl::OkStatus();
}

absl::StatusOr<Sources> FindSources(const std::string& model_dir, const ordered_json& config) {
  Sources sources;
  PAGODA_RETURN_IF_ERROR(
      AddMember(config, absl::StrCat(model_dir, "/tokenizer_config.json"), &sources));
  const std::string json_file = absl::StrCat(model_dir, "/chat_template.json");
  PAGODA_ASSIGN_OR_RETURN(const ordered_json json, ReadObject(json_file));
  PAGODA_RETURN_IF_ERROR(AddMember(json, json_file, &sources));
  const auto add_file = [&](const std::string& name,
                            absl::optional<Sources::Source>* source) -> absl::Status {
    const std::string file = absl::StrCat(model_dir, "/", name);
    PAGODA_ASSIGN_OR_RETURN(absl::optional<std::string> text, ReadText(file));
    if (text) *source = Sources::Source{file, *std::move(text)};
    return absl::OkStatus();
  };
  PAGODA_RETURN_IF_ERROR(add_file("chat_template.jinja", &sources.usual));
  PAGODA_RETURN_IF_ERROR(add_file("additional_chat_templates/tool_use.jinja", &sources.with_tools));
  return sources;
}

absl::StatusOr<std::unique_ptr<ChatTemplate>> CompileSource(const Sources::Source& source,
                                                            const ordered_json& special_tokens) {
  auto compiled = ChatTemplate::Compile(source.text, special_tokens);
  if (!compiled.ok()) return FileError(source.file, compiled.status().message());
  return compiled;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChatTemplate>> LoadChatTemplate(const std::string& model_dir) {
  PAGODA_ASSIGN_OR_RETURN(const ordered_json config,
                          ReadObject(absl::StrCat(model_dir, "/tokenizer_config.json")));
  PAGODA_ASSIGN_OR_RETURN(const Sources sources, FindSources(model_dir, config));
  if (!sources.usual) return nullptr;
  // Older models keep the special tokens in a file of their own.
  PAGODA_ASSIGN_OR_RETURN(ordered_json special_tokens,
                          ReadObject(absl::StrCat(model_dir, "/special_tokens_map.json")));
  special_tokens.update(config);
  PAGODA_ASSIGN_OR_RETURN(std::unique_ptr<ChatTemplate> usual,
                          CompileSource(*sources.usual, special_tokens));
  if (!sources.with_tools) return usual;
  PAGODA_ASSIGN_OR_RETURN(std::unique_ptr<ChatTemplate> with_tools,
                          CompileSource(*sources.with_tools, special_tokens));
  return std::make_unique<ToolAwareTemplate>(std::move(usual), std::move(with_tools));
}

}  // namespace pagoda::engine
