#include "engine/model/checkpoint.h"

#include <cstring>
#include <sys/stat.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/engine/model/model_dir.h"

namespace pagoda::engine {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

TestTensor Ones(const std::string& name, float value = 1.0f) {
  return FloatTensor(name, {2, 3}, std::vector<float>(6, value));
}

void ExpectRefused(const ModelDir& dir, const std::vector<std::string>& parts) {
  const auto checkpoint = Checkpoint::Open(dir.path());
  ASSERT_FALSE(checkpoint.ok());
  const std::string message(checkpoint.status().message());
  EXPECT_THAT(message, HasSubstr(dir.path()));
  for (const std::string& part : parts) EXPECT_THAT(message, HasSubstr(part));
}

void ExpectFileRefused(const std::string& file, const std::vector<std::string>& parts) {
  ModelDir dir;
  dir.Write("model.safetensors", absl::string_view(file));
  ExpectRefused(dir, parts);
  ExpectRefused(dir, {"model.safetensors"});
}

float FirstValue(const Checkpoint& checkpoint, absl::string_view name) {
  const CheckpointTensor* tensor = checkpoint.Find(name);
  if (tensor == nullptr) return -1.0f;
  float value = 0.0f;
  EXPECT_TRUE(checkpoint.Read(*tensor, 0, sizeof(value), &value).ok());
  return value;
}

TEST(CheckpointTest, ReadsTensorsInParts) {
  ModelDir dir;
  dir.Write("model.safetensors",
            absl::string_view(SafetensorsFile(
                {FloatTensor("a", {2, 2}, {1, 2, 3, 4}), FloatTensor("b", {3}, {5, 6, 7})})));
  const auto checkpoint = Checkpoint::Open(dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  ASSERT_EQ((*checkpoint)->tensors().size(), 2u);
  const CheckpointTensor* b = (*checkpoint)->Find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_THAT(b->shape, testing::ElementsAre(3));
  float values[2];
  ASSERT_TRUE((*checkpoint)->Read(*b, 4, 8, values).ok());
  EXPECT_EQ(values[0], 6.0f);
  EXPECT_EQ(values[1], 7.0f);
  EXPECT_EQ((*checkpoint)->Find("c"), nullptr);
}

TEST(CheckpointTest, AcceptsScalarsEmptyTensorsAndPadding) {
  ModelDir dir;
  dir.Write("model.safetensors",
            absl::string_view(RawSafetensorsFile(
                R"({"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
                R"("e":{"dtype":"BF16","shape":[0,7],"data_offsets":[4,4]}}    )",
                "\x01\x02\x03\x04")));
  EXPECT_TRUE(Checkpoint::Open(dir.path()).ok()) << Checkpoint::Open(dir.path()).status();
}

// ---- B089: the header's length.

std::string WithLength(uint64_t length) {
  std::string file = SafetensorsFile({Ones("w")});
  for (int i = 0; i < 8; ++i) file[static_cast<size_t>(i)] = static_cast<char>(length >> (8 * i));
  return file;
}

TEST(CheckpointTest, B089_HeaderLength) {
  const uint64_t size = SafetensorsFile({Ones("w")}).size();
  ExpectFileRefused(WithLength(0), {"header has 0 bytes"});
  ExpectFileRefused(WithLength(1), {"header has 1 bytes"});
  ExpectFileRefused(WithLength(size - 8), {"not valid JSON"});
  ExpectFileRefused(WithLength(size - 7), {"truncated"});
  for (uint64_t length : {uint64_t{1} << 31,
                          kMaxSafetensorsHeaderBytes + 1,
                          uint64_t{1} << 63,
                          ~uint64_t{0},
                          ~uint64_t{0} - 4}) {
    ExpectFileRefused(WithLength(length), {absl::StrCat(length), "at most 100000000"});
  }
  ExpectFileRefused(SafetensorsFile({Ones("w")}).substr(0, 7), {"truncated", "7 bytes"});
  ExpectFileRefused("", {"truncated"});
}

// ---- B090: offsets, shapes, types.

std::string OneTensor(const std::string& dtype,
                      const std::string& shape,
                      const std::string& offsets,
                      size_t data_bytes) {
  return RawSafetensorsFile(absl::StrCat("{\"w\":{\"dtype\":\"",
                                         dtype,
                                         "\",\"shape\":",
                                         shape,
                                         ",\"data_offsets\":",
                                         offsets,
                                         "}}"),
                            std::string(data_bytes, 'x'));
}

TEST(CheckpointTest, B090_OffsetsAgainstShapeAndFile) {
  ExpectFileRefused(OneTensor("F32", "[64,64]", "[0,16]", 16), {"'w'", "16 bytes", "16384"});
  ExpectFileRefused(OneTensor("F32", "[4]", "[16,0]", 16), {"'w'", "begin <= end"});
  ExpectFileRefused(OneTensor("F32", "[4]", "[-16,0]", 16), {"'w'", "-16"});
  ExpectFileRefused(OneTensor("F32", "[4]", "[0]", 16), {"'w'", "data_offsets"});
  ExpectFileRefused(OneTensor("F32", "[4]", "[0,8,16]", 16), {"'w'", "data_offsets"});
  ExpectFileRefused(OneTensor("F32", "[4]", "[0,1e1]", 16), {"'w'", "1e1"});
  ExpectFileRefused(OneTensor("F32", "[4]", "[0,16]", 8), {"truncated"});
  ExpectFileRefused(OneTensor("F32", "[4]", "[0,99999999999999999999]", 16), {"'w'"});
  ExpectFileRefused(OneTensor("F32", "[4294967296,4294967296]", "[0,0]", 0), {"'w'", "2^64"});
  ExpectFileRefused(OneTensor("F32", "[18446744073709551615]", "[0,16]", 16), {"'w'", "2^63"});
  ExpectFileRefused(OneTensor("F32", "[-4]", "[0,16]", 16), {"'w'", "-4"});
  ExpectFileRefused(OneTensor("F32", "[4.0]", "[0,16]", 16), {"'w'", "4.0"});
  ExpectFileRefused(OneTensor("F33", "[4]", "[0,16]", 16), {"'w'", "F33"});
  std::string rank100 = "[1";
  for (int i = 1; i < 100; ++i) rank100 += ",1";
  ExpectFileRefused(OneTensor("F32", rank100 + "]", "[0,4]", 4), {"'w'", "8 dimensions"});
  ExpectFileRefused(OneTensor("F32", "[4]", "[4,20]", 20), {"'w'", "a gap"});
  ExpectFileRefused(OneTensor("F32", "[4]", "[0,16]", 17), {"17 bytes follow", "16"});
}

TEST(CheckpointTest, B090_OverlapAndDuplicates) {
  const std::string data(24, 'x');
  ExpectFileRefused(RawSafetensorsFile(R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},)"
                                       R"("b":{"dtype":"F32","shape":[4],"data_offsets":[8,24]}})",
                                       data),
                    {"'b'", "overlap"});
  ExpectFileRefused(RawSafetensorsFile(R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},)"
                                       R"("a":{"dtype":"F32","shape":[2],"data_offsets":[16,24]}})",
                                       data),
                    {"'a' twice"});
}

