#include <fstream>
#include <sstream>
#include <utility>

#include <yaml-cpp/yaml.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/config/setting.h"
#include "daemon/config/setting_source.h"
#include "kernels/base/status_macros.h"

namespace pagoda::daemon {
namespace {

// Far more than every setting with comments takes.
constexpr size_t kMaxFileBytes = 1 << 20;

absl::Status FileError(absl::string_view file, int line, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(file, ":", line, ": ", what));
}

std::string UnknownKey(const std::string& key) {
  const std::string closest = ClosestSettingName(key);
  return absl::StrCat(
      "unknown key ", key, closest.empty() ? "" : absl::StrCat("; did you mean ", closest, "?"));
}

absl::StatusOr<std::string> ValueText(const Setting& setting, const YAML::Node& value) {
  if (value.IsScalar()) return value.Scalar();
  const bool is_list = setting.kind == SettingKind::kList;
  std::vector<std::string> items;
  if (value.IsSequence() && is_list) {
    for (const YAML::Node& item : value) {
      if (item.IsScalar()) items.push_back(item.Scalar());
    }
  }
  if (!value.IsSequence() || !is_list || items.size() != value.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(setting.name, ": expected ", is_list ? "names" : "one value"));
  }
  return absl::StrJoin(items, ",");
}

absl::StatusOr<SettingTexts> ReadMapping(const YAML::Node& root, absl::string_view file) {
  SettingTexts texts;
  if (root.IsNull()) return texts;
  if (!root.IsMap()) return FileError(file, root.Mark().line + 1, "expected lines of KEY: VALUE");
  for (const auto& entry : root) {
    const int line = entry.first.Mark().line + 1;
    if (!entry.first.IsScalar()) return FileError(file, line, "expected KEY: VALUE");
    const Setting* setting = FindSetting(entry.first.Scalar());
    if (setting == nullptr) return FileError(file, line, UnknownKey(entry.first.Scalar()));
    const absl::StatusOr<std::string> text = ValueText(*setting, entry.second);
    if (!text.ok()) return FileError(file, line, text.status().message());
    const bool is_new =
        texts.try_emplace(setting->name, SettingText{*text, absl::StrCat(file, ":", line)}).second;
    if (!is_new) return FileError(file, line, absl::StrCat("second value of ", setting->name));
  }
  return texts;
}

}  // namespace

absl::StatusOr<SettingTexts> ParseConfigFile(const std::string& text, absl::string_view file) {
  try {
    return ReadMapping(YAML::Load(text), file);
  } catch (const YAML::ParserException& e) {
    return FileError(file, e.mark.line + 1, e.msg);
  } catch (const std::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": ", e.what()));
  }
}

absl::StatusOr<SettingTexts> ReadConfigFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxFileBytes + 1, '\0');
  if (!file.is_open() || file.read(text.data(), static_cast<std::streamsize>(text.size())).bad()) {
    return absl::InvalidArgumentError(
        absl::StrCat("configuration file ", path, ": cannot be read"));
  }
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kMaxFileBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("configuration file ", path, ": expected at most ", kMaxFileBytes, " bytes"));
  }
  return ParseConfigFile(text, path);
}

}  // namespace pagoda::daemon
