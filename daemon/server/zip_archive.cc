#include "daemon/server/zip_archive.h"

#include <cstdint>
#include <zlib.h>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace pagoda::daemon {
namespace {

// The format's constants (APPNOTE 4.3).
constexpr uint32_t kLocalHeader = 0x04034b50;
constexpr uint32_t kCentralHeader = 0x02014b50;
constexpr uint32_t kEndOfDirectory = 0x06054b50;
constexpr uint16_t kVersion = 20;
constexpr uint16_t kNamesAreUtf8 = 1 << 11;
constexpr uint16_t kMethodDeflate = 8;
// The format counts from here.
constexpr uint16_t kMidnight = 0;
constexpr uint16_t kFirstOf1980 = (1 << 5) | 1;
// Raw deflate: zip has a checksum of its own.
constexpr int kZipWindowBits = -15;
constexpr int kZipMemLevel = 8;

void Put16(uint16_t value, std::string* out) {
  out->push_back(static_cast<char>(value & 0xff));
  out->push_back(static_cast<char>(value >> 8));
}

void Put32(uint32_t value, std::string* out) {
  Put16(static_cast<uint16_t>(value & 0xffff), out);
  Put16(static_cast<uint16_t>(value >> 16), out);
}

absl::StatusOr<std::string> Deflate(const std::string& content) {
  z_stream stream = {};
  if (deflateInit2(&stream,
                   Z_DEFAULT_COMPRESSION,
                   Z_DEFLATED,
                   kZipWindowBits,
                   kZipMemLevel,
                   Z_DEFAULT_STRATEGY) != Z_OK) {
    return absl::InternalError("zlib cannot start");
  }
  std::string out(deflateBound(&stream, content.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(content.data()));
  stream.avail_in = static_cast<uInt>(content.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const int result = deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  if (result != Z_STREAM_END) return absl::InternalError(absl::StrCat("zlib: error ", result));
  return out;
}

// What both headers of an entry say, from the version on.
std::string EntryFields(const ZipEntry& entry, size_t num_deflated_bytes) {
  std::string fields;
  Put16(kVersion, &fields);
  Put16(kNamesAreUtf8, &fields);
  Put16(kMethodDeflate, &fields);
  Put16(kMidnight, &fields);
  Put16(kFirstOf1980, &fields);
  const auto* const bytes = reinterpret_cast<const Bytef*>(entry.content.data());
  Put32(static_cast<uint32_t>(crc32(0, bytes, static_cast<uInt>(entry.content.size()))), &fields);
  Put32(static_cast<uint32_t>(num_deflated_bytes), &fields);
  Put32(static_cast<uint32_t>(entry.content.size()), &fields);
  Put16(static_cast<uint16_t>(entry.name.size()), &fields);
  Put16(0, &fields);  // no extra field
  return fields;
}

}  // namespace

absl::StatusOr<std::string> MakeZip(const std::vector<ZipEntry>& entries) {
  std::string zip;
  std::string directory;
  for (const ZipEntry& entry : entries) {
    PAGODA_ASSIGN_OR_RETURN(const std::string deflated, Deflate(entry.content));
    const std::string fields = EntryFields(entry, deflated.size());
    Put32(kCentralHeader, &directory);
    Put16(kVersion, &directory);
    directory += fields;
    Put16(0, &directory);  // no comment
    Put16(0, &directory);  // on the first disk
    Put16(0, &directory);  // no internal attributes
    Put32(0, &directory);  // nor external ones
    Put32(static_cast<uint32_t>(zip.size()), &directory);
    directory += entry.name;
    Put32(kLocalHeader, &zip);
    absl::StrAppend(&zip, fields, entry.name, deflated);
  }
  const size_t directory_begin = zip.size();
  zip += directory;
  const auto num_entries = static_cast<uint16_t>(entries.size());
  Put32(kEndOfDirectory, &zip);
  Put16(0, &zip);
  Put16(0, &zip);
  Put16(num_entries, &zip);
  Put16(num_entries, &zip);
  Put32(static_cast<uint32_t>(directory.size()), &zip);
  Put32(static_cast<uint32_t>(directory_begin), &zip);
  Put16(0, &zip);  // no comment
  return zip;
}

}  // namespace pagoda::daemon
