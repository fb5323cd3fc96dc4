#include "engine/guided/string_format.h"

#include <utility>

namespace pagoda::engine::guided {
namespace {

// Every month has the days that it has in every year.
constexpr absl::string_view kDate =
    "[1-9]\\d{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)"
    "|02-(?:0[1-9]|1\\d|2[0-8]))";
constexpr absl::string_view kTime =
    "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,6})?(?:Z|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)";
constexpr absl::string_view kDateTime =
    "[1-9]\\d{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)"
    "|02-(?:0[1-9]|1\\d|2[0-8]))T"
    "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,6})?(?:Z|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)";
constexpr absl::string_view kDuration =
    "P(?:\\d{1,3}W|\\d{1,3}Y(?:\\d{1,2}M)?(?:\\d{1,3}D)?|\\d{1,2}M(?:\\d{1,3}D)?|\\d{1,3}D"
    "|T\\d{1,3}H(?:\\d{1,2}M(?:\\d{1,2}S)?)?|T\\d{1,2}M(?:\\d{1,2}S)?|T\\d{1,2}S)";
constexpr absl::string_view kHost =
    "[a-z](?:[a-z0-9]|-[a-z0-9]){0,15}(?:\\.[a-z](?:[a-z0-9]|-[a-z0-9]){0,15}){0,4}";
constexpr absl::string_view kEmail =
    "[A-Za-z0-9]{1,16}(?:[._+-][A-Za-z0-9]{1,16}){0,3}"
    "@[a-z](?:[a-z0-9]|-[a-z0-9]){0,15}(?:\\.[a-z](?:[a-z0-9]|-[a-z0-9]){0,15}){1,4}";
constexpr absl::string_view kUri =
    "https?://[a-z](?:[a-z0-9]|-[a-z0-9]){0,15}(?:\\.[a-z](?:[a-z0-9]|-[a-z0-9]){0,15}){0,4}"
    "(?::[1-9]\\d{0,3})?(?:/[A-Za-z0-9._~-]{0,32}){0,8}"
    "(?:\\?[A-Za-z0-9._~=&-]{1,64})?(?:#[A-Za-z0-9._~-]{1,32})?";
constexpr absl::string_view kUuid = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}";
constexpr absl::string_view kIpv4 =
    "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)(?:\\.(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)){3}";
constexpr absl::string_view kIpv6 = "[0-9a-f]{1,4}(?::[0-9a-f]{1,4}){7}";

constexpr std::pair<absl::string_view, absl::string_view> kFormats[] = {
    {"date", kDate},
    {"time", kTime},
    {"date-time", kDateTime},
    {"duration", kDuration},
    {"email", kEmail},
    {"hostname", kHost},
    {"ipv4", kIpv4},
    {"ipv6", kIpv6},
    {"uri", kUri},
    {"uuid", kUuid},
};

}  // namespace

absl::optional<absl::string_view> FormatPattern(absl::string_view format) {
  for (const auto& [name, pattern] : kFormats)
    if (name == format) return pattern;
  return absl::nullopt;
}

}  // namespace pagoda::engine::guided
