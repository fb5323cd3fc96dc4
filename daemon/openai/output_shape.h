#pragma once

#include <string>
#include <vector>

namespace pagoda::daemon::openai {

// How a chat's output is to be told in OpenAI's shape.
struct OutputShape {
  // Names of the tools that the output may call; empty: it is text whatever it looks like.
  std::vector<std::string> tools;
  // The whole output is the arguments of this tool; empty: no.
  std::string forced_tool;
  // The whole output is a JSON list of calls.
  bool requires_calls = false;
  // The client asks for the form of the output itself, so nothing in it is a call or a thought.
  bool is_constrained = false;
  // The field that gave the output its form, as the client knows it; empty: none.
  std::string form_field;
};

}  // namespace pagoda::daemon::openai
