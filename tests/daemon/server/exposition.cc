#include "tests/daemon/server/exposition.h"

#include <cmath>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace pagoda::testing {
namespace {

bool IsName(absl::string_view name, bool colons) {
  if (name.empty() || absl::ascii_isdigit(name[0])) return false;
  for (const char c : name) {
    if (!absl::ascii_isalnum(c) && c != '_' && !(colons && c == ':')) return false;
  }
  return true;
}

absl::Status Bad(absl::string_view line, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(why, ": ", line));
}

// Reads `name="value",...}` after the opening brace; leaves what follows the closing one.
absl::Status ParseLabels(absl::string_view* rest, std::map<std::string, std::string>* labels) {
  const absl::string_view line = *rest;
  while (!absl::ConsumePrefix(rest, "}")) {
    const size_t equals = rest->find('=');
    if (equals == absl::string_view::npos) return Bad(line, "no = in labels");
    const std::string name(rest->substr(0, equals));
    if (!IsName(name, false) || absl::StartsWith(name, "__")) return Bad(line, "bad label name");
    rest->remove_prefix(equals + 1);
    if (!absl::ConsumePrefix(rest, "\"")) return Bad(line, "no quote");
    std::string value;
    while (!rest->empty() && (*rest)[0] != '"') {
      if ((*rest)[0] == '\n') return Bad(line, "raw newline in a label");
      if ((*rest)[0] == '\\') {
        const absl::string_view escape = rest->substr(0, 2);
        if (escape != "\\\\" && escape != "\\\"" && escape != "\\n") return Bad(line, "bad escape");
        value.push_back(escape[1] == 'n' ? '\n' : escape[1]);
        rest->remove_prefix(2);
        continue;
      }
      value.push_back((*rest)[0]);
      rest->remove_prefix(1);
    }
    if (!absl::ConsumePrefix(rest, "\"")) return Bad(line, "label not closed");
    if (!labels->emplace(name, value).second) return Bad(line, "label twice");
    absl::ConsumePrefix(rest, ",");
  }
  return absl::OkStatus();
}

absl::StatusOr<double> ParseValue(absl::string_view text) {
  if (text == "+Inf") return INFINITY;
  if (text == "-Inf") return -INFINITY;
  if (text == "NaN" || text == "Nan") return NAN;
  double value = 0.0;
  if (!absl::SimpleAtod(text, &value)) return Bad(text, "bad value");
  return value;
}

absl::StatusOr<ExpositionFamily::Sample> ParseSample(absl::string_view line) {
  ExpositionFamily::Sample sample;
  absl::string_view rest = line;
  const size_t end = rest.find_first_of("{ ");
  if (end == absl::string_view::npos) return Bad(line, "no value");
  sample.name = std::string(rest.substr(0, end));
  if (!IsName(sample.name, true)) return Bad(line, "bad metric name");
  rest.remove_prefix(end);
  if (absl::ConsumePrefix(&rest, "{")) {
    const absl::Status status = ParseLabels(&rest, &sample.labels);
    if (!status.ok()) return status;
  }
  if (!absl::ConsumePrefix(&rest, " ")) return Bad(line, "no space before the value");
  const absl::StatusOr<double> value = ParseValue(rest);
  if (!value.ok()) return Bad(line, value.status().message());
  sample.value = *value;
  return sample;
}

// Whether a sample of this name belongs to the family.
bool Belongs(const std::string& sample, const std::string& family, const std::string& type) {
  if (sample == family) return type != "histogram";
  absl::string_view suffix = sample;
  if (!absl::ConsumePrefix(&suffix, family)) return false;
  if (type == "histogram") return suffix == "_bucket" || suffix == "_sum" || suffix == "_count";
  return type == "summary" && (suffix == "_sum" || suffix == "_count");
}

