#include "daemon/server/message_bytes.h"

#include <zlib.h>

#include "gmock/gmock.h"
#include "google/protobuf/stubs/logging.h"
#include "gtest/gtest.h"
#include "pagoda/v1/inference.pb.h"

namespace pagoda::daemon {
namespace {

using ::testing::StartsWith;

constexpr size_t kMaxBytes = size_t{1} << 20;

// As a client's gRPC compresses.
std::string Gzip(const std::string& text) {
  z_stream stream{};
  EXPECT_EQ(
      deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY),
      Z_OK);
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

grpc::ByteBuffer Buffer(const std::string& bytes) {
  // In two slices, as a long message arrives.
  grpc::Slice slices[] = {grpc::Slice(bytes.substr(0, bytes.size() / 2)),
                          grpc::Slice(bytes.substr(bytes.size() / 2))};
  return grpc::ByteBuffer(slices, 2);
}

// A message whose strings hold anything; serialising does not check them.
template <typename Edit>
absl::Status ParseEdited(Edit edit) {
  v1::GenerateRequest request;
  edit(&request);
  v1::GenerateRequest parsed;
  return ParseRequest(Buffer(request.SerializeAsString()), kMaxBytes, &parsed);
}

TEST(MessageBytesTest, RoundTrip) {
  v1::GenerateRequest request;
  request.mutable_prompt()->set_text(std::string("with a NUL \0 and a snowman \u2603", 30));
  request.mutable_stopping()->add_stop("x");
  v1::GenerateRequest parsed;
  ASSERT_TRUE(ParseRequest(SerializeReply(request), kMaxBytes, &parsed).ok());
  EXPECT_EQ(parsed.SerializeAsString(), request.SerializeAsString());
}

TEST(MessageBytesTest, B016InvalidUtf8NamesItsField) {
  const google::protobuf::LogSilencer silencer;
  const std::string bad = "\xff\xfe";
  const std::pair<std::string, absl::Status> kCases[] = {
      {"prompt.text", ParseEdited([&](auto* r) { r->mutable_prompt()->set_text("ok" + bad); })},
      {"model", ParseEdited([&](auto* r) { r->set_model(bad); })},
      {"request_id", ParseEdited([&](auto* r) { r->set_request_id(bad); })},
      {"cache_salt", ParseEdited([&](auto* r) { r->set_cache_salt(bad); })},
      {"stopping.stop[1]", ParseEdited([&](auto* r) {
         r->mutable_stopping()->add_stop("fine");
         r->mutable_stopping()->add_stop(bad);
       })},
      {"sampling.bad_words[0]",
       ParseEdited([&](auto* r) { r->mutable_sampling()->add_bad_words(bad); })},
      {"prompt.chat.messages[0].content[0].text", ParseEdited([&](auto* r) {
         r->mutable_prompt()->mutable_chat()->add_messages()->add_content()->set_text(bad);
       })}};
  for (const auto& [path, status] : kCases) {
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), StartsWith(path + ": is not valid UTF-8"));
  }
}

TEST(MessageBytesTest, BytesThatAreNoMessage) {
  v1::GenerateRequest parsed;
  for (const std::string& bytes :
       {std::string("\xff\xff\xff\xff"), std::string("\x0a\x7f short"), std::string(3, '\0')}) {
    const absl::Status status = ParseRequest(Buffer(bytes), kMaxBytes, &parsed);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_EQ(status.message(), "the request is not a well-formed pagoda.v1.GenerateRequest");
  }
  EXPECT_TRUE(absl::IsInvalidArgument(ParseRequest(grpc::ByteBuffer(), kMaxBytes, &parsed)));
}

TEST(MessageBytesTest, Gzip) {
  v1::GenerateRequest request;
  request.mutable_prompt()->set_text(std::string(100000, 'x'));
  v1::GenerateRequest parsed;
  const std::string packed = Gzip(request.SerializeAsString());
  ASSERT_TRUE(ParseRequest(Buffer(packed), kMaxBytes, &parsed).ok());
  EXPECT_EQ(parsed.prompt().text(), request.prompt().text());
  // Broken in every place that matters.
  for (const size_t length : {size_t{2}, size_t{9}, packed.size() / 2, packed.size() - 1}) {
    EXPECT_TRUE(
        absl::IsInvalidArgument(ParseRequest(Buffer(packed.substr(0, length)), kMaxBytes, &parsed)))
        << length;
  }
  std::string flipped = packed;
  flipped[flipped.size() - 6] ^= 1;  // the checksum
  EXPECT_TRUE(absl::IsInvalidArgument(ParseRequest(Buffer(flipped), kMaxBytes, &parsed)));
}

TEST(MessageBytesTest, B105GzipThatInflatesTooFar) {
  v1::GenerateRequest request;
  request.mutable_prompt()->set_text(std::string(kMaxBytes + 1, 'x'));
  v1::GenerateRequest parsed;
  const absl::Status status =
      ParseRequest(Buffer(Gzip(request.SerializeAsString())), kMaxBytes, &parsed);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("1048576"));
}

}  // namespace
}  // namespace pagoda::daemon
