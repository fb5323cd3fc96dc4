#include "daemon/config/setting_source.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "daemon/config/setting.h"
#include "kernels/base/status_macros.h"

namespace pagoda::daemon {
namespace {

using internal::v1::ServerConfig;

constexpr char kDefault[] = "default";

absl::Status Apply(const SettingTexts& texts, MergedConfig* merged) {
  for (const auto& [name, value] : texts) {
    const Setting* setting = FindSetting(name);
    if (setting == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(value.origin, ": no setting ", name));
    }
    const absl::Status status = StoreSetting(*setting, value.text, &merged->config);
    if (!status.ok()) {
      // A flag's and a variable's name are joined to the value as they were; in a file the key
      // comes first.
      const bool in_file = absl::StrContains(value.origin, ':');
      return absl::InvalidArgumentError(absl::StrCat(value.origin,
                                                     in_file ? absl::StrCat(": ", name, ": ") : "=",
                                                     value.text,
                                                     ": ",
                                                     status.message()));
    }
    merged->origins[name] = value.origin;
  }
  return absl::OkStatus();
}

std::string Quoted(absl::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + '"';
}

// As YAML; texts that could be taken for something else are quoted.
std::string YamlValue(const Setting& setting, const std::string& text) {
  if (setting.kind == SettingKind::kText) return Quoted(text);
  if (setting.kind != SettingKind::kList) return text;
  if (text.empty()) return "[]";
  std::vector<std::string> items;
  for (const absl::string_view item : absl::StrSplit(text, ',')) items.push_back(Quoted(item));
  return absl::StrCat("[", absl::StrJoin(items, ", "), "]");
}

}  // namespace

SettingTexts ReadEnvironment(const char* const* environment) {
  SettingTexts texts;
  for (const Setting& setting : Settings()) {
    const std::string name = EnvironmentName(setting);
    for (const char* const* entry = environment; *entry != nullptr; ++entry) {
      absl::string_view text = *entry;
      if (!absl::ConsumePrefix(&text, name) || !absl::ConsumePrefix(&text, "=")) continue;
      texts[setting.name] = {.text = std::string(text), .origin = name};
    }
  }
  return texts;
}

std::vector<std::string> EnvironmentWarnings(const char* const* environment) {
  std::vector<std::string> warnings;
  for (const char* const* entry = environment; *entry != nullptr; ++entry) {
    const absl::string_view variable =
        absl::string_view(*entry).substr(0, absl::string_view(*entry).find('='));
    absl::string_view rest = variable;
    if (!absl::ConsumePrefix(&rest, "PAGODA_")) continue;
    const std::string name = absl::AsciiStrToLower(rest);
    if (FindSetting(name) != nullptr || name == "config") continue;
    const std::string closest = ClosestSettingName(name);
    if (closest.empty()) continue;
    warnings.push_back(absl::StrCat(variable,
                                    " is ignored: no such setting; did you mean ",
                                    EnvironmentName(*FindSetting(closest)),
                                    "?"));
  }
  return warnings;
}

absl::StatusOr<MergedConfig> MergeSettings(const SettingSources& sources) {
  MergedConfig merged;
  for (const Setting& setting : Settings()) {
    merged.origins[setting.name] = kDefault;
    if (setting.default_text[0] == '\0') continue;
    PAGODA_RETURN_IF_ERROR(StoreSetting(setting, setting.default_text, &merged.config));
  }
  PAGODA_RETURN_IF_ERROR(Apply(sources.file, &merged));
  PAGODA_RETURN_IF_ERROR(Apply(sources.environment, &merged));
  PAGODA_RETURN_IF_ERROR(Apply(sources.flags, &merged));
  return merged;
}

std::string PrintConfig(const MergedConfig& merged) {
  std::string out;
  absl::string_view group;
  for (const Setting& setting : Settings()) {
    if (group != setting.group) {
      absl::StrAppend(&out, out.empty() ? "" : "\n", "# ", setting.group, "\n");
      group = setting.group;
    }
    const std::string text = FormatSetting(setting, merged.config);
    std::string line = absl::StrCat(setting.name, ": ", YamlValue(setting, text));
    // A secret is never printed; a default one has no file to name.
    if (setting.kind == SettingKind::kSecretFile)
      line = absl::StrCat("# ", setting.name, ": (not shown)");
    if (setting.kind == SettingKind::kCount && text.empty())
      line = absl::StrCat("# ", setting.name, ": (not set)");
    absl::StrAppendFormat(&out, "%-48s  # %s\n", line, merged.origins.at(setting.name));
  }
  return out;
}

}  // namespace pagoda::daemon
