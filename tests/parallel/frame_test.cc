#include "parallel/frame.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pagoda::parallel {
namespace {

using ::testing::HasSubstr;

std::string Frame(uint64_t sequence, absl::string_view payload) {
  std::string frame(kFrameHeaderBytes, '\0');
  EncodeFrameHeader(sequence, payload, frame.data());
  frame.append(payload.data(), payload.size());
  return frame;
}

// Feeds `bytes` in pieces of at most `piece_bytes`; the payloads that came, and the error that
// ended them, if any.
std::pair<std::vector<std::string>, absl::Status> Parse(absl::string_view bytes,
                                                        size_t piece_bytes = 1 << 20) {
  FrameParser parser;
  std::vector<std::string> payloads;
  while (true) {
    absl::string_view payload;
    const absl::StatusOr<bool> whole = parser.Next(&payload);
    if (!whole.ok()) return {payloads, whole.status()};
    if (*whole) {
      payloads.emplace_back(payload);
      continue;
    }
    if (bytes.empty()) return {payloads, absl::OkStatus()};
    const absl::Span<char> space = parser.Space();
    EXPECT_FALSE(space.empty());
    const size_t n = std::min({space.size(), bytes.size(), piece_bytes});
    std::memcpy(space.data(), bytes.data(), n);
    parser.Commit(n);
    bytes.remove_prefix(n);
  }
}

TEST(FrameParserTest, CutsAStreamHoweverItIsSplit) {
  const std::vector<std::string> payloads = {"", "a", std::string(70'000, 'x'), "bc", ""};
  std::string stream;
  for (size_t i = 0; i < payloads.size(); ++i) stream += Frame(i + 1, payloads[i]);
  for (const size_t piece_bytes : {1, 7, 31, 32, 33, 4096, 1 << 20}) {
    const auto [parsed, status] = Parse(stream, piece_bytes);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(parsed, payloads) << piece_bytes;
  }
}

TEST(FrameParserTest, NamesWhatIsWrong) {
  struct Case {
    size_t offset;
    const char* message;
  };
  for (const Case& c : {Case{0, "frame starts with"},
                        Case{4, "frame version"},
                        Case{8, "sequence number is"},
                        Case{23, "expected at most 268435456"},
                        Case{24, "checksum of frame 1"},
                        Case{kFrameHeaderBytes, "checksum of frame 1"}}) {
    std::string frame = Frame(1, "payload");
    frame[c.offset] ^= 0x40;
    const auto [parsed, status] = Parse(frame);
    EXPECT_TRUE(parsed.empty());
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message));
  }
}

TEST(FrameParserTest, RefusesARepeatedAndALostFrame) {
  EXPECT_FALSE(Parse(Frame(1, "a") + Frame(1, "a")).second.ok());
  EXPECT_FALSE(Parse(Frame(1, "a") + Frame(3, "c")).second.ok());
}

TEST(FrameParserTest, StaysFailed) {
  FrameParser parser;
  absl::Span<char> space = parser.Space();
  std::memset(space.data(), 0, 64);
  parser.Commit(64);
  absl::string_view payload;
  const absl::Status first = parser.Next(&payload).status();
  EXPECT_FALSE(first.ok());
  EXPECT_EQ(parser.Next(&payload).status(), first);
}

// A header may claim 256 MiB; memory follows what comes.
TEST(FrameParserTest, MemoryFollowsTheBytesNotTheClaim) {
  FrameParser parser;
  std::string header(kFrameHeaderBytes, '\0');
  EncodeFrameHeader(1, "", header.data());
  const uint64_t claim = kMaxFramePayloadBytes;
  std::memcpy(header.data() + 16, &claim, sizeof claim);
  std::memcpy(parser.Space().data(), header.data(), header.size());
  parser.Commit(header.size());
  absl::string_view payload;
  EXPECT_FALSE(parser.Next(&payload).value());
  EXPECT_LT(parser.Space().size(), size_t{1} << 20);
}

// Whatever is done to a stream, the parser gives a prefix of what was sent and then waits or fails;
// it never gives a payload that was not sent.
TEST(FrameParserTest, RandomMutationsNeverGiveAWrongPayload) {
  std::mt19937_64 random(20240607);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  for (int round = 0; round < 20'000; ++round) {
    std::vector<std::string> sent;
    std::string stream;
    const size_t num_frames = 1 + below(4);
    for (size_t i = 0; i < num_frames; ++i) {
      std::string payload(below(200), '\0');
      for (char& c : payload) c = static_cast<char>(random());
      stream += Frame(i + 1, payload);
      sent.push_back(std::move(payload));
    }
    const size_t num_mutations = 1 + below(3);
    for (size_t i = 0; i < num_mutations && !stream.empty(); ++i) {
      const size_t at = below(stream.size());
      switch (below(5)) {
        case 0:
          stream[at] ^= static_cast<char>(1u << below(8));
          break;
        case 1:
          stream.erase(at, 1 + below(40));
          break;
        case 2:
          stream.insert(at, 1 + below(40), static_cast<char>(random()));
          break;
        case 3:
          stream.resize(at);
          break;
        case 4: {
          const uint64_t field = random() >> below(64);
          stream.replace(at, 8, reinterpret_cast<const char*>(&field), 8);
          break;
        }
      }
    }
    const auto [parsed, status] = Parse(stream, 1 + below(64));
    ASSERT_LE(parsed.size(), sent.size());
    for (size_t i = 0; i < parsed.size(); ++i) ASSERT_EQ(parsed[i], sent[i]) << round;
  }
}

}  // namespace
}  // namespace pagoda::parallel
