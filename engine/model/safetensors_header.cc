#include "engine/model/safetensors_header.h"

#include <algorithm>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/optional.h"
#include "engine/model/json_file.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine {
namespace {

struct TypeInfo {
  TensorType type;
  absl::string_view name;
  uint64_t bytes;
};

constexpr TypeInfo kTypes[] = {
    {TensorType::kBool, "BOOL", 1},
    {TensorType::kU8, "U8", 1},
    {TensorType::kI8, "I8", 1},
    {TensorType::kF8E5M2, "F8_E5M2", 1},
    {TensorType::kF8E4M3, "F8_E4M3", 1},
    {TensorType::kF8E8M0, "F8_E8M0", 1},
    {TensorType::kI16, "I16", 2},
    {TensorType::kU16, "U16", 2},
    {TensorType::kF16, "F16", 2},
    {TensorType::kBF16, "BF16", 2},
    {TensorType::kI32, "I32", 4},
    {TensorType::kU32, "U32", 4},
    {TensorType::kF32, "F32", 4},
    {TensorType::kF64, "F64", 8},
    {TensorType::kI64, "I64", 8},
    {TensorType::kU64, "U64", 8},
    {TensorType::kC64, "C64", 8},
};

const TypeInfo& InfoOf(TensorType type) {
  return *std::find_if(std::begin(kTypes), std::end(kTypes), [type](const TypeInfo& info) {
    return info.type == type;
  });
}

// Takes the events of a parser and accepts one structure only:
//   {"__metadata__": {string: string}, NAME: {"dtype": string, "shape": [int], "data_offsets":
//   [int, int]}}
// so memory stays proportional to the text and nothing nests.
class HeaderReader : public nlohmann::json::json_sax_t {
 public:
  const std::string& problem() const { return problem_; }
  std::vector<SafetensorsEntry> TakeEntries() { return std::move(entries_); }

  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("true or false"); }
  bool number_float(number_float_t, const string_t& text) override {
    return Unexpected(absl::StrCat("the number ", NameForMessage(text)));
  }
  bool number_integer(number_integer_t value) override {
    return Unexpected(absl::StrCat("the number ", value));
  }
  bool binary(binary_t&) override { return Unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ != Place::kShape && place_ != Place::kOffsets) {
      return Unexpected(absl::StrCat("the number ", value));
    }
    if (place_ == Place::kOffsets) {
      offsets_.push_back(value);
      return offsets_.size() <= 2 || Fail("has more than two data_offsets");
    }
    if (value > static_cast<uint64_t>(INT64_MAX)) return Fail("has a dimension above 2^63");
    entry_.shape.push_back(static_cast<int64_t>(value));
    return entry_.shape.size() <= kMaxTensorRank ||
           Fail(absl::StrCat("has more than ", kMaxTensorRank, " dimensions"));
  }

  bool string(string_t& value) override {
    if (place_ == Place::kMetadata) return true;
    if (place_ != Place::kTensor || field_ != "dtype") return Unexpected("a string");
    for (const TypeInfo& info : kTypes) {
      if (info.name != value) continue;
      entry_.type = info.type;
      has_dtype_ = true;
      return true;
    }
    return Fail(absl::StrCat("has the unknown dtype '", NameForMessage(value), "'"));
  }

  bool start_object(size_t) override {
    if (place_ == Place::kOutside) {
      place_ = Place::kTop;
    } else if (place_ == Place::kTop) {
      place_ = in_metadata_ ? Place::kMetadata : Place::kTensor;
    } else {
      return Unexpected("an object");
    }
    return true;
  }

  bool key(string_t& value) override {
    if (place_ == Place::kTop) {
      if (!names_.insert(value).second) {
        return Fail(absl::StrCat("names the tensor '", NameForMessage(value), "' twice"));
      }
      in_metadata_ = value == "__metadata__";
      entry_ = {.name = value};
      offsets_.clear();
      has_dtype_ = has_shape_ = has_offsets_ = false;
    } else if (place_ == Place::kTensor) {
      field_ = value;
      if ((field_ == "dtype" && has_dtype_) || (field_ == "shape" && has_shape_) ||
          (field_ == "data_offsets" && has_offsets_)) {
        return Fail(absl::StrCat("has ", field_, " twice"));
      }
    }
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kMetadata) {
      place_ = Place::kTop;
    } else if (place_ == Place::kTensor) {
      place_ = Place::kTop;
      return AddEntry();
    } else {
      place_ = Place::kOutside;
    }
    return true;
  }

  bool start_array(size_t) override {
    if (place_ == Place::kTensor && field_ == "shape") {
      place_ = Place::kShape;
      has_shape_ = true;
    } else if (place_ == Place::kTensor && field_ == "data_offsets") {
      place_ = Place::kOffsets;
      has_offsets_ = true;
    } else {
      return Unexpected("a list");
    }
    return true;
  }

  bool end_array() override {
    place_ = Place::kTensor;
    return true;
  }

  bool parse_error(size_t position,
                   const std::string&,
                   const nlohmann::detail::exception&) override {
    return Fail(absl::StrCat("is not valid JSON at byte ", position));
  }

 private:
  enum class Place { kOutside, kTop, kMetadata, kTensor, kShape, kOffsets };

  bool Fail(std::string problem) {
    if (problem_.empty()) {
      problem_ = place_ == Place::kTop || place_ == Place::kOutside || entry_.name.empty()
                     ? absl::StrCat("header ", problem)
                     : absl::StrCat("tensor '", NameForMessage(entry_.name), "' ", problem);
    }
    return false;
  }

  bool Unexpected(absl::string_view what) {
    return Fail(
        absl::StrCat("holds ",
                     what,
                     place_ == Place::kTensor ? absl::StrCat(" in ", NameForMessage(field_)) : "",
                     place_ == Place::kShape     ? " in shape"
                     : place_ == Place::kOffsets ? " in data_offsets"
                                                 : "",
                     " where the format has none"));
  }

  bool AddEntry() {
    place_ = Place::kTensor;  // for the message
    if (!has_dtype_ || !has_shape_ || !has_offsets_ || offsets_.size() != 2) {
      return Fail("lacks one of dtype, shape and data_offsets [begin, end]");
    }
    place_ = Place::kTop;
    entry_.data_begin = offsets_[0];
    entry_.data_end = offsets_[1];
    entries_.push_back(std::move(entry_));
    return true;
  }

  Place place_ = Place::kOutside;
  bool in_metadata_ = false;
  std::string field_;
  SafetensorsEntry entry_;
  std::vector<uint64_t> offsets_;
  bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
  std::set<std::string> names_;
  std::vector<SafetensorsEntry> entries_;
  std::string problem_;
};

