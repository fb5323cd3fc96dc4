#include "daemon/openai/repeated_key.h"

#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace pagoda::daemon::openai {
namespace {

using nlohmann::ordered_json;

// Stops at the first repeated key.
class KeyReader final : public nlohmann::json_sax<ordered_json> {
 public:
  const absl::optional<std::string>& found() const { return found_; }

  bool null() override { return AddValue(); }
  bool boolean(bool /*value*/) override { return AddValue(); }
  bool number_integer(number_integer_t /*value*/) override { return AddValue(); }
  bool number_unsigned(number_unsigned_t /*value*/) override { return AddValue(); }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override {
    return AddValue();
  }
  bool string(string_t& /*value*/) override { return AddValue(); }
  bool binary(binary_t& /*value*/) override { return AddValue(); }
  bool start_object(size_t /*size*/) override { return Open(/*is_list=*/false); }
  bool end_object() override { return Close(); }
  bool start_array(size_t /*size*/) override { return Open(/*is_list=*/true); }
  bool end_array() override { return Close(); }
  bool parse_error(size_t /*at*/,
                   const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    return false;
  }

  bool key(string_t& name) override {
    Level& level = levels_.back();
    level.key = name;
    if (level.keys.insert(name).second) return true;
    found_ = Path();
    return false;
  }

 private:
  struct Level {
    bool is_list = false;
    size_t num_values = 0;  // of a list
    std::string key;
    std::set<std::string> keys;
  };

  bool AddValue() {
    if (!levels_.empty()) ++levels_.back().num_values;
    return true;
  }
  bool Open(bool is_list) {
    levels_.push_back({.is_list = is_list});
    return true;
  }
  bool Close() {
    levels_.pop_back();
    return AddValue();
  }
  std::string Path() const {
    std::string path;
    for (const Level& level : levels_) {
      if (level.is_list) {
        absl::StrAppend(&path, "[", level.num_values, "]");
      } else {
        absl::StrAppend(&path, path.empty() ? "" : ".", level.key);
      }
    }
    return path;
  }

  std::vector<Level> levels_;
  absl::optional<std::string> found_;
};

}  // namespace

absl::optional<std::string> FindRepeatedKey(absl::string_view text) {
  KeyReader reader;
  ordered_json::sax_parse(text.begin(), text.end(), &reader);
  return reader.found();
}

}  // namespace pagoda::daemon::openai