absl::Status CheckHistogram(const std::string& name, const ExpositionFamily& family) {
  std::map<std::map<std::string, std::string>, std::pair<double, double>> last;  // bound, count
  for (const auto& sample : family.samples) {
    auto labels = sample.labels;
    if (sample.name == name + "_bucket") {
      const absl::StatusOr<double> bound = ParseValue(labels["le"]);
      labels.erase("le");
      if (!bound.ok()) return Bad(name, "bad le");
      const auto found = last.find(labels);
      if (found != last.end() &&
          (*bound <= found->second.first || sample.value < found->second.second)) {
        return Bad(name, "buckets do not rise");
      }
      last[labels] = {*bound, sample.value};
    }
  }
  for (const auto& sample : family.samples) {
    if (sample.name != name + "_count") continue;
    const auto found = last.find(sample.labels);
    if (found == last.end() || !std::isinf(found->second.first) ||
        found->second.second != sample.value) {
      return Bad(name, "+Inf bucket is not the count");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Exposition> ParseExposition(absl::string_view text) {
  if (!absl::EndsWith(text, "\n"))
    return absl::InvalidArgumentError("the last line has no newline");
  Exposition families;
  std::string current;
  std::set<std::string> series;
  for (absl::string_view line : absl::StrSplit(absl::StripSuffix(text, "\n"), '\n')) {
    absl::string_view rest = line;
    if (absl::ConsumePrefix(&rest, "# HELP ")) {
      const std::pair<std::string, std::string> parts =
          absl::StrSplit(rest, absl::MaxSplits(' ', 1));
      if (families.count(parts.first) != 0) return Bad(line, "family twice");
      current = parts.first;
      families[current].help = parts.second;
    } else if (absl::ConsumePrefix(&rest, "# TYPE ")) {
      const std::pair<std::string, std::string> parts =
          absl::StrSplit(rest, absl::MaxSplits(' ', 1));
      if (parts.first != current) return Bad(line, "TYPE without HELP");
      families[current].type = parts.second;
    } else {
      const absl::StatusOr<ExpositionFamily::Sample> sample = ParseSample(line);
      if (!sample.ok()) return sample.status();
      if (!Belongs(sample->name, current, families[current].type))
        return Bad(line, "not of the family above");
      if (!series.insert(std::string(line.substr(0, line.rfind(' ')))).second)
        return Bad(line, "series twice");
      families[current].samples.push_back(*sample);
    }
  }
  for (const auto& [name, family] : families) {
    if (family.type != "histogram") continue;
    const absl::Status status = CheckHistogram(name, family);
    if (!status.ok()) return status;
  }
  return families;
}

std::vector<std::string> LintExposition(const Exposition& exposition,
                                        const std::vector<std::string>& prefixes) {
  std::vector<std::string> problems;
  for (const auto& [name, family] : exposition) {
    bool ours = false;
    for (const std::string& prefix : prefixes) ours |= absl::StartsWith(name, prefix);
    if (!ours) continue;
    const auto complain = [&, &name = name](absl::string_view what) {
      problems.push_back(absl::StrCat(name, ": ", what));
    };
    if (family.help.empty()) complain("no help text");
    const bool is_counter = family.type == "counter";
    if (is_counter != absl::EndsWith(name, "_total"))
      complain("_total is for counters, and for all of them");
    if (absl::StrContains(name, ":")) complain("a colon is for recording rules");
    if (name != absl::AsciiStrToLower(name)) complain("not in snake case");
    for (const char* part : {"_counter",
                             "_gauge",
                             "_histogram",
                             "_summary",
                             "_ms",
                             "_milliseconds",
                             "_micros",
                             "_kb",
                             "_percent",
                             "_minutes",
                             "_hours"}) {
      if (absl::EndsWith(name, part) || absl::StrContains(name, absl::StrCat(part, "_"))) {
        complain("type or non-base unit in the name");
      }
    }
    for (const auto& sample : family.samples) {
      if (std::isnan(sample.value) || sample.value < 0) complain("NaN or negative");
      if (std::isinf(sample.value)) complain("infinite");
      if (family.type != "histogram" && sample.labels.count("le") != 0)
        complain("le outside a histogram");
    }
  }
  return problems;
}

double Sum(const Exposition& exposition,
           const std::string& name,
           const std::map<std::string, std::string>& labels) {
  double sum = 0.0;
  for (const auto& [family_name, family] : exposition) {
    for (const auto& sample : family.samples) {
      if (sample.name != name) continue;
      bool matches = true;
      for (const auto& [key, value] : labels) {
        const auto found = sample.labels.find(key);
        matches &= found != sample.labels.end() && found->second == value;
      }
      if (matches) sum += sample.value;
    }
  }
  return sum;
}

}  // namespace pagoda::testing
