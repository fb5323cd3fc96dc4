#include "engine/model/rope_config.h"

#include <cmath>
#include <numbers>
#include <string>

#include "absl/strings/str_cat.h"

namespace pagoda::engine {
namespace {

// The default of transformers for Llama and Mistral, whose first checkpoints leave the field out.
constexpr double kDefaultTheta = 10000.0;
constexpr double kMaxTheta = 1e12;
constexpr double kMaxFactor = 1e6;
constexpr int32_t kMaxPositions = 1 << 30;

constexpr absl::string_view kUnknownKey =
    "Pagoda does not know this key of the rotary embedding, which may change every result";

bool SameRope(const RopeConfig& a, const RopeConfig& b) {
  return a.kind == b.kind && a.theta == b.theta && a.factor == b.factor &&
         a.low_freq_factor == b.low_freq_factor && a.high_freq_factor == b.high_freq_factor &&
         a.original_max_position_embeddings == b.original_max_position_embeddings;
}

// "type" and "rope_type" are the same key of two versions.
absl::optional<RopeConfig::Kind> ReadKind(ConfigFields& fields) {
  constexpr absl::string_view kExpected = "\"default\", \"linear\" or \"llama3\"";
  const absl::optional<std::string> old_name = fields.OptionalString("type");
  const absl::optional<std::string> new_name = fields.OptionalString("rope_type");
  if (old_name && new_name && *old_name != *new_name) {
    fields.Refuse("type", absl::StrCat("the value of rope_type, \"", *new_name, "\""));
    return absl::nullopt;
  }
  const absl::string_view field = new_name || !old_name ? "rope_type" : "type";
  const std::string name = new_name.value_or(old_name.value_or(""));
  if (name == "default") return RopeConfig::Kind::kDefault;
  if (name == "linear") return RopeConfig::Kind::kLinear;
  if (name == "llama3") return RopeConfig::Kind::kLlama3;
  fields.Refuse(field, kExpected);
  return absl::nullopt;
}

// Reads the object that rope_scaling or rope_parameters holds.
RopeConfig ReadRopeObject(ConfigFields& fields, absl::optional<double> outer_theta) {
  RopeConfig rope;
  const absl::optional<double> theta = fields.OptionalNumber("rope_theta", 1.0, kMaxTheta);
  if (theta && outer_theta && *theta != *outer_theta) {
    fields.Refuse("rope_theta", absl::StrCat("the value of the other rope_theta, ", *outer_theta));
  }
  rope.theta = theta ? *theta : outer_theta.value_or(kDefaultTheta);
  const absl::optional<RopeConfig::Kind> kind = ReadKind(fields);
  if (!kind) return rope;
  rope.kind = *kind;
  fields.RequireNeutral("partial_rotary_factor", 1.0);
  if (rope.kind == RopeConfig::Kind::kDefault) {
    fields.RequireNeutral("factor", 1.0);
    return rope;
  }
  rope.factor = fields.RequiredNumber("factor", 1.0, kMaxFactor);
  if (rope.kind == RopeConfig::Kind::kLinear) return rope;
  rope.low_freq_factor = fields.RequiredNumber("low_freq_factor", 1e-6, kMaxFactor);
  rope.high_freq_factor = fields.RequiredNumber("high_freq_factor", 1e-6, kMaxFactor);
  rope.original_max_position_embeddings =
      fields.RequiredInt("original_max_position_embeddings", 1, kMaxPositions);
  if (rope.high_freq_factor <= rope.low_freq_factor) {
    fields.Refuse("high_freq_factor",
                  absl::StrCat("a number above low_freq_factor, ", rope.low_freq_factor));
  }
  return rope;
}

// Slow rotations are slowed by `factor`, fast ones left alone, those between blended.
double Llama3Frequency(const RopeConfig& rope, double frequency) {
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  const double original = rope.original_max_position_embeddings;
  if (wavelength < original / rope.high_freq_factor) return frequency;
  if (wavelength > original / rope.low_freq_factor) return frequency / rope.factor;
  const double smooth = (original / wavelength - rope.low_freq_factor) /
                        (rope.high_freq_factor - rope.low_freq_factor);
  return (1.0 - smooth) * frequency / rope.factor + smooth * frequency;
}

}  // namespace

RopeConfig ReadRopeConfig(ConfigFields& fields) {
  const bool has_parameters = fields.Has("rope_parameters");
  const bool has_scaling = fields.Has("rope_scaling");
  const absl::optional<double> theta = fields.OptionalNumber("rope_theta", 1.0, kMaxTheta);
  ConfigFields parameters = fields.Object("rope_parameters");
  ConfigFields scaling = fields.Object("rope_scaling");

  RopeConfig rope;
  rope.theta = theta.value_or(kDefaultTheta);
  if (has_scaling) {
    rope = ReadRopeObject(scaling, theta);
    fields.Fail(scaling.Finish(kUnknownKey));
  }
  if (has_parameters) {
    if (!theta && !parameters.Has("rope_theta")) parameters.Refuse("rope_theta", "a number");
    const RopeConfig newer = ReadRopeObject(parameters, theta);
    fields.Fail(parameters.Finish(kUnknownKey));
    if (has_scaling && !SameRope(rope, newer)) {
      fields.Refuse("rope_scaling", "the meaning of rope_parameters, or only one of the two");
    }
    rope = newer;
  }
  return rope;
}

std::vector<double> RopeFrequencies(const RopeConfig& rope, int32_t rotary_dim) {
  std::vector<double> frequencies;
  frequencies.reserve(static_cast<size_t>(rotary_dim / 2));
  for (int32_t i = 0; i < rotary_dim / 2; ++i) {
    double frequency = std::pow(rope.theta, -2.0 * i / rotary_dim);
    if (rope.kind == RopeConfig::Kind::kLinear) frequency /= rope.factor;
    if (rope.kind == RopeConfig::Kind::kLlama3) frequency = Llama3Frequency(rope, frequency);
    frequencies.push_back(frequency);
  }
  return frequencies;
}

}  // namespace pagoda::engine
