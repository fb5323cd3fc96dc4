#include "daemon/server/zip_archive.h"

#include <cstring>
#include <map>
#include <random>
#include <zlib.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pagoda::daemon {
namespace {

uint32_t Number(const std::string& bytes, size_t at, int num_bytes) {
  uint32_t value = 0;
  for (int i = num_bytes; i-- > 0;)
    value = value << 8 | static_cast<uint8_t>(bytes.at(at + static_cast<size_t>(i)));
  return value;
}

std::string Inflate(const std::string& deflated, size_t size) {
  std::string out(size, '\0');
  z_stream stream = {};
  EXPECT_EQ(inflateInit2(&stream, -15), Z_OK);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(deflated.data()));
  stream.avail_in = static_cast<uInt>(deflated.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(size);
  EXPECT_EQ(inflate(&stream, Z_FINISH), Z_STREAM_END);
  EXPECT_EQ(stream.avail_in, 0u);
  EXPECT_EQ(inflateEnd(&stream), Z_OK);
  return out;
}

// Reads an archive as an unzipper does: from its end, by the directory, each entry's own header
// agreeing with it.
std::map<std::string, std::string> Unzip(const std::string& zip) {
  std::map<std::string, std::string> entries;
  const size_t end = zip.size() - 22;
  EXPECT_EQ(Number(zip, end, 4), 0x06054b50u);
  size_t at = Number(zip, end + 16, 4);
  EXPECT_EQ(at + Number(zip, end + 12, 4), end);
  const uint32_t num_entries = Number(zip, end + 10, 2);
  for (uint32_t i = 0; i < num_entries; ++i) {
    EXPECT_EQ(Number(zip, at, 4), 0x02014b50u);
    const uint32_t num_deflated = Number(zip, at + 20, 4), size = Number(zip, at + 24, 4);
    const uint32_t name_size = Number(zip, at + 28, 2);
    const std::string name = zip.substr(at + 46, name_size);
    const size_t local = Number(zip, at + 42, 4);
    EXPECT_EQ(Number(zip, local, 4), 0x04034b50u);
    EXPECT_EQ(zip.substr(local + 4, 26), zip.substr(at + 6, 26));
    EXPECT_EQ(zip.substr(local + 30, name_size), name);
    const std::string content = Inflate(zip.substr(local + 30 + name_size, num_deflated), size);
    EXPECT_EQ(crc32(0, reinterpret_cast<const Bytef*>(content.data()), size),
              Number(zip, at + 16, 4));
    EXPECT_TRUE(entries.emplace(name, content).second);
    at += 46 + name_size;
  }
  EXPECT_EQ(at, end);
  return entries;
}

TEST(ZipArchiveTest, GivesBackWhatWentIn) {
  std::string noise(300'000, '\0');
  std::mt19937 random(1);
  for (char& c : noise) c = static_cast<char>(random());
  const std::map<std::string, std::string> contents = {
      {"empty", ""}, {"noise", noise}, {"tokenizer.json", std::string(1'000'000, 'x')}};
  std::vector<ZipEntry> entries;
  for (const auto& [name, content] : contents) entries.push_back({name, content});
  const auto zip = MakeZip(entries);
  ASSERT_TRUE(zip.ok()) << zip.status();
  EXPECT_LT(zip->size(), 310'000u);
  EXPECT_EQ(Unzip(*zip), contents);
  EXPECT_EQ(*MakeZip(entries), *zip);
}

TEST(ZipArchiveTest, MayBeEmpty) { EXPECT_TRUE(Unzip(*MakeZip({})).empty()); }

}  // namespace
}  // namespace pagoda::daemon
