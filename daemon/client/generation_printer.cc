#include "daemon/client/generation_printer.h"

#include <google/protobuf/util/json_util.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/client/failure.h"

namespace pagoda::daemon {
namespace {

double Milliseconds(const google::protobuf::Duration& duration) {
  return static_cast<double>(duration.seconds()) * 1e3 + duration.nanos() * 1e-6;
}

std::string MatchedStop(const v1::Finished& finished) {
  switch (finished.matched_stop_case()) {
    case v1::Finished::kStopString:
      return absl::StrCat(" \"", finished.stop_string(), "\"");
    case v1::Finished::kStopTokenId:
      return absl::StrCat(" token ", finished.stop_token_id());
    case v1::Finished::MATCHED_STOP_NOT_SET:
      break;
  }
  return "";
}

}  // namespace

void GenerationPrinter::Print(const v1::StreamGenerateResponse& response) {
  if (response.has_finished()) finished_[response.finished().index()] = response.finished();
  if (options_.json) return PrintJson(response);
  if (response.has_delta()) PrintDelta(response.delta());
}

void GenerationPrinter::Print(const v1::GenerateResponse& response) {
  for (const auto& sequence : response.sequences())
    finished_[sequence.finished().index()] = sequence.finished();
  if (options_.json) return PrintJson(response);
  for (const auto& sequence : response.sequences()) {
    v1::Delta delta;
    delta.set_index(sequence.finished().index());
    delta.set_text(sequence.text());
    *delta.mutable_token_ids() = sequence.token_ids();
    PrintDelta(delta);
  }
}

void GenerationPrinter::Finish() {
  for (const auto& [index, text] : later_sequences_) {
    Write(absl::StrCat(ends_in_newline_ ? "" : "\n", "--- sequence ", index, "\n", text));
  }
  if (!options_.json && !ends_in_newline_) Write("\n");
  later_sequences_.clear();
}

std::string GenerationPrinter::Summary() const {
  std::string summary;
  for (const auto& [index, finished] : finished_) {
    const v1::Usage& usage = finished.usage();
    absl::string_view reason = v1::FinishReason_Name(finished.reason());
    absl::StrAppendFormat(&summary,
                          "sequence %d: %s%s, %d prompt tokens (%d cached), %d completion tokens, "
                          "first token %.1f ms, "
                          "total %.1f ms\n",
                          index,
                          std::string(reason),
                          PrintableText(MatchedStop(finished)),
                          usage.prompt_tokens(),
                          usage.cached_tokens(),
                          usage.completion_tokens(),
                          Milliseconds(finished.timings().time_to_first_token()),
                          Milliseconds(finished.timings().total_duration()));
  }
  return summary;
}

void GenerationPrinter::PrintJson(const google::protobuf::Message& message) {
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json);
  out_ << (status.ok() ? json : absl::StrCat("{\"error\":\"", status.ToString(), "\"}")) << "\n"
       << std::flush;
}

void GenerationPrinter::PrintDelta(const v1::Delta& delta) {
  const std::string text = Render(delta.text(), delta.token_ids());
  if (delta.index() == 0) {
    Write(text);
  } else {
    later_sequences_[delta.index()] += text;
  }
}

std::string GenerationPrinter::Render(
    const std::string& text, const google::protobuf::RepeatedField<uint32_t>& token_ids) const {
  if (!options_.token_ids) return options_.is_terminal ? PrintableText(text) : text;
  std::string ids;
  for (const uint32_t id : token_ids) absl::StrAppend(&ids, id, "\n");
  return ids;
}

void GenerationPrinter::Write(const std::string& text) {
  if (text.empty()) return;
  out_ << text << std::flush;
  ends_in_newline_ = text.back() == '\n';
}

}  // namespace pagoda::daemon
