#pragma once

#include <string>
#include <vector>

#include "google/protobuf/message.h"

namespace pagoda::e2e {

// A request that differs from a good one in one field.
struct BadMessage {
  std::string field;  // its path as in the .proto, such as "sampling.top_p"; of lists, that of [0]
  std::string what;   // for people
  // The outermost message around the field that the good request does not have; empty: it has all.
  std::string added;
  std::string bytes;
  // The field does not have the wire type of its declaration, or is no UTF-8: nobody can say which
  // field that is.
  bool is_malformed = false;
};

// For every field of the message's type and of the messages within: without it, with each extreme
// value of its type, many of it where it is a list, and on the wire as another type. Most are
// wrong; some are merely unusual.
std::vector<BadMessage> BadMessages(const google::protobuf::Message& good);

}  // namespace pagoda::e2e
