#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace pagoda::testing {

// One family of a Prometheus text exposition.
struct ExpositionFamily {
  struct Sample {
    std::string name;  // with _bucket, _sum or _count
    std::map<std::string, std::string> labels;
    double value = 0.0;
  };
  std::string type;
  std::string help;
  std::vector<Sample> samples;
};

using Exposition = std::map<std::string, ExpositionFamily>;

// Parses format 0.0.4 strictly: every sample follows its family's HELP and TYPE, names and labels
// are well formed, no series comes twice, histograms are cumulative and end at +Inf with their
// count.
absl::StatusOr<Exposition> ParseExposition(absl::string_view text);

// What `promtool check metrics` complains about, and values that no counter, gauge or histogram of
// ours can have. Families whose name does not begin with one of `prefixes` are left alone.
std::vector<std::string> LintExposition(const Exposition& exposition,
                                        const std::vector<std::string>& prefixes);

// Sum of the samples of that name whose labels include `labels`.
double Sum(const Exposition& exposition,
           const std::string& name,
           const std::map<std::string, std::string>& labels = {});

}  // namespace pagoda::testing
