#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "pagoda/internal/v1/config.pb.h"

namespace pagoda::daemon {

// A value as the user wrote it, and where: "--block-size", "PAGODA_BLOCK_SIZE" or "pagoda.yaml:7".
struct SettingText {
  std::string text;
  std::string origin;
};

// By name of the setting.
using SettingTexts = std::map<std::string, SettingText>;

// Reads a YAML file: a mapping from setting names ('-' or '_') to scalars, or to a sequence of
// scalars for lists. INVALID_ARGUMENT naming file and line.
absl::StatusOr<SettingTexts> ReadConfigFile(const std::string& path);
// The same from a text; `file` is for messages.
absl::StatusOr<SettingTexts> ParseConfigFile(const std::string& text, absl::string_view file);

// PAGODA_* variables that name a setting, from an `environ`.
SettingTexts ReadEnvironment(const char* const* environment);
// One warning for each PAGODA_* variable that misspells a setting. Others are none of our business:
// the end-to-end tests use some, and Kubernetes makes some for a service named pagoda.
std::vector<std::string> EnvironmentWarnings(const char* const* environment);

// The sources of one run, strongest first.
struct SettingSources {
  SettingTexts flags;
  SettingTexts environment;
  SettingTexts file;
};

// A configuration, and for each setting where its value comes from ("default" when nobody gave
// one).
struct MergedConfig {
  internal::v1::ServerConfig config;
  std::map<std::string, std::string> origins;

  bool IsDefault(const std::string& name) const { return origins.at(name) == "default"; }
};

// Flag before environment before file before default. INVALID_ARGUMENT naming origin, value and
// what was expected, also for a value that a stronger source overrides.
absl::StatusOr<MergedConfig> MergeSettings(const SettingSources& sources);

// A configuration file that gives the same configuration, with the origin of each value in a
// comment.
std::string PrintConfig(const MergedConfig& merged);

}  // namespace pagoda::daemon
