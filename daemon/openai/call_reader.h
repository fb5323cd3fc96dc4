#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "daemon/openai/output_parser.h"

namespace pagoda::daemon::openai {

// Reads one call of a tool, {"name": "f", "arguments": {...}} with "parameters" as another name of
// the arguments, from text that comes in pieces. Once the name is known the arguments are given out
// as they come, as the model wrote them; arguments that stand before the name, or in a string, are
// given out when the call has ended. Thread-compatible.
class CallReader {
 public:
  enum class State : uint8_t {
    kHead,       // not known yet whether it is a call: nothing has been given out
    kNoCall,     // it is none: nothing has been given out, nor taken
    kArguments,  // they are being given out
    kTail,       // they have ended, the call has not
    kDone,
  };

  // `index`: of the call. `tools`: names that it may have; null: any. Outlives the reader.
  // `only_known_keys`: a key that calls do not have makes it none.
  CallReader(size_t index, const std::vector<std::string>* tools, bool only_known_keys)
      : index_(index), tools_(tools), only_known_keys_(only_known_keys) {}

  // Takes what is read off the front of `text`, to which the owner appends what comes.
  State Feed(std::string* text, ParsedOutput* out);
  State state() const { return state_; }
  // Whether the call's name has been given out.
  bool has_begun() const { return has_begun_; }

 private:
  struct Head;
  // Where the value ends whose brackets open from `depth` on; strings are skipped.
  struct Nesting {
    int depth = 0;
    bool in_string = false;
    bool is_escaped = false;
    // Bytes up to the end; npos: it has not come.
    size_t Scan(absl::string_view text);
  };

  Head ReadHead(absl::string_view text) const;
  bool IsTool(absl::string_view name) const;
  void TakeHead(std::string* text, ParsedOutput* out);
  void TakeArguments(std::string* text, ParsedOutput* out);
  void Give(std::string name, absl::string_view arguments, ParsedOutput* out);

  const size_t index_;
  const std::vector<std::string>* const tools_;
  const bool only_known_keys_;
  State state_ = State::kHead;
  Nesting nesting_;
  bool has_begun_ = false;
};

}  // namespace pagoda::daemon::openai
