#include "daemon/server/api_keys.h"

#include <algorithm>
#include <map>
#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "kernels/base/status_macros.h"

namespace pagoda::daemon {
namespace {

constexpr absl::string_view kScheme = "bearer ";
constexpr size_t kMaxTenantNameBytes = 64;
// Beyond, the lighter tenant is as good as shut out.
constexpr double kMinWeight = 0.001;
constexpr double kMaxWeight = 1000.0;

absl::Status LineError(int line, absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat("line ", line, ": expected ", expected));
}

bool IsKey(absl::string_view word) {
  return std::all_of(word.begin(), word.end(), [](char c) { return c > ' ' && c < 0x7F; });
}

bool IsTenantName(absl::string_view name) {
  return !name.empty() && name.size() <= kMaxTenantNameBytes &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' ||
                  c == '.';
         });
}

// What a line says about its key.
struct Attributes {
  std::string tenant;
  std::optional<double> weight;
  AccessClass access = AccessClass::kUser;
};

absl::Status ReadAttribute(absl::string_view word, int line, Attributes* out) {
  if (absl::ConsumePrefix(&word, "tenant=")) {
    if (!IsTenantName(word))
      return LineError(line, "tenant=NAME of at most 64 letters, digits, '-', '_' and '.'");
    out->tenant = std::string(word);
    return absl::OkStatus();
  }
  if (absl::ConsumePrefix(&word, "weight=")) {
    double weight = 0;
    if (!absl::SimpleAtod(word, &weight) || !(weight >= kMinWeight && weight <= kMaxWeight))
      return LineError(line, "weight= with a number from 0.001 to 1000");
    out->weight = weight;
    return absl::OkStatus();
  }
  if (absl::ConsumePrefix(&word, "class=")) {
    if (word == "user") {
      out->access = AccessClass::kUser;
    } else if (word == "metrics") {
      out->access = AccessClass::kMetrics;
    } else if (word == "admin") {
      out->access = AccessClass::kAdmin;
    } else {
      return LineError(line, "class=user, class=metrics or class=admin");
    }
    return absl::OkStatus();
  }
  // The key may be among these words, so none is repeated.
  return LineError(line, "a key without spaces, then only tenant=, weight= and class=");
}

}  // namespace

ApiKeys::Digest ApiKeys::DigestOf(absl::string_view key) {
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), digest.data());
  return digest;
}

absl::StatusOr<ApiKeys> ApiKeys::Parse(absl::string_view text) {
  ApiKeys keys;
  std::map<std::string, double> weights;  // of tenants, where a line says it
  int line_number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++line_number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line.front() == '#') continue;
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    if (!IsKey(words.front()))
      return LineError(line_number, "a key of printable ASCII without spaces");
    Attributes attributes;
    for (size_t i = 1; i < words.size(); ++i)
      PAGODA_RETURN_IF_ERROR(ReadAttribute(words[i], line_number, &attributes));
    const Digest digest = DigestOf(words.front());
    if (std::any_of(keys.entries_.begin(), keys.entries_.end(), [&digest](const Entry& entry) {
          return entry.digest == digest;
        })) {
      return LineError(line_number, "a key that no line above has");
    }
    if (attributes.weight.has_value()) {
      const auto [known, is_new] = weights.emplace(attributes.tenant, *attributes.weight);
      if (!is_new && known->second != *attributes.weight)
        return LineError(line_number, "the weight that a line above gives the tenant");
    }
    keys.entries_.push_back({.digest = digest,
                             .caller = {.tenant = {.name = std::move(attributes.tenant)},
                                        .access = attributes.access}});
  }
  if (keys.empty()) return absl::InvalidArgumentError("expected at least one key, one a line");
  for (Entry& entry : keys.entries_) {
    const auto found = weights.find(entry.caller.tenant.name);
    if (found != weights.end()) entry.caller.tenant.weight = found->second;
  }
  keys.ShareQueue();
  return keys;
}

void ApiKeys::ShareQueue() {
  std::map<std::string, double> weights;
  for (const Entry& entry : entries_) {
    if (entry.caller.access >= AccessClass::kUser)
      weights[entry.caller.tenant.name] = entry.caller.tenant.weight;
  }
  double sum = 0;
  for (const auto& [name, weight] : weights) sum += weight;
  for (Entry& entry : entries_) {
    if (entry.caller.access >= AccessClass::kUser)
      entry.caller.tenant.queue_share = entry.caller.tenant.weight / sum;
  }
}

const Caller* ApiKeys::Find(absl::string_view authorization) const {
  if (!absl::StartsWithIgnoreCase(authorization, kScheme)) return nullptr;
  const Digest shown = DigestOf(absl::StripAsciiWhitespace(authorization.substr(kScheme.size())));
  const Caller* caller = nullptr;
  for (const Entry& entry : entries_) {
    if (CRYPTO_memcmp(shown.data(), entry.digest.data(), shown.size()) == 0) caller = &entry.caller;
  }
  return caller;
}

}  // namespace pagoda::daemon
