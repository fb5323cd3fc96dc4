#include "engine/model/rope_config.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "absl/strings/str_cat.h"

namespace pagoda::engine {
namespace {

using Kind = RopeConfig::Kind;

constexpr double kMaxTheta = 1e12;
constexpr double kMaxFactor = 1e6;
constexpr int32_t kMaxPositions = 1 << 30;

constexpr absl::string_view kUnknownKey =
    "Pagoda does not know this key of the rotary embedding, which may change every result";

struct KindName {
  absl::string_view name;
  Kind kind;
};
constexpr KindName kKinds[] = {
    {"default", Kind::kDefault},
    {"linear", Kind::kLinear},
    {"dynamic", Kind::kDynamic},
    {"llama3", Kind::kLlama3},
    {"yarn", Kind::kYarn},
    {"longrope", Kind::kLongRope},
    {"su", Kind::kLongRope},  // the first Phi-3 checkpoints
};

// "type" and "rope_type" are the same key of two versions.
absl::optional<Kind> ReadKind(ConfigFields& fields) {
  const absl::optional<std::string> old_name = fields.OptionalString("type");
  const absl::optional<std::string> new_name = fields.OptionalString("rope_type");
  if (old_name && new_name && *old_name != *new_name) {
    fields.Refuse("type", absl::StrCat("the value of rope_type, \"", *new_name, "\""));
    return absl::nullopt;
  }
  const std::string name = new_name.value_or(old_name.value_or(""));
  std::string expected;
  for (const KindName& known : kKinds) {
    if (known.name == name) return known.kind;
    absl::StrAppend(&expected, expected.empty() ? "one of " : ", ", "\"", known.name, "\"");
  }
  fields.Refuse(new_name || !old_name ? "rope_type" : "type", expected);
  return absl::nullopt;
}

// The transformers library computes it so where attention_factor is absent.
double YarnAttentionFactor(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

void ReadLlama3(ConfigFields& fields, RopeConfig& rope) {
  rope.low_freq_factor = fields.RequiredNumber("low_freq_factor", 1e-6, kMaxFactor);
  rope.high_freq_factor = fields.RequiredNumber("high_freq_factor", 1e-6, kMaxFactor);
  rope.original_max_position_embeddings =
      fields.RequiredInt("original_max_position_embeddings", 1, kMaxPositions);
  if (rope.high_freq_factor <= rope.low_freq_factor) {
    fields.Refuse("high_freq_factor",
                  absl::StrCat("a number above low_freq_factor, ", rope.low_freq_factor));
  }
}

void ReadYarn(ConfigFields& fields, const RopeContext& context, RopeConfig& rope) {
  rope.original_max_position_embeddings =
      fields.OptionalInt("original_max_position_embeddings", 1, kMaxPositions)
          .value_or(context.max_position_embeddings);
  rope.beta_fast = fields.OptionalNumber("beta_fast", 1e-6, kMaxFactor).value_or(32.0);
  rope.beta_slow = fields.OptionalNumber("beta_slow", 1e-6, kMaxFactor).value_or(1.0);
  rope.truncate = fields.OptionalBool("truncate").value_or(true);
  const double mscale = fields.OptionalNumber("mscale", 0.0, kMaxFactor).value_or(0.0);
  const double mscale_all_dim =
      fields.OptionalNumber("mscale_all_dim", 0.0, kMaxFactor).value_or(0.0);
  rope.attention_factor = mscale > 0.0 && mscale_all_dim > 0.0
                              ? YarnAttentionFactor(rope.factor, mscale) /
                                    YarnAttentionFactor(rope.factor, mscale_all_dim)
                              : YarnAttentionFactor(rope.factor, 1.0);
}

void ReadLongRope(ConfigFields& fields, const RopeContext& context, RopeConfig& rope) {
  const int32_t rotary_dim = static_cast<int32_t>(context.head_dim * rope.rotary_fraction);
  const auto read = [&](absl::string_view name) {
    std::vector<double> factors = fields.Numbers(name, 1e-6, kMaxFactor);
    if (factors.size() != static_cast<size_t>(rotary_dim / 2)) {
      fields.Refuse(name, absl::StrCat("a list of ", rotary_dim / 2, " numbers, one a pair"));
    }
    return factors;
  };
  rope.short_factors = read("short_factor");
  rope.long_factors = read("long_factor");
  rope.original_max_position_embeddings =
      fields.OptionalInt("original_max_position_embeddings", 1, kMaxPositions)
          .value_or(context.original_max_position_embeddings);
  if (rope.original_max_position_embeddings == 0) {
    fields.Refuse("original_max_position_embeddings", "an integer, here or outside");
    return;
  }
  const double original = rope.original_max_position_embeddings;
  rope.factor = fields.OptionalNumber("factor", 1e-6, kMaxFactor)
                    .value_or(context.max_position_embeddings / original);
  rope.attention_factor =
      rope.factor <= 1.0 ? 1.0 : std::sqrt(1.0 + std::log(rope.factor) / std::log(original));
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

// The pair that turns `rotations` times over the original context.
double YarnPair(const RopeConfig& rope, int32_t rotary_dim, double rotations) {
  return rotary_dim *
         std::log(rope.original_max_position_embeddings / (rotations * 2.0 * std::numbers::pi)) /
         (2.0 * std::log(rope.theta));
}

// Pairs that turn often keep their frequency, those that turn seldom have it divided by `factor`,
// with a ramp between.
double YarnFrequency(const RopeConfig& rope, int32_t rotary_dim, int32_t pair, double frequency) {
  double low = YarnPair(rope, rotary_dim, rope.beta_fast);
  double high = YarnPair(rope, rotary_dim, rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, rotary_dim - 1.0);
  if (low == high) high += 0.001;
  const double ramp = std::clamp((pair - low) / (high - low), 0.0, 1.0);
  return frequency / rope.factor * ramp + frequency * (1.0 - ramp);
}

double DynamicTheta(const RopeConfig& rope, int32_t rotary_dim, int32_t num_positions) {
  const double original = rope.original_max_position_embeddings;
  if (num_positions <= original || rotary_dim <= 2) return rope.theta;
  const double stretch = rope.factor * num_positions / original - (rope.factor - 1.0);
  return rope.theta * std::pow(stretch, rotary_dim / (rotary_dim - 2.0));
}

double RotaryFraction(ConfigFields& fields, const RopeContext& context) {
  if (!context.may_be_partial) {
    fields.RequireNeutral("partial_rotary_factor", 1.0);
    return 1.0;
  }
  const double fraction =
      fields.OptionalNumber("partial_rotary_factor", 0.0, 1.0).value_or(context.rotary_fraction);
  const int32_t rotary_dim = static_cast<int32_t>(context.head_dim * fraction);
  if (rotary_dim < 2 || rotary_dim % 2 != 0) {
    fields.Refuse("partial_rotary_factor",
                  absl::StrCat("a number that times head_dim ", context.head_dim, " is even"));
  }
  return fraction;
}

}  // namespace

RopeConfig ReadRopeObject(ConfigFields& fields,
                          absl::optional<double> outer_theta,
                          const RopeContext& context) {
  RopeConfig rope;
  const absl::optional<double> theta = fields.OptionalNumber("rope_theta", 1.0, kMaxTheta);
  if (theta && outer_theta && *theta != *outer_theta) {
    fields.Refuse("rope_theta", absl::StrCat("the value of the other rope_theta, ", *outer_theta));
  }
  rope.theta = theta ? *theta : outer_theta.value_or(context.default_theta);
  rope.rotary_fraction = RotaryFraction(fields, context);
  const absl::optional<Kind> kind = ReadKind(fields);
  if (!kind) return rope;
  rope.kind = *kind;
  switch (rope.kind) {
    case Kind::kDefault:
      fields.RequireNeutral("factor", 1.0);
      return rope;
    case Kind::kLongRope:
      ReadLongRope(fields, context, rope);
      break;
    default:
      rope.factor = fields.RequiredNumber("factor", 1.0, kMaxFactor);
  }
  if (rope.kind == Kind::kDynamic) {
    rope.original_max_position_embeddings =
        fields.OptionalInt("original_max_position_embeddings", 1, kMaxPositions)
            .value_or(context.max_position_embeddings);
  }
  if (rope.kind == Kind::kLlama3) ReadLlama3(fields, rope);
  if (rope.kind == Kind::kYarn) ReadYarn(fields, context, rope);
  if (rope.kind == Kind::kYarn || rope.kind == Kind::kLongRope) {
    rope.attention_factor =
        fields.OptionalNumber("attention_factor", 1e-6, kMaxFactor).value_or(rope.attention_factor);
  }
  return rope;
}

RopeConfig ReadRopeConfig(ConfigFields& fields, const RopeContext& outer_context) {
  const bool has_parameters = fields.Has("rope_parameters");
  const bool has_scaling = fields.Has("rope_scaling");
  const absl::optional<double> theta = fields.OptionalNumber("rope_theta", 1.0, kMaxTheta);
  RopeContext context = outer_context;
  context.rotary_fraction = RotaryFraction(fields, outer_context);
  ConfigFields parameters = fields.Object("rope_parameters");
  ConfigFields scaling = fields.Object("rope_scaling");

  RopeConfig rope;
  rope.theta = theta.value_or(context.default_theta);
  rope.rotary_fraction = context.rotary_fraction;
  if (has_scaling) {
    rope = ReadRopeObject(scaling, theta, context);
    fields.Fail(scaling.Finish(kUnknownKey));
  }
  if (has_parameters) {
    if (!theta && !parameters.Has("rope_theta")) parameters.Refuse("rope_theta", "a number");
    const RopeConfig newer = ReadRopeObject(parameters, theta, context);
    fields.Fail(parameters.Finish(kUnknownKey));
    if (has_scaling && !(rope == newer)) {
      fields.Refuse("rope_scaling", "the meaning of rope_parameters, or only one of the two");
    }
    rope = newer;
  }
  return rope;
}

std::vector<double> RopeFrequencies(const RopeConfig& rope,
                                    int32_t rotary_dim,
                                    int32_t num_positions) {
  const double theta =
      rope.kind == Kind::kDynamic ? DynamicTheta(rope, rotary_dim, num_positions) : rope.theta;
  const std::vector<double>& stretch = num_positions > rope.original_max_position_embeddings
                                           ? rope.long_factors
                                           : rope.short_factors;
  std::vector<double> frequencies;
  frequencies.reserve(static_cast<size_t>(rotary_dim / 2));
  for (int32_t i = 0; i < rotary_dim / 2; ++i) {
    double frequency = std::pow(theta, -2.0 * i / rotary_dim);
    if (rope.kind == Kind::kLinear) frequency /= rope.factor;
    if (rope.kind == Kind::kLlama3) frequency = Llama3Frequency(rope, frequency);
    if (rope.kind == Kind::kYarn) frequency = YarnFrequency(rope, rotary_dim, i, frequency);
    if (rope.kind == Kind::kLongRope) frequency /= stretch[static_cast<size_t>(i)];
    frequencies.push_back(frequency);
  }
  return frequencies;
}

}  // namespace pagoda::engine