TEST(CheckpointTest, B090_HeadersOfAnotherStructure) {
  for (const char* header : {"[]",
                             "12",
                             "{\"w\":1}",
                             "{\"w\":{}}",
                             "{\"w\":{\"dtype\":\"F32\"}}",
                             "{\"w\":[1]}",
                             "{\"__metadata__\":{\"a\":{}}}",
                             "{\"w\":{\"dtype\":{}}}",
                             "{\"w\":{\"shape\":[[1]]}}",
                             "{\"w\":null}",
                             "{} x",
                             "\xff\xfe"}) {
    ExpectFileRefused(RawSafetensorsFile(header, ""), {});
  }
  ExpectFileRefused(RawSafetensorsFile(std::string(100000, '['), ""), {});
}

// ---- B092, B093: shards.

json IndexOf(const std::map<std::string, std::string>& weight_map) {
  return {{"metadata", {{"total_size", 48}}}, {"weight_map", weight_map}};
}

TEST(CheckpointTest, B092_EveryMissingShardIsNamed) {
  ModelDir dir;
  dir.Write("a.safetensors", absl::string_view(SafetensorsFile({Ones("a")})));
  dir.Write("model.safetensors.index.json",
            IndexOf({{"a", "a.safetensors"}, {"b", "b.safetensors"}, {"c", "c.safetensors"}}));
  ExpectRefused(dir, {"b.safetensors, c.safetensors"});
}

