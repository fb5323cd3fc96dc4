#include "daemon/client/generate_flags.h"

#include <fstream>
#include <iostream>
#include <iterator>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "engine/text/utf8.h"
#include "kernels/base/status_macros.h"

namespace pagoda::daemon {
namespace {

absl::Status FlagError(absl::string_view flag, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(flag, ": ", what));
}

absl::StatusOr<std::string> ReadFile(absl::string_view flag, const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  std::string content(std::istreambuf_iterator<char>(in), {});
  if (!in) return FlagError(flag, absl::StrCat("cannot read ", file));
  return content;
}

// The value of a flag that may be "@FILE".
absl::StatusOr<std::string> TextOrFile(absl::string_view flag, const std::string& value) {
  absl::string_view file = value;
  if (!absl::ConsumePrefix(&file, "@")) return value;
  return ReadFile(flag, std::string(file));
}

// A message's content: a string, or a list of {"type": "text", "text": ...}.
absl::Status FillContent(const nlohmann::ordered_json& content, v1::ChatMessage* message) {
  if (content.is_null()) return absl::OkStatus();
  if (content.is_string()) {
    message->add_content()->set_text(content.get<std::string>());
    return absl::OkStatus();
  }
  if (!content.is_array())
    return FlagError("--messages", "content must be a string or a list of text parts");
  for (const nlohmann::ordered_json& part : content) {
    if (!part.is_object() || !part.contains("text") || !part["text"].is_string()) {
      return FlagError("--messages", "a content part must be {\"type\": \"text\", \"text\": ...}");
    }
    message->add_content()->set_text(part["text"].get<std::string>());
  }
  return absl::OkStatus();
}

absl::Status FillMessages(const std::string& file, v1::Chat* chat) {
  PAGODA_ASSIGN_OR_RETURN(const std::string text, ReadFile("--messages", file));
  const nlohmann::ordered_json messages =
      nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!messages.is_array())
    return FlagError("--messages", absl::StrCat(file, " holds no JSON list"));
  for (const nlohmann::ordered_json& entry : messages) {
    if (!entry.is_object() || !entry.contains("role") || !entry["role"].is_string() ||
        (!entry.contains("content") && !entry.contains("tool_calls"))) {
      return FlagError("--messages", "each message needs \"role\" and \"content\"");
    }
    v1::ChatMessage* message = chat->add_messages();
    message->set_role(entry["role"].get<std::string>());
    const auto text_of = [&entry](const char* key) {
      const auto member = entry.find(key);
      return member != entry.end() && member->is_string() ? member->get<std::string>() : "";
    };
    message->set_name(text_of("name"));
    message->set_tool_call_id(text_of("tool_call_id"));
    message->set_reasoning_content(text_of("reasoning_content"));
    if (entry.contains("tool_calls") && !entry["tool_calls"].is_null())
      message->set_tool_calls_json(entry["tool_calls"].dump());
    if (entry.contains("content")) PAGODA_RETURN_IF_ERROR(FillContent(entry["content"], message));
  }
  return absl::OkStatus();
}

void AddMessage(const std::string& role, const std::string& text, v1::Chat* chat) {
  v1::ChatMessage* message = chat->add_messages();
  message->set_role(role);
  message->add_content()->set_text(text);
}

absl::Status FillChat(const GenerateFlags& flags,
                      const std::optional<std::string>& text,
                      v1::Chat* chat) {
  if (!flags.system.empty()) AddMessage("system", flags.system, chat);
  if (!flags.messages_file.empty()) PAGODA_RETURN_IF_ERROR(FillMessages(flags.messages_file, chat));
  if (text) AddMessage("user", *text, chat);
  if (flags.no_generation_prompt) chat->set_add_generation_prompt(false);
  chat->set_continue_final_message(flags.continue_final_message);
  if (flags.template_arguments) {
    PAGODA_ASSIGN_OR_RETURN(*chat->mutable_template_arguments_json(),
                            TextOrFile("--template-arguments", *flags.template_arguments));
  }
  if (!flags.tools_file.empty()) {
    PAGODA_ASSIGN_OR_RETURN(*chat->mutable_tools_json(), ReadFile("--tools", flags.tools_file));
  }
  return absl::OkStatus();
}

