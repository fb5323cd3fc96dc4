#include "daemon/config/model_path.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pagoda::daemon {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kCommit[] = "0123456789abcdef0123456789abcdef01234567";

class ModelPathTest : public testing::Test {
 protected:
  ModelPathTest() : root_(fs::canonical(testing::TempDir()) / absl::StrCat("models.", getpid())) {
    const fs::path repository = root_ / "hub/models--org--tiny";
    fs::create_directories(repository / "snapshots" / kCommit);
    fs::create_directories(repository / "snapshots/older");
    fs::create_directories(repository / "refs/pr");
    std::ofstream(repository / "refs/main") << kCommit;
    std::ofstream(repository / "refs/pr/1") << "older\n";
    fs::create_directories(root_ / "plain");
    places_.hugging_face_cache = (root_ / "hub").string();
  }
  ~ModelPathTest() override { fs::remove_all(root_); }

  absl::Status Resolve(const std::string& model, const std::string& revision = "") {
    SettingSources sources;
    sources.flags["model"] = {model, "MODEL"};
    sources.flags["revision"] = {revision, "--revision"};
    merged_ = *MergeSettings(sources);
    return ResolveModel(places_, &merged_);
  }
  const internal::v1::ModelConfig& model() const { return merged_.config.model(); }

  const fs::path root_;
  ModelPlaces places_;
  MergedConfig merged_;
};

TEST_F(ModelPathTest, ADirectoryIsTakenAsItIs) {
  ASSERT_TRUE(Resolve((root_ / "hub/../plain/").string()).ok());
  EXPECT_EQ(model().path(), (root_ / "plain").string());
  EXPECT_THAT(model().served_names(), ElementsAre("plain"));
  EXPECT_EQ(model().revision(), "");
}

TEST_F(ModelPathTest, AHubNameIsLookedUpInTheCache) {
  ASSERT_TRUE(Resolve("org/tiny").ok());
  EXPECT_EQ(model().path(), (root_ / "hub/models--org--tiny/snapshots" / kCommit).string());
  EXPECT_THAT(model().served_names(), ElementsAre("org/tiny"));
  EXPECT_EQ(model().revision(), kCommit);
  ASSERT_TRUE(Resolve("org/tiny", "pr/1").ok());
  EXPECT_EQ(model().revision(), "older");
  ASSERT_TRUE(Resolve("org/tiny", kCommit).ok());
  EXPECT_EQ(model().revision(), kCommit);
}

TEST_F(ModelPathTest, WhatIsNotThereIsSaidWithWhatToDo) {
  for (const char* name : {"org/none", "nobody/tiny"}) {
    const absl::Status status = Resolve(name);
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("hf download ", name)));
  }
  EXPECT_FALSE(Resolve("org/tiny", "v9").ok());
  EXPECT_THAT(std::string(Resolve("/nowhere/model").message()),
              HasSubstr("model directory /nowhere/model: No such file or directory"));
}

// S17: no name leads out of the cache.
TEST_F(ModelPathTest, NamesAndRevisionsStayInTheCache) {
  for (const char* name :
       {"..nowhere/tiny", "org/..tiny", "org/tiny/../../nowhere", "/org/tiny", "org//tiny"}) {
    EXPECT_FALSE(Resolve(name).ok()) << name;
  }
  EXPECT_FALSE(Resolve("org/tiny", "../../../plain").ok());
  EXPECT_FALSE(Resolve("org/tiny", "/etc").ok());
  std::ofstream(root_ / "hub/models--org--tiny/refs/evil") << "../../../plain";
  EXPECT_FALSE(Resolve("org/tiny", "evil").ok());
}

TEST_F(ModelPathTest, TheDefaultModelIsTheFirstThatIsThere) {
  EXPECT_THAT(std::string(Resolve("").message()), HasSubstr("give MODEL"));
  places_.default_model = {
      (root_ / "none").string(), (root_ / "plain").string(), (root_ / "hub").string()};
  ASSERT_TRUE(Resolve("").ok());
  EXPECT_EQ(model().path(), (root_ / "plain").string());
  EXPECT_THAT(model().served_names(), ElementsAre("fable-7m"));
}

TEST(ModelPlacesTest, FindsTheModelOfTheSourceTree) {
  MergedConfig merged = *MergeSettings({});
  ASSERT_TRUE(ResolveModel(ModelPlaces::FromEnvironment(), &merged).ok());
  EXPECT_TRUE(fs::exists(fs::path(merged.config.model().path()) / "config.json"));
}

TEST(ModelPlacesTest, FollowsTheVariablesOfHuggingFace) {
  setenv("HF_HUB_CACHE", "/a", 1);
  setenv("HF_HOME", "/b", 1);
  setenv("XDG_CACHE_HOME", "/c", 1);
  EXPECT_EQ(ModelPlaces::FromEnvironment().hugging_face_cache, "/a");
  unsetenv("HF_HUB_CACHE");
  EXPECT_EQ(ModelPlaces::FromEnvironment().hugging_face_cache, "/b/hub");
  unsetenv("HF_HOME");
  EXPECT_EQ(ModelPlaces::FromEnvironment().hugging_face_cache, "/c/huggingface/hub");
  unsetenv("XDG_CACHE_HOME");
  setenv("HOME", "/home/d", 1);
  EXPECT_EQ(ModelPlaces::FromEnvironment().hugging_face_cache, "/home/d/.cache/huggingface/hub");
}

}  // namespace
}  // namespace pagoda::daemon
