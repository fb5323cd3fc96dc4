#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "pagoda/internal/v1/config.pb.h"

namespace pagoda::daemon {

enum class SettingKind {
  kText,
  kList,     // comma-separated; a YAML sequence in a file
  kChoice,   // one of `choices`
  kSwitch,   // --NAME and --no-NAME
  kCount,    // 32k and 32K are 32,000 and 32,768
  kBytes,    // 2GiB, 512MB
  kSeconds,  // 30s, 500ms, 2m; stored in milliseconds
  kReal,
  kSecretFile,  // path of a file whose bytes are the value
};

// One thing that a user of `pagoda serve` can set: as --NAME, as PAGODA_NAME in the environment, as
// NAME in a configuration file. Every field of ServerConfig that does not follow
// from the model has one.
struct Setting {
  const char* name;
  // Path in ServerConfig, such as "engine.block_size".
  const char* field;
  const char* group;
  SettingKind kind;
  // What --help shows for the value.
  const char* value;
  const char* help;
  // Used when nobody sets it; empty: decided by ResolveDefaults, as the help says.
  const char* default_text = "";
  const char* choices = "";
  double min = 0;
  double max = 0;
};

// All of them, in the order of --help.
absl::Span<const Setting> Settings();
// Null when there is none. `name` may have '_' for '-'.
const Setting* FindSetting(absl::string_view name);
// The name that `name` was most likely meant to be; empty when none is close.
std::string ClosestSettingName(absl::string_view name);
// "PAGODA_BLOCK_SIZE".
std::string EnvironmentName(const Setting& setting);

// Parses `text` into the setting's field. The error says what was expected, not where the text came
// from.
absl::Status StoreSetting(const Setting& setting,
                          absl::string_view text,
                          internal::v1::ServerConfig* config);
// The field's value as a text that StoreSetting takes.
std::string FormatSetting(const Setting& setting, const internal::v1::ServerConfig& config);

}  // namespace pagoda::daemon