absl::Status FillPrompt(const GenerateFlags& flags, v1::Prompt* prompt) {
  std::optional<std::string> text = flags.prompt;
  if (text == "-") text = std::string(std::istreambuf_iterator<char>(std::cin), {});
  const bool is_chat = flags.chat || !flags.system.empty() || !flags.messages_file.empty() ||
                       !flags.tools_file.empty() || flags.continue_final_message ||
                       flags.template_arguments;
  if (flags.token_ids.empty() == (!text && !is_chat)) {
    return FlagError(
        "PROMPT",
        "expected a text (\"-\": standard input), --token-ids or --messages, and only one of them");
  }
  if (text && !engine::IsValidUtf8(*text)) return FlagError("PROMPT", "not valid UTF-8");
  if (is_chat) {
    PAGODA_RETURN_IF_ERROR(FillChat(flags, text, prompt->mutable_chat()));
  } else if (text) {
    prompt->set_text(*text);
  } else {
    prompt->mutable_token_ids()->mutable_ids()->Assign(flags.token_ids.begin(),
                                                       flags.token_ids.end());
  }
  if (flags.no_special_tokens) prompt->set_add_special_tokens(false);
  prompt->set_parse_special_tokens(flags.parse_special_tokens);
  if (flags.truncate_prompt_tokens)
    prompt->set_truncate_prompt_tokens(*flags.truncate_prompt_tokens);
  return absl::OkStatus();
}

absl::Status FillLogitBias(const std::vector<std::string>& entries, v1::SamplingParams* sampling) {
  for (const std::string& entry : entries) {
    const std::vector<std::string> parts = absl::StrSplit(entry, '=');
    uint32_t id = 0;
    float bias = 0;
    if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &id) ||
        !absl::SimpleAtof(parts[1], &bias)) {
      return FlagError("--logit-bias", absl::StrCat("\"", entry, "\" is not ID=VALUE"));
    }
    (*sampling->mutable_logit_bias())[id] = bias;
  }
  return absl::OkStatus();
}

absl::Status FillConstraint(const GenerateFlags& flags, v1::SamplingParams* sampling) {
  const int num_constraints = flags.json_schema.has_value() + flags.json_object +
                              flags.regex.has_value() + flags.grammar.has_value() +
                              !flags.choices.empty();
  if (num_constraints > 1) {
    return FlagError("--json-schema, --json-object, --regex, --grammar, --choice",
                     "only one of them");
  }
  if (flags.json_schema) {
    PAGODA_ASSIGN_OR_RETURN(*sampling->mutable_json_schema(),
                            TextOrFile("--json-schema", *flags.json_schema));
  }
  if (flags.json_object) sampling->set_json_object(true);
  if (flags.regex) sampling->set_regex(*flags.regex);
  if (flags.grammar) {
    PAGODA_ASSIGN_OR_RETURN(*sampling->mutable_grammar(), TextOrFile("--grammar", *flags.grammar));
  }
  for (const std::string& choice : flags.choices) sampling->mutable_choice()->add_choices(choice);
  return absl::OkStatus();
}

absl::Status FillSampling(const GenerateFlags& flags, v1::SamplingParams* sampling) {
  if (flags.temperature) sampling->set_temperature(*flags.temperature);
  if (flags.top_p) sampling->set_top_p(*flags.top_p);
  if (flags.top_k) sampling->set_top_k(*flags.top_k);
  if (flags.min_p) sampling->set_min_p(*flags.min_p);
  if (flags.typical_p) sampling->set_typical_p(*flags.typical_p);
  if (flags.repetition_penalty) sampling->set_repetition_penalty(*flags.repetition_penalty);
  if (flags.frequency_penalty) sampling->set_frequency_penalty(*flags.frequency_penalty);
  if (flags.presence_penalty) sampling->set_presence_penalty(*flags.presence_penalty);
  if (flags.seed) sampling->set_seed(*flags.seed);
  sampling->mutable_allowed_token_ids()->Assign(flags.allowed_token_ids.begin(),
                                                flags.allowed_token_ids.end());
  sampling->mutable_bad_words()->Assign(flags.bad_words.begin(), flags.bad_words.end());
  if ((flags.length_penalty || flags.early_stopping) && !flags.beam_width) {
    return FlagError("--length-penalty, --early-stopping", "need --beam-width");
  }
  if (flags.beam_width) {
    sampling->mutable_beam_search()->set_width(*flags.beam_width);
    if (flags.length_penalty)
      sampling->mutable_beam_search()->set_length_penalty(*flags.length_penalty);
    sampling->mutable_beam_search()->set_early_stopping(flags.early_stopping);
  }
  if (flags.ngram_draft_tokens) {
    sampling->mutable_ngram_speculation()->set_max_draft_tokens(*flags.ngram_draft_tokens);
  }
  PAGODA_RETURN_IF_ERROR(FillLogitBias(flags.logit_bias, sampling));
  return FillConstraint(flags, sampling);
}

void FillStopping(const GenerateFlags& flags, v1::StopConditions* stopping) {
  if (flags.max_tokens) stopping->set_max_tokens(*flags.max_tokens);
  if (flags.min_tokens) stopping->set_min_tokens(*flags.min_tokens);
  stopping->mutable_stop()->Assign(flags.stop.begin(), flags.stop.end());
  stopping->mutable_stop_token_ids()->Assign(flags.stop_token_ids.begin(),
                                             flags.stop_token_ids.end());
  stopping->set_include_stop(flags.include_stop);
  stopping->set_ignore_eos(flags.ignore_eos);
}