// Bytes of a tensor; absent when the product leaves 64 bits.
absl::optional<uint64_t> BytesOf(const SafetensorsEntry& entry) {
  uint64_t bytes = InfoOf(entry.type).bytes;
  bool empty = false;
  for (int64_t dim : entry.shape) {
    empty = empty || dim == 0;
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(std::max<int64_t>(dim, 1)), &bytes)) {
      return absl::nullopt;
    }
  }
  return empty ? 0 : bytes;
}

absl::Status CheckEntry(const SafetensorsEntry& entry) {
  const std::string name = absl::StrCat("tensor '", NameForMessage(entry.name), "'");
  if (entry.data_begin > entry.data_end) {
    return absl::InvalidArgumentError(absl::StrCat(name,
                                                   " has data_offsets [",
                                                   entry.data_begin,
                                                   ", ",
                                                   entry.data_end,
                                                   "]; expected begin <= end"));
  }
  const absl::optional<uint64_t> bytes = BytesOf(entry);
  if (!bytes || *bytes != entry.data_end - entry.data_begin) {
    return absl::InvalidArgumentError(absl::StrCat(name,
                                                   " has ",
                                                   entry.data_end - entry.data_begin,
                                                   " bytes of data; expected ",
                                                   bytes ? absl::StrCat(*bytes) : "more than 2^64",
                                                   " for ",
                                                   TensorTypeName(entry.type),
                                                   " [",
                                                   absl::StrJoin(entry.shape, ", "),
                                                   "]"));
  }
  return absl::OkStatus();
}

absl::Status CheckCover(const std::vector<SafetensorsEntry>& entries, uint64_t data_bytes) {
  uint64_t covered = 0;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.data_begin != covered) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor '",
                       NameForMessage(entry.name),
                       "' begins at byte ",
                       entry.data_begin,
                       " of the data; expected ",
                       covered,
                       ", where the one before ends (",
                       entry.data_begin < covered ? "they overlap" : "a gap is between them",
                       ")"));
    }
    covered = entry.data_end;
  }
  if (covered > data_bytes) {
    return absl::DataLossError(
        absl::StrCat("is truncated: ", data_bytes, " bytes follow the header; expected ", covered));
  }
  if (covered < data_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(data_bytes,
                                                   " bytes follow the header; expected ",
                                                   covered,
                                                   ", where the last tensor ends"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::string_view TensorTypeName(TensorType type) { return InfoOf(type).name; }

absl::StatusOr<uint64_t> SafetensorsHeaderBytes(absl::string_view prefix, uint64_t file_bytes) {
  if (prefix.size() < kSafetensorsPrefixBytes) {
    return absl::DataLossError(absl::StrCat(
        "is truncated: has ", file_bytes, " bytes; expected the header's length in the first 8"));
  }
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = (length << 8) | static_cast<uint8_t>(prefix[i]);
  if (length < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("says that its header has ", length, " bytes; expected at least 2"));
  }
  if (length > kMaxSafetensorsHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat("says that its header has ",
                                                   length,
                                                   " bytes; expected at most ",
                                                   kMaxSafetensorsHeaderBytes));
  }
  if (length > file_bytes - kSafetensorsPrefixBytes) {
    return absl::DataLossError(
        absl::StrCat("is truncated: its header has ", length, " bytes, the file ", file_bytes));
  }
  return length;
}

absl::StatusOr<std::vector<SafetensorsEntry>> ParseSafetensorsHeader(absl::string_view header,
                                                                     uint64_t data_bytes) {
  // The parser takes a zero byte for the end of its input.
  if (header.find('\0') != absl::string_view::npos) {
    return absl::InvalidArgumentError("header is not valid JSON: it holds a zero byte");
  }
  HeaderReader reader;
  bool parsed = false;
  try {
    parsed = nlohmann::json::sax_parse(header.begin(), header.end(), &reader);
  } catch (const std::exception&) {
    parsed = false;
  }
  if (!parsed) {
    return absl::InvalidArgumentError(reader.problem().empty() ? "header is not valid JSON"
                                                               : reader.problem());
  }
  std::vector<SafetensorsEntry> entries = reader.TakeEntries();
  for (const SafetensorsEntry& entry : entries) PAGODA_RETURN_IF_ERROR(CheckEntry(entry));
  std::sort(
      entries.begin(), entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
        return std::tie(a.data_begin, a.data_end) < std::tie(b.data_begin, b.data_end);
      });
  PAGODA_RETURN_IF_ERROR(CheckCover(entries, data_bytes));
  return entries;
}

}  // namespace pagoda::engine
