#include "daemon/openai/generation_request.h"

#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/openai/json_dump.h"
#include "daemon/openai/repeated_key.h"
#include "engine/text/chat_json.h"

namespace pagoda::daemon::openai {
namespace {

using nlohmann::ordered_json;

void ReadNumbers(const JsonFields& fields, v1::SamplingParams* sampling) {
  const auto read = [&fields](absl::string_view name, auto set) {
    if (const auto value = fields.Float(name)) set(*value);
  };
  read("temperature", [&](float value) { sampling->set_temperature(value); });
  read("top_p", [&](float value) { sampling->set_top_p(value); });
  read("min_p", [&](float value) { sampling->set_min_p(value); });
  read("typical_p", [&](float value) { sampling->set_typical_p(value); });
  read("repetition_penalty", [&](float value) { sampling->set_repetition_penalty(value); });
  read("frequency_penalty", [&](float value) { sampling->set_frequency_penalty(value); });
  read("presence_penalty", [&](float value) { sampling->set_presence_penalty(value); });
  const auto top_k = fields.Integer(
      "top_k", std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max());
  if (top_k.has_value()) sampling->set_top_k(static_cast<int32_t>(*top_k));
  // Of 64 bits with or without a sign, as clients draw them.
  const ordered_json* seed = fields.Find("seed");
  if (seed != nullptr && seed->is_number_unsigned()) {
    sampling->set_seed(seed->get<uint64_t>());
  } else if (const auto number = fields.Integer("seed",
                                                std::numeric_limits<int64_t>::min(),
                                                std::numeric_limits<int64_t>::max())) {
    sampling->set_seed(static_cast<uint64_t>(*number));
  }
}

// As vLLM and llama.cpp name it.
void ReadThinkingBudget(const JsonFields& fields, v1::SamplingParams* sampling) {
  for (const char* name : {"thinking_token_budget", "thinking_budget_tokens"}) {
    const auto tokens = fields.Integer(name, -1, std::numeric_limits<int32_t>::max());
    if (tokens.has_value()) sampling->set_thinking_budget(static_cast<int32_t>(*tokens));
  }
}

// {"50256": -100}
void ReadLogitBias(const JsonFields& fields, v1::SamplingParams* sampling) {
  const ordered_json* bias = fields.Object("logit_bias");
  if (bias == nullptr) return;
  for (const auto& [key, value] : bias->items()) {
    uint32_t id = 0;
    if (!absl::SimpleAtoi(key, &id)) {
      fields.Fail("logit_bias", absl::StrCat(QuotedExtract(key), " is no token id"));
    } else if (const auto number =
                   ReadFloat(value, absl::StrCat("logit_bias[", id, "]"), fields.checker())) {
      (*sampling->mutable_logit_bias())[id] = *number;
    }
  }
}

// A schema as an object, or as the text of one.
std::string SchemaText(const ordered_json& value) {
  return value.is_string() ? value.get<std::string>() : DumpJson(value);
}

// Constraints by one of several spellings; a second one is an error.
class ConstraintReader {
 public:
  ConstraintReader(const JsonFields& root, v1::SamplingParams* sampling, std::string* first)
      : root_(root), sampling_(sampling), first_(first) {}

  void ReadResponseFormat() {
    const ordered_json* format = root_.Object("response_format");
    if (format == nullptr) return;
    const JsonFields fields(format, root_.PathOf("response_format"), root_.checker());
    const auto type = fields.String("type");
    if (!type.has_value()) {
      if (!fields.Has("type"))
        fields.Fail("type", "is missing; expected text, json_object or json_schema");
    } else if (*type == "json_object") {
      Set(fields, "type");
      sampling_->set_json_object(true);
    } else if (*type == "json_schema") {
      ReadSchema(fields);
    } else if (*type != "text") {
      fields.Fail(
          "type",
          absl::StrCat("expected text, json_object or json_schema, found ", QuotedExtract(*type)));
    }
  }

  // guided_json, ... and the members of structured_outputs, which have no prefix.
  void ReadExtras(const JsonFields& fields, absl::string_view prefix) {
    const auto name = [prefix](absl::string_view rest) { return absl::StrCat(prefix, rest); };
    if (const ordered_json* schema = fields.Find(name("json"))) {
      Set(fields, name("json"));
      sampling_->set_json_schema(SchemaText(*schema));
    }
    if (const auto object = fields.Bool(name("json_object")); object.value_or(false)) {
      Set(fields, name("json_object"));
      sampling_->set_json_object(true);
    }
    if (const auto regex = fields.String(name("regex"))) {
      Set(fields, name("regex"));
      sampling_->set_regex(*regex);
    }
    if (const auto grammar = fields.String(name("grammar"))) {
      Set(fields, name("grammar"));
      sampling_->set_grammar(*grammar);
    }
    if (fields.Has(name("choice"))) {
      Set(fields, name("choice"));
      for (std::string& choice : fields.Strings(name("choice")))
        sampling_->mutable_choice()->add_choices(std::move(choice));
    }
  }

 private:
  void ReadSchema(const JsonFields& fields) {
    const ordered_json* outer = fields.Object("json_schema");
    if (outer == nullptr) {
      if (!fields.Has("json_schema")) fields.Fail("json_schema", "is missing");
      return;
    }
    const JsonFields inner(outer, fields.PathOf("json_schema"), fields.checker());
    const ordered_json* schema = inner.Find("schema");
    if (schema == nullptr) return inner.Fail("schema", "is missing; expected a JSON schema");
    Set(inner, "schema");
    sampling_->set_json_schema(SchemaText(*schema));
  }