TEST(CheckpointTest, B092_TensorThatItsShardDoesNotHoldIsNamed) {
  ModelDir dir;
  dir.Write("a.safetensors", absl::string_view(SafetensorsFile({Ones("a")})));
  dir.Write("b.safetensors", absl::string_view(SafetensorsFile({Ones("b")})));
  dir.Write("model.safetensors.index.json",
            IndexOf({{"a", "a.safetensors"}, {"b", "a.safetensors"}, {"c", "b.safetensors"}}));
  ExpectRefused(dir, {"'b' in a.safetensors", "'c' in b.safetensors"});
}

TEST(CheckpointTest, B092_NumberedShardsWithoutAnIndex) {
  ModelDir dir;
  dir.Write("model-00002-of-00003.safetensors", absl::string_view(SafetensorsFile({Ones("b")})));
  ExpectRefused(dir, {"model-00001-of-00003.safetensors, model-00003-of-00003.safetensors"});
}

TEST(CheckpointTest, B093_TheIndexDecides) {
  ModelDir dir;
  dir.Write("a.safetensors", absl::string_view(SafetensorsFile({Ones("w", 1.0f)})));
  dir.Write("b.safetensors",
            absl::string_view(SafetensorsFile({Ones("v", 2.0f), Ones("w", 3.0f)})));
  dir.Write("model.safetensors", absl::string_view("a stray file"));
  dir.Write("model.safetensors.index.json",
            IndexOf({{"w", "a.safetensors"}, {"v", "b.safetensors"}}));
  const auto checkpoint = Checkpoint::Open(dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(FirstValue(**checkpoint, "w"), 1.0f);
  EXPECT_EQ(FirstValue(**checkpoint, "v"), 2.0f);
}

TEST(CheckpointTest, B093_WithoutAnIndexADuplicateIsAnError) {
  ModelDir dir;
  dir.Write("a.safetensors", absl::string_view(SafetensorsFile({Ones("w")})));
  dir.Write("b.safetensors", absl::string_view(SafetensorsFile({Ones("w")})));
  ExpectRefused(dir, {"'w'", "a.safetensors", "b.safetensors"});
}

TEST(CheckpointTest, IndexNamesPlainFilesOnly) {
  for (const json& name : {json("../a.safetensors"),
                           json("/etc/passwd"),
                           json("x/a.safetensors"),
                           json("a.bin"),
                           json(".safetensors"),
                           json(1),
                           json("")}) {
    ModelDir dir;
    dir.Write("model.safetensors.index.json", json({{"weight_map", {{"w", name}}}}));
    ExpectRefused(dir, {"weight_map.w"});
  }
  ModelDir dir;
  dir.Write("model.safetensors.index.json", json({{"weight_map", json::object()}}));
  ExpectRefused(dir, {"weight_map"});
}

// ---- B094: truncation.

TEST(CheckpointTest, B094_TruncatedFilesAreFoundAtOpen) {
  const std::string whole =
      SafetensorsFile({FloatTensor("w", {64, 64}, std::vector<float>(4096, 1.0f))});
  for (size_t cut : {size_t{1}, size_t{4096}, whole.size() / 2}) {
    ExpectFileRefused(whole.substr(0, whole.size() - cut), {"truncated"});
  }
}

TEST(CheckpointTest, B094_AFileThatShrinksWhileReadIsAnError) {
  ModelDir dir;
  const std::string whole =
      SafetensorsFile({FloatTensor("w", {64, 64}, std::vector<float>(4096, 1.0f))});
  dir.Write("model.safetensors", absl::string_view(whole));
  const auto checkpoint = Checkpoint::Open(dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  ASSERT_EQ(truncate(dir.File("model.safetensors").c_str(), 1000), 0);
  std::string bytes(64 * 64 * 4, '\0');
  const absl::Status read =
      (*checkpoint)->Read(*(*checkpoint)->Find("w"), 0, bytes.size(), bytes.data());
  EXPECT_EQ(read.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(read.message()), HasSubstr("model.safetensors"));
}

// ---- Other formats.

TEST(CheckpointTest, PickleIsNeverRead) {
  for (const char* name : {"pytorch_model.bin", "model.pt", "consolidated.00.pth"}) {
    ModelDir dir;
    dir.Write(name, absl::string_view("pickle"));
    ExpectRefused(dir, {name, "never read"});
  }
  ModelDir dir;
  ExpectRefused(dir, {"no *.safetensors"});
}

TEST(CheckpointTest, SpecialFilesAreRefused) {
  ModelDir dir;
  ASSERT_EQ(mkfifo(dir.File("model.safetensors").c_str(), 0600), 0);
  ExpectRefused(dir, {"regular file"});
}

}  // namespace
}  // namespace pagoda::engine
