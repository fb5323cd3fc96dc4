#pragma once

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "daemon/server/convert_request.h"
#include "daemon/server/request_fields.h"
#include "daemon/server/served_model.h"
#include "engine/request.h"
#include "pagoda/v1/inference.pb.h"

namespace pagoda::daemon {

// Part of convert_request: how the next token is chosen.

// Numeric fields: present, else the model's default, else neutral. Out-of-range ones are reported
// to `checker`. `drawn_seed` serves a request without a seed.
engine::SamplingParams ResolveNumbers(const v1::SamplingParams& sampling,
                                      const engine::GenerationConfig& defaults,
                                      uint64_t drawn_seed,
                                      FieldChecker* checker);

// logit_bias, allowed_token_ids and bad_words.
void ResolveTokenRules(const v1::SamplingParams& sampling,
                       const ServedModel& model,
                       FieldChecker* checker,
                       engine::SamplingParams* resolved);

// Drafts of a step: the request's, or else the server's.
void ResolveSpeculation(const v1::SamplingParams& sampling,
                        const ServedModel& model,
                        FieldChecker* checker,
                        engine::SamplingParams* resolved);

// The limit of thoughts: the request's, or else the server's, which leaves alone what cannot have
// one. After the beams and the prompt.
void ResolveThoughts(const v1::SamplingParams& sampling,
                     const ServedModel& model,
                     FieldChecker* checker,
                     engine::Request* request);

// The beams of a request, whose `n` and `best_of` are set.
void ResolveBeams(const v1::SamplingParams& sampling,
                  const v1::OutputOptions& output,
                  const ServedModel& model,
                  FieldChecker* checker,
                  engine::Request* request);

// json_schema, json_object, regex, grammar or choice, compiled: milliseconds, tens of them for a
// large one; or else, with `leaves_compiling`, returned for it.
absl::optional<UncompiledConstraint> ResolveConstraint(const v1::SamplingParams& sampling,
                                                       const ServedModel& model,
                                                       bool leaves_compiling,
                                                       FieldChecker* checker,
                                                       engine::SamplingParams* resolved);

// The numeric fields of `resolved`, all present.
void EchoNumbers(const engine::SamplingParams& resolved, v1::SamplingParams* echoed);

}  // namespace pagoda::daemon