  void Set(const JsonFields& fields, absl::string_view name) {
    if (!first_->empty()) {
      fields.Fail(name, absl::StrCat("excludes ", *first_, ": output has one form"));
    } else {
      *first_ = fields.PathOf(name);
    }
  }

  const JsonFields& root_;
  v1::SamplingParams* const sampling_;
  std::string* const first_;  // the constraint's path; empty: none yet
};

void ReadConstraint(const JsonFields& fields,
                    GenerationRequest* request,
                    v1::SamplingParams* sampling) {
  ConstraintReader reader(fields, sampling, &request->shape.form_field);
  reader.ReadResponseFormat();
  reader.ReadExtras(fields, "guided_");
  if (const ordered_json* extras = fields.Object("structured_outputs")) {
    reader.ReadExtras(JsonFields(extras, "structured_outputs", fields.checker()), "");
  }
}

void ReadBeams(const JsonFields& fields, v1::GenerateRequest* call) {
  if (!fields.BoolOr("use_beam_search", false)) return;
  auto* beams = call->mutable_sampling()->mutable_beam_search();
  beams->set_width(call->output().has_best_of() ? call->output().best_of()
                   : call->output().has_n()     ? call->output().n()
                                                : 1);
  call->mutable_output()->clear_best_of();
  if (const auto penalty = fields.Float("length_penalty")) beams->set_length_penalty(*penalty);
  beams->set_early_stopping(fields.BoolOr("early_stopping", false));
}

void ReadStops(const JsonFields& fields, v1::StopConditions* stopping) {
  for (std::string& stop : fields.Strings("stop")) stopping->add_stop(std::move(stop));
  for (const uint32_t id : fields.Ids("stop_token_ids")) stopping->add_stop_token_ids(id);
  if (const auto tokens = fields.Count("min_tokens")) stopping->set_min_tokens(*tokens);
  stopping->set_include_stop(fields.BoolOr("include_stop_str_in_output", false));
  stopping->set_ignore_eos(fields.BoolOr("ignore_eos", false));
}

void ReadStream(const JsonFields& fields, GenerationRequest* request) {
  request->stream = fields.BoolOr("stream", false);
  const ordered_json* options = fields.Object("stream_options");
  if (options == nullptr) return;
  if (!request->stream) return fields.Fail("stream_options", "is for \"stream\": true");
  const JsonFields inner(options, "stream_options", fields.checker());
  request->include_usage = inner.BoolOr("include_usage", false);
  request->continuous_usage =
      request->include_usage && inner.BoolOr("continuous_usage_stats", false);
}

}  // namespace

absl::StatusOr<ordered_json> ParseBody(absl::string_view body) {
  absl::StatusOr<ordered_json> value = engine::ParseChatJson(body);
  FieldChecker checker;
  if (!value.ok()) {
    checker.Fail("body", value.status().message());
    return checker.ToStatus();
  }
  if (!value->is_object()) {
    checker.Fail("body", absl::StrCat("expected a JSON object, found ", KindOf(*value)));
    return checker.ToStatus();
  }
  if (const auto key = FindRepeatedKey(body); key.has_value()) {
    checker.Fail(*key, "is given twice");
    return checker.ToStatus();
  }
  return value;
}

void ReadCommonFields(const JsonFields& fields,
                      GenerationRequest* request,
                      v1::GenerateRequest* call) {
  call->set_model(fields.StringOr("model", ""));
  call->set_request_id(fields.StringOr("request_id", ""));
  call->set_cache_salt(fields.StringOr("cache_salt", ""));
  const auto priority = fields.Integer(
      "priority", std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max());
  if (priority.has_value()) call->set_priority(static_cast<int32_t>(*priority));

  v1::SamplingParams* sampling = call->mutable_sampling();
  ReadNumbers(fields, sampling);
  ReadThinkingBudget(fields, sampling);
  ReadLogitBias(fields, sampling);
  for (const uint32_t id : fields.Ids("allowed_token_ids")) sampling->add_allowed_token_ids(id);
  for (std::string& word : fields.Strings("bad_words")) sampling->add_bad_words(std::move(word));
  ReadConstraint(fields, request, sampling);
  ReadStops(fields, call->mutable_stopping());

  v1::OutputOptions* output = call->mutable_output();
  if (const auto n = fields.Count("n")) output->set_n(*n);
  if (const auto best_of = fields.Count("best_of")) output->set_best_of(*best_of);
  if (const auto skip = fields.Bool("skip_special_tokens")) output->set_skip_special_tokens(*skip);
  if (const auto tokens = fields.Count("truncate_prompt_tokens"))
    call->mutable_prompt()->set_truncate_prompt_tokens(*tokens);
  ReadStream(fields, request);
  request->return_token_ids = fields.BoolOr("return_token_ids", false);
  ReadBeams(fields, call);
  if (const auto logprobs = fields.Integer("prompt_logprobs", 0, INT32_MAX)) {
    output->set_prompt_logprobs(static_cast<int32_t>(*logprobs));
    if (request->stream) fields.Fail("prompt_logprobs", "is not for \"stream\": true");
  }
}

}  // namespace pagoda::daemon::openai
