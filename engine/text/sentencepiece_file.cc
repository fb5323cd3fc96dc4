#include "engine/text/sentencepiece_file.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/text/utf8.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine {
namespace {

// A field in protobuf's wire format.
struct Field {
  uint32_t number = 0;
  uint64_t value = 0;            // of varints and fixed numbers
  absl::string_view bytes = {};  // of strings and messages
};

// Walks through the fields of a message.
class FieldReader {
 public:
  explicit FieldReader(absl::string_view message) : rest_(message) {}

  bool done() const { return rest_.empty(); }
  absl::StatusOr<Field> Next() {
    PAGODA_ASSIGN_OR_RETURN(const uint64_t tag, Varint());
    Field field = {.number = static_cast<uint32_t>(tag >> 3)};
    switch (tag & 7) {
      case 0: {
        PAGODA_ASSIGN_OR_RETURN(field.value, Varint());
        return field;
      }
      case 1:
        PAGODA_RETURN_IF_ERROR(Fixed(8, &field.value));
        return field;
      case 2: {
        PAGODA_ASSIGN_OR_RETURN(const uint64_t size, Varint());
        if (size > rest_.size()) return Truncated();
        field.bytes = rest_.substr(0, size);
        rest_.remove_prefix(size);
        return field;
      }
      case 5:
        PAGODA_RETURN_IF_ERROR(Fixed(4, &field.value));
        return field;
      default:
        return absl::InvalidArgumentError("not a SentencePiece model");
    }
  }

 private:
  static absl::Status Truncated() {
    return absl::InvalidArgumentError("not a SentencePiece model, or cut off");
  }
  absl::StatusOr<uint64_t> Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (rest_.empty()) return Truncated();
      const uint8_t byte = static_cast<uint8_t>(rest_.front());
      rest_.remove_prefix(1);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    return Truncated();
  }
  absl::Status Fixed(size_t num_bytes, uint64_t* value) {
    if (num_bytes > rest_.size()) return Truncated();
    std::memcpy(value, rest_.data(), num_bytes);
    rest_.remove_prefix(num_bytes);
    return absl::OkStatus();
  }

  absl::string_view rest_;
};

absl::StatusOr<SentencePieceFile::Piece> ReadPiece(absl::string_view message) {
  SentencePieceFile::Piece piece;
  for (FieldReader reader(message); !reader.done();) {
    PAGODA_ASSIGN_OR_RETURN(const Field field, reader.Next());
    if (field.number == 1) piece.text = std::string(field.bytes);
    if (field.number == 2) std::memcpy(&piece.score, &field.value, 4);
    if (field.number == 3) {
      if (field.value < 1 || field.value > 6)
        return absl::InvalidArgumentError(absl::StrCat("piece of unknown type ", field.value));
      piece.type = static_cast<SentencePieceFile::PieceType>(field.value);
    }
  }
  return piece;
}

absl::Status ReadTrainerSpec(absl::string_view message, SentencePieceFile* file) {
  for (FieldReader reader(message); !reader.done();) {
    PAGODA_ASSIGN_OR_RETURN(const Field field, reader.Next());
    if (field.number == 3) {
      if (field.value < 1 || field.value > 4)
        return absl::InvalidArgumentError(absl::StrCat("model of unknown type ", field.value));
      file->type = static_cast<SentencePieceFile::Type>(field.value);
    }
    if (field.number == 24) file->treat_whitespace_as_suffix = field.value != 0;
    if (field.number == 35) file->byte_fallback = field.value != 0;
    if (field.number == 41) file->bos_id = static_cast<int32_t>(field.value);
    if (field.number == 42) file->eos_id = static_cast<int32_t>(field.value);
  }
  return absl::OkStatus();
}

absl::Status ReadNormalizerSpec(absl::string_view message, SentencePieceFile* file) {
  for (FieldReader reader(message); !reader.done();) {
    PAGODA_ASSIGN_OR_RETURN(const Field field, reader.Next());
    if (field.number == 2) file->character_map = std::string(field.bytes);
    if (field.number == 3) file->add_dummy_prefix = field.value != 0;
    if (field.number == 4) file->remove_extra_whitespaces = field.value != 0;
    if (field.number == 5) file->escape_whitespaces = field.value != 0;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SentencePieceFile> SentencePieceFile::Parse(absl::string_view bytes) {
  SentencePieceFile file;
  for (FieldReader reader(bytes); !reader.done();) {
    PAGODA_ASSIGN_OR_RETURN(const Field field, reader.Next());
    if (field.number == 1) {
      PAGODA_ASSIGN_OR_RETURN(Piece piece, ReadPiece(field.bytes));
      if (piece.text.empty() || !IsValidUtf8(piece.text)) {
        return absl::InvalidArgumentError(
            absl::StrCat("piece ", file.pieces.size(), " is empty or not valid UTF-8"));
      }
      file.pieces.push_back(std::move(piece));
    }
    if (field.number == 2) PAGODA_RETURN_IF_ERROR(ReadTrainerSpec(field.bytes, &file));
    if (field.number == 3) PAGODA_RETURN_IF_ERROR(ReadNormalizerSpec(field.bytes, &file));
  }
  if (file.pieces.empty())
    return absl::InvalidArgumentError("no pieces: not a SentencePiece model");
  return file;
}

}  // namespace pagoda::engine
