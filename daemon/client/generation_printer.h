#pragma once

#include <cstdint>
#include <map>
#include <ostream>
#include <string>

#include "google/protobuf/message.h"
#include "pagoda/v1/inference.pb.h"

namespace pagoda::daemon {

// Writes the events of one generation. Thread-compatible.
class GenerationPrinter {
 public:
  struct Options {
    bool json = false;         // every message as proto3 JSON, one a line
    bool token_ids = false;    // ids instead of text
    bool is_terminal = false;  // control characters of the text are replaced
  };

  GenerationPrinter(const Options& options, std::ostream* out) : options_(options), out_(*out) {}

  void Print(const v1::StreamGenerateResponse& response);
  void Print(const v1::GenerateResponse& response);
  // What is held back and the last newline. To be called once, also after a failure.
  void Finish();

  // Usage and timings of what has finished, one line a sequence.
  std::string Summary() const;

 private:
  void PrintJson(const google::protobuf::Message& message);
  void PrintDelta(const v1::Delta& delta);
  std::string Render(const std::string& text,
                     const google::protobuf::RepeatedField<uint32_t>& token_ids) const;
  void Write(const std::string& text);

  const Options options_;
  std::ostream& out_;
  // Sequences other than the first, shown one after the other at the end: interleaved they could
  // not be read.
  std::map<uint32_t, std::string> later_sequences_;
  std::map<uint32_t, v1::Finished> finished_;
  bool ends_in_newline_ = true;
};

}  // namespace pagoda::daemon