void FillOutput(const GenerateFlags& flags, v1::OutputOptions* output) {
  if (flags.n) output->set_n(*flags.n);
  if (flags.best_of) output->set_best_of(*flags.best_of);
  if (flags.logprobs) output->set_logprobs(*flags.logprobs);
  if (flags.prompt_logprobs) output->set_prompt_logprobs(*flags.prompt_logprobs);
  if (flags.logprobs_mode == "raw") output->set_logprobs_mode(v1::LOGPROBS_MODE_RAW);
  if (flags.logprobs_mode == "processed") output->set_logprobs_mode(v1::LOGPROBS_MODE_PROCESSED);
  output->set_echo(flags.echo);
  if (flags.keep_special_tokens) output->set_skip_special_tokens(false);
  output->set_omit_text(flags.omit_text);
}

// A flag that may be given several times, one value each, so that it never takes the prompt for a
// value.
template <typename T>
CLI::Option* AddRepeated(CLI::App& command,
                         const std::string& name,
                         std::vector<T>& values,
                         const std::string& help) {
  return command.add_option(name, values, help)->allow_extra_args(false);
}

// What a chat begins with.
void AddMessagesFlags(CLI::App& command, GenerateFlags* flags) {
  const std::string group = "Chat (each implies --chat)";
  command.add_option("--system", flags->system, "System message")->group(group);
  command.add_option("--messages", flags->messages_file, "JSON file of messages before the prompt")
      ->group(group);
  command.add_option("--tools", flags->tools_file, "JSON file of tool definitions")->group(group);
  command
      .add_option("--template-arguments",
                  flags->template_arguments,
                  "JSON object of further template variables, or @FILE")
      ->group(group);
}

void AddPromptFlags(CLI::App& command, GenerateFlags* flags) {
  const std::string group = "Prompt";
  command.add_option("PROMPT", flags->prompt, "Text to continue; \"-\": standard input");
  AddRepeated(
      command, "--token-ids", flags->token_ids, "Token ids to continue, separated by commas")
      ->delimiter(',')
      ->group(group);
  command
      .add_flag("--chat", flags->chat, "PROMPT is a user's message for the model's chat template")
      ->group(group);
  command
      .add_flag(
          "--no-generation-prompt", flags->no_generation_prompt, "Do not open an assistant turn")
      ->group(group);
  command
      .add_flag("--continue-final-message",
                flags->continue_final_message,
                "Continue the last message's text; implies --chat")
      ->group(group);
  command
      .add_flag("--no-special-tokens",
                flags->no_special_tokens,
                "Do not let the tokenizer add BOS and the like")
      ->group(group);
  command
      .add_flag("--parse-special-tokens",
                flags->parse_special_tokens,
                "Text that spells a special token becomes it")
      ->group(group);
  command
      .add_option("--truncate-prompt-tokens",
                  flags->truncate_prompt_tokens,
                  "Keep only the last N prompt tokens")
      ->group(group);
}

void AddSamplingFlags(CLI::App& command, GenerateFlags* flags) {
  const std::string group = "Sampling (absent: the model's defaults)";
  command.add_option("--temperature", flags->temperature, "0 is greedy")->group(group);
  command.add_option("--top-p", flags->top_p, "In (0, 1]")->group(group);
  command.add_option("--top-k", flags->top_k, "0 or -1: off")->group(group);
  command.add_option("--min-p", flags->min_p, "In [0, 1]")->group(group);
  command.add_option("--typical-p", flags->typical_p, "In (0, 1]")->group(group);
  command
      .add_option("--repetition-penalty", flags->repetition_penalty, "From 1e-6 to 10; 1 is none")
      ->group(group);
  command.add_option("--frequency-penalty", flags->frequency_penalty, "In [-2, 2]; 0 is none")
      ->group(group);
  command.add_option("--presence-penalty", flags->presence_penalty, "In [-2, 2]; 0 is none")
      ->group(group);
  command.add_option("--seed", flags->seed, "The same seed gives the same tokens")
      ->check(CLI::NonNegativeNumber)
      ->group(group);
  AddRepeated(command, "--logit-bias", flags->logit_bias, "ID=VALUE, added to the logit of a token")
      ->delimiter(',')
      ->group(group);
  AddRepeated(
      command, "--allowed-token-ids", flags->allowed_token_ids, "Only these ids can be sampled")
      ->delimiter(',')
      ->group(group);
  AddRepeated(
      command, "--bad-word", flags->bad_words, "Text that the output never completes; repeatable")
      ->group(group);
  command.add_option("--beam-width", flags->beam_width, "Beam search instead of sampling")
      ->group(group);
  command.add_option("--length-penalty", flags->length_penalty, "Of beam search; 1 is neutral")
      ->group(group);
  command.add_flag("--early-stopping", flags->early_stopping, "Of beam search")->group(group);
  command
      .add_option(
          "--ngram-draft-tokens", flags->ngram_draft_tokens, "Speculate with tokens seen before")
      ->group(group);
}

