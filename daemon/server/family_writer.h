#pragma once

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "prometheus/client_metric.h"
#include "prometheus/metric_family.h"
#include "prometheus/metric_type.h"

namespace pagoda::daemon {

// A family being written; one sample per call. Thread-compatible.
class FamilyWriter {
 public:
  using Labels = std::vector<prometheus::ClientMetric::Label>;

  FamilyWriter(std::vector<prometheus::MetricFamily>* families,
               const char* name,
               const char* help,
               prometheus::MetricType type)
      : family_(&families->emplace_back(prometheus::MetricFamily{name, help, type, {}})) {}

  FamilyWriter& Add(double value, Labels labels = {}) {
    prometheus::ClientMetric& metric = family_->metric.emplace_back();
    metric.label = std::move(labels);
    (family_->type == prometheus::MetricType::Counter ? metric.counter.value : metric.gauge.value) =
        value;
    return *this;
  }

  template <typename Histogram>
  FamilyWriter& AddHistogram(const Histogram& histogram, Labels labels = {}) {
    prometheus::ClientMetric& metric = family_->metric.emplace_back();
    metric.label = std::move(labels);
    const std::vector<double>& bounds = histogram.upper_bounds();
    uint64_t cumulative = 0;
    for (size_t i = 0; i <= bounds.size(); ++i) {
      cumulative += histogram.count(i);
      const double bound = i < bounds.size() ? bounds[i] : std::numeric_limits<double>::infinity();
      metric.histogram.bucket.push_back({cumulative, bound});
    }
    // The buckets are the truth: a count read apart from them could disagree.
    metric.histogram.sample_count = cumulative;
    metric.histogram.sample_sum = histogram.sum();
    return *this;
  }

 private:
  prometheus::MetricFamily* const family_;
};

// Families in the order in which they are written. Thread-compatible.
class Families {
 public:
  FamilyWriter Gauge(const char* name, const char* help) {
    return {&families_, name, help, prometheus::MetricType::Gauge};
  }
  FamilyWriter Counter(const char* name, const char* help) {
    return {&families_, name, help, prometheus::MetricType::Counter};
  }
  FamilyWriter Histogram(const char* name, const char* help) {
    return {&families_, name, help, prometheus::MetricType::Histogram};
  }
  std::vector<prometheus::MetricFamily> Take() { return std::move(families_); }

 private:
  std::vector<prometheus::MetricFamily> families_;
};

}  // namespace pagoda::daemon