void AddConstraintFlags(CLI::App& command, GenerateFlags* flags) {
  const std::string group = "Constraint (one of)";
  command.add_option("--json-schema", flags->json_schema, "JSON schema of the output, or @FILE")
      ->group(group);
  command.add_flag("--json-object", flags->json_object, "The output is a JSON object")
      ->group(group);
  command.add_option("--regex", flags->regex, "Regular expression of the output")->group(group);
  command.add_option("--grammar", flags->grammar, "EBNF grammar of the output, or @FILE")
      ->group(group);
  AddRepeated(command, "--choice", flags->choices, "The output is one of these; repeatable")
      ->group(group);
}

void AddStoppingFlags(CLI::App& command, GenerateFlags* flags) {
  const std::string group = "Stopping";
  command
      .add_option(
          "--max-tokens", flags->max_tokens, "Most tokens (absent: the rest of the context)")
      ->group(group);
  command.add_option("--min-tokens", flags->min_tokens, "Nothing ends the output before")
      ->group(group);
  AddRepeated(command, "--stop", flags->stop, "Text that ends the output; repeatable")
      ->group(group);
  AddRepeated(command, "--stop-token-ids", flags->stop_token_ids, "Token ids that end the output")
      ->delimiter(',')
      ->group(group);
  command.add_flag("--include-stop", flags->include_stop, "Keep the matched stop text")
      ->group(group);
  command.add_flag("--ignore-eos", flags->ignore_eos, "Go on after the end-of-text token")
      ->group(group);
}

void AddOutputFlags(CLI::App& command, GenerateFlags* flags) {
  const std::string group = "Output";
  command.add_option("--n", flags->n, "Sequences to return")->group(group);
  command.add_option("--best-of", flags->best_of, "Sequences to draw, of which the best n return")
      ->group(group);
  command
      .add_option(
          "--logprobs", flags->logprobs, "Top log-probabilities per token (shown by --json)")
      ->group(group);
  command.add_option("--prompt-logprobs", flags->prompt_logprobs, "The same for the prompt")
      ->group(group);
  command.add_option("--logprobs-mode", flags->logprobs_mode, "raw or processed")
      ->check(CLI::IsMember({"raw", "processed"}))
      ->group(group);
  command.add_flag("--echo", flags->echo, "Return the prompt's text first")->group(group);
  command
      .add_flag(
          "--keep-special-tokens", flags->keep_special_tokens, "Leave special tokens in the text")
      ->group(group);
  command.add_flag("--omit-text", flags->omit_text, "Return token ids only")->group(group);
}

void AddRequestFlags(CLI::App& command, GenerateFlags* flags) {
  const std::string group = "Request";
  command.add_option("--request-id", flags->request_id, "Id in logs and answers")->group(group);
  command.add_option("--model", flags->model, "A served name (absent: the served model)")
      ->group(group);
  command.add_option("--priority", flags->priority, "Lower is served first")->group(group);
  command
      .add_option("--cache-salt", flags->cache_salt, "Share cached prefixes only with equal salts")
      ->group(group);
}

}  // namespace

void AddGenerateFlags(CLI::App& command, GenerateFlags* flags) {
  AddPromptFlags(command, flags);
  AddChatFlags(command, flags);
  AddOutputFlags(command, flags);
}

void AddChatFlags(CLI::App& command, GenerateFlags* flags) {
  AddMessagesFlags(command, flags);
  AddSamplingFlags(command, flags);
  AddConstraintFlags(command, flags);
  AddStoppingFlags(command, flags);
  AddRequestFlags(command, flags);
}

template <typename Request>
absl::Status BuildRequest(const GenerateFlags& flags, Request* request) {
  request->set_request_id(flags.request_id);
  request->set_model(flags.model);
  if (flags.priority) request->set_priority(*flags.priority);
  request->set_cache_salt(flags.cache_salt);
  PAGODA_RETURN_IF_ERROR(FillPrompt(flags, request->mutable_prompt()));
  PAGODA_RETURN_IF_ERROR(FillSampling(flags, request->mutable_sampling()));
  FillStopping(flags, request->mutable_stopping());
  FillOutput(flags, request->mutable_output());
  return absl::OkStatus();
}

template absl::Status BuildRequest(const GenerateFlags& flags, v1::GenerateRequest* request);
template absl::Status BuildRequest(const GenerateFlags& flags, v1::StreamGenerateRequest* request);

}  // namespace pagoda::daemon
